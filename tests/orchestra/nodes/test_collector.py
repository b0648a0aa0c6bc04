"""While a process runs its node, the cycle collector leaves alone what was there before, and comes more seldom."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from orchestra.runs.runner import YOUNG, tuned_gc


@pytest.fixture(autouse=True)
def nothing_is_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as the session has it


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_made_meanwhile_is_collected_and_afterwards_all_is_as_it_was() -> None:
    usual = gc.get_threshold()
    with tuned_gc():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (YOUNG, *usual[1:])
        gone = weakref.ref(Knot())
        gc.collect()
        assert gone() is None
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual


def test_it_is_as_it_was_after_a_failure_too() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError), tuned_gc():
        raise KeyError
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual
