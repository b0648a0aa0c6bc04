"""Several runs side by side. Runs that differ only in their seed form a group with a median and quartiles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.reporting.progress import new_tests
from components.reporting.win_rate import SOLVED, WINDOW, solved_at
from orchestra import RunDirectory, UsageError, read_records


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: its K greedy tests in the order of their environment steps, and its speed."""

    name: str
    seed: int
    flags: Mapping[str, Any]
    env_steps: NDArray[np.float64]  # (K,)
    minutes: NDArray[np.float64]  # (K,)
    updates: NDArray[np.float64]  # (K,)
    win_rate: NDArray[np.float64]  # (K,); nan where episodes cannot be won
    returns: NDArray[np.float64]  # (K,)
    steps_per_s: float
    updates_per_s: float

    @property
    def has_returns_alone(self) -> bool:
        """True if its episodes cannot be won."""
        return bool(np.isnan(self.win_rate).all())

    def reached_at(self, axis: NDArray[np.float64]) -> float | None:
        """Return the point on `axis` (K,) at which a single test first won `SOLVED`; None if no test did."""
        reached = np.flatnonzero(self.win_rate >= SOLVED)
        return float(axis[reached[0]]) if len(reached) else None

    def solved_at(self, axis: NDArray[np.float64]) -> float | None:
        """Return the point on `axis` (K,) at which the run had solved its scenario (`win_rate.solved_at`), or None."""
        first = None if self.has_returns_alone else solved_at(self.win_rate.tolist())
        return None if first is None else float(axis[first])


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that differ only in their seed."""

    label: str
    trials: tuple[Trial, ...]

    @property
    def has_returns_alone(self) -> bool:
        """True if the episodes of its runs cannot be won."""
        return all(trial.has_returns_alone for trial in self.trials)

    def band(
        self, axis: Callable[[Trial], NDArray[np.float64]], value: Callable[[Trial], NDArray[np.float64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return points on the axis (G,), and the quartiles there (3, G): lower, median, upper.

        Between tests the results of a run are interpolated linearly. The band covers the range in which all runs have
        tests; it may be empty.
        """
        start = max(float(axis(trial)[0]) for trial in self.trials)
        stop = min(float(axis(trial)[-1]) for trial in self.trials)
        points = np.concatenate([axis(trial) for trial in self.trials])
        grid = np.unique(points[(points >= start) & (points <= stop)])
        lines = np.stack([np.interp(grid, axis(trial), value(trial)) for trial in self.trials])
        return grid, np.percentile(lines, [25, 50, 75], axis=0)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Return the run directories among `paths`, and the run directories inside them.

    Raises:
        UsageError: one of them is not a run and contains none.
    """
    found: list[Path] = []
    for path in paths:
        inside = [path] if (path / "config.json").exists() else sorted(c.parent for c in path.glob("**/config.json"))
        if not inside:
            raise UsageError(f"{str(path)!r} is no run, and there is none in it")
        found += [run for run in inside if run not in found]
    return found


_FIGURES = ("env_steps", "elapsed_s", "updates", "test_env_steps", "test_win_rate", "test_return")


def read_trial(path: Path) -> Trial:
    """Read the greedy tests of a run, finished or not.

    Raises:
        UsageError: it is not a run, its metrics are damaged, or it has no test yet.
    """
    run = RunDirectory.open(path)
    config = run.config()
    try:
        flags, seed = dict(config["flags"]), int(config["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{str(path)!r}: its config.json lacks {error}") from error
    try:
        records = read_records(run.metrics)
    except FileNotFoundError as error:
        raise UsageError(f"{str(path)!r} has no metrics") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    for number, record in enumerate(records, start=1):
        for name in _FIGURES:
            if not isinstance(record.get(name), int | float | None):
                raise UsageError(f"{run.metrics}, line {number}: {name} must be a number, not {record[name]!r}")
    tests = [record for record in new_tests(records) if record.get("test_return") is not None]
    if not tests:
        raise UsageError(f"{str(path)!r} has no greedy test yet")
    tests.sort(key=lambda record: record["test_env_steps"])  # of two players the later request may end first

    def column(name: str) -> NDArray[np.float64]:
        return np.array([record[name] for record in tests], np.float64)

    last = records[-1]
    # The rate leaves out the start of the run, which depends on the machine's caches.
    first = next((record for record in records if record["env_steps"] > 0), last)
    seconds = max(last["elapsed_s"] - first["elapsed_s"], 1e-9)
    return Trial(
        name=path.resolve().parent.name,
        seed=seed,
        flags=flags,
        env_steps=column("test_env_steps"),
        minutes=np.maximum.accumulate(column("elapsed_s") / 60),
        updates=np.maximum.accumulate(column("updates")),
        win_rate=column("test_win_rate"),
        returns=column("test_return"),
        steps_per_s=(last["env_steps"] - first["env_steps"]) / seconds,
        updates_per_s=(last["updates"] - first["updates"]) / seconds,
    )


def grouped(trials: Sequence[Trial]) -> list[Group]:
    """Group runs that differ only in their seed; the label of a group has its runs' name and its different flags."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.name, repr(sorted(trial.flags.items()))), []).append(trial)
    return [Group(_label(members[0], trials), tuple(members)) for members in groups.values()]


def _label(trial: Trial, trials: Sequence[Trial]) -> str:
    """Return its name, and the flags in which it differs from others of that name."""
    others = [other.flags for other in trials if other.name == trial.name]
    apart = [name for name, value in trial.flags.items() if any(other.get(name) != value for other in others)]
    return " ".join([trial.name, *(f"{name}={trial.flags[name]}" for name in apart)])


def table(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Return a row of printed cells for each group: medians over the seeds, with their quartiles."""
    rows = []
    for group in groups:
        trials = group.trials
        reached = [trial for trial in trials if trial.reached_at(trial.env_steps) is not None]
        solved = [trial for trial in trials if trial.solved_at(trial.env_steps) is not None]
        won = {}
        if not group.has_returns_alone:
            won = {
                f"one test at {SOLVED:.0%}": f"{len(reached)} of {len(trials)}",
                "after steps": _median([t.reached_at(t.env_steps) for t in reached], "{:,.0f}"),
                "minutes": _median([t.reached_at(t.minutes) for t in reached], "{:.1f}"),
                "solved": f"{len(solved)} of {len(trials)}",
                "from steps": _median([t.solved_at(t.env_steps) for t in solved], "{:,.0f}"),
                "updates": _median([t.solved_at(t.updates) for t in solved], "{:,.0f}"),
                "from minute": _median([t.solved_at(t.minutes) for t in solved], "{:.1f}"),
                "win rate at the end": _median([t.win_rate[-WINDOW:].mean() for t in trials], "{:.1%}"),
            }
        rows.append(
            {
                "runs": group.label,
                "seeds": str(len(trials)),
                **won,
                "return": _median([t.returns[-WINDOW:].mean() for t in trials], "{:.2f}"),
                "steps": _median([t.env_steps[-1] for t in trials], "{:,.0f}"),
                "in minutes": _median([t.minutes[-1] for t in trials], "{:.1f}"),
                "steps/s": _median([t.steps_per_s for t in trials], "{:,.0f}"),
                "updates/s": _median([t.updates_per_s for t in trials], "{:.1f}"),
            }
        )
    return rows


def _median(values: Sequence[Any], form: str) -> str:
    if not values:
        return "never"
    low, middle, high = (form.format(x) for x in np.percentile(np.array(values, np.float64), [25, 50, 75]))
    return middle if low == high else f"{middle} ({low} to {high})"
