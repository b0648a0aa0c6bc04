"""Memory shared between processes: what one gathers another reads, and nothing stays behind."""

import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from components.replay_buffers.episodes import EpisodeReplay
from components.replay_buffers.shared import Place, SharedArena
from components.replay_buffers.transitions import Field, NStep, Transitions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory without a name is Linux's alone")


@pytest.fixture
def pair():
    with SharedArena(1 << 16) as mine:
        ends = socket.socketpair()
        mine.send(ends[0])
        with SharedArena.receive(ends[1]) as theirs:
            yield mine, theirs
        for end in ends:
            end.close()


def test_what_is_written_here_is_read_there(pair):
    mine, theirs = pair
    first, second = mine.allocate((3, 2), np.float32), mine.allocate((5,), np.bool_)
    first[:], second[:] = 7.5, True
    for array in (first, second, first[1:], second[2:3]):
        read = theirs.at(Place(*mine.place_of(array)))
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype
        assert not read.flags.writeable
    assert mine.place_of(second).offset % 64 == 0
    first[:] = 1.0
    assert (theirs.at(mine.place_of(first)) == 1.0).all()


def test_a_batch_of_rows_is_gathered_where_others_see_it(pair):
    mine, theirs = pair
    fields = {"obs": Field(np.float32, (4,)), "next_obs": Field(np.float32, (4,)), "reward": Field(np.float32)}
    replay = Transitions({**fields, "done": Field(np.bool_)}, 64, n_step=NStep(3, 0.9))
    replay.batch_buffers.allocate_with(mine.allocate)
    obs = np.arange(256, dtype=np.float32).reshape(64, 4)
    replay.insert({"obs": obs, "next_obs": obs + 4, "reward": obs[:, 0], "done": obs[:, 0] % 5 == 0})
    generator, taken = np.random.default_rng(0), []
    for _ in range(6):
        batch = replay.sample(16, generator).batch
        taken.append(mine.taken)
        assert batch.keys() == {"obs", "next_obs", "reward", "done", "discount"}
        for array in batch.values():
            np.testing.assert_array_equal(theirs.at(mine.place_of(array)), array)
    assert taken[1:] == [taken[1]] * 5  # two slabs, and no more


def test_a_batch_of_episodes_is_gathered_where_others_see_it(pair, spec, make_episodes):
    mine, theirs = pair
    replay, generator = EpisodeReplay(spec, 6, batch_buffers=2), np.random.default_rng(0)
    replay.batch_buffers.allocate_with(mine.allocate)
    for first, lengths in enumerate(([1], [2], [3, 6])):
        replay.insert(**make_episodes(lengths, first=first))
        batch = replay.sample(1, generator).batch
        for name in ("obs", "state", "available", "actions", "reward"):
            array = getattr(batch, name)
            np.testing.assert_array_equal(theirs.at(mine.place_of(array)), array)
    before = mine.taken
    for _ in range(20):
        replay.sample(1, generator)
    assert mine.taken == before


def test_arrays_outlive_the_arena_that_was_closed():
    arena = SharedArena(64)
    array = arena.allocate((4,), np.int64)
    arena.close()
    arena.close()
    array[:] = 3
    assert array.tolist() == [3] * 4


def test_what_does_not_fit_is_refused_with_the_arithmetic(pair):
    mine, theirs = pair
    mine.allocate((100,), np.uint8)
    with pytest.raises(MemoryError, match=re.escape("float64 of shape (9000,), 72,000 bytes, but 128 of 65,536 are")):
        mine.allocate((9000,), np.float64)
    assert mine.taken == 128
    with pytest.raises(ValueError, match="n_bytes: expected at least 1, got 0"):
        SharedArena(0)
    for strange in (np.zeros(3), mine.allocate((4, 4), np.int8)[:, 1]):
        with pytest.raises(ValueError, match="expected a contiguous array in this memory"):
            mine.place_of(strange)
    for place in ((-8, "<i8", (1,)), (65_536, "<i8", (1,)), (0, "<i8", (8193,)), (0, "|O", (1,)), (0, "<i8", (-1, -1))):
        with pytest.raises(ValueError, match="expected a place within 65,536 bytes"):
            theirs.at(Place(*place))


def test_one_who_hands_over_nothing_is_refused():
    mine, theirs = socket.socketpair()
    mine.send(b"hello")
    with pytest.raises(ConnectionError, match="expected to be handed a piece of memory, got none"):
        SharedArena.receive(theirs)
    mine.close()
    theirs.recv(16)
    with pytest.raises(ConnectionError):
        SharedArena.receive(theirs)
    theirs.close()


def test_nobody_can_shrink_the_memory_that_another_reads(pair):
    mine, theirs = pair
    for arena in (mine, theirs):
        with pytest.raises(PermissionError):
            os.ftruncate(arena._fd, 10)


WRITER = """
import socket, sys
import numpy as np
from components.replay_buffers.shared import SharedArena

arena = SharedArena(1 << 20)
arena.allocate((1000,), np.int64)[:] = 42
with socket.socket(fileno=int(sys.argv[1])) as end:
    arena.send(end)
    sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_its_readers_what_they_read_and_the_system_nothing():
    there = set(os.listdir("/dev/shm"))
    mine, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE
    ) as writer:
        theirs.close()
        arena = SharedArena.receive(mine)
        writer.send_signal(signal.SIGKILL)
    read = arena.at(Place(0, "<i8", (1000,)))
    arena.close()
    mine.close()
    assert (read == 42).all()
    assert set(os.listdir("/dev/shm")) <= there
