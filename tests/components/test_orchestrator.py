"""The orchestrator counts and routes: it lets neither side run ahead, tests now and then, and ends the run."""

import math
from pathlib import Path

import pytest
from orchestrator_run import DOWN, SAVED, SPEC, Run, params, result_at
from structlog.testing import capture_logs

from components.orchestrator import REPORT_S, Orchestrator
from components.replay_buffers import SampleToInsertRatio
from components.run_evaluations import MOST_WAITING
from components.trainer import Trainer
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    StateSavedMsg,
    WorkerCountMsg,
)
from orchestra import UsageError
from orchestra.actors.cell import ActorFailed

# What may begin -------------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.usefixtures("four_ahead")


def test_sampling_before_there_are_enough_episodes_for_a_batch_is_refused(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            with pytest.raises(UsageError) as caught:
                Orchestrator(
                    trajectories=scene.node.ref("here/a"),
                    monitor=scene.node.ref("here/b"),
                    limiter=SampleToInsertRatio(1.0, min_size=31, error_buffer=10.0),
                    batch_size=32,
                    goal_steps=1,
                )
            assert str(caught.value) == ("a batch is 32 episodes, but sampling would begin at 31; begin at 32 or later")

    run(main())


def test_a_second_trainer_is_rejected_and_the_first_stays(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, min_size=2)
            await play.join_trainer()
            second = scene.probe("second", BatchTrainingDataMsg, SaveCheckpointMsg, answers=SAVED)
            assert await play.ref.ask(ClaimRoleMsg(role="trainer", ref=second.ref)) == (
                "here/second cannot join here/orchestrator: here/trainer is the Trainer of this run, and a run has one"
            )
            assert await play.ref.ask(ClaimRoleMsg(role="trainer", ref=play.trainer.ref)) == ""  # it may join again
            await scene.kill(second)  # nobody watches it
            await play.tell(episodes(1, 1))
            assert {message.trainer for message in play.trajectories.of(SampleBatchMsg)} == {play.trainer.ref}

    run(main())


def test_a_rejected_trainer_fails_and_publishes_nothing(run, stage, scripted) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            worker = await play.join_worker("worker")
            trainer = {"spec": SPEC, "policy": scripted, "to": play.ref}
            scene.node.spawn("first", Trainer, **trainer)
            await scene.settle()
            published = worker.of(LoadParamsMsg)
            assert len(published) == 1
            try:
                scene.node.spawn("second", Trainer, **trainer)
                await scene.settle()
            finally:
                assert worker.of(LoadParamsMsg) == published

    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="here/second")) as caught:
        run(main())
    cause = caught.value.exceptions[0].__cause__
    assert isinstance(cause, UsageError)
    assert str(cause).startswith("here/second cannot join here/orchestrator: here/first is the Trainer")


# Flows ----------------------------------------------------------------------------------------------------------------


