"""Memory on a disk is as good as any, may be larger, and leaves nothing behind."""

import errno
import itertools
import mmap
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from components.growing_array import GrowingArray
from components.replay_buffers import (
    EpisodeReplay,
    Episodes,
    Field,
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Transitions,
    packed_episode_store,
)
from components.replay_buffers.storage import LINE, BatchMemory, allocate, empty, freeze

FIELDS = {"obs": Field(np.float32, (3,)), "done": Field(np.bool_)}


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", [Transitions, PrioritizedTransitions])
def test_rows_on_a_disk_are_drawn_as_those_in_memory(kind, tmp_path):
    pair, generators = [kind(FIELDS, 10, folder=folder) for folder in (None, tmp_path)], [rng(), rng()]
    for i in range(30):
        rows = {"obs": np.full((3, 3), i, np.float32), "done": np.full(3, i % 2 == 0)}
        batches = []
        for replay, generator in zip(pair, generators, strict=True):
            replay.insert(rows)
            batches.append(replay.sample(4, generator).batch)
        for name, array in batches[0].items():
            np.testing.assert_array_equal(array, batches[1][name])
    pair[0].restore(pair[1].state())
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [EpisodeReplay, PrioritizedEpisodeReplay])
def test_episodes_on_a_disk_are_drawn_as_those_in_memory(kind, spec, make_episodes, tmp_path):
    pair, generators = [kind(spec, 40, folder=folder) for folder in (None, tmp_path)], [rng(), rng()]
    assert pair[1].n_bytes > pair[0].n_bytes  # room for all is taken at once
    for i in range(30):
        batches = []
        for replay, generator in zip(pair, generators, strict=True):
            replay.insert(Episodes(**make_episodes([1 + i % 6, 6], first=2 * i)))
            batches.append(replay.sample(2, generator).batch)
        for name in ("obs", "state", "available", "actions", "reward", "lengths", "terminated"):
            np.testing.assert_array_equal(getattr(batches[0], name), getattr(batches[1], name))
    pair[1].restore(pair[0].state())
    assert pair[1].check_valid() == []
    assert os.listdir(tmp_path) == []


LARGER_THAN_MEMORY = """
import resource, sys
import numpy as np
from components.replay_buffers import Field, Transitions

resource.setrlimit(resource.RLIMIT_DATA, (1 << 29, 1 << 29))
fields = {"obs": Field(np.float32, (1024,)), "serial": Field(np.int64)}
try:
    Transitions(fields, 1 << 18)
except MemoryError:
    print("too large for memory")
replay = Transitions(fields, 1 << 18, folder=sys.argv[1])
for first in range(0, (1 << 18) + 4096, 1 << 14):
    serial = first + np.arange(64)
    replay.insert({"obs": np.tile(serial[:, None].astype(np.float32), 1024), "serial": serial})
batch = replay.sample(256, np.random.default_rng(0)).batch
print((batch["obs"] == batch["serial"][:, None]).all(), replay.n_bytes > 1 << 30)
"""


