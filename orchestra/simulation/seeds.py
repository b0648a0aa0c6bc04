"""Runs a scenario under many seeds, and names the seed that fails."""

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from orchestra.errors import UsageError
from orchestra.simulation.loop import SimulationStuck
from orchestra.simulation.simulation import Simulation

SEEDS_VARIABLE = "ORCHESTRA_SEEDS"
"""Environment variable that overrides the seeds: one (`123`), or a range without its end (`0:5000`)."""

Scenario = Callable[[Simulation], Coroutine[Any, Any, None]]


def each_seed(scenario: Scenario, count: int, *, limit: float = 3600.0) -> None:
    """Run `scenario` under the seeds 0 to `count` - 1, or under those of the environment variable `ORCHESTRA_SEEDS`.

    Args:
        scenario: returns the coroutine for `Simulation.run`.
        count: number of seeds.
        limit: virtual seconds after which a run fails.

    Raises:
        Exception: the exception of the first seed that fails, with the seed in a note.
    """
    for seed in chosen_seeds(count):
        run_seed(scenario, seed, limit=limit)


def run_seed(scenario: Scenario, seed: int, *, limit: float = 3600.0) -> Simulation:
    """Run `scenario` under one seed, and return the simulation.

    Raises:
        Exception: the exception of the scenario, with the seed in a note.
    """
    simulation = Simulation(seed, limit=limit)
    try:
        simulation.run(scenario(simulation))
    except Exception as error:
        error.add_note(f"with seed {seed}; to run it alone: {SEEDS_VARIABLE}={seed} pytest …")
        if simulation.log and not isinstance(error, SimulationStuck):  # its text holds the log
            error.add_note("\n".join(["log:", *simulation.log]))
        raise
    return simulation


def failing_seed(scenario: Scenario, count: int, *, limit: float = 3600.0) -> int | None:
    """Return the first seed from 0 to `count` - 1 under which `scenario` fails, or None. Shows that a bug is found."""
    for seed in range(count):
        try:
            run_seed(scenario, seed, limit=limit)
        except Exception:  # any failure counts
            return seed
    return None


def chosen_seeds(count: int) -> Sequence[int]:
    """Return 0 to `count` - 1, or the seeds of the environment variable `ORCHESTRA_SEEDS`.

    Raises:
        UsageError: the variable is neither like `123` nor like `0:5000`.
    """
    text = os.environ.get(SEEDS_VARIABLE)
    if text is None:
        return range(count)
    first, colon, end = text.partition(":")
    try:
        return range(int(first), int(end)) if colon else [int(first)]
    except ValueError:
        raise UsageError(f"{SEEDS_VARIABLE}: expected a seed like 123 or a range like 0:5000, got {text!r}") from None