def test_what_comes_in_goes_on_untouched(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            message = episodes(2, 3)
            await play.tell(message)
            (passed,) = play.trajectories.of(InsertTransitionMsg)
            assert passed is message

    run(main())


def test_parameters_go_to_all_below_with_the_steps_of_the_run(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            one, other = await play.join_worker("one"), await play.join_worker("other")
            await play.tell(episodes(2, 3), params(1), episodes(4), params(2))
            for worker in (one, other):
                loads = [(load.version, load.env_steps, load.params[0]) for load in worker.of(LoadParamsMsg)]
                assert loads == [(1, 5, 1.0), (2, 9, 2.0)]

    run(main())


def test_who_joins_late_gets_the_newest_parameters_and_the_pace(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            early = await play.join_worker("early")
            assert early.told == [CollectMsg(episodes=4, received=0, unit="segments")]
            await play.tell(params(0), params(1))
            late = await play.join_worker("late", environments=3)
            assert [load.version for load in late.of(LoadParamsMsg)] == [1]
            assert late.told[1:] == [CollectMsg(episodes=12, received=0, unit="segments")]

    run(main())


def test_workers_behind_proxies_are_counted(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            proxy = scene.probe("proxy", *DOWN)
            await play.tell(JoinMsg(role="proxy", ref=proxy.ref, environments=0))
            assert play.progress.workers == 0
            await play.tell(WorkerCountMsg(proxy=proxy.ref, workers=3, environments=3))
            await play.join_worker("lone")
            assert play.progress.workers == 4
            with capture_logs() as lines:
                await scene.kill(proxy)
                await scene.settle()
            assert [line["address"] for line in lines if line["event"] == "lost"] == ["here/proxy"]
            assert play.progress.workers == 1
            await play.tell(params(1))  # and nobody is told who is not there
            assert not play.cell.stopping

    run(main())


# The limiter ----------------------------------------------------------------------------------------------------------


def test_no_batch_is_asked_for_before_the_minimum_is_there(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, min_size=4)
            await play.join_trainer()
            await play.tell(episodes(1), episodes(1, 1))
            assert play.asked == []
            await play.tell(episodes(1))
            assert play.asked == [1, 2]

    run(main())


def test_no_batch_is_asked_for_before_there_is_a_trainer(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            await play.tell(episodes(*[1] * 8))
            assert play.asked == []
            await play.join_trainer()
            await play.tell(episodes(1))
            assert play.asked == [1, 2]

    run(main())


@pytest.mark.parametrize("in_flight", [1, 2, 5])
def test_so_many_batches_are_on_their_way_and_no_more(run, stage, episodes, in_flight: int) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, batches_in_flight=in_flight)
            await play.join_trainer()
            await play.tell(episodes(*[1] * 50))
            for done in range(10):
                assert play.asked == list(range(1, in_flight + done + 1))
                await play.train()

    run(main())


@pytest.mark.parametrize("ratio", [0.1, 0.5, 1.0, 2.5])
def test_batches_and_episodes_keep_their_ratio_exactly(run, stage, episodes, ratio: float) -> None:
    async def main() -> None:
        async with stage() as scene:
            buffer = max(2.0, 2.0 * ratio)
            play = Run(scene, ratio=ratio, buffer=buffer, batches_in_flight=1)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            for inserted in range(1, 60):
                assert worker.of(CollectMsg)[-1].credit(inserted - 1)  # a Trainer that keeps up never makes it wait
                await play.tell(episodes(1, sender=worker.ref.address))
                while len(play.asked) > play.progress.updates:
                    await play.train()
                # As many as the limiter ever allows: diff may fall to ratio * min_size - buffer, and no further.
                lowest = ratio * 4 - buffer
                allowed = 0 if inserted < 4 else math.floor(inserted * ratio - lowest + 1e-9)
                assert len(play.asked) == max(allowed, 0)

    run(main())


def test_workers_wait_while_the_trainer_is_behind_and_go_on_after(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, ratio=1.0, min_size=2, buffer=3.0, batches_in_flight=1)
            await play.join_trainer()
            worker = await play.join_worker("worker")
            for sent in range(5):  # one sample is taken at the second; diff may be up to 5
                assert worker.of(CollectMsg)[-1].credit(sent) == min(5 - sent + (sent > 1), 4), sent
                await play.tell(episodes(1, sender=worker.ref.address))
            await play.tell(episodes(1, sender=worker.ref.address))
            assert worker.of(CollectMsg)[-1].credit(6) == 0
            late = await play.join_worker("late")
            assert late.of(CollectMsg) == []
            await play.train(2)
            assert [each.of(CollectMsg)[-1].credit(sent) for each, sent in ((worker, 6), (late, 0))] == [1, 1]

    run(main())


def test_the_error_buffer_follows_the_environments_that_play(run, stage) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, ratio=0.5, min_size=4, buffer=7.0, buffer_per_environment=2.0)
            assert (play.limiter.min_diff, play.limiter.max_diff) == (-5.0, 9.0)
            worker = await play.join_worker("worker", environments=1)
            assert (play.limiter.min_diff, play.limiter.max_diff) == (-2.0, 6.0)  # at least LEAST_BUFFER
            proxy = scene.probe("proxy", *DOWN)
            await play.tell(JoinMsg(role="proxy", ref=proxy.ref, environments=0))
            assert proxy.of(CollectMsg) == []
            await play.tell(WorkerCountMsg(proxy=proxy.ref, workers=2, environments=4))
            assert (play.limiter.min_diff, play.limiter.max_diff) == (-8.0, 12.0)
            assert proxy.of(CollectMsg) == [CollectMsg(episodes=16, received=0, unit="segments")]
            await play.tell(WorkerCountMsg(proxy=proxy.ref, workers=1, environments=3))
            assert play.limiter.max_diff == 10.0
            await scene.kill(proxy)
            await scene.settle()
            assert play.limiter.max_diff == 6.0
            await scene.kill(worker)
            await scene.settle()
            assert play.limiter.max_diff == 6.0

    run(main())


@pytest.mark.parametrize("how", ["it dies", "its workers die", "it starts anew"])
def test_the_credits_of_a_lost_proxy_go_to_the_others(run, stage, episodes, how: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, ratio=1.0, min_size=2, buffer=8.0)
            one, other = (scene.probe(name, *DOWN) for name in ("one", "other"))
            for proxy in (one, other):
                await play.tell(JoinMsg(role="proxy", ref=proxy.ref, environments=0))
                await play.tell(WorkerCountMsg(proxy=proxy.ref, workers=1, environments=2))
            assert [each.of(CollectMsg)[-1].episodes for each in (one, other)] == [8, 2]
            await play.tell(episodes(1, 1, sender=one.ref.address))
            if how == "it dies":
                await scene.kill(one)
                await scene.settle()
            elif how == "its workers die":
                await play.tell(WorkerCountMsg(proxy=one.ref, workers=0, environments=0))
            else:
                await play.tell(JoinMsg(role="proxy", ref=one.ref, environments=0))
            assert other.of(CollectMsg)[-1] == CollectMsg(episodes=8, received=0, unit="segments")

    run(main())


def test_a_sample_names_the_batch_size_and_the_trainer(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, batch_size=3)
            await play.join_trainer()
            await play.tell(episodes(*[1] * 4))
            sample = play.trajectories.of(SampleBatchMsg)[0]
            assert (sample.batch_size, sample.trainer) == (3, play.trainer.ref)

    run(main())


# Evaluations ----------------------------------------------------------------------------------------------------------


def test_evaluations_are_requested_at_their_interval_and_played_one_after_the_other(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, eval_interval=10, eval_episodes=7)
            evaluator = await play.join_evaluator()
            await play.tell(params(0))
            at = []
            for length in (3, 3, 3, 3, 3, 25, 1, 1, 2, 6):  # 3 6 9 12 15 40 41 42 44 50
                await play.tell(episodes(length))
                at.append(len(evaluator.of(EvaluateMsg)))
            assert at == [1] * 10  # it plays the first
            due = [3, 12, 40, 50]
            for played, env_steps in enumerate(due, start=1):
                assert [message.env_steps for message in evaluator.of(EvaluateMsg)] == due[:played]
                await play.tell(result_at(env_steps))
            assert {message.episodes for message in evaluator.of(EvaluateMsg)} == {7}
            assert play.monitor.of(EvaluationResultMsg) == [result_at(env_steps) for env_steps in due]
            assert len(evaluator.of(EvaluateMsg)) == len(due)

    run(main())


def test_an_evaluator_that_is_too_slow_plays_the_newest_parameters(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, eval_interval=1)
            evaluator = await play.join_evaluator()
            await play.tell(params(0))
            await play.tell(*[episodes(1)] * (1 + MOST_WAITING + 2))
            for env_steps in (1, *range(4, 4 + MOST_WAITING)):
                assert evaluator.of(EvaluateMsg)[-1].env_steps == env_steps
                await play.tell(result_at(env_steps))
            assert len(play.monitor.of(EvaluationResultMsg)) == 1 + MOST_WAITING

    run(main())


def test_an_evaluator_gets_what_was_due_before_it_joined(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, eval_interval=10)
            await play.tell(params(0), episodes(3), params(1))
            evaluator = await play.join_evaluator()
            assert [(message.env_steps, message.version) for message in evaluator.of(EvaluateMsg)] == [(3, 0)]

    run(main())


@pytest.mark.parametrize("again", ["it dies", "it starts anew"])
def test_the_evaluation_of_a_lost_evaluator_is_played_again_and_counts_once(run, stage, episodes, again: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, eval_interval=10)
            evaluator = await play.join_evaluator()
            await play.tell(params(0), episodes(3))
            asked = evaluator.of(EvaluateMsg)
            if again == "it dies":
                await scene.kill(evaluator)
                await scene.settle()
                evaluator = await play.join_evaluator("next")
                assert evaluator.of(EvaluateMsg) == asked  # with the same seed
            else:
                await play.tell(ClaimRoleMsg(role="evaluator", ref=evaluator.ref))
                assert evaluator.of(EvaluateMsg) == asked * 2
            await play.tell(result_at(3), result_at(3))
            assert play.monitor.of(EvaluationResultMsg) == [result_at(3)]
            await scene.kill(evaluator)
            await scene.settle()
            assert (await play.join_evaluator("late")).of(EvaluateMsg) == []

    run(main())


def test_no_two_evaluations_of_a_run_have_the_same_seed_nor_do_two_runs(run, stage, episodes, tmp_path: Path) -> None:
    async def seeds(seed: int, resume_from: Path | None = None) -> list[int]:
        async with stage(run_directory=tmp_path / str(seed), seed=seed, resume_from=resume_from) as scene:
            play = Run(scene, eval_interval=1, checkpoint_interval=4, min_size=100)
            await play.join_trainer()
            worker, evaluator = await play.join_worker("worker"), await play.join_evaluator()
            await play.tell(result_at(4, version=0))  # of the evaluation that a checkpoint has kept
            for _ in range(5):
                await play.tell(episodes(1), StateSavedMsg(ref=worker.ref, error=""))
                await play.tell(result_at(play.progress.env_steps, version=0))
            return [message.seed for message in evaluator.of(EvaluateMsg)]

    async def main() -> None:
        found = await seeds(1)
        assert len(found) == 5
        (state,) = (tmp_path / "1" / "state").iterdir()
        resumed = await seeds(1, state)
        assert resumed[:2] == found[3:]
        found += [*resumed[2:], *await seeds(2)]
        assert len(set(found)) == len(found) == 5 + 4 + 5

    run(main())


@pytest.mark.parametrize("role", ["trainer", "evaluator"])
def test_a_second_actor_in_a_role_that_a_run_has_once_is_rejected(run, stage, role: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            first, second = (scene.probe(name, EvaluateMsg) for name in ("first", "second"))
            assert await play.ref.ask(ClaimRoleMsg(role=role, ref=first.ref)) == ""
            assert await play.ref.ask(ClaimRoleMsg(role=role, ref=second.ref)) == (
                f"here/second cannot join here/orchestrator: here/first is the {role.capitalize()} of this run, and a "
                "run has one"
            )
            assert await play.ref.ask(ClaimRoleMsg(role=role, ref=first.ref)) == ""  # it may join again

    run(main())


def test_a_checkpoint_does_not_wait_for_an_evaluation_and_a_resumed_run_plays_it(
    run, stage, episodes, tmp_path: Path
) -> None:
    async def main() -> None:
        settings = {"checkpoint_interval": 4, "eval_interval": 3, "min_size": 100}
        async with stage(run_directory=tmp_path) as scene:
            play = Run(scene, **settings)
            await play.join_trainer()
            evaluator = await play.join_evaluator()
            await play.tell(*[episodes(1)] * 4, params(9))
            assert [message.env_steps for message in play.trainer.of(SaveCheckpointMsg)] == [4]
            pending = [*evaluator.of(EvaluateMsg), *play.cell.actor._evaluations.pending[1:]]
        (state,) = (tmp_path / "state").iterdir()
        async with stage(run_directory=tmp_path, resume_from=state) as scene:
            play = Run(scene, **settings)
            evaluator = await play.join_evaluator()
            await play.tell(result_at(1, version=0))
            assert [(each.env_steps, each.seed, each.params.tolist()) for each in evaluator.of(EvaluateMsg)] == [
                (each.env_steps, each.seed, each.params.tolist()) for each in pending
            ]
            assert [each.env_steps for each in pending] == [1, 3]

    run(main())


# Progress -------------------------------------------------------------------------------------------------------------


def test_progress_is_told_as_it_is(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, goal_steps=1000)
            await scene.settle()
            assert (play.progress.state, play.progress.train_win_rate, play.progress.epsilon) == (
                "starting",
                None,
                None,
            )
            await play.tell(params(5))
            await play.tell(episodes(2, 4, reward=0.5, version=3, epsilon=0.25))
            await play.tell(episodes(6, won=True, version=4, epsilon=0.125))
            seen = play.progress
            assert (seen.state, seen.env_steps, seen.goal_steps, seen.episodes) == ("collecting", 12, 1000, 3)
            assert (seen.train_win_rate, seen.train_return, seen.train_length) == (1 / 3, (1 + 2 + 6) / 3, 4.0)
            assert (seen.epsilon, seen.params_lag) == (0.125, 1)
            assert seen.params_lags == (0, 6, 6, 0, 0, 0, 0)
            assert seen.dropped_episodes == 0
            await play.train()
            seen = play.progress
            assert (seen.state, seen.updates, dict(seen.metrics)) == ("training", 1, {"loss": 0.5, "learner_s": 0.25})

    run(main())


def test_counts_are_reported_ten_times_a_second_and_other_news_at_once(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene, eval_interval=43)
            evaluator = await play.join_evaluator()
            await play.tell(episodes(1))
            before = len(play.monitor.of(ProgressMsg))
            for _ in range(40):
                scene.clock.advance(0.26 * REPORT_S)
                await play.ref.tell(episodes(1))
                await scene.settle()
            assert len(play.monitor.of(ProgressMsg)) == before + 10
            await play.ref.tell(episodes(1))
            await scene.settle()
            assert play.progress.env_steps == 41
            await play.ref.tell(WorkerCountMsg(proxy=scene.probe("proxy", *DOWN).ref, workers=0, environments=0))
            await scene.settle()
            assert play.progress.env_steps == 42
            await play.ref.tell(params(0))
            await play.ref.tell(episodes(1))
            await scene.settle()
            assert [message.env_steps for message in evaluator.of(EvaluateMsg)] == [43]
            assert play.progress.env_steps == 42
            await play.ref.tell(result_at(43, version=0))
            await scene.settle()
            assert [type(message) for message in play.monitor.told[-2:]] == [ProgressMsg, EvaluationResultMsg]
            assert play.progress.env_steps == 43

    run(main())


def test_only_the_last_hundred_episodes_are_recent(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            await play.tell(episodes(*[1] * 150, won=False), episodes(*[1] * 25, won=True))
            assert (play.progress.train_win_rate, play.progress.episodes) == (0.25, 175)

    run(main())
