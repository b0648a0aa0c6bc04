"""`orchestra evaluate` plays with what a run saved, and says in a line why it cannot."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from components.checkpoints.policy_file import save_checkpoint, save_params
from components.envs import Skirmish
from components.envs.air_combat.env import AirCombat
from components.policies import Qmix
from components.reporting.evaluate import command
from orchestra import RunDirectory, UsageError
from orchestra.cli.main import main

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"


class Clock:
    def now(self) -> datetime:
        return datetime(2026, 3, 1, tzinfo=UTC)


def kept(folder: Path, experiment: Path = EXPERIMENT, **flags: Any) -> RunDirectory:
    run = RunDirectory.create(folder, "qmix_3m", 0, clock=Clock())  # type: ignore[arg-type]  # it only tells the time
    flags = {"scenario": "3m", "hidden_size": 8, "optimizer": "rmsprop", **flags}
    run.write_config(experiment=experiment, flags=flags, seed=0, argv=[], clock=Clock())  # type: ignore[arg-type]  # it only tells the time
    return run


def saved(path: Path, hidden_size: int = 8, env_steps: int = 12_345) -> Path:
    policy = Qmix(
        Skirmish("3m", 1, seed=0).spec, hidden_size=hidden_size, optimizer="rmsprop", seed=7
    )  # one that moves
    save_checkpoint(path, policy, 3, env_steps)
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return kept(tmp_path)


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(UsageError) as caught:
        command([str(argument) for argument in arguments])
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_best_checkpoint_is_played_and_its_win_rate_printed_with_an_interval(run: RunDirectory, capsys) -> None:
    policy = Qmix(Skirmish("3m", 1, seed=0).spec, hidden_size=8, optimizer="rmsprop", seed=7)
    best = run.checkpoints / "best.pt"
    save_params(best, policy.params(), 2, 9_876)
    saved(run.checkpoints / "steps-0000012345.pt")
    assert command([str(run.path), "--episodes", "6"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == f"checkpoint  {best} (9,876 environment steps)"
    interval = r"95% interval \d+\.\d% to \d+\.\d%"
    assert re.fullmatch(rf"win rate    \d+\.\d% \({interval}; \d of 6 greedy episodes\)", lines[1])
    assert re.fullmatch(r"return      -?\d+\.\d\d \(sd \d+\.\d\d\)", lines[2])
    assert re.fullmatch(r"length      \d+\.\d steps", lines[3])
    assert (len(lines), printed.err) == (4, "")


@pytest.mark.parametrize(
    ("which", "name"),
    [("best", "best"), ("last", "steps-0000012345"), ("12345", "steps-0000012345"), ("1", "steps-0000000001")],
)
def test_the_checkpoint_is_the_best_the_last_or_that_of_a_step(
    run: RunDirectory, capsys, which: str, name: str
) -> None:
    for stem, env_steps in (("steps-0000000001", 1), ("steps-0000012345", 12_345), ("best", 1)):
        saved(run.checkpoints / f"{stem}.pt", env_steps=env_steps)
    command([str(run.path), "--episodes", "1", "--checkpoint", which])
    assert capsys.readouterr().out.startswith(f"checkpoint  {run.checkpoints / name}.pt ")


def test_a_checkpoint_that_is_not_there_is_refused_with_what_is(run: RunDirectory) -> None:
    for steps in (1, 12_345):
        saved(run.checkpoints / f"steps-{steps:010d}.pt")
    folder = run.checkpoints
    assert refusal(run.path) == (
        f"there is no checkpoint '{folder}/best.pt': no evaluation was saved; name last, or the steps of another"
    )
    assert refusal(run.path, "--checkpoint", "2") == (
        f"there is no checkpoint '{folder}/steps-0000000002.pt': there are steps 1, 12345"
    )
    assert refusal(run.path, "--checkpoint", "newest") == (
        "there is no checkpoint 'newest': expected last, best, the environment steps of a checkpoint, or a file"
    )


def test_the_same_seed_gives_the_same_result(run: RunDirectory, capsys) -> None:
    saved(run.checkpoints / "best.pt")
    printed = []
    for seed in ("1", "1", "2"):
        command([str(run.path), "--episodes", "5", "--seed", seed])
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_units_of_the_simulator_may_start_elsewhere(run: RunDirectory, capsys) -> None:
    saved(run.checkpoints / "steps-0000012345.pt")
    printed = []
    for jitter in (None, "0", "3"):
        arguments = [] if jitter is None else ["--start-jitter", jitter]
        assert command([str(run.path), "--checkpoint", "last", "--episodes", "8", *arguments]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    said = refusal(run.path, "--start-jitter", "9")
    assert said == "--start-jitter: 9 is not allowed: it must be from 0 to 8"


def test_another_environment_does_not_start_elsewhere(tmp_path: Path) -> None:
    run = kept(tmp_path, env="gymnasium:CartPole-v1")
    saved(run.checkpoints / "steps-0000012345.pt")
    said = refusal(run.path, "--checkpoint", "last", "--start-jitter", "1")
    assert said == "--start-jitter: the run plays outside of the simulator, which alone varies where units start"


def test_an_argument_of_the_environment_replaces_that_of_the_run(tmp_path: Path, capsys) -> None:
    arguments = ["opponent=hard", "frame_skip=4", "max_steps=1200"]
    run = kept(tmp_path, EXPERIMENT.with_name("train.py"), env="air_combat:fighter10v10", env_arg=arguments)
    policy = Qmix(AirCombat("fighter10v10", 1).spec, hidden_size=8, seed=7)
    save_checkpoint(run.checkpoints / "best.pt", policy, 3, 1)
    printed = []
    for changed in ([], ["opponent=hard"], ["opponent=easy"], [f"opponent={run.path}"], ["max_steps=40"]):
        given = [word for argument in changed for word in ("--env-arg", argument)]
        assert command([str(run.path), "--episodes", "4", *given]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert len(set(printed)) == 4
    assert printed[4].endswith("length      10.0 steps\n")
    assert "belongs to another policy" in refusal(run.path, "--env-arg", "courses=8")
    assert "air combat has no 'course'; there are courses" in refusal(run.path, "--env-arg", "course=8")
    assert "--env-arg: 'hard' must be NAME=VALUE" in refusal(run.path, "--env-arg", "hard")


def test_the_simulator_and_experiments_without_them_take_no_arguments_of_an_environment(
    run: RunDirectory, tmp_path: Path
) -> None:
    saved(run.checkpoints / "best.pt")
    assert "are for other environments than skirmish" in refusal(run.path, "--env-arg", "opponent=hard")
    own = tmp_path / "own.py"
    own.write_text("from orchestra import Topology\n\n\ndef experiment() -> Topology:\n    return Topology()\n")
    other = kept(tmp_path / "runs", own)
    saved(other.checkpoints / "best.pt")
    said = refusal(other.path, "--env-arg", "opponent=hard")
    assert said == f"--env-arg: {own} takes no arguments of an environment"


def test_another_checkpoint_can_be_named(run: RunDirectory, tmp_path: Path, capsys) -> None:
    mine = saved(tmp_path / "mine.pt")
    command([str(run.path), "--episodes", "1", "--checkpoint", str(mine)])
    assert capsys.readouterr().out.startswith(f"checkpoint  {mine} ")


def test_an_experiment_that_has_changed_since_is_noted(tmp_path: Path, capsys) -> None:
    experiment = tmp_path / "changing.py"
    text = EXPERIMENT.with_name("train.py").read_text()
    experiment.write_text(text)
    run = kept(tmp_path, experiment)
    saved(run.checkpoints / "best.pt")
    experiment.write_text(text + "# changed\n")
    assert command([str(run.path), "--episodes", "1"]) == 0
    assert capsys.readouterr().err == f"orchestra: note: {experiment} has changed since the run\n"


def test_what_is_no_run_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "gone") == f"there is no run directory '{tmp_path / 'gone'}'"
    assert refusal(tmp_path / "file") == f"'{tmp_path / 'file'}' is a file, not a run directory"
    assert refusal(tmp_path / "empty") == f"'{tmp_path / 'empty'}' is not a run directory: it has no config.json"


def test_a_run_without_a_checkpoint_is_named(run: RunDirectory) -> None:
    assert refusal(run.path, "--checkpoint", "last") == f"there is no checkpoint in '{run.checkpoints}'"


def test_a_checkpoint_that_cannot_be_used_is_named(run: RunDirectory, tmp_path: Path) -> None:
    gone, damaged = tmp_path / "gone.pt", tmp_path / "damaged.pt"
    damaged.write_bytes(b"not one")
    other = saved(tmp_path / "other.pt", hidden_size=16)
    assert refusal(run.path, "--checkpoint", gone).startswith(f"there is no checkpoint '{gone}': ")
    assert refusal(run.path, "--checkpoint", damaged).startswith(f"'{damaged}' is no checkpoint, or damaged (")
    assert refusal(run.path, "--checkpoint", other).startswith(f"'{other}' belongs to another policy: ")


def test_a_config_that_lacks_something_is_named(run: RunDirectory) -> None:
    saved(run.checkpoints / "best.pt")
    whole = json.loads(run.config_path.read_text())
    for missing in ("experiment", "flags"):
        run.config_path.write_text(json.dumps({name: value for name, value in whole.items() if name != missing}))
        assert refusal(run.path) == f"'{run.path}': its config.json lacks '{missing}'"


def test_an_experiment_that_is_gone_is_named(tmp_path: Path) -> None:
    experiment = tmp_path / "mine.py"
    text = EXPERIMENT.with_name("train.py").read_text()
    experiment.write_text(text)
    run = kept(tmp_path, experiment)
    saved(run.checkpoints / "best.pt")
    experiment.unlink()
    assert refusal(run.path) == f"there is no file '{experiment}'"


def test_a_run_without_a_worker_does_not_say_what_is_played(tmp_path: Path) -> None:
    experiment = tmp_path / "nobody.py"
    experiment.write_text(
        "from orchestra import Topology\n"
        "def experiment(*, scenario: str = '3m', hidden_size: int = 8) -> Topology:\n"
        "    return Topology('nobody')\n"
    )
    run = kept(tmp_path, experiment)
    saved(run.checkpoints / "best.pt")
    assert refusal(run.path) == "topology 'nobody' has no Worker, so it does not say what is played"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--episodes", "0"], "--episodes: 0 is not allowed: it must be 1 or more"),
        (["--seed", "-1"], "--seed: -1 is not allowed: it must be 0 or more"),
        (["--episodes", "many"], "--episodes: invalid int value: 'many'"),
        (["--episode", "3"], "unknown flag --episode (did you mean --episodes?)"),
    ],
)
def test_flags_that_make_no_sense_are_refused(run: RunDirectory, arguments: list[str], said: str) -> None:
    assert refusal(run.path, *arguments) == said


def test_a_misuse_is_one_line_on_stderr_and_exit_code_2(tmp_path: Path, capsys) -> None:
    assert main(["evaluate", str(tmp_path / "gone")]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"orchestra: error: there is no run directory '{tmp_path / 'gone'}'\n")
