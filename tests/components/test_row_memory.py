"""Rows of frames take the memory of what is written, and give back what only long episodes need."""

import numpy as np
import psutil
from hypothesis import given
from hypothesis import strategies as st

from components.row_memory import RowMemory


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 40), st.integers(1, 400)),
    row=st.integers(0, 3),
    frame=st.integers(0, 40),
)
def test_frames_that_are_not_given_back_stay(shape: tuple[int, int, int], row: int, frame: int) -> None:
    row, frame = row % shape[0], frame % (shape[1] + 1)
    memory = RowMemory(shape, np.float32)
    assert not memory.array.any()
    memory.array[...] = expected = np.arange(1, memory.array.size + 1, dtype=np.float32).reshape(shape)
    memory.give_back(row, frame)
    others = np.arange(shape[0]) != row
    np.testing.assert_array_equal(memory.array[others], expected[others])
    np.testing.assert_array_equal(memory.array[row, :frame], expected[row, :frame])
    memory.array[row, frame:] = 7.0  # they can be written again
    assert (memory.array[row, frame:] == 7.0).all()


def test_memory_of_frames_is_taken_when_they_are_written_and_given_back() -> None:
    rows, frames, nbytes = 32, 100, 40_000
    before = resident()
    memory = RowMemory((rows, frames, nbytes // 4), np.float32)
    assert resident() - before < 10_000_000  # of 128 MB
    memory.array[:, :10] = 1.0
    assert 10_000_000 < resident() - before < 30_000_000
    memory.array[:] = 1.0
    assert resident() - before > 100_000_000
    for row in range(rows):
        memory.give_back(row, 10)
    assert resident() - before < 30_000_000
    assert (memory.array[:, :10] == 1.0).all()
