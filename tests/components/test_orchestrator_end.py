"""The orchestrator ends a run: with a last evaluation, the best parameters and a checkpoint, or by a failure."""

from pathlib import Path
from typing import Any

import pytest
from orchestrator_run import NEVER, Run, ended, params, result_at
from structlog.testing import capture_logs

from components.checkpoints.policy_file import load_checkpoint
from components.deadlines import LAST_EVALUATION_S
from components.envs.base import EnvSpec
from components.orchestrator import TrainerLost
from messages import (
    CollectMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    ProgressMsg,
    SaveCheckpointMsg,
    StateSavedMsg,
    TrainResultMsg,
)
from orchestra.actors.cell import ActorFailed
from orchestra.actors.restarts import STOPPED


def test_a_run_ends_with_a_last_test_a_checkpoint_and_a_stop(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, goal_steps=10)
            await play.join_trainer()
            worker, evaluator = await play.join_worker("worker"), await play.join_evaluator()
            await play.tell(episodes(*[1] * 9))
            assert play.asked == [1, 2]
            await play.tell(result_at(9), episodes(1))
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=0, received=0, unit="segments")
            assert [message.env_steps for message in evaluator.of(EvaluateMsg)] == [9, 10]
            await play.train(2)
            assert play.asked == [1, 2]  # nothing new is begun
            assert not play.cell.stopping
            await play.tell(StateSavedMsg(ref=worker.ref, error=""), result_at(10))
            assert not play.cell.stopping
            await play.ref.tell(result_at(9, final=True))
            assert await ended(play) == STOPPED
            assert [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)] == [10]
            await scene.settle()
            results = [(message.env_steps, message.final) for message in play.monitor.of(EvaluationResultMsg)]
            assert results == [(9, False), (10, False), (9, True)]
            assert play.progress.state == "done"

    run(main())


def test_the_end_waits_for_the_batches_on_their_way(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=4)
            await play.join_trainer()
            await play.join_worker("worker")
            await play.tell(episodes(*[1] * 3), episodes(1), result_at(3), result_at(4), result_at(3, final=True))
            in_flight = len(play.asked)
            assert in_flight == 2
            await play.train(1)
            assert not play.cell.stopping
            await play.ref.tell(TrainResultMsg(number=2, seconds=0.0, metrics=()))
            assert await ended(play) == STOPPED

    run(main())


@pytest.mark.parametrize("again", ["after a checkpoint", "by a resumed run"])
def test_parameters_that_have_their_result_are_not_evaluated_again_at_the_end(
    run, stage, episodes, tmp_path: Path, again: str
) -> None:
    settings = {"checkpoint_interval": 4, "eval_interval": 4, "min_size": 100}

    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, **settings)
            await play.join_trainer()
            worker, evaluator = await play.join_worker("worker"), await play.join_evaluator()
            await play.tell(episodes(4), result_at(4, version=0))
            play.cell.actor.goal_steps = 4 if again == "after a checkpoint" else NEVER
            await play.tell(StateSavedMsg(ref=worker.ref, error=""))
            if again == "after a checkpoint":
                assert [(each.env_steps, each.final) for each in evaluator.of(EvaluateMsg)] == [(4, False), (4, True)]
                return
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, **settings, goal_steps=4)
            evaluator = await play.join_evaluator()
            await play.join_trainer()
            await play.join_worker("worker")
            assert [(each.env_steps, each.final) for each in evaluator.of(EvaluateMsg)] == [(4, True)]

    run(main())


def test_an_older_test_does_not_pass_for_the_last(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=10, eval_interval=1)
            await play.tell(params(0))
            await play.join_worker("one")
            await play.tell(episodes(9), episodes(1), result_at(9))
            assert not play.cell.stopping
            await play.tell(result_at(10))
            assert not play.cell.stopping
            await play.ref.tell(result_at(9, final=True))
            assert await ended(play) == STOPPED

    run(main())


async def evaluated(play: Run, episodes: Any, *tests: tuple[int, float, float]) -> None:
    """Tell parameters of a version, episodes of one step, and the result of their evaluation, test after test."""
    for version, win_rate, mean_return in tests:
        await play.tell(params(version), episodes(1), params(version + 1))
        await play.tell(result_at(play.progress.env_steps, win_rate, mean_return, version=version))


def best_of(folder: Path, scripted: Any) -> tuple[int, list[float]]:
    """The version and the parameters in `checkpoints/best.pt`."""
    policy = scripted(EnvSpec("", n_agents=1, n_actions=1, obs_size=1, state_size=1, episode_limit=1), seed=0)
    return load_checkpoint(folder / "checkpoints" / "best.pt", policy)["version"], policy.params().tolist()


