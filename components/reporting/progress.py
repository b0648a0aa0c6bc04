"""How far a training run is: one record, made by the Monitor, shown by the display and kept in `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """A training run at one moment. Figures that do not exist yet are None."""

    state: str
    """`starting`, `collecting`, `training`, `saving`; then `done`, `interrupted`, `stopped`, `failed` or `aborted`."""
    elapsed_s: float
    env_steps: int
    goal_steps: int
    episodes: int
    updates: int
    env_steps_per_s: float
    updates_per_s: float
    train_win_rate: float | None
    """Of the last hundred training episodes."""
    train_return: float | None
    tests: int
    """Greedy tests made so far."""
    test_win_rate: float | None
    """Of the last greedy test."""
    test_return: float | None
    best_test_win_rate: float | None
    loss: float | None
    epsilon: float | None
    params_lag: int | None
    """Versions by which the oldest parameters that recently acted were behind the learner's."""
    busiest_actor: str | None
    """The path of the actor with the deepest mailbox."""
    mailbox_depth: int | None
    workers: int
    """Workers that have joined and are alive."""
    restarts: int
    """Worker processes started again after they died."""


def new_tests(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records with a new test, of records each of which repeats the last test."""
    return [after for before, after in pairwise([{}, *records]) if after.get("tests") != before.get("tests")]
