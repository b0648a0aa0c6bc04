"""What a run leaves behind, and what it takes: two seeds, a killed worker, a killed learner, one Ctrl-C, and two."""

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from orchestra import RunDirectory, read_records

pytestmark = pytest.mark.slow

ENDLESS = ("--steps", "1000000000")


# What is left behind --------------------------------------------------------------------------------------------------


def test_a_run_directory_holds_all_that_a_run_was(networked: Any) -> None:
    run = networked.run
    assert re.fullmatch(r"qmix_3m/\d{8}-\d{6}-seed3", str(run.relative_to(networked.folder / "runs")))
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "metrics.jsonl", "message_counts.json", "curve.png", "summary.json", "code.zip"),
        *("tensorboard", "logs", "checkpoints", "traces", "state"),
    }
    config = networked.json("config.json")
    assert (config["seed"], config["flags"]["scenario"], config["flags"]["workers"]) == (3, "3m", 2)
    assert config["command"][:2] == ["orchestra", "run"]
    nodes = ["evaluator", "host-0", "learner", "worker-0-0", "worker-0-1"]
    assert sorted(path.stem for path in (run / "logs").iterdir()) == nodes
    assert all(networked.log(node) for node in nodes)
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    (events,) = (run / "tensorboard").iterdir()
    assert events.stat().st_size > 0
    assert not list(run.rglob("*.unfinished"))
    assert not list(run.rglob("*.tmp"))


def test_its_summary_agrees_with_its_figures(networked: Any) -> None:
    summary = networked.json("summary.json")
    records = read_records(networked.run / "metrics.jsonl")
    assert (summary["state"], summary["reached_goal"], summary["workers"]) == ("done", True, 2)
    assert summary["env_steps"] >= summary["goal_steps"] == 5000
    assert (summary["updates"] > 0, summary["restarts"]) == (True, 0)
    for name in ("env_steps", "episodes", "updates", "train_return", "test_win_rate", "loss"):
        assert records[-1][name] == summary[name]
    assert [record["env_steps"] for record in records] == sorted(record["env_steps"] for record in records)
    assert sum("test_length" in record for record in records) >= 2  # the first, the last


def test_it_saves_at_its_interval_and_at_its_end(networked: Any) -> None:
    steps = sorted(int(path.stem.removeprefix("steps-")) for path in (networked.run / "checkpoints").glob("steps-*.pt"))
    # Of twelve: where steps come quickly, more than one interval may pass in one moment, and a learner may start late.
    assert len(steps) >= 3
    assert steps[-1] == networked.json("summary.json")["env_steps"]


def test_it_says_how_it_went_and_has_nothing_to_complain_about(networked: Any) -> None:
    assert networked.err == ""
    lines = networked.out.splitlines()
    assert re.match(r"\d\d:\d\d  starting  0/5,000 steps", lines[0])
    assert "qmix 3m: done after" in networked.out
    assert str(networked.run / "curve.png") in networked.out.replace("runs/", f"{networked.folder}/runs/")
    alarms = [line for node in ("learner", "evaluator", "host-0", "worker-0-0") for line in networked.log(node)]
    assert [line for line in alarms if line["level"] in ("warning", "error")] == []


def test_its_best_parameters_have_played_new_episodes_and_are_kept(networked: Any) -> None:
    best = networked.json("summary.json")["best"]
    saved = torch.load(networked.run / "checkpoints" / "best.pt", weights_only=True)
    assert (saved["version"], saved["env_steps"]) == (best["version"], best["env_steps"])
    assert best["episodes"] == 20
    low, high = best["win_rate_interval"]
    assert 0.0 <= low <= best["win_rate"] <= high <= 1.0
    assert re.search(
        r"^  best         \d+\.\d% \(95% interval .*; \d+ of 20 greedy episodes\)", networked.out, re.MULTILINE
    )


