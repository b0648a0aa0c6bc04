"""The benchmark of scaling says of each target whether it holds, by the medians of its rounds."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
RECORDS = [
    {"env_steps": steps, "updates": updates, "elapsed_s": elapsed, "state": state}
    for steps, updates, elapsed, state in [
        (0, 0, 0.0, "starting"),
        (500, 0, 5.0, "collecting"),
        (1500, 2, 10.0, "training"),
        (2700, 6, 16.0, "training"),
        (2800, 6, 19.0, "saving"),
    ]
]


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The benchmark, imported as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scaling

    yield scaling
    for name in ("scaling", "steady_run"):
        sys.modules.pop(name, None)


def test_a_rate_is_taken_between_records_of_the_steady_state(scaling: ModuleType) -> None:
    import steady_run

    trained = steady_run.steady(RECORDS, steady_run.trains)
    assert (trained.seconds, trained.rate("env_steps"), trained.rate("updates")) == (6.0, 200.0, pytest.approx(4 / 6))
    collected = steady_run.steady(RECORDS, steady_run.collects)
    assert (collected.seconds, collected.rate("env_steps")) == (11.0, 200.0)
    assert steady_run.steady(RECORDS[:2], steady_run.collects) is None


def test_the_table_compares_medians_with_the_targets(scaling: ModuleType) -> None:
    rounds = {
        "game": [{"game 12": ratio, "serial steps/s": 90.0} for ratio in (12.1, 3.0, 11.5)],
        "simulator": [{"messages": share, "worker PSS": 95.2} for share in (0.04, 0.09, 0.03)],
    }
    lines = scaling.report(rounds)
    assert "| AWL-QMIX with 12 environments, of serial QMIX | 11.50 x | at least 11.00 x | 3 | holds |" in lines
    messages = "messages, copies and proxy, of processor time"
    assert f"| {messages} | 4.0% | at most 5.0% | 3 | holds |" in lines
    assert "| memory of a worker, 64 battles | 95 MB | at most 90 MB | 3 | missed |" in lines
    assert lines[-1] == "serial steps/s: 90"


def test_playing_and_saving_have_threads_beside_the_event_loops(scaling: ModuleType) -> None:
    def process(pid: int, **threads: float) -> SimpleNamespace:
        found = [
            SimpleNamespace(id=pid if name == "main" else pid + 1, user_time=seconds, system_time=1.0)
            for name, seconds in threads.items()
        ]
        return SimpleNamespace(pid=pid, threads=lambda: found)

    nodes: dict[str, Any] = {
        "learner": process(10, main=2.0, other=3.0),
        "host-0": process(20, main=4.0),
        "worker-0-0": process(30, main=5.0, play=90.0),
        "worker-0-1": process(40, main=6.0, play=80.0),
    }
    spent = scaling.processor_seconds(SimpleNamespace(processes=lambda: nodes))
    assert spent == {"learner": 3.0, "saving": 4.0, "host": 5.0, "worker": 13.0, "playing": 172.0}


def test_every_target_is_measured_by_one_group(scaling: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    named = [target for _, targets in scaling.GROUPS.values() for target in targets]
    assert sorted(named) == sorted(scaling.TARGETS)
    scaling.main(["--list", "--only", "game"])
    assert "asynchronous, of lock-step, 64 environments" in capsys.readouterr().out
