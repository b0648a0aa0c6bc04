"""A run of several processes: every actor of it, replayed from birth to end, says the same byte for byte."""

import signal
from pathlib import Path
from typing import Any

import pytest

from orchestra import Replay, RunDirectory
from orchestra.actors.sparse_array import opened
from orchestra.trace.format.records import Delivery
from orchestra.trace.reading.run_trace import RunTrace

pytestmark = pytest.mark.slow


ACTORS = {
    "worker-0-0/worker": {"told": {"InsertTransitionMsg", "JoinMsg", "StepMsg"}},
    "worker-0-1/worker": {"told": {"InsertTransitionMsg", "JoinMsg", "StepMsg"}},
    "host-0/proxy": {"told": {"InsertTransitionMsg", "LoadParamsMsg", "WorkerCountMsg", "CollectMsg"}},
    "evaluator/evaluator": {"told": {"EvaluationResultMsg"}, "asked": {"ClaimRoleMsg"}},
    "learner/orchestrator": {
        "told": {"SampleBatchMsg", "LoadParamsMsg", "ProgressMsg"},
        "asked": {"SaveCheckpointMsg"},
    },
    "learner/trajectories": {"told": {"BatchTrainingDataMsg"}},
    "learner/trainer": {
        "told": {"UpdatePriorityMsg", "TrainResultMsg", "LoadParamsMsg"},
        "answered": {"SaveCheckpointMsg"},
    },
}


@pytest.mark.parametrize("actor", ACTORS)
def test_an_actor_does_again_what_it_did(recorded_run: Path, actor: str) -> None:
    said: set[tuple[str, str]] = set()
    with Replay(recorded_run, actor) as replay:
        count = replay.run(each=lambda replayed: said.update((each.verb, each.kind) for each in replayed.outputs))
        assert replay.activation is None
        assert replay.notes == ()
    with RunTrace(recorded_run) as trace:
        assert count == sum(1 for _ in trace.activations(trace.incarnation(actor)))
    assert count > (5 if actor == "evaluator/evaluator" else 20)
    assert said >= {(verb, kind) for verb, kinds in ACTORS[actor].items() for kind in kinds}


def test_a_worker_plays_with_the_same_random_numbers(recorded_run: Path) -> None:
    """The simulator's and the policy's: its proxy was told just the episodes that it tells again, to the last bit."""
    with RunTrace(recorded_run) as trace:
        told = [
            delivery
            for each in trace.activations(trace.incarnation("host-0/proxy"))
            if isinstance(delivery := each.delivery, Delivery) and delivery.type.name == "InsertTransitionMsg"
        ]
        first = next(delivery for delivery in told if delivery.id.sender == "worker-0-0/worker")
        assert first.fields is not None
        recorded = trace.resolved(dict(first.fields))
    with Replay(recorded_run, "worker-0-0/worker") as replay:
        found = None
        while found is None:
            replayed = replay.step()
            assert replayed is not None
            found = next((each for each in replayed.outputs if each.kind == "InsertTransitionMsg"), None)
    assert opened(found.fields["per_frame"]["obs"]).tobytes() == opened(recorded["per_frame"]["obs"]).tobytes()
    assert found.fields["per_step"]["reward"].tobytes() == recorded["per_step"]["reward"].tobytes()


def test_every_actor_of_a_run_that_was_interrupted_and_resumed_is_replayed(launch: Any) -> None:
    interrupted = launch("--steps", "1000000000", "--checkpoint-interval", "400", "--trace", "full")
    interrupted.until_playing()
    interrupted.until(lambda: list(interrupted.run.glob("state/steps-*[0-9]")))
    interrupted.process.send_signal(signal.SIGINT)
    interrupted.ends()
    saved = int(RunDirectory(interrupted.run).newest_state().name.removeprefix("steps-"))
    resumed = launch.command("run", "--resume", interrupted.run, "--steps", str(saved + 300), "--trace", "full")
    assert resumed.ends() == 0, resumed.story("failed")
    with RunTrace(resumed.run) as trace:
        lives = [(each.key, each.resume_from) for each in trace.incarnations()]
    assert sum(bool(state) for _, state in lives) == 7  # all actors of the second run, on four nodes
    for (address, generation, incarnation), _ in lives:
        with Replay(resumed.run, address, generation=generation, incarnation=incarnation) as replay:
            assert replay.run() > 1
