"""The monitor shows a run while it goes on, and leaves its figures, its curve and its summary behind."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from components.checkpoints import run_state
from components.monitor import CURVE_S, FAR_S, MOST_FAR, RECORD_S, TICK_S, Monitor
from components.reporting.comparison import read_trial
from messages import EvaluationResultMsg, NotSavedMsg, ProgressMsg, SaveCheckpointMsg
from orchestra import PlayedMsg, RunDirectory, read_records
from orchestra.actors.statistics import HostStatistics, ProcessStatistics


class Clock:
    def now(self) -> Any:
        from datetime import UTC, datetime

        return datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def kept(tmp_path: Path) -> RunDirectory:
    file = tmp_path / "qmix.py"
    file.write_text("")
    run = RunDirectory.create(tmp_path / "runs", "qmix", 0, clock=Clock())  # type: ignore[arg-type]
    run.write_config(experiment=file, flags={}, seed=0, argv=["orchestra"], clock=Clock())  # type: ignore[arg-type]
    return run


def progress(env_steps: int = 0, **changed: Any) -> ProgressMsg:
    fields: dict[str, Any] = {
        "state": "training",
        "env_steps": env_steps,
        "goal_steps": 1000,
        "episodes": env_steps // 10,
        "updates": env_steps // 20,
        "train_win_rate": 0.25,
        "train_return": 5.0,
        "train_length": 12.0,
        "epsilon": 0.5,
        "params_lag": 1,
        "params_lags": (3, 4, 0, 0, 0, 0, 0),
        "dropped_episodes": 0,
        "workers": 2,
        "sync": (("versions", 2), ("params_sent", 4), ("params_bytes", 64)),
        "metrics": (("loss", 0.125), ("learner_s", 0.5)),
    }
    return ProgressMsg(**fields | changed)


def result(env_steps: int, win_rate: float, episodes: int = 32, *, final: bool = False) -> EvaluationResultMsg:
    return EvaluationResultMsg(
        version=1,
        env_steps=env_steps,
        episodes=episodes,
        win_rate=win_rate,
        mean_return=9.0,
        mean_length=20.0,
        final=final,
    )


async def passes(scene, seconds: float) -> None:
    """Let time pass, a tick at a time."""
    for _ in range(round(seconds / TICK_S)):
        scene.clock.advance(TICK_S)
        await scene.settle()


def test_a_run_leaves_figures_a_curve_and_a_summary(run, stage, kept: RunDirectory) -> None:
    shown = io.StringIO()

    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix 3m", stream=shown)
            await scene.settle()
            await monitor.tell(progress(0, state="starting", train_win_rate=None, metrics=()))
            await passes(scene, 30)
            await monitor.tell(progress(600))
            await monitor.tell(result(500, 0.5))
            await passes(scene, 30)
            await monitor.tell(progress(900))
            await monitor.tell(result(800, 0.9375))
            await monitor.tell(result(900, 0.90625))
            await scene.settle()
            await monitor.tell(progress(1200, state="done"))
            await scene.stop(monitor)

    run(main())
    summary = json.loads(kept.summary.read_text())
    assert summary["solved"] is None  # one test above 90 % may be luck
    assert (summary["reached_goal"], summary["state"], summary["elapsed_s"]) == (True, "done", 60.0)
    assert (summary["env_steps"], summary["env_steps_per_s"], summary["updates_per_s"]) == (1200, 20.0, 1.0)
    assert (summary["test_win_rate"], summary["best_test_win_rate"]) == (0.90625, 0.9375)
    assert (summary["restarts"], summary["dead_letters"], summary["workers"]) == (0, 0, 2)

    records = read_records(kept.metrics)
    times = [record["elapsed_s"] for record in records]
    assert times == sorted(times)
    regular = [record["elapsed_s"] for record in records if "test_length" not in record][:-1]
    assert regular == pytest.approx([TICK_S + RECORD_S * n for n in range(12)])
    tests = [(record["test_env_steps"], record["test_win_rate"]) for record in records if "test_length" in record]
    assert tests == [(500, 0.5), (800, 0.9375), (900, 0.90625)]
    assert records[-1]["learner/learner_s"] == 0.5
    assert records[-1]["loss"] == 0.125
    assert kept.curve.read_bytes().startswith(b"\x89PNG")
    assert list(kept.tensorboard.iterdir())

    said = shown.getvalue()
    assert "600/1,000 steps" in said
    assert "qmix 3m: done after 01:00" in said
    assert "solved" not in said
    assert str(kept.curve) in said


def test_an_unencrypted_run_is_shown_as_such_in_every_line_and_at_its_end(run, stage) -> None:
    shown = {True: io.StringIO(), False: io.StringIO()}

    async def main(unencrypted: bool) -> None:
        async with stage() as scene:
            scene.node.unencrypted = unencrypted
            monitor = scene.node.spawn("monitor", Monitor, title="qmix 3m", stream=shown[unencrypted])
            await scene.settle()
            await monitor.tell(progress(10))
            await passes(scene, 30)
            await scene.stop(monitor)

    for unencrypted in shown:
        run(main(unencrypted))
    lines = [line for line in shown[True].getvalue().splitlines() if "/1,000 steps" in line]
    assert len(lines) > 1
    assert all(line.endswith("  unencrypted") for line in lines)
    assert "\n  unencrypted" in shown[True].getvalue()
    assert "unencrypted" not in shown[False].getvalue()


def told(
    run, stage, kept: RunDirectory, *results: EvaluationResultMsg, train_win_rate: float = 0.25, **options: Any
) -> tuple[dict[str, Any], str]:
    """The summary and the display of a run with these results, each half a minute and as many steps after the last."""
    shown = io.StringIO()

    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=shown, **options)
            await scene.settle()
            for message in results:
                await monitor.tell(progress(message.env_steps, train_win_rate=train_win_rate))
                scene.clock.advance(30.0)
                await monitor.tell(message)
                await scene.settle()
            await scene.stop(monitor)

    run(main())
    return json.loads(kept.summary.read_text()), shown.getvalue()


def test_solved_is_the_first_step_from_which_every_five_tests_average_nine_tenths(run, stage, kept) -> None:
    rates = [0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0]
    order = [0, 1, 2, 4, 3, 5, 6, 7, 8]  # of two players one may be slower
    summary, said = told(run, stage, kept, *(result(100 * n, rates[n]) for n in order))
    assert summary["solved"] == {"env_steps": 300, "updates": 15, "minutes": 2.5}
    assert "solved       after 300 steps, 15 updates, 2.5 minutes: from there every 5 tests won 90% on average" in said


def test_the_compared_run_is_solved_where_its_summary_says(run, stage, kept) -> None:
    summary, _ = told(run, stage, kept, *(result(100 * n, rate) for n, rate in enumerate([0.0, *[1.0] * 5])))
    trial = read_trial(kept.path)
    solved = [trial.solved_at(axis) for axis in (trial.env_steps, trial.updates, trial.minutes)]
    assert solved == list(summary["solved"].values()) == [100, 5, 1.0]


def test_a_run_that_falls_below_at_the_end_was_not_solved(run, stage, kept) -> None:
    summary, said = told(run, stage, kept, *(result(100 * n, rate) for n, rate in enumerate([*[1.0] * 7, 0.0])))
    assert summary["solved"] is None
    assert "solved" not in said


def test_summary_and_display_give_the_final_win_rate_of_the_best_parameters_with_its_interval(run, stage, kept) -> None:
    summary, said = told(run, stage, kept, result(100, 1.0), result(200, 0.5), result(100, 0.8, 10, final=True))
    best = summary["best"]
    assert (best["env_steps"], best["version"], best["episodes"], best["win_rate"]) == (100, 1, 10, 0.8)
    assert best["win_rate_interval"] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert (summary["tests"], summary["test_win_rate"], summary["best_test_win_rate"]) == (2, 0.5, 1.0)
    expected = "best         80.0% (95% interval 49.0% to 94.3%; 8 of 10 greedy episodes), return 9.00, parameters"
    assert expected in said


def returned(env_steps: int, mean: float, *, final: bool = False) -> EvaluationResultMsg:
    return result(env_steps, 0.0, 256, final=final).model_copy(update={"mean_return": mean})


def test_an_environment_without_a_winner_is_solved_by_its_reward_threshold_and_has_no_win_rates(
    run, stage, kept
) -> None:
    means = [10.0, 500.0, 400.0, 475.0, 500.0, 500.0, 500.0]  # the mean of the first five is below, of the next 475
    results = [*(returned(100 * n, mean) for n, mean in enumerate(means)), returned(100, 490.0, final=True)]
    options = {"train_win_rate": 0.0, "can_be_won": False, "reward_threshold": 475.0}
    summary, said = told(run, stage, kept, *results, **options)
    assert summary["solved"]["env_steps"] == 100
    assert (summary["train_win_rate"], summary["test_win_rate"], summary["best_test_win_rate"]) == (None, None, None)
    assert (summary["best_test_return"], summary["best"]["mean_return"]) == (500.0, 490.0)
    assert (summary["best"]["win_rate"], summary["best"]["win_rate_interval"]) == (None, None)
    assert "from there every 5 tests returned 475 on average" in said
    assert "best         return 490.00 on average of 256 greedy episodes, parameters of step 100" in said
    assert "won" not in said


def test_win_rates_appear_with_the_first_win_of_an_environment_that_may_have_none(run, stage, kept) -> None:
    results = [returned(100, 1.0), result(200, 0.5)]
    summary, _ = told(run, stage, kept, *results, train_win_rate=0.0, can_be_won=False)
    assert (summary["test_win_rate"], summary["best_test_win_rate"]) == (0.5, 0.5)


def test_a_run_that_never_wins_is_not_solved_and_one_cut_short_did_not_reach_its_goal(run, stage, kept) -> None:
    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await monitor.tell(progress(999))
            await monitor.tell(result(999, 0.875))
            await scene.stop(monitor)

    run(main())
    summary = json.loads(kept.summary.read_text())
    assert (summary["solved"], summary["reached_goal"]) == (None, False)


def test_a_run_that_goes_on_counts_on(run, stage, kept) -> None:
    async def main() -> None:
        run_state.begin(kept.path, 500)
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await monitor.tell(progress(500))
            scene.clock.advance(90.0)
            await monitor.tell(result(500, 0.95))
            await monitor.ask(SaveCheckpointMsg(env_steps=500))
            await monitor.tell(progress(800))  # lost: it comes after the checkpoint
            await scene.settle()
        state = run_state.commit(kept.path, 500)
        async with stage(run_directory=kept.path, resume_from=state) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            scene.clock.advance(30.0)
            await monitor.tell(progress(600))
            await monitor.tell(result(600, 0.5))
            await scene.stop(monitor)

    run(main())
    summary = json.loads(kept.summary.read_text())
    assert (summary["tests"], summary["best_test_win_rate"], summary["elapsed_s"]) == (2, 0.95, 120.0)
    assert (summary["solved"], summary["best"]) == (None, None)
    assert list(dict.fromkeys(record["env_steps"] for record in read_records(kept.metrics))) == [500, 600]


def test_rates_are_those_of_the_last_seconds(run, stage, kept) -> None:
    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await monitor.tell(progress(0))
            await passes(scene, 60)
            for steps in range(10, 601, 10):  # 20 steps a second, from a standstill
                await monitor.tell(progress(steps))
                await passes(scene, TICK_S)

    run(main())
    rates = [record["env_steps_per_s"] for record in read_records(kept.metrics)]
    assert rates[10] == 0.0
    assert rates[-2] == pytest.approx(20.0, rel=0.1)


def test_the_curve_is_drawn_now_and_then(run, stage, kept) -> None:
    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await monitor.tell(progress(10))
            await monitor.tell(result(10, 0.5))
            await passes(scene, CURVE_S - TICK_S)
            assert not kept.curve.exists()
            await passes(scene, TICK_S)
            assert kept.curve.exists()

    run(main())


def test_restarts_and_the_fullest_mailbox_are_looked_up(run, stage, kept) -> None:
    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            scene.node.processes = lambda: tuple(
                ProcessStatistics(node=node, pid=1, running=True, restarts=n, given_up=False)
                for node, n in (("a", 1), ("b", 2))
            )
            crowded = scene.probe("crowded", EvaluationResultMsg)
            crowded.hold()  # busy with the first, seven wait
            for _ in range(8):
                crowded.ref.tell_nowait(result(0, 0.0))
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await monitor.tell(progress(10))
            while scene.node.cell(monitor.address).actor is None:
                await scene.turn()
            scene.clock.advance(TICK_S)
            while not scene.node.cell(monitor.address).actor._restarts:
                await scene.turn()
            crowded.release()
            await scene.stop(monitor)

    run(main())
    summary = json.loads(kept.summary.read_text())
    assert summary["restarts"] == 3
    assert (summary["busiest_actor"], summary["mailbox_depth"]) == ("here/crowded", 7)


def test_what_nodes_have_played_goes_to_the_keeper_of_the_hosts_if_there_are_any(run, stage) -> None:
    news = PlayedMsg(nodes=(("host-1", 40, 2),))

    async def main() -> None:
        async with stage() as scene:
            hosts = scene.probe("hosts", PlayedMsg)
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await passes(scene, TICK_S)
            await monitor.tell(news)
            await scene.settle()
            assert hosts.told == []
            scene.node.accounts.hosts = lambda: (HostStatistics(slot=1, name="cpu1", state="playing"),)
            await passes(scene, TICK_S)
            await monitor.tell(news)
            await scene.settle()
            assert hosts.told == [news]

    run(main())


def test_nodes_of_other_hosts_are_asked_a_few_at_a_time_and_rarely(run, stage, monkeypatch) -> None:
    far = [f"host-{slot}" for slot in range(MOST_FAR + 5)]
    asked: list[str] = []

    async def main() -> None:
        async with stage() as scene:
            hosts = [
                HostStatistics(slot=slot, name=name, state="playing", nodes=(name,), agent=f"agent-{slot}-ab")
                for slot, name in enumerate(far, start=1)
            ]
            status = scene.node.accounts.statistics().model_copy(
                update={"hosts": tuple(hosts), "peers": ("evaluator", *far)}
            )

            async def answer(self: Monitor, node: str) -> Any:
                asked.append(node)
                return status if node == "here" else None

            monkeypatch.setattr(Monitor, "_ask_node", answer)
            scene.node.spawn("monitor", Monitor, title="qmix", stream=io.StringIO())
            await scene.settle()
            await passes(scene, TICK_S)
            assert asked[:2] == ["here", "evaluator"]
            assert len(set(asked[2:])) == len(asked[2:]) == MOST_FAR
            await passes(scene, TICK_S)
            assert sorted(name for name in asked if name in far) == sorted(far)
            await passes(scene, FAR_S - 3 * TICK_S)
            assert asked.count(far[0]) == 1
            await passes(scene, 3 * TICK_S)
            assert {asked.count(name) for name in far} == {2}
            assert asked.count("evaluator") == asked.count("here") > 20

    run(main())


def test_a_run_without_a_directory_is_shown_all_the_same(run, stage) -> None:
    shown = io.StringIO()

    async def main() -> None:
        async with stage() as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=shown)
            await scene.settle()
            await monitor.tell(progress(10))
            await monitor.tell(result(10, 1.0))
            await passes(scene, 1)
            await scene.stop(monitor)

    run(main())
    assert "10/1,000 steps" in shown.getvalue()
    assert "curve" not in shown.getvalue()


def test_on_a_full_disk_the_monitor_goes_on_says_so_and_ends(run, stage, kept, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    shown = io.StringIO()

    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=shown)
            await scene.settle()
            await monitor.tell(progress(10))
            with monkeypatch.context() as filled, capture_logs() as logs:
                for name in ("write", "fsync"):
                    filled.setattr(os, name, full)
                await passes(scene, RECORD_S + TICK_S)
                answer = await monitor.ask(SaveCheckpointMsg(env_steps=10))
                assert answer == NotSavedMsg(error="No space left on device")
            assert "figures cannot be written" in [line["event"] for line in logs]
            await monitor.tell(progress(20))
            await passes(scene, RECORD_S + TICK_S)
            assert read_records(kept.metrics)[-1]["env_steps"] == 20
            monkeypatch.setattr(os, "write", full)
            monkeypatch.setattr(os, "fsync", full)
            await scene.stop(monitor)
            monkeypatch.undo()

    run(main())
    assert "20/1,000 steps" in shown.getvalue()


def test_a_monitor_that_heard_nothing_leaves_nothing(run, stage, kept) -> None:
    shown = io.StringIO()

    async def main() -> None:
        async with stage(run_directory=kept.path) as scene:
            monitor = scene.node.spawn("monitor", Monitor, title="qmix", stream=shown)
            await scene.settle()
            await passes(scene, 2)
            await scene.stop(monitor)

    run(main())
    assert not kept.summary.exists()
    assert shown.getvalue() == ""