def test_its_best_checkpoint_can_be_evaluated(networked: Any, launch: Any) -> None:
    launched = launch.command("evaluate", networked.run, "--episodes", "8")
    assert launched.ends() == 0, launched.story("failed")
    assert re.search(r"^win rate    \d+\.\d% \(.*; \d of 8 greedy episodes\)$", launched.out, re.MULTILINE)
    assert launched.out.startswith(f"checkpoint  {networked.run / 'checkpoints' / 'best.pt'} ")
    assert launched.err == ""


# One seed, one result -------------------------------------------------------------------------------------------------

MANY = """
import sys

import components.monitor
from orchestra.cli.main import main

name, ticks, runs, *flags = sys.argv[1:]
for index, (tick, arguments) in enumerate(zip(ticks.split(";"), runs.split(";"), strict=True)):
    components.monitor.TICK_S = float(tick)
    code = main(["run", *flags, "--single-process", "--runs-dir", f"{name}-{index}", *arguments.split()])
    if code:
        sys.exit(code)
"""
SEVERAL = "--seed 1 --workers 3"


def parameters(folder: Path) -> dict[str, Any]:
    """Every tensor and number of the last checkpoint, by where it is."""
    saved = torch.load(max(folder.glob("*/*/checkpoints/*.pt")), weights_only=True)
    flat: dict[str, Any] = {}

    def flatten(value: Any, where: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                flatten(inner, f"{where}/{name}")
        elif isinstance(value, list | tuple):
            for index, inner in enumerate(value):
                flatten(inner, f"{where}/{index}")
        else:
            flat[where] = value.numpy().tobytes() if isinstance(value, torch.Tensor) else value

    flatten(saved, "")
    return flat


def trained(launch: Any, *runs: str, ticks_s: Sequence[float] = (), **environment: str) -> list[Any]:
    """The parameters after each of several single-process runs that share a process."""
    name = f"runs-{environment.get('PYTHONHASHSEED')}"
    ticks = ";".join(map(str, ticks_s or [0.5] * len(runs)))
    flags = [launch.experiment, *launch.quick, "--prioritized", "--steps", "1500"]
    launched = launch.python(MANY, name, ticks, ";".join(runs), *flags, **environment)
    assert launched.ends() == 0, launched.story("failed")
    return [parameters(launch.folder / f"{name}-{index}") for index in range(len(runs))]


def test_two_single_process_runs_of_one_seed_are_equal_bit_for_bit(launch: Any) -> None:
    alone, another_seed, several = trained(launch, "--seed 1", "--seed 2", SEVERAL, PYTHONHASHSEED="1")
    (alone_again,) = trained(launch, "--seed 1", PYTHONHASHSEED="2")
    assert len(alone) > 20
    assert alone == alone_again
    assert alone.keys() == another_seed.keys()
    weights = [name for name, value in alone.items() if isinstance(value, bytes) and len(value) > 1000]
    assert weights
    assert all(alone[name] != another_seed[name] for name in weights)
    assert all(alone[name] != several[name] for name in weights)


def test_how_often_nodes_are_looked_at_does_not_change_what_is_learned(launch: Any) -> None:
    seldom, often, oftener = trained(launch, SEVERAL, SEVERAL, SEVERAL, ticks_s=(0.5, 0.013, 0.002))
    assert seldom == often == oftener


# Faults ---------------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_reported_and_started_again_and_the_run_reaches_its_goal(launch: Any) -> None:
    launched = launch("--steps", "6000", "--eval-interval", "100000")
    launched.until_playing()
    killed = launched.pid("worker-0-0")
    psutil.Process(killed).kill()
    assert launched.ends() == 0, launched.story("failed")

    died = [line for line in launched.err.splitlines() if "process died and is started again" in line]
    assert len(died) == 1, launched.story("did not report it once")
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\d WARNING learner/launcher  process died and is started again  "
        rf"process=worker-0-0  pid={killed}  how=killed by signal 9",
        died[0],
    )
    assert launched.pid("worker-0-0") != killed
    summary = launched.json("summary.json")
    assert (summary["restarts"], summary["reached_goal"], summary["workers"]) == (1, True, 1)
    assert "1 of worker processes that died" in launched.out
    # At the end of the run the new one may stop before its proxy does, and leave too.
    left = [line for line in launched.log("host-0") if line["event"] == "worker left" and line["reason"] != "stopped"]
    assert [line["worker"] for line in left] == ["worker-0-0/worker"]