def test_on_a_disk_there_is_room_for_more_than_memory_holds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LARGER_THAN_MEMORY, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("too large for memory\nTrue True\n", "")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_or_too_small_is_refused_at_once(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        Transitions(FIELDS, 4, folder=tmp_path / "none")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=f"No space left on device: 48 bytes are needed: '{tmp_path}'") as caught:
        Transitions(FIELDS, 4, folder=tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_a_memory_brings_neither_torch_nor_a_compiler_along():
    code = "import sys, components.replay_buffers; print({'torch', 'numba', 'pydantic'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_memory_begins_with_a_cache_line_wherever_it_is_taken():
    for n in (1, 3, 1000, 100_000):
        array = empty((n, 3), np.int16)
        assert (array.ctypes.data % LINE, array.shape, array.dtype) == (0, (n, 3), np.int16)
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert BatchMemory().empty("x", (300, 1000), np.dtype(np.float32)).ctypes.data % LINE == 0
    assert allocate((5, 7), np.float32, None).ctypes.data % LINE == 0


def test_the_memory_of_a_large_batch_is_reused_once_nothing_refers_to_it():
    memory, shape, dtype = BatchMemory(), (1000, 100), np.dtype(np.float32)

    def address(array):
        return array.__array_interface__["data"][0]

    first = memory.empty("obs", shape, dtype, room=800_000)
    first[:] = 1.0
    freeze(first)
    part, at = first[10:20], address(first)
    second = memory.empty("obs", shape, dtype)
    assert not np.shares_memory(first, second)
    del first
    assert not np.shares_memory(part, memory.empty("obs", shape, dtype)), "a view of it is in use"
    assert (part == 1.0).all()
    buffer = memoryview(part)
    del part
    third = memory.empty("obs", shape, dtype)
    assert not np.shares_memory(np.asarray(buffer), third), "its buffer is in use"
    del third
    buffer.release()
    assert address(memory.empty("obs", shape, dtype)) == at
    larger = memory.empty("obs", (2000, 100), dtype)
    assert address(larger) == at, "it had room for more"
    assert larger.flags.writeable
    assert second.flags.writeable


def test_no_more_blocks_are_kept_than_a_few():
    memory, dtype = BatchMemory(), np.dtype(np.float32)
    held = [memory.empty("obs", (1 << 16,), dtype) for _ in range(10)]
    for i, array in enumerate(held):
        array[:] = i
    assert [array[0] for array in held] == list(range(10))
    assert len(memory._blocks["obs"]) == BatchMemory.MOST
    del held, array
    grown = memory.empty("obs", (1 << 17,), dtype)
    assert len(memory._blocks["obs"]) == 1, "those that were too small are gone"
    assert grown.flags.writeable


def test_an_array_that_grows_keeps_its_rows_and_its_memory():
    growing = GrowingArray((3,), np.float32)
    growing.extended(2)[:] = [[1, 2, 3], [4, 5, 6]]
    memory = growing._mapped
    larger = growing.extended(3_000_000)  # beyond HUGE
    larger[-1] = 7
    assert larger[:2].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (larger.shape, larger.dtype, growing._mapped is memory) == ((3_000_000, 3), np.float32, True)


def test_an_array_that_is_referred_to_while_it_grows_stays_as_it_is():
    growing = GrowingArray((), np.int64)
    old = growing.extended(4)
    old[:] = range(4)
    new = growing.extended(8)
    new[:4] += 10
    assert old.tolist() == [0, 1, 2, 3]
    assert new[:4].tolist() == [10, 11, 12, 13]


def test_a_system_that_moves_no_pages_copies_the_rows(monkeypatch):
    growing = GrowingArray((), np.int64)
    growing.extended(4)[:] = range(4)

    class Immovable(mmap.mmap):
        def resize(self, newsize):
            raise SystemError("mmap: resizing not available--no mremap()")

    immovable = Immovable(-1, 32)
    immovable.write(growing._mapped)
    monkeypatch.setattr(growing, "_mapped", immovable)
    assert growing.extended(9)[:4].tolist() == [0, 1, 2, 3]


def test_what_is_being_saved_does_not_change_while_the_buffer_grows(spec, make_episodes, monkeypatch):
    monkeypatch.setattr(packed_episode_store, "FIRST_EPISODES", 1)
    replay = EpisodeReplay(spec, 40)
    replay.insert(Episodes(**make_episodes([6])))
    arrays = replay._store.state_arrays(np.arange(1))
    saved = [part for name in ("frames/available", "frames/obs", "values/obs") for part in arrays[name].pieces]
    expected = [part.copy() for part in saved]
    for i in range(20):
        replay.insert(Episodes(**make_episodes([6, 5], first=1 + 2 * i)))
    assert replay.check_valid() == []
    for part, before in zip(saved, expected, strict=True):
        np.testing.assert_array_equal(part, before)


def test_memory_for_episodes_is_at_most_a_quarter_more_than_they_need(spec, make_episodes, monkeypatch):
    monkeypatch.setattr(packed_episode_store, "FIRST_EPISODES", 1)
    replay = EpisodeReplay(spec, 40)
    for i in range(60):  # often round the ring
        replay.insert(Episodes(**make_episodes([3, 3], first=2 * i)))
    frames, obs = replay._store._space, replay._store._sparse["obs"]._space
    assert frames.used <= frames.size <= 1.25 * frames.used
    assert obs.used <= obs.size <= 1.25 * obs.used


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's table of mappings")
@pytest.mark.parametrize("huge", [True, False])
def test_large_pages_are_requested_unless_they_would_be_mostly_empty(huge: bool) -> None:
    array = GrowingArray((), np.uint8, huge=huge).extended(GrowingArray.HUGE)
    tables = Path("/proc/self/smaps").read_text().split("VmFlags:")
    address = array.ctypes.data
    for about, flags in itertools.pairwise(tables):
        begin, end = (int(place, 16) for place in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ", about, re.MULTILINE)[-1])
        if begin <= address < end:
            assert ("hg" in flags.partition("\n")[0].split()) is huge
            return
    raise AssertionError("the array is in no mapping")
