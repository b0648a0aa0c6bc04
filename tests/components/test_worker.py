"""A worker plays when it may and knows how to, tells what ended, and finds its way back to whoever takes it."""

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from structlog.testing import capture_logs

from components.schedule import LinearSchedule
from components.synchronization import ALWAYS, SyncRule
from components.worker import PATIENCE_S, QUIET_TURNS, REJOIN_S, RETRY_S, StepMsg, Worker
from messages import (
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SyncMsg,
    VersionMsg,
)
from orchestra import Arrays

UP = (JoinMsg, InsertTransitionMsg)
PLAN = ((2,), (3,))


def params(version: int, env_steps: int = 0, value: float = 0.0) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, value, np.float32), env_steps=env_steps)


def announcement(version: int) -> VersionMsg:
    return VersionMsg(version=version, required=-1, env_steps=None, probes=None, outputs=Arrays({}))


@pytest.fixture
def spawn(corridor, scripted):
    def start(scene, up, name="worker", **changed):
        factory = {
            "env": partial(corridor, plan=PLAN),
            "policy": scripted,
            "to": up.ref,
            "n_envs": 2,
            "exploration": LinearSchedule(1.0, 0.0, over=100),
            "steps_per_turn": 6,
        }
        return scene.node.spawn(name, Worker, **factory | changed)

    return start


def test_a_worker_says_that_it_is_there(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            joined = await up.hear(JoinMsg)
            assert (joined.role, joined.ref) == ("worker", worker)

    run(main())


@pytest.mark.parametrize("first", ["parameters", "pace"])
def test_a_worker_waits_until_it_has_parameters_and_is_told_to_run(run, stage, spawn, first: str) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            told = [params(4), CollectMsg(episodes=None, received=0, unit="segments")]
            for message in told if first == "parameters" else reversed(told):
                await scene.settle()
                assert up.of(InsertTransitionMsg) == []
                await worker.tell(message)
            message = await up.hear(InsertTransitionMsg, 3)
            assert message.versions.tolist() == [4] * message.steps

    run(main())


def test_each_turn_is_told_in_one_message(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(params(0))
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await up.hear(InsertTransitionMsg, 4)
            assert [message.lengths.tolist() for message in up.of(InsertTransitionMsg)][:4] == [[2, 3, 2, 2, 3]] * 4

    run(main())


@pytest.mark.parametrize(("steps", "lengths"), [(6, [2, 3, 2, 2, 3]), (12, [2, 3, 2, 2, 3] * 2)])
def test_turns_have_another_length_while_no_version_comes(
    run, stage, spawn, monkeypatch: pytest.MonkeyPatch, steps: int, lengths: list[int]
) -> None:
    monkeypatch.setattr("components.worker.QUIET_TURNS", 2)

    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up, quiet_steps_per_turn=steps)
            await worker.tell(params(0))
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await up.hear(InsertTransitionMsg, 5)
            told = [message.lengths.tolist() for message in up.of(InsertTransitionMsg)][:5]
            assert told == [[2, 3, 2, 2, 3]] * 2 + [lengths] * 3

    run(main())


@pytest.mark.parametrize(
    ("rule", "news", "of_versions"),
    [
        pytest.param(ALWAYS, params, True, id="parameters"),
        pytest.param(SyncRule(max_lag=10_000), announcement, True, id="announcements"),
        pytest.param(ALWAYS, lambda _: params(0), False, id="the same parameters again"),
        pytest.param(ALWAYS, None, False, id="nothing"),
    ],
)
def test_a_worker_tells_of_each_turn_as_long_as_it_hears_of_versions(
    run,
    stage,
    spawn,
    corridor,
    rule: SyncRule,
    news: Callable[[int], LoadParamsMsg | VersionMsg] | None,
    of_versions: bool,
) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP, SyncMsg)
            plan = ((1,), *((6,),) * 7)  # the first copy ends an episode in each turn
            worker = spawn(scene, up, env=partial(corridor, plan=plan), n_envs=8, steps_per_turn=1, sync=rule)
            await worker.tell(params(0))
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            for number in range(3 * QUIET_TURNS):
                await up.next(InsertTransitionMsg)
                if news is not None:
                    await worker.tell(news(number))
            turns = [message.lengths.tolist().count(1) for message in up.of(InsertTransitionMsg)]
            assert set(turns[:QUIET_TURNS]) == {1}
            assert (max(turns[QUIET_TURNS : 3 * QUIET_TURNS]) == 1) == of_versions

    run(main())