def test_when_the_learner_is_killed_all_others_end_by_themselves(launch: Any, sockets: Path) -> None:
    launched = launch(*ENDLESS, "--workers", "2", "--listen", f"unix://{sockets}/run.sock")
    nodes = ("evaluator", "host-0", "worker-0-0", "worker-0-1")
    launched.until_connected(*nodes)
    launched.look_for_children()
    # By pid, and those that live now: what the start itself called (git, for the code's version) has come and gone.
    running = [child for child in launched.process.children(recursive=True) if "template" not in child.cmdline()]
    assert {child.pid for child in running} == {launched.pid(node) for node in nodes}
    assert len(list(sockets.iterdir())) == 5
    launched.process.kill()
    assert launched.left_over(10) == []
    assert list(sockets.iterdir()) == []
    for node in nodes:
        assert launched.log(node)[-1]["event"] == "node ends"
        reason = launched.log(node)[-1]["reason"]  # the pipe from the root and the connection to it end together
        assert reason == "the process that had started it is dead" or reason.startswith("the root is gone: ")


def test_one_ctrl_c_drains_saves_and_sums_up(launch: Any) -> None:
    launched = launch(*ENDLESS)
    launched.until_playing()
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")

    (line,) = launched.err.splitlines()
    assert line[9:] == "WARNING learner/system  stopping: what is queued is handled and saved; again aborts"
    summary = launched.json("summary.json")
    assert (summary["state"], summary["reached_goal"]) == ("interrupted", False)
    resume = f"orchestra run --resume {launched.run.relative_to(launched.folder)}"
    assert (summary["reason"], summary["resume"]) == (None, resume)
    assert f"continue with: {resume}" in launched.out.splitlines()
    (checkpoint,) = (launched.run / "checkpoints").glob("steps-*.pt")
    assert (launched.run / "curve.png").exists()
    assert (launched.run / "message_counts.json").exists()
    assert "qmix 3m: interrupted after" in launched.out

    # It goes on with all that it had, what was under way when it was interrupted included.
    state = RunDirectory(launched.run).newest_state()
    assert checkpoint.stem == state.name
    assert (state / "worker-0-0.worker.npz").exists()
    goal = summary["env_steps"] + 300
    resumed = launch.command("run", "--resume", str(launched.run), "--steps", str(goal))
    assert resumed.ends() == 0, resumed.story("failed")
    assert resumed.json("summary.json")["reached_goal"]
    # Each time that it starts it says so, however often it is asked meanwhile.
    starts = [record["env_steps"] for record in resumed.records() if record["state"] == "starting"]
    assert list(dict.fromkeys(starts)) == [0, summary["env_steps"]]


STUCK = """
import asyncio
from functools import partial
from collections.abc import Sequence
from pathlib import Path

from components import Orchestrator
from orchestra import Hosts
from orchestra.runs.experiment import load_experiment
from orchestra.runs.planned import PlannedActor

original = load_experiment(Path({experiment!r}))


class Stuck(Orchestrator):
    async def stopped(self):
        await super().stopped()
        await asyncio.Event().wait()


def experiment(*, hosts: Hosts, steps: int = 10**9, scenario: str = "3m", workers: int = 1):
    topology = original(
        hosts=hosts, steps=steps, scenario=scenario, workers=workers, envs_per_worker=4,
        learning_starts=8, batch_size=4, hidden_size=8,
    )
    actors = topology.nodes["learner"].actors
    for index, actor in enumerate(actors):
        if actor.kind is Orchestrator:
            actors[index] = PlannedActor(actor.name, Stuck, partial(Stuck, **actor.factory.keywords))
    return topology
"""