@pytest.mark.parametrize(
    ("tests", "best"),
    [
        ([(10, 0.5, 9.0), (20, 1.0, 1.0), (30, 0.9, 9.0)], 20),  # the win rate counts first
        ([(10, 1.0, 5.0), (20, 1.0, 7.0), (30, 1.0, 6.0)], 20),  # and then the return
        ([(10, 0.0, 1.0), (20, 0.0, 1.0), (30, 0.0, 1.0)], 10),
    ],
)
def test_the_best_parameters_are_kept_as_they_played_and_play_new_episodes_at_the_end(
    run, stage, episodes, scripted, tmp_path: Path, tests: list[tuple[int, float, float]], best: int
) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, goal_steps=3, eval_interval=1, final_eval_episodes=77, min_size=100)
            await play.join_trainer()
            worker, evaluator = await play.join_worker("worker"), await play.join_evaluator()
            await evaluated(play, episodes, *tests)
            *ordinary, final = evaluator.of(EvaluateMsg)
            assert [message.final for message in ordinary] == [False] * 3
            assert (final.final, final.episodes, final.version, final.params.tolist()) == (True, 77, best, [best] * 2)
            await play.tell(StateSavedMsg(ref=worker.ref, error=""))
            late = result_at(final.env_steps, 0.0, version=best)  # of an evaluator that was taken for dead
            await play.tell(late)
            assert not play.cell.stopping
            result = result_at(final.env_steps, 0.75, version=best, final=True)
            await play.ref.tell(result)
            assert await ended(play) == STOPPED
            assert play.monitor.of(EvaluationResultMsg)[-1] == result
        assert best_of(tmp_path, scripted) == (best, [best] * 2)

    run(main())


def test_a_resumed_run_keeps_its_best_parameters(run, stage, episodes, scripted, tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"eval_interval": 1, "checkpoint_interval": 2, "min_size": 100}
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, **settings)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await evaluated(play, episodes, (10, 0.75, 1.0), (20, 0.5, 1.0))
            await play.tell(StateSavedMsg(ref=worker.ref, error=""))
            assert best_of(tmp_path, scripted) == (10, [10.0] * 2)
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, goal_steps=3, **settings)
            await play.join_trainer()
            await play.join_worker("worker")
            evaluator = await play.join_evaluator()
            await evaluated(play, episodes, (40, 0.5, 1.0))
            final = evaluator.of(EvaluateMsg)[-1]
            assert (final.final, final.version, final.params.tolist()) == (True, 10, [10.0] * 2)

    run(main())


def test_a_run_without_a_result_of_its_best_parameters_ends_nevertheless(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=1, eval_episodes=10, final_eval_episodes=20, min_size=100)
            await play.join_trainer()
            evaluator = await play.join_evaluator()
            await evaluated(play, episodes, (1, 1.0, 1.0))
            assert evaluator.of(EvaluateMsg)[-1].final
            scene.clock.advance(2 * LAST_EVALUATION_S - 1)  # it has twice as many episodes, and so twice the time
            await scene.settle()
            assert not play.cell.stopping
            scene.clock.advance(1)
            assert await ended(play) == STOPPED

    run(main())


def test_without_anybody_to_test_a_run_ends_at_its_goal(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=3)
            await play.ref.tell(episodes(3))
            assert await ended(play) == STOPPED

    run(main())


@pytest.mark.parametrize("lost", ["test", "batch"])
def test_a_run_does_not_wait_for_ever_for_what_was_lost(run, stage, episodes, lost: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=8)
            await play.join_trainer()
            await play.tell(episodes(*[1] * 4))
            if lost == "test":
                await play.train(2)
            await play.tell(episodes(4))
            scene.clock.advance(LAST_EVALUATION_S - 1)
            await scene.settle()
            assert not play.cell.stopping
            with capture_logs() as lines:
                scene.clock.advance(1)
                assert await ended(play) == STOPPED
            assert "the last evaluation or batch did not come back in time" in [line["event"] for line in lines]

    run(main())


def test_a_stop_that_is_no_interruption_saves_and_is_a_failure(run, stage, episodes, scripted, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, eval_interval=1)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            await play.tell(episodes(5), result_at(5, version=0))
            await scene.stop(play.ref)
            await scene.settle()
            for probe in (play.trajectories, play.trainer, play.monitor):
                assert [message.env_steps for message in probe.of(SaveCheckpointMsg)] == [5]
            assert [path.name for path in (tmp_path / "state").iterdir()] == ["steps-0000000005"]
            assert best_of(tmp_path, scripted)[0] == 0
            assert worker.of(CollectMsg)[-1] == CollectMsg(episodes=0, received=0, unit="segments")
            assert [message.state for message in play.monitor.of(ProgressMsg)][-2:] == ["saving", "failed"]

    run(main())


def test_a_failing_run_without_its_replay_buffer_still_saves_the_policy(run, stage, episodes, tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene)
            await play.join_trainer()
            await play.tell(episodes(5))
            await scene.stop(play.trajectories.ref)
            await scene.stop(play.ref)
            await scene.settle()
            assert [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)] == [5]
            assert list((tmp_path / "state").iterdir()) == []
            assert play.progress.state == "failed"

    run(main())


@pytest.mark.parametrize("how", ["dies", "stops"])
def test_a_lost_trainer_fails_the_run(run, stage, how: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            await play.join_trainer()
            if how == "dies":
                await scene.kill(play.trainer)
            else:
                await scene.stop(play.trainer.ref)
            await play.monitor.hear(EvaluationResultMsg)

    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="here/orchestrator")) as caught:
        run(main())
    cause = caught.value.exceptions[0].__cause__
    assert isinstance(cause, TrainerLost)
    assert str(cause).startswith("here/trainer: ")
