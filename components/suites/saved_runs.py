"""`runs.json` of a suite: its runs with all their tests, so that suites of several machines make one report."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from components.reporting.comparison import Trial
from components.suites.scores import Scores, scores_of
from orchestra import UsageError, write_json


class SavedRun(BaseModel):
    """One run: its greedy tests, K of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: str
    map: str
    seed: int
    commit: str
    """Commit of the program; empty if it is unknown."""
    env_steps: tuple[float, ...] = Field(min_length=1)  # (K,)
    minutes: tuple[float, ...]  # (K,)
    win_rate: tuple[float, ...]  # (K,), from 0 to 1
    returns: tuple[float, ...]  # (K,)
    jittered: dict[float, float]
    """Win rate of the best parameters in new battles, by the jitter of starting positions in cells."""

    @model_validator(mode="after")
    def _as_many_of_each(self) -> Self:
        if not len(self.env_steps) == len(self.minutes) == len(self.win_rate) == len(self.returns):
            raise ValueError("env_steps, minutes, win_rate and returns must be of the same length")
        if any(later <= earlier for earlier, later in pairwise(self.env_steps)):
            raise ValueError("env_steps must rise")
        rates = (*self.win_rate, *self.jittered.values())
        if wrong := [rate for rate in rates if not 0 <= rate <= 1]:
            raise ValueError(f"a win rate must be from 0 to 1, not {wrong[0]}")
        return self

    @property
    def key(self) -> tuple[str, str, int]:
        """Algorithm, map and seed."""
        return self.algorithm, self.map, self.seed

    def scores(self) -> Scores:
        """Return its scores."""
        none = np.full(len(self.env_steps), np.nan)
        trial = Trial(
            name="",
            seed=self.seed,
            flags={},
            env_steps=np.array(self.env_steps),
            minutes=np.array(self.minutes),
            updates=none,
            win_rate=np.array(self.win_rate),
            returns=np.array(self.returns),
            steps_per_s=np.nan,
            updates_per_s=np.nan,
        )
        return scores_of(trial, self.jittered)


class SavedRuns(BaseModel):
    """The finished runs of a suite, and their common settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    steps: int
    """Environment steps of each run."""
    flags: tuple[str, ...]
    """Further flags of each run."""
    episodes: int
    """New battles for each jitter."""
    runs: tuple[SavedRun, ...]

    def write(self, path: Path) -> None:
        """Write the file."""
        write_json(path, self.model_dump(mode="json"))


def saved_run(algorithm: str, scenario: str, seed: int, commit: str, scores: Scores) -> SavedRun:
    """Return a run in the form that is saved."""
    trial = scores.trial
    return SavedRun(
        algorithm=algorithm,
        map=scenario,
        seed=seed,
        commit=commit,
        env_steps=tuple(trial.env_steps.tolist()),
        minutes=tuple(trial.minutes.round(3).tolist()),
        win_rate=tuple(trial.win_rate.round(6).tolist()),
        returns=tuple(trial.returns.round(4).tolist()),
        jittered=dict(scores.jittered),
    )


def added_runs(paths: list[Path], settings: SavedRuns) -> Iterator[SavedRun]:
    """Yield the runs of other suites.

    Args:
        paths: paths of their `runs.json`.
        settings: settings of this suite, which must be equal in the others.

    Raises:
        UsageError: a file is missing or damaged, has other settings, or has a run that another file has with other
            results.
    """
    seen: dict[tuple[str, str, int], tuple[Path, SavedRun]] = {}
    for path in paths:
        try:
            saved = SavedRuns.model_validate_json(path.read_bytes())
        except OSError as error:
            raise UsageError(f"--add: {str(path)!r} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = "".join(f"{part}." for part in first["loc"]).removesuffix(".")
            said = f"{place}: {first['msg']}" if place else first["msg"]
            raise UsageError(f"--add: {str(path)!r} is no runs.json of a suite: {said}") from error
        for name in ("suite", "steps", "flags", "episodes"):
            theirs, ours = getattr(saved, name), getattr(settings, name)
            if theirs != ours:
                raise UsageError(
                    f"--add: the runs in {str(path)!r} have {name} {theirs!r}, those of this suite {ours!r}"
                )
        for run in saved.runs:
            if run.key not in seen:
                seen[run.key] = path, run
                yield run
            elif seen[run.key][1] != run:
                algorithm, scenario, seed = run.key
                raise UsageError(
                    f"--add: {str(path)!r} and {str(seen[run.key][0])!r} have different results of {algorithm} on "
                    f"{scenario} with seed {seed}"
                )
