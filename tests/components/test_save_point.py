"""A save point waits for exactly the actors that have not saved, whatever happens in whichever order."""

from hypothesis import given
from hypothesis import strategies as st

from components.save_point import SavePoint


def test_a_checkpoint_is_ready_once_all_have_saved_and_nothing_is_in_flight() -> None:
    point = SavePoint()
    assert not point.active
    assert not point.ready(in_flight=False)
    point.begin(40, ["a/worker", "b/proxy"])
    assert (point.active, point.env_steps) == (True, 40)
    point.mark_saved("a/worker")
    assert not point.ready(in_flight=False)
    point.mark_saved("b/proxy")
    assert not point.ready(in_flight=True)
    assert point.ready(in_flight=False)
    point.commit(44)
    assert (point.active, point.env_steps, point.committed) == (False, None, 44)
    assert not point.ready(in_flight=False)


def test_with_nobody_to_wait_for_it_is_ready_at_once() -> None:
    point = SavePoint()
    point.begin(0, [])
    assert point.ready(in_flight=False)


NAMES = st.sampled_from(["a/worker", "b/worker", "c/proxy", "d/stranger"])


@given(st.sets(NAMES), st.lists(NAMES), st.booleans())
def test_it_waits_for_those_that_have_neither_saved_nor_gone(
    asked: set[str], saved: list[str], in_flight: bool
) -> None:
    point = SavePoint()
    for address in saved:  # before it begins, nothing counts
        point.mark_saved(address)
    point.begin(7, asked)
    for done in range(len(saved) + 1):
        assert point.unsaved == asked - set(saved[:done])
        assert point.ready(in_flight=in_flight) == (not point.unsaved and not in_flight)
        again = SavePoint(**{**vars(point), "unsaved": sorted(point.unsaved)})  # as it comes back from a record
        assert vars(again) == vars(point)
        if done < len(saved):
            point.mark_saved(saved[done])
