"""The orchestrator saves the run, ends it when it is interrupted, and resumes it."""

import errno
from pathlib import Path
from typing import Any

import pytest
from orchestrator_run import NEVER, Run, ended, params, result_at
from structlog.testing import capture_logs

from components.checkpoints import run_state
from components.deadlines import INTERRUPTED_S, RETURN_S
from messages import (
    CollectMsg,
    LoadParamsMsg,
    NotSavedMsg,
    ProgressMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    StateSavedMsg,
)
from orchestra import CannotWrite, InterruptMsg, RunDirectory
from orchestra.actors.cell import ActorFailed
from orchestra.actors.restarts import STOPPED

pytestmark = pytest.mark.usefixtures("four_ahead")


def test_the_run_is_saved_at_its_interval_by_all_that_hold_something(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=10, min_size=100)
            await play.join_trainer()
            await play.tell(*[episodes(4)] * 6)
            for probe in (play.trajectories, play.trainer, play.monitor):
                assert [message.env_steps for message in probe.of(SaveCheckpointMsg)] == [12, 20]
            states = [message.state for message in play.monitor.of(ProgressMsg)]
            assert states.count("saving") == 2
            assert states[-1] == "collecting"
            assert [path.name for path in (tmp_path / "state").iterdir()] == ["steps-0000000020"]

    run(main())


def test_all_stand_still_until_everything_is_saved(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4)
            await play.join_trainer()
            one, other = await play.join_worker("one"), await play.join_worker("other")
            await play.tell(params(1), episodes(*[1] * 4))
            assert play.asked == [1, 2]
            (told,) = one.of(SaveStateMsg)
            assert (told.env_steps, told.reply_to) == (4, play.ref)
            # The other had told of the episode before it saved.
            await play.tell(StateSavedMsg(ref=one.ref, error=""), episodes(1))
            await play.train(2)
            assert play.asked == [1, 2]  # nothing new is begun
            assert not play.trajectories.of(SaveCheckpointMsg)
            late = await play.join_worker("late")
            assert late.of(CollectMsg) == []

            await play.tell(result_at(4), StateSavedMsg(ref=other.ref, error=""))
            assert [type(message).__name__ for message in play.trajectories.told[-3:]] == [
                "SaveCheckpointMsg",
                "SampleBatchMsg",
                "SampleBatchMsg",
            ]
            for worker in (one, other, late):
                assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=4, received=0, unit="segments")
                assert worker.of(LoadParamsMsg)[-1].env_steps == 5

    run(main())


def test_a_worker_that_dies_while_the_run_is_saved_is_not_waited_for(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100, eval_interval=NEVER)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(episodes(*[1] * 4))
            assert not play.trainer.of(SaveCheckpointMsg)
            await scene.kill(worker)
            await scene.settle()
            assert [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)] == [4]

    run(main())


def test_an_interrupted_run_is_saved_by_all_and_then_ends(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(params(1), episodes(*[1] * 5))
            assert play.asked == [1, 2]
            await play.tell(InterruptMsg(state="stopped"))
            assert [message.env_steps for message in worker.of(SaveStateMsg)] == [5]
            await play.tell(episodes(2), StateSavedMsg(ref=worker.ref, error=""), result_at(5))
            await play.train()
            assert not play.cell.stopping  # a batch is still on its way
            await play.train()
            assert await ended(play) == STOPPED
            assert play.asked == [1, 2]
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=0, received=0, unit="segments")
            for probe in (play.trajectories, play.trainer, play.monitor):
                assert [message.env_steps for message in probe.of(SaveCheckpointMsg)] == [7]  # with what came meanwhile
            await scene.settle()
            assert play.progress.state == "stopped"
            state = tmp_path / "state" / "steps-0000000007"
            values, _ = run_state.read(state, play.ref.address)
            assert (values["env_steps"], values["updates"]) == (7, 2)

    run(main())


def test_an_interrupted_run_waits_for_who_does_not_save_but_not_for_ever(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, min_size=100)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(episodes(5), InterruptMsg())
            scene.clock.advance(INTERRUPTED_S - 1)
            await scene.settle()
            assert not play.cell.stopping
            with capture_logs() as lines:
                scene.clock.advance(1)
                assert await ended(play) == STOPPED
            (line,) = (line for line in lines if line["event"].startswith("only the policy is saved"))
            assert line["unsaved"] == [worker.ref.address]
            assert [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)] == [5]
            assert not [path for path in (tmp_path / "state").iterdir() if path.suffix != ".unfinished"]

    run(main())


