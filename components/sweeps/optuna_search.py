"""A search by Optuna: it chooses the next configuration, and the trials to prune."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from components.sweeps.configurations import Choices, Space

STUDY = "sweep"


class OptunaSearch:
    """A study of Optuna in a file, which a later process can continue.

    Args:
        path: the file, a journal of Optuna.
        space: the space to search.
        minimise: True to search for small scores.
    """

    def __init__(self, path: Path, space: Space, *, minimise: bool) -> None:
        optuna.logging.set_verbosity(logging.WARNING)
        self._space = space
        self._study = optuna.create_study(
            study_name=STUDY,
            storage=JournalStorage(JournalFileBackend(str(path))),
            sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True),
            pruner=optuna.pruners.MedianPruner(),
            direction="minimize" if minimise else "maximize",
            load_if_exists=True,
        )

    def trials(self) -> list[tuple[int, dict[str, Any]]]:
        """Return number and values of all trials so far, including ended ones, in order."""
        return [(each.number, each.params) for each in self._study.get_trials(deepcopy=False) if self._is_whole(each)]

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Begin a trial; return its number and its values."""
        trial = self._study.ask()
        for name, values in self._space.items():
            if isinstance(values, Choices):
                trial.suggest_categorical(name, values.texts)
            elif values.whole:
                trial.suggest_int(name, round(values.low), round(values.high), log=values.log)
            else:
                trial.suggest_float(name, values.low, values.high, log=values.log)
        return trial.number, trial.params

    def has_ended(self, number: int) -> bool:
        """Return whether `tell` has been called for a trial."""
        return self._frozen(number).state.is_finished()

    def was_pruned(self, number: int) -> bool:
        """Return whether a trial was pruned."""
        return self._frozen(number).state == TrialState.PRUNED

    def should_prune(self, number: int, scores: Sequence[float]) -> bool:
        """Return whether a trial with these scores of its tests so far is below the median of earlier trials."""
        trial = optuna.trial.Trial(self._study, self._frozen(number)._trial_id)
        known = self._frozen(number).intermediate_values
        for test, value in enumerate(scores):
            if test not in known:
                trial.report(value, test)
        return bool(scores) and trial.should_prune()

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        """End a trial with its score; None if it failed or was pruned."""
        if pruned or value is None:
            self._study.tell(number, state=TrialState.PRUNED if pruned else TrialState.FAIL)
        else:
            self._study.tell(number, value)

    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _is_whole(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Return whether a trial has all its values; a trial lacks some if its process was killed in `ask`."""
        whole = set(self._space) <= set(trial.params)
        if not whole and not trial.state.is_finished():
            with contextlib.suppress(RuntimeError):  # another process has already ended it
                self._study.tell(trial.number, state=TrialState.FAIL)
        return whole