def test_two_ctrl_cs_abort(launch: Any, tmp_path: Path) -> None:
    file = tmp_path / "stuck.py"
    file.write_text(STUCK.format(experiment=str(launch.experiment)))
    launched = launch.command("run", file)
    launched.until_playing()
    launched.process.send_signal(signal.SIGINT)
    launched.until(lambda: list(launched.folder.glob("runs/*/*/checkpoints/steps-*.pt")))  # and there it hangs
    with pytest.raises(psutil.TimeoutExpired):
        launched.process.wait(0.3)  # two presses, not one told twice
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("was not aborted")
    assert [line for line in launched.err.splitlines() if "WARNING" not in line] == []


BROKEN = """
from functools import partial
from collections.abc import Sequence
from pathlib import Path

from components import Trainer
from components.policies import Qmix
from orchestra import Hosts
from orchestra.runs.experiment import load_experiment
from orchestra.runs.planned import PlannedActor

original = load_experiment(Path({experiment!r}))


class Broken(Qmix):
    def learn(self, batch):
        raise FloatingPointError("the gradient is not finite")


def experiment(*, hosts: Hosts):
    topology = original(
        hosts=hosts, steps=10**9, scenario="3m", workers=1, envs_per_worker=4,
        learning_starts=8, batch_size=4, hidden_size=8,
    )
    actors = topology.nodes["learner"].actors
    for index, actor in enumerate(actors):
        if actor.kind is Trainer:
            keywords = actor.factory.keywords | {{"policy": partial(Broken, hidden_size=8)}}
            actors[index] = PlannedActor(actor.name, Trainer, partial(Trainer, **keywords))
    return topology
"""


def test_a_trainer_that_fails_ends_the_run_with_exit_code_1_and_says_why(launch: Any, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN.format(experiment=str(launch.experiment)))
    launched = launch.command("run", file)
    assert launched.ends() == 1, launched.story("did not fail")
    last = launched.err.splitlines()[-1]
    assert last.startswith("orchestra: the run failed: learner/trainer (Trainer) failed; last deliveries")
    assert "(FloatingPointError: the gradient is not finite); traceback in runs/" in last
    assert "Traceback" not in launched.err
    failed = [line for line in launched.log() if line["event"] == "actor failed"]
    assert [line["actor"] for line in failed] == ["learner/trainer", "learner/orchestrator"]  # which was left alone
    assert launched.json("summary.json")["reached_goal"] is False


# From Python ----------------------------------------------------------------------------------------------------------

TWICE = """
import asyncio
import sys
import threading

import orchestra

flags = {"scenario": "3m", "steps": 600, "envs_per_worker": 4, "learning_starts": 8, "batch_size": 4, "hidden_size": 8}


async def cell():
    return orchestra.run(sys.argv[1], **flags, workers=2)


results = [orchestra.run(sys.argv[1], **flags, workers=2), asyncio.run(cell())]
results += [orchestra.run(sys.argv[1], **flags, single_process=True, seed=3, quiet=True) for _ in range(2)]
assert [result.state for result in results] == ["completed"] * 4
assert threading.enumerate() == [threading.main_thread()]
for result in results[2:]:
    last = result.metrics()[-1]
    print("last", last["env_steps"], last["updates"], last["train_return"], last["learner/loss"])
    assert result.checkpoint.suffix == ".pt"
    assert result.plot()._repr_png_().startswith(b"\\x89PNG")
"""


@pytest.mark.slow
def test_a_script_runs_an_experiment_again_and_again_and_equal_seeds_learn_the_same(launch: Any) -> None:
    launched = launch.python(TWICE, launch.experiment)
    assert launched.ends() == 0, launched.story("failed")
    last = [line for line in launched.out.splitlines() if line.startswith("last ")]
    assert len(last) == 2
    assert last[0] == last[1]
