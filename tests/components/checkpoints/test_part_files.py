"""A buffer that is saved in parts is the plain buffer again, whatever was cut short, and writes only what is new."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.checkpoints import part_files, run_state
from components.checkpoints.array_file import CheckpointError
from components.checkpoints.part_files import PartFiles, WholeFile, files_of
from components.envs.base import EnvSpec
from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    EpisodeTable,
    FifoSelector,
    FreshEpisodes,
    PrioritizedEpisodeReplay,
)

SPEC = EnvSpec(name="toy", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
ADDRESS = "here/trajectories"


def episodes(lengths: list[int], seed: int) -> Episodes:
    rng, n = np.random.default_rng(seed), sum(lengths)
    frames = n + len(lengths)
    return Episodes(
        obs=rng.random((frames, 2, 4), np.float32),
        state=rng.random((frames, 5), np.float32),
        available=np.ones((frames, 2, 3), np.bool_),
        actions=rng.integers(0, 3, (n, 2)),
        reward=rng.random(n, np.float32),
        terminated=rng.random(len(lengths)) < 0.5,
        lengths=np.array(lengths, np.int32),
    )


def made(kind: type[Any], capacity: int) -> Any:
    return kind(SPEC, capacity)


def checkpoint(files: PartFiles | WholeFile, run: Path, steps: int, *, commits: bool = True) -> Path:
    """Save as a run does; return the path of the buffer's own file."""
    run_state.begin(run, steps)
    files.save(run_state.companion(run_state.staging_folder(run, steps), ADDRESS, "replay"))
    folder = run_state.commit(run, steps) if commits else run_state.staging_folder(run, steps)
    return run_state.companion(folder, ADDRESS, "replay")


def assert_same(one: Any, other: Any) -> None:
    first, second = one.state(), other.state()
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)
    assert other.check_valid() == []


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_inserts_saves_crashes_and_resumes_equal_the_plain_buffer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("run")
    kind = data.draw(st.sampled_from([EpisodeReplay, PrioritizedEpisodeReplay]))
    capacity = data.draw(st.sampled_from([1, 5, 40, 100]))
    n_parts = data.draw(st.sampled_from([2, 4, 32]))
    buffer, plain, saved = made(kind, capacity), made(kind, capacity), made(kind, capacity)
    files, path = files_of(buffer), None
    for steps in range(1, data.draw(st.integers(1, 12)) + 1):
        match data.draw(st.sampled_from(["insert", "insert", "save", "cut short", "resume", "no links"])):
            case "insert":
                lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=30))
                for each in (buffer, plain):
                    each.insert(episodes(lengths, steps))
            case "save" | "no links" as how:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(part_files, "PARTS", n_parts)
                    if how == "no links":
                        patch.setattr(os, "link", refused)
                    path = checkpoint(files, run, steps)
                saved.restore(plain.state())
            case "cut short":
                checkpoint(files, run, steps, commits=False)
                staged = sorted(run_state.staging_folder(run, steps).iterdir())
                for lost in staged[data.draw(st.integers(0, len(staged))) :]:
                    lost.unlink()
            case "resume" if path is not None:
                if data.draw(st.booleans()):  # on another machine
                    run = Path(shutil.copytree(run, tmp_path_factory.mktemp("copy") / "run"))
                    path = run_state.companion(next((run / "state").glob("steps-*[0-9]")), ADDRESS, "replay")
                buffer = made(kind, capacity)
                files = files_of(buffer)
                files.load(path)
                assert_same(saved, buffer)
                plain.restore(saved.state())
        assert_same(plain, buffer)


@pytest.mark.parametrize("loads", [False, True])
def test_parts_of_another_width_are_not_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, loads: bool) -> None:
    buffer = EpisodeReplay(SPEC, 8)
    files = files_of(buffer)
    buffer.insert(episodes([1, 2, 3, 4], 1))
    monkeypatch.setattr(part_files, "PARTS", 8)
    first = checkpoint(files, tmp_path, 1)
    if loads:
        files = files_of(buffer)
        files.load(first)
    monkeypatch.setattr(part_files, "PARTS", 4)
    second = checkpoint(files, tmp_path, 2)
    other = EpisodeReplay(SPEC, 8)
    files_of(other).load(second)
    assert_same(buffer, other)


def refused(*_: Any) -> None:
    raise OSError(18, os.strerror(18))