@pytest.mark.parametrize("why", ["no trainer", "no files", "nothing new"])
def test_an_interrupted_run_that_has_nothing_to_save_ends_at_once(run, stage, episodes, tmp_path: Path, why) -> None:
    async def main() -> None:
        async with stage(run_directory=None if why == "no files" else tmp_path) as scene:
            play = Run(scene, checkpoint_interval=5, min_size=100)
            if why != "no trainer":
                await play.join_trainer()
            await play.tell(episodes(5), InterruptMsg())
            assert await ended(play) == STOPPED
            saved = [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)]
            assert saved == ([5] if why == "nothing new" else [])

    run(main())


def test_an_interruption_while_the_run_is_saved_ends_it_after_that(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(episodes(5), InterruptMsg())
            assert not play.cell.stopping
            await play.tell(result_at(5), StateSavedMsg(ref=worker.ref, error=""))
            assert await ended(play) == STOPPED
            assert len(worker.of(SaveStateMsg)) == 1
            assert [path.name for path in (tmp_path / "state").iterdir()] == ["steps-0000000005"]

    run(main())


def test_a_resumed_run_waits_for_its_workers_and_goes_on_where_it_stood(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(params(3), episodes(*[1] * 4), result_at(4))
            await play.train(2)
            await play.tell(StateSavedMsg(ref=worker.ref, error=""))
            before = play.progress
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, checkpoint_interval=4)
            await play.join_trainer()
            await play.tell(params(3))
            assert play.asked == []
            assert (play.limiter.inserted, play.limiter.sampled) == (4, 2)
            worker = await play.join_worker("worker")
            assert play.asked == [3, 4]
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=4, received=0, unit="segments")
            for name in ("env_steps", "episodes", "updates", "train_return", "epsilon", "params_lag", "metrics"):
                assert getattr(play.progress, name) == getattr(before, name), name

    run(main())


@pytest.mark.parametrize(("goal", "asked"), [(4, []), (5, [3, 4])])
def test_a_run_that_had_ended_learns_nothing_more_when_it_is_resumed_unless_its_goal_is_higher(
    run, stage, episodes, tmp_path: Path, goal: int, asked: list[int]
) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, goal_steps=4)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.join_evaluator()
            await play.tell(params(3), episodes(*[1] * 4))
            await play.train(2)
            await play.tell(result_at(4), StateSavedMsg(ref=worker.ref, error=""), result_at(4, final=True))
            assert await ended(play) == STOPPED
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, goal_steps=goal)
            await play.join_trainer()
            await play.tell(params(3))
            await play.join_worker("worker")
            assert play.asked == asked

    run(main())


def test_a_resumed_run_does_not_wait_for_ever(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100)
            await play.join_trainer()
            workers = [await play.join_worker(name) for name in ("one", "other")]
            await play.tell(
                episodes(*[1] * 4), result_at(4), *[StateSavedMsg(ref=worker.ref, error="") for worker in workers]
            )
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene)
            await play.join_trainer()
            worker = await play.join_worker("one")
            assert worker.of(CollectMsg) == []
            with capture_logs() as logs:
                scene.clock.advance(RETURN_S)
                await scene.settle()
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=4, received=0, unit="segments")
            assert "continues without workers that have not joined again" in [line["event"] for line in logs]

    run(main())


@pytest.mark.parametrize("had", [1, 3])
def test_a_resumed_run_waits_for_the_workers_that_it_starts_with(run, stage, episodes, tmp_path: Path, had) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100)
            await play.join_trainer()
            workers = [await play.join_worker(f"worker-{index}") for index in range(had)]
            await play.tell(episodes(*[1] * 4), *[StateSavedMsg(ref=worker.ref, error="") for worker in workers])
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, workers=2)
            await play.join_trainer()
            one = await play.join_worker("one")
            assert one.of(CollectMsg) == []
            other = await play.join_worker("other")
            assert [each.of(CollectMsg)[-1].episodes for each in (one, other)] == [4, 4]

    run(main())


FULL = "No space left on device"
STATE_5 = "steps-0000000005"


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, FULL)


async def checkpointed(play: Run, worker: Any, episodes: Any, error: str = "") -> None:
    """Four steps more, after which a checkpoint is due; the worker answers `error`."""
    await play.tell(episodes(4), StateSavedMsg(ref=worker.ref, error=error))


@pytest.mark.parametrize("who", ["worker", "trainer", "trajectories", "monitor", "best", "own", "begin", "commit"])
def test_after_a_checkpoint_that_cannot_be_written_the_run_goes_on_and_the_next_one_succeeds(
    run, stage, episodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(params(1), episodes(1), result_at(1, version=1))
            await checkpointed(play, worker, episodes)
            first = read_state(tmp_path)
            probe = {"trainer": play.trainer, "trajectories": play.trajectories, "monitor": play.monitor}.get(who)
            with monkeypatch.context() as filled, capture_logs() as logs:
                if probe is not None:
                    filled.setitem(probe._answers, SaveCheckpointMsg, NotSavedMsg(error=FULL))
                elif who == "best":
                    filled.setattr("components.run_evaluations.save_params", full)
                elif who in ("own", "begin", "commit"):
                    filled.setattr(run_state, who.replace("own", "write"), full)
                await checkpointed(play, worker, episodes, FULL if who == "worker" else "")
            assert (read_state(tmp_path), [path.name for path in (tmp_path / "state").iterdir()]) == (first, [STATE_5])
            assert [line["error"] for line in logs if line["log_level"] == "error"] == [FULL]
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=4, received=0, unit="segments")
            await checkpointed(play, worker, episodes)
            assert [path.name for path in (tmp_path / "state").iterdir()] == ["steps-0000000013"]
            assert not play.cell.stopping

    run(main())


def read_state(run_directory: Path) -> Any:
    """What the last complete checkpoint has of the orchestrator."""
    return run_state.read(RunDirectory(run_directory).newest_state(), "here/orchestrator")[0]


@pytest.mark.parametrize("why", ["again", "interrupted", "goal"])
def test_a_run_that_cannot_save_fails_with_its_last_complete_checkpoint_which_stays(
    run, stage, episodes, tmp_path: Path, why: str
) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, checkpoint_interval=4, min_size=100, goal_steps=9 if why == "goal" else NEVER)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(params(1), episodes(1), result_at(1, version=1))
            await checkpointed(play, worker, episodes)
            if why == "interrupted":
                await play.tell(episodes(1), InterruptMsg(), StateSavedMsg(ref=worker.ref, error=FULL))
            elif why == "goal":
                final = result_at(1, version=1, final=True)
                await play.tell(episodes(4), result_at(9), final, StateSavedMsg(ref=worker.ref, error=FULL))
            else:
                await checkpointed(play, worker, episodes, FULL)
                await checkpointed(play, worker, episodes, FULL)
            assert play.cell.terminated.done()
            assert play.progress.state == "failed"

    with pytest.RaisesGroup(ActorFailed) as caught:
        run(main())
    (failed,) = caught.value.exceptions
    assert isinstance(failed.__cause__, CannotWrite)
    last = tmp_path / "state" / STATE_5
    assert str(failed.__cause__) == f"cannot save: {FULL}; the last complete checkpoint is {last}"
    assert [path.name for path in last.parent.iterdir()] == [STATE_5]
    assert read_state(tmp_path)["env_steps"] == 5


def test_a_run_that_cannot_save_its_policy_at_the_end_fails(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, min_size=100)
            await play.join_trainer()
            await play.join_worker("worker")
            await play.tell(episodes(1))
            play.trainer._answers[SaveCheckpointMsg] = NotSavedMsg(error=FULL)
            await play.tell(InterruptMsg())
            scene.clock.advance(INTERRUPTED_S)
            await scene.settle()
            assert play.cell.terminated.done()

    with pytest.RaisesGroup(ActorFailed) as caught:
        run(main())
    (failed,) = caught.value.exceptions
    assert str(failed.__cause__) == f"cannot save: {FULL}; no checkpoint is complete"
