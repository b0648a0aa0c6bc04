"""An actor that fails long after its birth: its flight record replays to the same exception at the same line."""

from math import inf
from pathlib import Path

import pytest

from orchestra import Replay
from orchestra.cli.main import main
from orchestra.trace.format.records import Kind
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording import snapshots

pytestmark = pytest.mark.slow

EXPERIMENT = '''
"""QMIX with actors that fail when it is least convenient."""

from pathlib import Path

from components import Orchestrator, Trainer, Worker, WorkerProxy
from components.worker import StepMsg
from messages import BatchTrainingDataMsg, InsertTransitionMsg, TrainResultMsg
from orchestra import Escalate, Topology, on
from orchestra.runs.experiment import extends, load_experiment


class FailingTrainer(Trainer):
    @on(BatchTrainingDataMsg)
    async def train(self, msg: BatchTrainingDataMsg) -> None:
        await super().train(msg)
        if msg.number == 60:
            raise ArithmeticError(f"{float(self._policy.params().sum())!r}")


class FailingWorker(Worker):
    supervision = Escalate()

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        await super().step(msg)
        if self._env_steps > 12_000:
            raise ArithmeticError(f"{self.rng.random()!r} {float(self._rollout._copies.hidden.sum())!r}")


class FailingProxy(WorkerProxy):
    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        await super().insert(msg)
        params = self._published.params
        if params is not None and params.env_steps > 12_000:
            raise ArithmeticError(f"{params.version} {sorted(self._workers.refs)}")


class FailingOrchestrator(Orchestrator):
    @on(TrainResultMsg)
    async def trained(self, msg: TrainResultMsg) -> None:
        await super().trained(msg)
        if self._counters.env_steps > 1500:
            counters = self._counters
            raise ArithmeticError(f"{counters.env_steps} {counters.updates} {counters.limiter.inserted}")


FAILING = {
    "trainer": FailingTrainer, "worker": FailingWorker, "proxy": FailingProxy, "orchestrator": FailingOrchestrator,
}


@extends(load_experiment(Path("STANDARD")))
def experiment(topology: Topology, *, fails: str = "nobody") -> Topology:
    for node in topology.nodes.values():
        for actor in list(node.actors):
            if actor.name == fails:
                node.replace(actor.name, FAILING[fails])
    return topology
'''
STANDARD = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"
FLAGS = [
    *("--scenario", "3m", "--steps", "20000", "--envs-per-worker", "4", "--learning-starts", "8", "--batch-size", "4"),
    *("--updates-per-episode", "0.5", "--hidden-size", "16", "--eval-interval", "600", "--eval-episodes", "2"),
    *("--final-eval-episodes", "2"),
    *("--single-process", "--seed", "1", "--trace-flight-mib", "1", "--prioritized"),
]


@pytest.fixture(params=["learner/trainer", "worker-0-0/worker", "host-0/proxy", "learner/orchestrator"])
def failed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A run in which an actor failed when the flight record had long forgotten its birth, and the actor."""
    # Snapshots may take any share of the time: on a busy machine a slow one would delay the next beyond the record.
    monkeypatch.setattr(snapshots, "COST", inf)
    actor = str(request.param)
    file = tmp_path / "failing.py"
    file.write_text(EXPERIMENT.replace("STANDARD", str(STANDARD)))
    words = ["run", str(file), *FLAGS, "--fails", actor.partition("/")[2], "--runs-dir", str(tmp_path / "runs")]
    assert main(words) == 1
    (run,) = (tmp_path / "runs").glob("*/*")
    return run, actor


def test_a_failure_long_after_birth_is_replayed_to_the_same_line(
    failed: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, actor = failed
    capsys.readouterr()
    with RunTrace(run) as trace:
        (recording,) = [each for each in trace.recordings if each.header.node == actor.partition("/")[0]]
        rows = [(index, row) for index in recording.indexes for row in index.rows(Kind.HANDLED, actor=actor)]
        numbers = [int(index.entries["n"][row]) for index, row in rows]
        assert numbers[0] > 0  # its constructor and `started` have left the record
    with Replay(run, actor) as replay:
        assert replay.first > 1
        count = replay.run()
        failure = replay.failure_record
        assert count >= 1
    assert failure is not None
    assert failure.type == "ArithmeticError"
    assert main(["replay", str(run), "--actor", actor]) == 0
    said = capsys.readouterr()
    assert f"it fails as recorded: ArithmeticError: {failure.text}  (" in said.out
    assert f"failing.py:{failure.line})" in said.out
    assert f"the replay begins with a snapshot of {actor} before delivery {replay.first:,}" in said.err
