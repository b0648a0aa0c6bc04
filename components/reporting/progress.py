"""The progress of a training run: a record made by the Monitor, shown by the display, kept in `metrics.jsonl`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run at one moment. Missing figures are None."""

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
    """Win rate of the last hundred training episodes. Win rates are None if episodes cannot be won."""
    train_return: float | None
    tests: int
    """Greedy tests made so far."""
    test_win_rate: float | None
    """Win rate of the last greedy test."""
    test_return: float | None
    best_test_win_rate: float | None
    best_test_return: float | None
    loss: float | None
    epsilon: float | None
    params_lag: int | None
    """Lag, in versions, of the oldest parameters that recently acted behind the learner's."""
    params_lags: tuple[int, ...]
    """Environment steps so far by this lag: 0, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, 32 or more versions."""
    dropped_episodes: int
    """Episodes dropped because of their lag, as `--drop-stale` allows."""
    busiest_actor: str | None
    """The path of the actor with the deepest mailbox."""
    mailbox_depth: int | None
    workers: int
    """Workers that have joined and are alive."""
    restarts: int
    """Worker processes started again after they died."""
    sync: Mapping[str, float] = field(default_factory=dict)
    """Figures of the loading of parameters by workers, by name."""

    @property
    def has_returns_alone(self) -> bool:
        """True once there are returns but no win rates, because episodes cannot be won."""
        return (self.train_win_rate, self.test_win_rate) == (None, None) != (self.train_return, self.test_return)


LAGS = ("0", "1", "2-3", "4-7", "8-15", "16-31", "32+")
"""Names of the counts in `Progress.params_lags`."""


def flat_record(progress: Progress) -> dict[str, Any]:
    """Return the fields by name, and `lag_steps/0`, `lag_steps/1`, `lag_steps/2-3` … instead of `params_lags`.

    The figures of `sync` have names such as `sync/loads`.
    """
    fields = asdict(progress)
    fields |= {f"sync/{name}": figure for name, figure in fields.pop("sync").items()}
    counts = fields.pop("params_lags")
    return fields | {f"lag_steps/{name}": count for name, count in zip(LAGS, counts, strict=True)}


def new_tests(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records with a new test; every record repeats the last test."""
    return [after for before, after in pairwise([{}, *records]) if after.get("tests") != before.get("tests")]
