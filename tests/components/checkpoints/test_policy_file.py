"""A checkpoint is whole or not there, and one that cannot be used says why."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from components.checkpoints.policy_file import (
    FORMAT,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
    save_params,
)
from components.envs.base import EnvSpec
from components.policies import ALGORITHMS
from orchestra import UsageError, freeze

SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


@pytest.fixture
def policy(scripted):
    return scripted(SPEC, seed=3)


def refusal(path: Path, policy) -> str:
    before = policy.params().tolist()
    with pytest.raises(UsageError) as caught:
        load_checkpoint(path, policy)
    assert policy.params().tolist() == before
    return str(caught.value)


def test_what_was_saved_is_loaded(tmp_path: Path, policy, scripted) -> None:
    path = tmp_path / "checkpoints" / "steps-0000000010.pt"  # the folder is made
    policy.updates = 17
    save_checkpoint(path, policy, version=4, env_steps=10)
    other = scripted(SPEC, seed=0)
    assert load_checkpoint(path, other) == {"version": 4, "env_steps": 10}
    assert (other.updates, other.params().tolist()) == (17, policy.params().tolist())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_parameters_alone_are_loaded_to_act_with(tmp_path: Path, policy, scripted) -> None:
    path = tmp_path / "checkpoints" / "best.pt"
    params = np.array([3.0, 4.0], np.float32)
    save_params(path, freeze(params), version=4, env_steps=10)
    assert load_checkpoint(path, policy) == {"version": 4, "env_steps": 10}
    assert policy.params().tolist() == [3.0, 4.0]
    other = scripted(SPEC, seed=0, size=5)
    assert refusal(path, other).startswith(f"'{path}' belongs to another policy: ")


def test_a_policy_that_only_acts_loads_the_checkpoint_of_one_that_learns(tmp_path: Path) -> None:
    algorithm = ALGORITHMS["qmix"].configured(hidden_size=8)
    learner, acting = algorithm.learner(SPEC, seed=1), algorithm.acting(SPEC, seed=0)
    path = tmp_path / "steps-0000000010.pt"
    save_checkpoint(path, learner, version=4, env_steps=10)
    assert load_checkpoint(path, acting) == {"version": 4, "env_steps": 10}
    assert acting.params().tolist() == learner.params().tolist()

    saved = torch.load(path, weights_only=True)
    torch.save({name: value for name, value in saved.items() if name != "params"}, path)
    assert refusal(path, acting) == (
        f"'{path}' holds no parameters of acting: an earlier version wrote it; resume its run to write another"
    )
    assert load_checkpoint(path, algorithm.learner(SPEC, seed=0))["version"] == 4


def test_a_save_that_fails_leaves_the_older_file_whole(tmp_path: Path, policy, monkeypatch) -> None:
    path = tmp_path / "steps-0000000010.pt"
    save_checkpoint(path, policy, version=1, env_steps=10)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as filled, pytest.raises(OSError, match="No space left"):
        filled.setattr(os, "fsync", full)
        save_checkpoint(path, policy, version=2, env_steps=10)
    assert list(tmp_path.iterdir()) == [path]
    assert load_checkpoint(path, policy)["version"] == 1
    assert newest_checkpoint(tmp_path) == path


def test_a_missing_file_is_named(tmp_path: Path, policy) -> None:
    assert refusal(tmp_path / "gone.pt", policy) == f"there is no checkpoint '{tmp_path / 'gone.pt'}'"


def test_a_damaged_file_is_named(tmp_path: Path, policy) -> None:
    path = tmp_path / "steps.pt"
    save_checkpoint(path, policy, version=1, env_steps=10)
    whole = path.read_bytes()
    for damaged in (b"", b"hello", whole[: len(whole) // 2], bytes(200)):
        path.write_bytes(damaged)
        said = refusal(path, policy)
        assert said.startswith(f"'{path}' is no checkpoint, or damaged (")
        assert "\n" not in said


class Payload:
    def __reduce__(self):
        return print, ("unpickled",)


def test_nothing_in_a_checkpoint_is_ever_unpickled(tmp_path: Path, policy, capsys) -> None:
    path = tmp_path / "steps.pt"
    torch.save({"format": FORMAT, "policy": Payload(), "version": 0, "env_steps": 0}, path)
    assert refusal(path, policy) == f"'{path}' is no checkpoint, or damaged (UnpicklingError)"
    assert capsys.readouterr().out == ""


def test_another_format_is_named(tmp_path: Path, policy) -> None:
    path = tmp_path / "steps.pt"
    for saved, found in (({"format": 99}, "99"), ({"weights": 1}, "None"), ([1, 2], "'list'")):
        torch.save(saved, path)
        assert refusal(path, policy) == f"'{path}' is a checkpoint of format {found}; this version reads format 1"


def test_one_that_lacks_something_is_named(tmp_path: Path, policy) -> None:
    path = tmp_path / "steps.pt"
    whole = {"format": FORMAT, "policy": policy.state_dict(), "version": 1, "env_steps": 10}
    for missing in ("policy", "version", "env_steps"):
        torch.save({name: value for name, value in whole.items() if name != missing}, path)
        assert refusal(path, policy) == f"'{path}' is no checkpoint, or damaged (it lacks '{missing}')"


def test_one_of_another_policy_is_named(tmp_path: Path, policy, scripted) -> None:
    path = tmp_path / "steps.pt"
    save_checkpoint(path, scripted(SPEC, seed=0, size=5), version=1, env_steps=10)
    assert refusal(path, policy) == f"'{path}' belongs to another policy: flat: expected shape (2,), got (5,)"


def test_the_newest_has_the_most_steps(tmp_path: Path, policy) -> None:
    for env_steps in (900, 100_000, 20_000):
        save_checkpoint(tmp_path / f"steps-{env_steps:010d}.pt", policy, 0, env_steps)
    (tmp_path / "steps-0000200000.unfinished").touch()
    (tmp_path / "notes.txt").touch()
    assert newest_checkpoint(tmp_path).name == "steps-0000100000.pt"


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        with pytest.raises(UsageError) as caught:
            newest_checkpoint(folder)
        assert str(caught.value) == f"there is no checkpoint in '{folder}'"