def test_a_save_writes_what_is_new_and_the_part_that_grows(tmp_path: Path) -> None:
    buffer = EpisodeReplay(SPEC, 320)
    files = files_of(buffer)
    for n in range(21):
        buffer.insert(episodes([3] * 10, n))
    buffer.insert(episodes([3] * 5, 99))
    first = checkpoint(files, tmp_path, 1)
    inodes = {path.name: path.stat().st_ino for path in first.parent.glob("*.part")}
    assert len(inodes) == 22
    buffer.insert(episodes([3] * 7, 100))
    second = checkpoint(files, tmp_path, 2)
    later = {path.name: path.stat().st_ino for path in second.parent.glob("*.part")}
    assert len(later) == 23
    assert len(later.keys() & inodes.keys()) == 21
    assert all(later[name] == inodes[name] for name in later.keys() & inodes.keys())
    for n in range(40):
        buffer.insert(episodes([3] * 10, n))
    third = checkpoint(files, tmp_path, 3)
    assert len(list(third.parent.glob("*.part"))) == 33, "a part without items is still there"
    assert [path.name for path in (tmp_path / "state").iterdir()] == [third.parent.name]


def test_a_part_of_which_items_are_gone_is_linked_and_read_without_them(tmp_path: Path) -> None:
    buffer = EpisodeReplay(SPEC, 64)
    files = files_of(buffer)
    buffer.insert(episodes([1, 4, 3, 2] * 16, 1))
    first = checkpoint(files, tmp_path, 1)
    oldest = min(path.name for path in first.parent.glob("*.part"))
    buffer.insert(episodes([5], 2))  # a part has two
    second = checkpoint(files, tmp_path, 2)
    assert second.with_name(oldest).exists()
    assert_same(buffer, resumed(tmp_path))


def test_a_resumed_run_links_the_parts_of_the_run_before(tmp_path: Path) -> None:
    buffer = EpisodeReplay(SPEC, 64)
    buffer.insert(episodes([2] * 20, 1))
    path = checkpoint(files_of(buffer), tmp_path / "first", 1)
    again = EpisodeReplay(SPEC, 64)
    files = files_of(again)
    files.load(path)
    later = checkpoint(files, tmp_path / "second", 2)
    for part in path.parent.glob("*.part"):
        assert part.samefile(later.with_name(part.name))


def test_a_disk_that_is_full_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = EpisodeReplay(SPEC, 64)
    files = files_of(buffer)
    buffer.insert(episodes([2] * 20, 1))
    path = checkpoint(files, tmp_path, 1)
    before = buffer.state()
    buffer.insert(episodes([2] * 20, 2))
    writes = part_files.write_checkpoint
    n_written = 0

    def full(*args: Any, **options: Any) -> None:
        nonlocal n_written
        n_written += 1
        if n_written > 3:
            raise OSError(28, os.strerror(28))
        writes(*args, **options)

    monkeypatch.setattr(part_files, "write_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint(files, tmp_path, 2)
    monkeypatch.undo()
    run_state.discard(tmp_path, 2)
    again = EpisodeReplay(SPEC, 64)
    files_of(again).load(path)
    for name, array in before.items():
        np.testing.assert_array_equal(again.state()[name], array)
    checkpoint(files, tmp_path, 3)
    assert_same(buffer, resumed(tmp_path))


def resumed(run: Path) -> EpisodeReplay:
    (folder,) = (run / "state").glob("steps-*[0-9]")
    buffer = EpisodeReplay(SPEC, 64)
    files_of(buffer).load(run_state.companion(folder, ADDRESS, "replay"))
    return buffer


def test_a_checkpoint_in_one_file_is_read(tmp_path: Path) -> None:
    buffer = EpisodeReplay(SPEC, 64)
    buffer.insert(episodes([2, 5, 3], 1))
    buffer.save(tmp_path / "old.npz", packed=True)
    again = EpisodeReplay(SPEC, 64)
    files = files_of(again)
    files.load(tmp_path / "old.npz")
    assert_same(buffer, again)
    empty = FreshEpisodes(SPEC, 8)
    path = checkpoint(files_of(empty), tmp_path, 1)
    files_of(empty).load(path)
    assert len(empty) == 0
    assert isinstance(files_of(EpisodeTable(SPEC, 8, sampler=FifoSelector(8), remover=FifoSelector(8))), WholeFile)


def test_a_part_that_is_missing_damaged_or_of_another_buffer_is_refused_by_name(tmp_path: Path) -> None:
    buffer = EpisodeReplay(SPEC, 64)
    buffer.insert(episodes([2] * 20, 1))
    path = checkpoint(files_of(buffer), tmp_path, 1)
    part = sorted(path.parent.glob("*.part"))[3]
    content = part.read_bytes()
    again = EpisodeReplay(SPEC, 64)
    part.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    with pytest.raises(CheckpointError):
        files_of(again).load(path)
    part.unlink()
    with pytest.raises(
        CheckpointError, match=rf"{part.name}: expected this file beside {path.name}, but it is missing"
    ):
        files_of(again).load(path)
    assert len(again) == 0
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="capacity: expected 63, got 64"):
        files_of(EpisodeReplay(SPEC, 63)).load(path)
