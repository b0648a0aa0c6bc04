"""The orchestrator counts and routes: it lets neither side run ahead, tests now and then, and ends the run."""

import errno
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from components.checkpoints import run_state
from components.checkpoints.policy_file import load_checkpoint
from components.envs.base import EnvSpec
from components.orchestrator import INTERRUPTED_S, LAST_EVALUATION_S, RETURN_S, Orchestrator, TrainerLost
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
    NotSavedMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    StateSavedMsg,
    TrainResultMsg,
    WorkerCountMsg,
)
from orchestra import CannotWrite, InterruptMsg, PlayedMsg, RunDirectory, UsageError
from orchestra.actors.cell import ActorFailed
from orchestra.actors.restarts import STOPPED

DOWN = (LoadParamsMsg, CollectMsg, SaveStateMsg)
SAVED = {SaveCheckpointMsg: "a file"}
NEVER = 10**9
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


class Run:
    """An orchestrator among probes."""

    def __init__(
        self, scene: Any, *, ratio: float = 1.0, min_size: int = 4, buffer: float = 100.0, **changed: Any
    ) -> None:
        self.scene = scene
        self.trajectories = scene.probe(
            "trajectories", InsertTransitionMsg, SampleBatchMsg, SaveCheckpointMsg, answers=SAVED
        )
        self.monitor = scene.probe(
            "monitor", ProgressMsg, PlayedMsg, EvaluationResultMsg, SaveCheckpointMsg, answers=SAVED
        )
        self.trainer = scene.probe("trainer", BatchTrainingDataMsg, SaveCheckpointMsg, answers=SAVED)
        self.limiter = SampleToInsertRatio(ratio, min_size=min_size, error_buffer=buffer)
        factory: dict[str, Any] = {
            "trajectories": self.trajectories.ref,
            "monitor": self.monitor.ref,
            "limiter": self.limiter,
            "batch_size": 2,
            "goal_steps": NEVER,
            "eval_interval": NEVER,
            "checkpoint_interval": NEVER,
        }
        self.ref = scene.node.spawn("orchestrator", Orchestrator, **factory | changed)
        self.cell = scene.node.cell(self.ref.address)

    async def tell(self, *messages: Any) -> None:
        for message in messages:
            await self.ref.tell(message)
            await self.scene.settle()

    async def join_trainer(self) -> None:
        await self.tell(params(0), ClaimRoleMsg(role="trainer", ref=self.trainer.ref))

    async def join_worker(self, name: str, environments: int = 1) -> Any:
        worker = self.scene.probe(name, *DOWN)
        await self.tell(JoinMsg(role="worker", ref=worker.ref, environments=environments))
        return worker

    async def join_evaluator(self, name: str = "evaluator") -> Any:
        evaluator = self.scene.probe(name, EvaluateMsg)
        await self.tell(ClaimRoleMsg(role="evaluator", ref=evaluator.ref))
        return evaluator

    async def train(self, n: int = 1) -> None:
        for _ in range(n):
            await self.tell(TrainResultMsg(number=0, seconds=0.25, metrics=(("loss", 0.5),)))

    @property
    def asked(self) -> list[int]:
        return [message.number for message in self.trajectories.of(SampleBatchMsg)]

    @property
    def progress(self) -> Any:
        return self.monitor.of(ProgressMsg)[-1]


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, version, np.float32), env_steps=None)


def result_at(
    env_steps: int, win_rate: float = 0.5, mean_return: float = 1.0, *, version: int = 1, final: bool = False
) -> EvaluationResultMsg:
    return EvaluationResultMsg(
        version=version,
        env_steps=env_steps,
        episodes=32,
        win_rate=win_rate,
        mean_return=mean_return,
        mean_length=2.0,
        final=final,
    )


# What may begin -------------------------------------------------------------------------------------------------------


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


# Tests and checkpoints ------------------------------------------------------------------------------------------------


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


def test_only_the_last_hundred_episodes_are_recent(run, stage, episodes) -> None:
    async def main() -> None:
        async with stage() as scene:
            play = Run(scene)
            await play.tell(episodes(*[1] * 150, won=False), episodes(*[1] * 25, won=True))
            assert (play.progress.train_win_rate, play.progress.episodes) == (0.25, 175)

    run(main())


# The end --------------------------------------------------------------------------------------------------------------


async def ended(play: Run) -> str:
    reason: str = await play.cell.terminated
    return reason


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
