"""A checkpoint of a run is complete or does not count, and a run resumed from one equals the run that was never cut."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from components import Orchestrator
from components.checkpoints import run_state
from components.checkpoints.array_file import write_checkpoint
from orchestra import InterruptMsg, RunDirectory, UsageError
from orchestra.cli.main import main
from orchestra.clock import RealClock
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags
from orchestra.runs.runner import run_in_one_process, run_loop

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"
SMALL: dict[str, Any] = {
    "scenario": "3m",
    "steps": 2_400,
    "workers": 2,
    "envs_per_worker": 4,
    "learning_starts": 4,
    "batch_size": 4,
    "hidden_size": 8,
    "eval_interval": 500,
    "eval_episodes": 2,
    "final_eval_episodes": 2,
    "epsilon_steps": 2_000,
    "target_update_interval": 5,
    "checkpoint_interval": 900,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run_state.begin(tmp_path, 40)
    return run_state.staging_folder(tmp_path, 40)


def test_what_an_actor_wrote_is_read_again(tmp_path: Path, folder: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b/c": np.array([True])}
    values = {"rng": np.random.default_rng(3).bit_generator.state, "none": None, "text": "é"}
    assert run_state.write(tmp_path, 40, "here/worker", values, arrays) == folder
    again, back = run_state.read(folder, "here/worker")
    assert again == values
    assert {name: array.tobytes() for name, array in back.items()} == {n: a.tobytes() for n, a in arrays.items()}
    assert run_state.find(folder, "here/other") is None
    with pytest.raises(UsageError, match="holds nothing of here/other"):
        run_state.read(folder, "here/other")
    with pytest.raises(UsageError, match="this run keeps no files, so there is no place for a checkpoint"):
        run_state.write(None, 40, "here/worker", {})


def test_a_file_of_another_format_is_refused_with_its_format(tmp_path: Path, folder: Path) -> None:
    for format_, arrays in ((1, {}), (99, {"format": np.array(99)})):  # the first had no number yet
        write_checkpoint(folder / "here.worker.npz", {"values": np.frombuffer(b"{}", np.uint8), **arrays})
        with pytest.raises(
            UsageError, match=rf"here\.worker\.npz' has format {format_}; this version reads format 4 only"
        ):
            run_state.find(folder, "here/worker")


def test_a_damaged_file_is_named(tmp_path: Path, folder: Path) -> None:
    run_state.write(tmp_path, 40, "here/worker", {"x": 1})
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (b"", whole[:-30], whole.replace(b'{"x"', b"?")):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"here\.worker\.npz' is damaged"):
            run_state.read(folder, "here/worker")


def test_a_checkpoint_counts_once_it_is_committed_and_replaces_the_one_before(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(UsageError, match="has saved nothing yet to go on from"):
        run.newest_state()
    run_state.begin(tmp_path, 40)
    with pytest.raises(UsageError, match="has saved nothing yet to go on from"):
        run.newest_state()
    assert run_state.commit(tmp_path, 40) == run.newest_state()
    run_state.begin(tmp_path, 7_000)
    assert run.newest_state().name == "steps-0000000040"
    run_state.commit(tmp_path, 7_000)
    assert [path.name for path in run.state.iterdir()] == ["steps-0000007000"]
    run_state.begin(tmp_path, 8_000)
    run_state.commit(tmp_path, 8_000, keep=run.state / "steps-0000007000")
    assert sorted(path.name for path in run.state.iterdir()) == ["steps-0000007000", "steps-0000008000"]


def test_an_attempt_that_was_cut_short_leaves_nothing_in_the_next(tmp_path: Path) -> None:
    run_state.begin(tmp_path, 40)
    run_state.write(tmp_path, 40, "here/gone", {})
    run_state.begin(tmp_path, 40)
    assert list(run_state.staging_folder(tmp_path, 40).iterdir()) == []


# Going on -------------------------------------------------------------------------------------------------------------


def play(run: RunDirectory, flags: dict[str, Any], resume_from: Path | None = None) -> None:
    function = load_experiment(EXPERIMENT)
    values = {**Flags.of(function).defaults, **SMALL, **flags}
    run.write_config(experiment=EXPERIMENT, flags=values, seed=5, argv=[], clock=RealClock())
    launch = RunPlan(EXPERIMENT, (), 5, run.path, resume_from=resume_from)
    assert run_loop(run_in_one_process(build(function, values), launch)).state == "completed"


def learned(run: RunDirectory) -> tuple[int, str]:
    """The number of updates, and a digest of every number that learning has made."""
    state = torch.load(max(run.checkpoints.iterdir()), weights_only=True)["policy"]
    digest = hashlib.sha256()
    for part in ("online", "target"):
        for name, tensor in sorted(state[part].items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return state["updates"], digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        {"updates_per_episode": 0.5},
        {"updates_per_episode": 0.5, "prioritized": True, "proxy": False},
        {"algorithm": "coma", "critic_steps": 2, "workers": 1, "learning_starts": 64},  # COMA takes the default alone
        {"updates_per_episode": 1.0, "learning_starts": 40},
    ],
    ids=["qmix", "prioritised, no proxy", "coma", "before it learns"],
)
def test_a_run_that_goes_on_learns_what_it_would_have_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]
) -> None:
    cut = tmp_path / "cut"
    commit = run_state.commit

    def commit_and_copy(run_directory: Path, env_steps: int, keep: Path | None) -> Path:
        """At the first checkpoint, keep a copy of the run as a sudden end would leave it."""
        whole = commit(run_directory, env_steps, keep)
        if not cut.exists():
            shutil.copytree(run_directory, cut)
        return whole

    monkeypatch.setattr(run_state, "commit", commit_and_copy)
    monkeypatch.setattr("components.worker.QUIET_TURNS", 1)  # turns of both lengths
    straight = RunDirectory.create(tmp_path, "straight", 5, clock=RealClock())
    play(straight, flags)
    resumed = RunDirectory(cut)
    (at_the_cut,) = resumed.checkpoints.glob("steps-*.pt")
    assert at_the_cut.stem == resumed.newest_state().name
    play(resumed, flags, resumed.newest_state())
    assert learned(resumed) == learned(straight)
    assert learned(resumed)[0] > 10
    assert sorted(p.name for p in resumed.checkpoints.iterdir()) == sorted(
        p.name for p in straight.checkpoints.iterdir()
    )


@pytest.mark.slow
def test_a_run_that_was_interrupted_goes_on_exactly_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"updates_per_episode": 0.5, "checkpoint_interval": 1_300}
    straight = RunDirectory.create(tmp_path, "straight", 5, clock=RealClock())
    play(straight, flags)

    begin = Orchestrator._begin_save
    interrupted: list[int] = []

    async def interrupt(self: Orchestrator) -> None:
        """Where the other run saved and went on, press Ctrl-C instead."""
        if interrupted:
            await begin(self)
        else:
            interrupted.append(self._counters.env_steps)
            self.me.tell_nowait(InterruptMsg())

    monkeypatch.setattr(Orchestrator, "_begin_save", interrupt)
    cut = RunDirectory.create(tmp_path, "cut", 5, clock=RealClock())
    play(cut, flags)
    assert learned(cut)[0] < learned(straight)[0]
    monkeypatch.undo()
    play(cut, flags, cut.newest_state())
    assert learned(cut) == learned(straight)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """One that was cut short, as its files say."""
    run = RunDirectory.create(tmp_path, "cut", 5, clock=RealClock())
    run.write_config(experiment=EXPERIMENT, flags=SMALL, seed=5, argv=[], clock=RealClock())
    run_state.begin(run.path, 40)
    return run


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main(["run", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return str(line).removeprefix("orchestra: error: ")


def test_what_cannot_be_resumed_is_told_in_one_line(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    path, no = run.path, run.path / "no"
    assert refusal(capsys, "--resume", no) == f"there is no run directory '{no}'"
    assert refusal(capsys, "--resume", path) == f"'{path}' has saved nothing yet to go on from"
    run_state.commit(path, 40)
    said = "cannot be combined with --resume: a resumed run keeps its original value"
    assert refusal(capsys, "--resume", path, EXPERIMENT) == f"FILE {said}"
    assert refusal(capsys, "--resume", path, "--seed", 3) == f"--seed {said}"
    assert refusal(capsys, f"--resume={path}", "--step", 3) == "unknown flag --step (did you mean --steps?)"
    assert refusal(capsys, "--resume", path, "--steps", 0).startswith("--steps: '0' is not allowed")


def test_flags_that_are_given_replace_those_of_the_run(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run_state.commit(run.path, 40)
    assert main(["run", "--resume", str(run.path), "--workers", "3", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("topology 'qmix_3m'")  # as the run had it
    assert "worker-0-2" in printed


def test_a_run_does_not_go_on_with_a_policy_of_another_shape(run: RunDirectory, tmp_path: Path) -> None:
    straight = RunDirectory.create(tmp_path, "straight", 5, clock=RealClock())
    play(straight, {"steps": 300, "workers": 1})
    with pytest.raises(ExceptionGroup) as caught:
        play(straight, {"steps": 900, "workers": 1, "hidden_size": 16}, straight.newest_state())
    assert "belongs to another policy" in str(caught.value.exceptions[0].__cause__)


@pytest.mark.slow
def test_a_run_is_left_as_it_was_where_it_cannot_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = Flags.of(load_experiment(EXPERIMENT))
    words = flags.to_argv(flags.defaults | SMALL | {"steps": 300, "workers": 1})
    assert main(["run", str(EXPERIMENT), *words, "--single-process", "--runs-dir", str(tmp_path), "--quiet"]) == 0
    (path,) = tmp_path.glob("*/*")
    run = RunDirectory(path)
    files = (run.config_path, run.summary)
    before = [*(file.read_bytes() for file in files), learned(run)]
    capsys.readouterr()

    assert main(["run", "--resume", str(path), "--steps", "900", "--hidden-size", "16", "--quiet"]) == 2
    printed = capsys.readouterr()
    assert "belongs to another policy" in printed.err
    assert "continue with" not in printed.out, "that would fail likewise"
    assert [*(file.read_bytes() for file in files), learned(run)] == before

    assert main(["run", "--resume", str(path), "--steps", "900", "--quiet"]) == 0
    assert run.ending()["state"] == "done"
