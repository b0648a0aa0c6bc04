"""The benchmarks of hosts: what the head of many hosts has, and how costs and the law of scaling are judged."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

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


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark of runs over hosts, imported as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import hosts

    yield hosts
    for name in ("hosts", "hosts_run"):
        del sys.modules[name]


def samples(hosts: ModuleType, links: str, exponent: float, *, busy_from: int = 100) -> list[Any]:
    """Three rounds at 1 to 8 hosts, the first and the last of them beside the law; some with busy processors."""
    return [
        hosts.Sample(links, h, 100.0 * h**exponent * noise, 0.9 if h >= busy_from else 0.4, 0.3)
        for noise in (0.5, 1.0, 1.25)
        for h in (1, 2, 4, 8)
    ]


def test_the_law_of_scaling_is_fitted_to_the_medians_of_the_rounds(hosts: ModuleType) -> None:
    assert hosts.exponent(samples(hosts, "free", 0.98)) == (pytest.approx(100.0), pytest.approx(0.98))


def test_the_table_judges_the_law_only_where_processors_are_not_busy(hosts: ModuleType) -> None:
    measured = samples(hosts, "free", 0.98, busy_from=8)
    measured += [replace(sample, links="slow", rate=0.96 * sample.rate) for sample in measured]
    measured = [replace(sample, rate=sample.rate / 2) if sample.hosts == 8 else sample for sample in measured]
    lines = hosts.scaling_table(measured)
    assert "| free | 1 | 100 | 75 to 112 | 3 | 40% | 30% |" in lines
    assert "free, processors used below 70 %: 100 h^0.980 steps/s (target: 0.97, holds)" in lines
    (whole,) = [line for line in lines if line.startswith("free, all hosts")]
    assert whole.endswith("(target: 0.97, missed)")
    assert lines[-1] == "slow: 0.960 of the rate with free links (target: 0.97, missed)"


def test_a_cost_is_judged_as_a_ratio_with_its_baseline(hosts: ModuleType) -> None:
    cost = hosts.Cost("experience", 102.0, 100.0, 1.02, "MB; arrays")
    assert str(cost) == "| experience | 102 | 100 | 1.020 | 1.02 | holds | MB; arrays |"
    assert "missed" in str(replace(cost, measured=103.0))


def test_a_host_is_back_once_the_rate_is_that_of_the_end(hosts: ModuleType) -> None:
    rates = [300.0] * 20 + [200.0] * 20 + [300.0] * 60
    steps = [sum(rates[:second]) for second in range(len(rates) + 1)]
    records = [{"elapsed_s": float(second), "env_steps": count} for second, count in enumerate(steps)]
    seconds, final = hosts.return_of(records, since=30.0)
    assert final == 300.0
    assert seconds == 11.0, "ten until it plays, and the next record"
