"""The benchmark of many hosts counts what the head has, flat and in a tree."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from orchestra.testing import Simulation

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def hosts_simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark, imported as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hosts_simulated

    yield hosts_simulated
    del sys.modules["hosts_simulated"]


@pytest.mark.parametrize(("layout", "connections", "copies"), [("flat", 12, 6), ("tree", 4, 2)])
def test_a_tree_bounds_the_connections_of_the_head_and_its_copies_of_parameters(
    hosts_simulated: ModuleType, layout: str, connections: int, copies: int
) -> None:
    sim = Simulation(1)
    options = argparse.Namespace(workers=64, fan_out=2, episode_seconds=60.0)
    row = sim.run(hosts_simulated.measure(sim, layout, 6, options))
    assert row.connections == connections
    assert row.entries == 6 * 66
    a_copy = 4 * hosts_simulated.PARAMETERS / 1e6  # of the parameters, one a second
    assert copies * a_copy <= row.sent_mb_s <= 1.15 * copies * a_copy
    assert row.received_mb_s > 0.4  # every episode passes the head
    assert row.load > 0
