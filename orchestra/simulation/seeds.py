"""Many seeds: a property is run under each, and the one that breaks it is named, with how to run it alone."""

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from orchestra.errors import UsageError
from orchestra.simulation.loop import SimulationStuck
from orchestra.simulation.simulation import Simulation

SEEDS_VARIABLE = "ORCHESTRA_SEEDS"
"""Overrides which seeds are run: one, as `123`, or a range without its end, as `0:5000`."""

Scenario = Callable[[Simulation], Coroutine[Any, Any, None]]


def each_seed(scenario: Scenario, count: int, *, limit: float = 3600.0) -> None:
    """Run `scenario` under the seeds 0 to `count` - 1, or those that the environment variable `ORCHESTRA_SEEDS` names.

    Args:
        scenario: makes what `Simulation.run` runs.
        count: how many seeds.
        limit: virtual seconds after which a run has failed.

    Raises:
        Exception: what the first seed that failed raised, with the seed in a note.
    """
    for seed in chosen_seeds(count):
        run_seed(scenario, seed, limit=limit)


def run_seed(scenario: Scenario, seed: int, *, limit: float = 3600.0) -> Simulation:
    """Run `scenario` under one seed, and return the simulation.

    Raises:
        Exception: what it raised, with the seed in a note.
    """
    simulation = Simulation(seed, limit=limit)
    try:
        simulation.run(scenario(simulation))
    except Exception as error:
        error.add_note(f"with seed {seed}; to run it alone: {SEEDS_VARIABLE}={seed} pytest …")
        if simulation.log and not isinstance(error, SimulationStuck):  # which tells all of that
            error.add_note("\n".join(["what was logged:", *simulation.log]))
        raise
    return simulation


def failing_seed(scenario: Scenario, count: int, *, limit: float = 3600.0) -> int | None:
    """Return the first of the seeds 0 to `count` - 1 under which `scenario` fails, or None: to see a bug found."""
    for seed in range(count):
        try:
            run_seed(scenario, seed, limit=limit)
        except Exception:  # whatever it is, it was found
            return seed
    return None


def chosen_seeds(count: int) -> Sequence[int]:
    """Return 0 to `count` - 1, or what the environment variable `ORCHESTRA_SEEDS` says.

    Raises:
        UsageError: the variable holds something else than `123` or `0:5000`.
    """
    text = os.environ.get(SEEDS_VARIABLE)
    if text is None:
        return range(count)
    first, colon, end = text.partition(":")
    try:
        return range(int(first), int(end)) if colon else [int(first)]
    except ValueError:
        raise UsageError(f"{SEEDS_VARIABLE}: expected a seed like 123 or a range like 0:5000, got {text!r}") from None
