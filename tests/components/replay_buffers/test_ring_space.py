"""Places in a ring: items lie back to back, go on at its beginning, and are copied in as few runs as possible."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from components.replay_buffers.ring_space import RingSpace

SIZE = 7
counts = st.lists(st.integers(1, SIZE), min_size=1, max_size=6)


@given(first=st.integers(0, SIZE), taken=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_items_lie_back_to_back_in_the_ring(first: int, taken: list[int]) -> None:
    space = RingSpace(len(taken) + 1, SIZE)
    space.take([0], [first])
    slots = list(range(1, len(taken) + 1))
    starts = [(first + sum(taken[:i])) % SIZE for i in range(len(taken))]
    assert space.take(slots, taken) == starts
    assert space.starts[slots].tolist() == starts
    assert space.used == first + sum(taken)
    assert space.take([0], [1]) == [(first + sum(taken)) % SIZE]


@given(starts=st.lists(st.integers(0, SIZE - 1), min_size=6, max_size=6), counts=counts, adjacent=st.booleans())
def test_runs_have_all_rows_of_items_and_are_as_few_as_possible(
    starts: list[int], counts: list[int], adjacent: bool
) -> None:
    if adjacent:
        starts = [(starts[0] + sum(counts[:i])) % SIZE for i in range(len(counts))]
    places = [(start + i) % SIZE for start, n in zip(starts[: len(counts)], counts, strict=True) for i in range(n)]
    runs = RingSpace(0, SIZE).runs(starts[: len(counts)], counts)
    rows = [(to + i, first + i) for to, first, n in runs for i in range(n)]
    assert rows == [(place, row) for row, place in enumerate(places)]
    assert len(runs) == 1 + sum(place + 1 != after for place, after in pairwise(places))
