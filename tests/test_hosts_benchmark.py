"""The benchmarks of hosts: what the head of many hosts has, and how costs and the law of scaling are judged."""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestra.testing import Simulation

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
PARTS = ("hosts_costs", "hosts_return", "hosts_run", "hosts_scaling")


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
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """The parts of the benchmark of runs over hosts, imported as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for name in [name for name in sys.modules if name in PARTS]:
        del sys.modules[name]


def samples(scaling: ModuleType, links: str, exponent: float, *, busy_from: int = 100) -> list[Any]:
    """Three rounds at 1 to 8 hosts, the first and the last of them beside the law; some with busy processors."""
    return [
        scaling.Sample(links, h, 100.0 * h**exponent * noise, 0.9 if h >= busy_from else 0.4, 0.3, 0.02)
        for noise in (0.5, 1.0, 1.25)
        for h in (1, 2, 4, 8)
    ]


def test_the_law_of_scaling_is_fitted_to_the_medians_of_the_rounds(benchmark: Callable[[str], Any]) -> None:
    scaling = benchmark("hosts_scaling")
    assert scaling.exponent(samples(scaling, "free", 0.98)) == (pytest.approx(100.0), pytest.approx(0.98))


def test_the_table_judges_the_law_only_where_processors_are_not_busy(benchmark: Callable[[str], Any]) -> None:
    scaling = benchmark("hosts_scaling")
    measured = samples(scaling, "free", 0.98, busy_from=8)
    measured += [replace(sample, links="slow", rate=0.96 * sample.rate) for sample in measured]
    measured = [replace(sample, rate=sample.rate / 2) if sample.hosts == 8 else sample for sample in measured]
    lines = scaling.scaling_table(measured)
    assert "| free | 1 | 100 | 75 to 112 | 3 | 40% | 30% | 2% |" in lines
    assert "free, processors used below 70 %: 100 h^0.980 steps/s (target: 0.97, holds)" in lines
    (whole,) = [line for line in lines if line.startswith("free, all hosts")]
    assert whole.endswith("(target: 0.97, missed)")
    assert lines[-1] == "slow: 0.960 of the rate with free links (target: 0.97, missed)"


def test_a_verdict_says_that_other_programs_were_at_work(benchmark: Callable[[str], Any]) -> None:
    scaling = benchmark("hosts_scaling")
    measured = samples(scaling, "free", 0.98)
    (line,) = scaling.scaling_table([*measured[:-1], replace(measured[-1], others=0.3)])[-1:]
    assert line.endswith("(target: 0.97, holds, NOT IDLE: others used 30%)")


def test_a_cost_is_judged_as_a_ratio_with_its_baseline(benchmark: Callable[[str], Any]) -> None:
    cost = benchmark("hosts_costs").Cost("experience", 102.0, 100.0, 1.02, "MB; arrays")
    assert str(cost) == "| experience | 102 | 100 | 1.020 | 1.02 | holds | MB; arrays |"
    assert "| holds, NOT IDLE: others used 30% |" in str(replace(cost, others=0.3))
    assert "missed" in str(replace(cost, measured=103.0))
    assert not replace(cost, measured=103.0).holds


def records(*rates: float) -> list[dict[str, float]]:
    """A record each 5 s of a run with these rates between them, in steps a second."""
    return [{"elapsed_s": 100.0 + 5.0 * n, "env_steps": 7.0 + 5.0 * sum(rates[:n])} for n in range(len(rates) + 1)]


def test_the_rate_is_back_with_the_first_window_that_has_the_rate_before(benchmark: Callable[[str], Any]) -> None:
    returns = benchmark("hosts_return")
    found = returns.return_of(records(200, 200, 300, 200, 290, 300, 300), 100.0, 300.0, 200.0, 7.0)
    assert (found.rate_s, found.after, found.missed) == (20.0, 300.0, "")
    late = returns.return_of(records(*[200] * 7, 300, 300), 100.0, 300.0, 200.0, 7.0)
    assert (late.rate_s, late.missed) == (35.0, "target: 30 s")


@pytest.mark.parametrize(
    ("after", "before", "without", "missed"),
    [
        ((200, 200, 200, 200), 300.0, 200.0, "the rate was not back within 60 s: 67% of the rate before"),
        ((300, 300, 300, 300), 300.0, 290.0, "the loss does not show: the others had 97% of the rate before"),
    ],
)
def test_a_rate_that_is_not_back_and_a_loss_that_nobody_sees_miss_the_target(
    benchmark: Callable[[str], Any], after: tuple[float, ...], before: float, without: float, missed: str
) -> None:
    found = benchmark("hosts_return").return_of(records(*after), 100.0, before, without, 7.0)
    assert found.missed == missed
    assert missed in str(found)


@pytest.mark.parametrize(
    ("after", "before", "without", "said"),
    [
        ((300, 300, 0, 0), 300.0, 200.0, "nothing was collected afterwards"),
        ((300, 300, 300), 0.0, 200.0, "nothing was collected before the loss"),
        ((300, 300, 300), 300.0, 0.0, "nothing was collected without the host"),
        ((300,), 300.0, 200.0, "there are no records of 8 s after the return"),
    ],
)
def test_a_rate_of_nothing_ends_the_benchmark(
    benchmark: Callable[[str], Any], after: tuple[float, ...], before: float, without: float, said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        benchmark("hosts_return").return_of(records(*after), 100.0, before, without, 7.0)
