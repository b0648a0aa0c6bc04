"""Memory that two processes share: whose part is whose, who may look at it, and what is left of it."""

import errno
import mmap
import os
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.actors.arrays import is_frozen
from orchestra.errors import UsageError
from orchestra.wire import arena
from orchestra.wire.arena import PAGE, PERIOD, Arena, ArenaView, Blocks, NotShared, checked

NAME = bytes(range(16))
CAPACITY = 64 * PAGE


def view_of(one: Arena, capacity: int = CAPACITY) -> ArenaView:
    return ArenaView(os.getpid(), one.descriptor, one.name, capacity)


def mappings() -> str:
    """The shared memory that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return "".join(line for line in file if NAME.hex() in line)


def invalid(blocks: Blocks) -> str:
    """Return what is inconsistent in `blocks`; empty if nothing is."""
    spans = sorted([*blocks._free, *((begin, begin + size) for begin, size in blocks._taken.items())])
    if [begin for begin, _ in spans] != [0, *(end for _, end in spans[:-1])] or spans[-1][1] != blocks.capacity:
        return f"free and taken do not cover 0 to {blocks.capacity} once: {spans}"
    if any(one[1] == other[0] for one, other in zip(blocks._free, blocks._free[1:], strict=False)):
        return f"two that are free touch: {blocks._free}"
    return "" if blocks.used == sum(blocks._taken.values()) else f"{blocks.used} bytes are not what is taken"


# Blocks ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    pages=st.integers(0, 40),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 12 * PAGE), st.integers(0, 1000)), max_size=60),
)
def test_every_byte_is_free_or_in_one_block_and_the_lowest_that_fits_is_taken(
    pages: int, steps: list[tuple[bool, int, int]]
) -> None:
    blocks = Blocks(pages * PAGE)
    taken: dict[int, int] = {}
    for takes, nbytes, choice in steps:
        if takes:
            size = -(-nbytes // PAGE) * PAGE
            fits = [
                begin
                for begin in range(0, blocks.capacity - size + 1, PAGE)
                if all(begin + size <= other or begin >= other + length for other, length in taken.items())
            ]
            begin = blocks.take(nbytes)
            assert begin == (fits[0] if fits else None)
            if begin is not None:
                taken[begin] = size
        elif taken:
            begin = sorted(taken)[choice % len(taken)]
            assert blocks.give_back(begin)
            del taken[begin]
            assert not blocks.give_back(begin)
        assert blocks._taken == taken
        assert not pages or invalid(blocks) == ""


def test_what_no_block_begins_at_cannot_be_given_back() -> None:
    blocks = Blocks(10 * PAGE)
    blocks.take(3 * PAGE)
    assert not blocks.give_back(PAGE)
    assert blocks.used == 3 * PAGE


# An arena and who looks at it -----------------------------------------------------------------------------------------


def test_what_is_written_is_seen_where_it_lies_and_cannot_be_changed_there() -> None:
    one = Arena(CAPACITY, NAME)
    view = view_of(one)
    numbers = np.arange(3000, dtype=np.int32)
    assert one.write([b"x" * PAGE], PAGE) == 0
    begin = one.write([numbers.view(np.uint8).data, b"tail"], numbers.nbytes + 4)
    assert begin == PAGE
    seen = view.at(begin, numbers.nbytes + 4)
    assert bytes(seen[-4:]) == b"tail"
    array = np.ndarray((3000,), np.int32, seen)
    assert (array == numbers).all()
    assert is_frozen(array)  # so it can be told to others without a copy
    for reached in (array, seen, array[5:]):
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            reached.flags.writeable = True
    # What lies in the block later is what it looks at: it is the same memory, not a copy.
    assert one.blocks.give_back(begin)
    assert one.write([b"\1" * 4 * PAGE], 4 * PAGE) == begin
    assert array[0] == 0x01010101


def test_views_of_what_is_seen_keep_it() -> None:
    one = Arena(CAPACITY, NAME)
    view = view_of(one)
    one.write([b"x" * PAGE], PAGE)
    seen = view.at(0, PAGE)
    rows = np.ndarray((4, PAGE // 4), np.uint8, seen)[1:].reshape(-1)[::2].view(np.int8)
    assert rows.base is seen


def test_nothing_has_a_name_in_the_file_system_and_nothing_stays_mapped() -> None:
    one = Arena(CAPACITY, NAME)
    view = view_of(one)
    one.write([b"kept"], 4)
    kept = view.at(0, 4)
    assert not [name for name in os.listdir("/dev/shm") if NAME.hex() in name]
    one.close()
    del one, view
    assert bytes(kept) == b"kept"
    assert mappings().count("\n") == 1
    del kept
    assert mappings() == ""


def test_memory_is_taken_as_it_is_needed_the_warm_first() -> None:
    one = Arena(CAPACITY, NAME)
    assert os.fstat(one.descriptor).st_blocks == 0
    for _ in range(10):
        begin = one.write([b"x" * 3 * PAGE], 3 * PAGE)
        assert begin == 0
        one.blocks.give_back(begin)
    assert os.fstat(one.descriptor).st_blocks * 512 == 3 * PAGE


def provided(one: Arena) -> int:
    """Return the bytes that the system has provided."""
    return os.fstat(one.descriptor).st_blocks * 512


def test_memory_that_is_not_needed_any_more_is_returned_and_provided_again() -> None:
    one, large = Arena(1024 * PAGE, NAME), 512 * PAGE
    view = view_of(one, 1024 * PAGE)
    assert one.write([b"a" * PAGE], PAGE) == 0  # stays
    begin = one.write([b"b" * large], large)
    assert begin == PAGE
    assert provided(one) == large + PAGE
    one.blocks.give_back(begin)
    for number in range(3 * PERIOD):
        begin = one.write([bytes([number]) * 2 * PAGE], 2 * PAGE)
        assert begin == PAGE
        assert view.at(begin, 2 * PAGE).tobytes() == bytes([number]) * 2 * PAGE
        one.blocks.give_back(begin)
    assert provided(one) == 3 * PAGE
    assert view.at(0, PAGE).tobytes() == b"a" * PAGE
    assert one.write([b"c" * large], large) == PAGE
    assert provided(one) == large + PAGE
    assert view.at(PAGE, large).tobytes() == b"c" * large


def test_a_block_that_is_held_keeps_its_memory_however_far_it_lies() -> None:
    one, large = Arena(1024 * PAGE, NAME), 512 * PAGE
    view = view_of(one, 1024 * PAGE)
    below = one.take(large)
    far = one.write([b"far"], 3)
    assert (below, far) == (0, large)
    one.blocks.give_back(below)
    for _ in range(3 * PERIOD):
        begin = one.take(PAGE)
        assert begin is not None
        one.blocks.give_back(begin)
    assert view.at(far, 3).tobytes() == b"far"
    assert provided(one) == large + PAGE


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(1, 200), st.integers(0, 1000)), max_size=120))
def test_no_block_loses_its_contents_whatever_is_taken_and_given_back(steps: list[tuple[bool, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "PERIOD", 4)
        patch.setattr(arena, "SURPLUS", PAGE)
        one = Arena(400 * PAGE, NAME)
        view, held = view_of(one, 400 * PAGE), dict[int, bytes]()
        for number, (takes, pages, choice) in enumerate(steps):
            if takes:
                data = bytes([number]) * (pages * PAGE)
                begin = one.write([data], len(data))
                if begin is not None:
                    held[begin] = data
            elif held:
                begin = sorted(held)[choice % len(held)]
                one.blocks.give_back(begin)
                del held[begin]
            assert all(view.at(begin, len(data)).tobytes() == data for begin, data in held.items())
        one.close()


def test_a_system_without_memory_to_spare_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Arena(CAPACITY, NAME)
    assert one.write([b"x" * PAGE], PAGE) == 0

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert one.write([b"y" * PAGE], PAGE) is None
    assert one.blocks.used == PAGE
    one.blocks.give_back(0)
    assert one.write([b"z" * PAGE], PAGE) == 0  # what there is goes on being used
    monkeypatch.undo()
    assert one.write([b"y" * PAGE], PAGE) == PAGE


def test_an_arena_that_is_full_takes_no_more() -> None:
    one = Arena(2 * PAGE, NAME)
    assert one.write([b"x" * 2 * PAGE, b"y"], 2 * PAGE + 1) is None
    assert one.write([b"x"], 1) == 0
    assert one.write([b"x" * PAGE, b"y"], PAGE + 1) is None


def test_what_was_shared_cannot_shrink() -> None:
    one = Arena(CAPACITY, NAME)
    with pytest.raises(PermissionError):
        os.ftruncate(one.descriptor, PAGE)


def test_who_makes_no_memory_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotShared, match=f"^{1 << 62:,} bytes of it: "):
        Arena(1 << 62, NAME)

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(NotShared, match=r"^memfd_create: Too many open files$"):
        Arena(CAPACITY, NAME)
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(NotShared, match=r"^darwin has no memfd_create$"):
        Arena(CAPACITY, NAME)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda one: (2**22 + 1, one.descriptor, NAME, CAPACITY), "not in reach from here: No such file"),
        (lambda one: (os.getpid(), 1 << 40, NAME, CAPACITY), "not in reach from here: No such file"),
        (lambda one: (os.getpid(), one.descriptor, bytes(16), CAPACITY), "not in reach from here$"),
        (lambda one: (os.getpid(), 0, NAME, CAPACITY), "not in reach from here"),
        (lambda one: (os.getpid(), one.descriptor, NAME, CAPACITY + PAGE), "has 262,144 bytes, not 266,240"),
        (lambda one: (os.getpid(), one.descriptor, NAME, 1 << 80), "has 262,144 bytes"),
    ],
    ids=["process", "descriptor", "name", "another file", "size", "no size"],
)
def test_memory_that_is_not_what_was_said_is_not_looked_at(
    spoil: Callable[[Arena], tuple[int, int, bytes, int]], text: str
) -> None:
    one = Arena(CAPACITY, NAME)
    with pytest.raises(NotShared, match=text):
        ArenaView(*spoil(one))


def test_memory_that_could_shrink_or_cannot_be_mapped_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.memfd_create(f"orchestra-{NAME.hex()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, CAPACITY)
    with pytest.raises(NotShared, match="could shrink"):
        ArenaView(os.getpid(), descriptor, NAME, CAPACITY)
    os.close(descriptor)
    one = Arena(CAPACITY, NAME)
    opened = len(os.listdir("/proc/self/fd"))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(NotShared, match="cannot be mapped"):
        view_of(one)
    assert len(os.listdir("/proc/self/fd")) == opened


# How large ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [-PAGE, 1, PAGE + 1])
def test_a_capacity_that_is_no_number_of_pages_is_refused(capacity: int) -> None:
    with pytest.raises(UsageError, match=f"shared_memory is {capacity}: it must be a multiple of 4096 bytes"):
        checked(capacity)