def test_a_paused_worker_waits_and_goes_on_where_it_was(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up, steps_per_turn=4)
            await worker.tell(params(0))
            for _ in range(3):
                await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
                await up.next(InsertTransitionMsg)
                await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
                await scene.settle()  # it does not come to rest before it has stopped stepping
            lengths = [length for message in up.of(InsertTransitionMsg) for length in message.lengths]
            assert set(lengths) == {2, 3}
            assert abs(lengths.count(2) * 2 - lengths.count(3) * 3) <= 3  # both copies have made as many steps

    run(main())


def test_a_worker_stops_when_its_credits_are_used(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(params(0))

            async def sent_with(episodes: int, received: int) -> int:
                await worker.tell(CollectMsg(episodes=episodes, received=received, unit="segments"))
                await scene.settle()
                messages = up.of(InsertTransitionMsg)
                assert {message.sender for message in messages} == {worker.address}
                return sum(message.segments for message in messages)

            assert await sent_with(3, 0) == 3
            assert await sent_with(3, 0) == 3  # those on their way count
            assert await sent_with(4, 3) == 7

    run(main())


def test_told_twice_to_run_it_steps_no_faster(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(params(0))
            for message in (
                CollectMsg(episodes=None, received=0, unit="segments"),
                params(1),
                CollectMsg(episodes=None, received=0, unit="segments"),
                params(2),
            ):
                await worker.tell(message)
                await up.next(InsertTransitionMsg)  # by now it has read this, and an unread one does not replace it
            await worker.tell(CollectMsg(episodes=0, received=0, unit="segments"))
            await scene.settle()
            flows = {(flow.sender, flow.type): flow.count for flow in scene.node.statistics().message_counts}
            # One step is on its way at a time: each but the last found the worker running and told a message.
            assert flows["here/worker", "StepMsg"] - len(up.of(InsertTransitionMsg)) in (0, 1)

    run(main())


def test_exploration_follows_the_steps_of_the_whole_run(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            for version, (env_steps, epsilon) in enumerate([(0, 1.0), (25, 0.75), (100, 0.0), (900, 0.0)]):
                await worker.tell(params(version, env_steps))
                while (message := await up.next(InsertTransitionMsg)).versions.max() < version:
                    pass
                assert set(message["epsilon"].tolist()) == {epsilon}

    run(main())


def test_a_worker_whose_upstream_died_joins_the_next_and_goes_on_with_its_episodes(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up, steps_per_turn=1)
            await worker.tell(params(1))
            await worker.tell(CollectMsg(episodes=1, received=0, unit="segments"))
            assert (await up.hear(InsertTransitionMsg)).lengths.tolist() == [2]
            await scene.settle()
            await scene.kill(up)
            up = scene.probe("up", *UP)
            await scene.settle()
            assert up.of(JoinMsg) == []
            scene.clock.advance(RETRY_S)
            assert (await up.hear(JoinMsg)).ref == worker
            await scene.settle()
            assert up.of(InsertTransitionMsg) == []  # it waits for a word again
            await worker.tell(params(2))
            await worker.tell(CollectMsg(episodes=1, received=0, unit="segments"))
            message = await up.hear(InsertTransitionMsg)
            # Of the episode of three steps two were made before.
            assert (message.lengths.tolist(), message.versions.tolist()) == ([3], [1, 1, 2])
            assert scene.node.cell(worker.address).statistics().restarts == 0

    run(main())


def test_a_worker_fails_once_its_upstream_has_been_lost_for_long_without_a_successor(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await up.hear(JoinMsg)
            with capture_logs() as lines:
                await scene.kill(up)
                for _ in range(round(PATIENCE_S / RETRY_S) - 1):
                    await scene.settle()
                    scene.clock.advance(RETRY_S)
                await scene.settle()
                assert scene.node.cell(worker.address).statistics().restarts == 0
                assert sum(line["event"] == "the upstream is lost" for line in lines) == 1
                scene.clock.advance(RETRY_S)
                await scene.settle()
            failed = [line["error"] for line in lines if line["event"].startswith("actor failed") and "error" in line]
            assert "UpstreamLost: there is no actor at here/up; it may have stopped" in failed

    run(main())


def test_a_worker_whose_upstream_is_heard_of_again_has_all_its_patience(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            worker = None
            for _ in range(3):
                up = scene.probe("up", *UP)
                worker = worker or spawn(scene, up)
                scene.clock.advance(RETRY_S)
                await up.hear(JoinMsg)
                await worker.tell(params(1))
                await scene.settle()
                await scene.kill(up)
                await scene.settle()
                for _ in range(round(0.6 * PATIENCE_S / RETRY_S)):
                    scene.clock.advance(RETRY_S)
                    await scene.settle()
            assert scene.node.cell(worker.address).statistics().restarts == 0

    run(main())


def test_a_step_meant_by_an_incarnation_before_is_not_made_without_parameters(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await worker.tell(StepMsg())
            await scene.settle()
            assert up.of(InsertTransitionMsg) == []

    run(main())


def test_a_worker_whose_upstream_stopped_gracefully_waits_for_its_own_end(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await up.hear(JoinMsg)
            with capture_logs() as lines:
                await scene.stop(up.ref)
                await scene.settle()
                scene.clock.advance(REJOIN_S / 2)
                await scene.settle()
            assert [line for line in lines if line["event"] == "actor failed"] == []
            assert not scene.node.cell(worker.address).stopping

    run(main())


def test_if_the_run_goes_on_without_that_upstream_the_worker_joins_its_successor(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await up.hear(JoinMsg)
            await scene.stop(up.ref)
            up = scene.probe("up", *UP)
            await scene.settle()
            assert up.told == []
            scene.clock.advance(REJOIN_S)
            assert (await up.hear(JoinMsg)).ref == worker
            await scene.kill(up)  # and it watches the successor too
            up = scene.probe("up", *UP)
            await scene.settle()
            scene.clock.advance(RETRY_S)
            assert (await up.hear(JoinMsg)).ref == worker

    run(main())


def test_two_workers_of_a_run_play_different_episodes_and_each_the_same_ones_again(
    run, stage, corridor, scripted
) -> None:
    async def seeds(seed: int) -> list[int]:
        made = []

        def env(n_envs, *, seed):
            made.append(seed)
            return corridor(n_envs, seed=seed)

        async with stage(seed=seed) as scene:
            up = scene.probe("up", *UP)
            for name in ("one", "other"):
                factory = {"env": env, "policy": scripted, "to": up.ref, "n_envs": 1}
                scene.node.spawn(name, Worker, **factory, exploration=LinearSchedule(1.0, 0.0, over=1))
            await up.hear(JoinMsg, 2)
        return made

    async def main() -> None:
        first, again, other = await seeds(1), await seeds(1), await seeds(2)
        assert first == again
        assert len({*first, *other}) == 4

    run(main())


def test_messages_get_their_turn_between_steps(run, stage, spawn) -> None:
    async def main() -> None:
        async with stage() as scene:
            up = scene.probe("up", *UP)
            worker = spawn(scene, up)
            await worker.tell(params(0))
            await worker.tell(CollectMsg(episodes=None, received=0, unit="segments"))
            await up.hear(InsertTransitionMsg)
            async with asyncio.timeout(5):
                await scene.stop(worker)  # a graceful stop, in the midst of it

    run(main())
