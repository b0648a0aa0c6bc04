"""Whatever a user gets wrong is one line on stderr and exit code 2, and nothing is left behind."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.envs import SCENARIOS
from orchestra.cli.main import main
from orchestra.hosts.shape import this_machine

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, in which nothing but what a test put there may be afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    left = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert left <= {"occupied"}
    assert not (tmp_path / "runs").exists()


def refusal(capsys: Any, *arguments: str | Path) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("orchestra: error: ")
    assert printed.err.count("\n") == 1
    return str(printed.err.removeprefix("orchestra: error: ").rstrip("\n"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--worker", "2"], "unknown flag --worker (did you mean --workers?)"),
        (["--workers", "two"], "--workers"),
        (["--workers", "0"], "--workers"),
        (["--gamma", "1.5"], "--gamma"),
        (["--optimizer", "sgd"], "--optimizer"),
        (["--steps"], "--steps: its value is missing"),
        (["--seed", "-1"], "--seed: '-1' is not allowed: it must be greater than or equal to 0"),
        (["--log-level", "loud"], "--log-level: unknown choice 'loud'; the known ones are debug, info, warning, error"),
        (["more"], "unexpected argument 'more'"),
    ],
)
def test_a_flag_that_is_wrong_is_named(here: Path, capsys: Any, flags: list[str], said: str) -> None:
    assert said in refusal(capsys, "run", EXPERIMENT, *flags)


def test_an_unknown_scenario_lists_the_known_ones(here: Path, capsys: Any) -> None:
    said = refusal(capsys, "run", EXPERIMENT, "--scenario", "9m")
    assert "'9m'" in said
    assert all(scenario in said for scenario in SCENARIOS)


def test_a_replay_buffer_smaller_than_a_batch_is_refused(here: Path, capsys: Any) -> None:
    said = refusal(capsys, "run", EXPERIMENT, "--scenario", "3m", "--buffer-size", "16", "--batch-size", "32")
    assert said.endswith("a replay buffer of 16 episodes never holds a batch of 32")


def test_the_speed_of_the_game_is_that_of_the_simulator_alone(here: Path, capsys: Any) -> None:
    said = refusal(capsys, "run", EXPERIMENT, "--env", "smac", "--game-speed")
    assert said.endswith("--game-speed slows the simulators down; other environments take their own time")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--min-batch", "2"], "--min-batch, --max-wait and --envs-per-process need --asynchronous"),
        (["--env", "smac", "--asynchronous"], "games of StarCraft II always have their own processes"),
    ],
)
def test_settings_of_asynchronous_environments_are_refused_where_they_change_nothing(
    here: Path, capsys: Any, flags: list[str], said: str
) -> None:
    assert refusal(capsys, "run", EXPERIMENT, *flags).endswith(said)


def test_no_file_or_no_such_file_or_no_experiment_in_it_is_said(here: Path, capsys: Any) -> None:
    (here / "empty.py").write_text("def plan(): ...\n")
    assert refusal(capsys, "run") == (
        "orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py"
    )
    assert refusal(capsys, "run", "gone.py") == "there is no file 'gone.py'"
    assert refusal(capsys, "run", "empty.py") == "empty.py: no function 'experiment'; the functions in it are plan"


def test_an_experiment_that_raises_is_told_with_its_line(here: Path, capsys: Any) -> None:
    (here / "broken.py").write_text("def experiment(*, n: int = 1):\n    return 1 / (n - 1)\n")
    assert refusal(capsys, "run", "broken.py") == "broken.py:2: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("mode", ["--single-process", "--dry-run", ""])
def test_a_topology_without_an_end_is_refused(here: Path, capsys: Any, mode: str) -> None:
    (here / "endless.py").write_text(
        "from orchestra import Topology\n"
        "def experiment() -> Topology:\n    topology = Topology('t')\n    topology.node('a')\n    return topology\n"
    )
    said = refusal(capsys, "run", "endless.py", *filter(None, [mode]))
    assert said == "topology 't' does not say when the run ends: call until(ref)"


def test_a_runs_directory_that_cannot_be_written_to_is_named(here: Path, capsys: Any) -> None:
    (here / "occupied").write_text("")
    said = refusal(capsys, "run", EXPERIMENT, "--scenario", "3m", "--runs-dir", "occupied")
    assert said == "cannot make a run directory in 'occupied': Not a directory"


def test_an_unknown_command_lists_the_known_ones(here: Path, capsys: Any) -> None:
    said = refusal(capsys, "train")
    assert said.startswith("there is no command 'train'; the commands are run, ls, ps, top, logs, dashboard, scale, ")
    assert "evaluate" in said


@pytest.mark.slow
def test_a_real_process_says_one_line_and_exits_with_2(launch: Any) -> None:
    launched = launch.command("run", EXPERIMENT, "--scenario", "9m", "--runs-dir", "runs")
    assert launched.ends() == 2, launched.story("was not refused")
    assert launched.out == ""
    assert re.fullmatch(r"orchestra: error: .*'9m'.*\n", launched.err)
    assert list(launched.folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listen", "said"),
    [
        ("tcp://127.0.0.1", "cannot use the address 'tcp://127.0.0.1': write tcp://HOST:PORT, PORT from 0 to 65535"),
        ("http://127.0.0.1:80", "http://127.0.0.1:80"),
        (
            "unix:///no/such/folder/run.sock",
            "cannot listen at unix:///no/such/folder/run.sock: there is no folder '/no/such/folder'",
        ),
    ],
)
def test_an_address_that_cannot_be_listened_at_is_named(launch: Any, listen: str, said: str) -> None:
    launched = launch("--listen", listen)
    assert launched.ends() == 2, launched.story("was not refused")
    assert launched.err.startswith("orchestra: error: ")
    assert launched.err.count("\n") == 1
    assert said in launched.err
    assert list(launched.folder.iterdir()) == []


# What is printed when asked for ---------------------------------------------------------------------------------------


def test_help_lists_the_flags_of_every_run_and_of_the_experiment(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as caught:
        main(["run", str(EXPERIMENT), "--help"])
    assert not caught.value.code
    printed = capsys.readouterr().out
    for flag in ("--seed", "--runs-dir", "--dry-run", "--single-process", "--listen", "--log-level"):
        assert re.search(rf"^  {flag}\b", printed, re.MULTILINE)
    lines = [line for line in printed.splitlines() if line.startswith("  --scenario")]
    assert len(lines) == 1
    assert "--learning-rate" in printed
    assert "--proxy" in printed
    assert "Ctrl-C once saves and ends, twice aborts" in printed


def test_help_without_a_command_says_what_there_is(capsys: Any) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert "run FILE [flags]" in printed
    assert re.search(r"evaluate +play greedy episodes with a run's checkpoint$", printed, re.MULTILINE)
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert re.search(r"orchestra \d+\.\d+\.\d+$", capsys.readouterr().out)


def test_dry_run_prints_the_topology_and_does_nothing(here: Path, capsys: Any) -> None:
    flags = ["--scenario", "3m", "--hosts", "here,cpu1", "--workers", "2", "--prioritized"]
    assert main(["run", str(EXPERIMENT), *flags, "--dry-run"]) == 0
    plan = (
        "topology 'qmix_3m'\n"
        f"  host {this_machine()}\n"
        "  host 1 (cpu1): ? cores\n"
        "  learner   on host 0\n"
        "    monitor: Monitor\n"
        "    trajectories: TrajectoryManager\n"
        "    orchestrator: Orchestrator -> learner/trajectories, learner/monitor   (the run ends with it)\n"
        "    trainer: Trainer -> learner/orchestrator, learner/trajectories\n"
        "  evaluator   on host 0\n"
        "    evaluator: Evaluator -> learner/orchestrator\n"
        "  host-0   on host 0\n"
        "    proxy: WorkerProxy -> learner/orchestrator\n"
        "  host-1   on host 1\n"
        "    proxy: WorkerProxy -> learner/orchestrator\n"
        "  worker-0-0   on host 0\n"
        "    worker: Worker -> host-0/proxy\n"
        "  worker-1-0   on host 1\n"
        "    worker: Worker -> host-1/proxy\n"
        "  worker-0-1   on host 0\n"
        "    worker: Worker -> host-0/proxy\n"
        "  worker-1-1   on host 1\n"
        "    worker: Worker -> host-1/proxy\n"
    )
    assert capsys.readouterr().out.startswith(plan)  # what is sent to the hosts follows: `test_dry_run.py`
    assert main(["run", str(EXPERIMENT), "--scenario", "3m", "--no-proxy", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "WorkerProxy" not in printed
    assert "    worker: Worker -> learner/orchestrator\n" in printed
