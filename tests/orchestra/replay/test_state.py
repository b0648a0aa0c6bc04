"""Comparing the state of two objects."""

import sys
from collections import deque
from typing import Any

import numpy as np
import pytest

from orchestra import Message
from orchestra.replay.state import array_difference, state_differences, state_leaves, without_unwritten


class Tag(Message):
    name: str


class Slotted:
    __slots__ = ("left", "unset")

    def __init__(self, left: Any) -> None:
        self.left = left


class Tensor:
    """As other libraries have them."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = np.array(numbers)
        self.dtype = "float"

    def detach(self) -> "Tensor":
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._numbers


class Thing:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.itself = self
        self.double = lambda x: 2 * x
        self.kind = dict


def paths(one: Any, other: Any, **options: Any) -> list[str]:
    return [each.path for each in state_differences(Thing(one), Thing(other), **options)]


@pytest.mark.parametrize(
    "value",
    [
        1, "x", None, [1, {"a": (2, 3)}], {1, 2}, deque([1]), np.arange(5), Slotted(1), Tag(name="a"),
        np.array([np.nan]), Tensor(1, 2), {Tensor(1): 2}, np.float64(2), np.array(["text"]),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_equal_objects_do_not_differ(value: Any) -> None:
    from copy import deepcopy

    assert paths(value, deepcopy(value)) == []


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        (1, 2, "value"),
        (1, 1.0, "value"),
        ([1, {"a": (2, 3)}], [1, {"a": (2, 4)}], "value[1]['a'][1]"),
        ({"a": 1}, {"b": 1}, "value"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "value"),
        ([1], [1, 2], "value"),
        ({1, 2}, {1, 3}, "value[1]"),
        (np.arange(3), np.array([0, 1, 9]), "value"),
        (np.arange(3), np.arange(3.0), "value"),
        (Slotted(1), Slotted(2), "value.left"),
        (Tag(name="a"), Tag(name="b"), "value.name"),
        (Tensor(1, 2), Tensor(1, 3), "value"),
        (np.random.default_rng(1), np.random.default_rng(2), "value.state"),
        (np.float32(1), np.float32(2), "value"),
    ],
)
def test_the_place_of_a_difference_is_named(one: Any, other: Any, path: str) -> None:
    assert paths(one, other) == [path]


def test_large_arrays_are_leaves_on_request_only() -> None:
    large = np.zeros(1 << 20)
    assert [path for path, _ in state_leaves({"a": large, "b": 1}, large=False)] == ["", "['b']"]
    assert [path for path, _ in state_leaves({"a": large, "b": 1})] == ["", "['a']", "['b']"]


def test_uninitialised_memory_is_not_compared() -> None:
    one, other = np.full(8, 0xAB, np.uint8), np.full(8, 0xCD, np.uint8)
    one[2] = other[2] = 7
    assert array_difference(one, other, (0, 0)) is not None
    assert array_difference(one, other, (0xAB, 0xCD)) is None
    other[2] = 8
    assert array_difference(one, other, (0xAB, 0xCD)) is not None
    for dtype in (np.bool_, np.int16, np.float32, np.float64, np.complex128):
        array = np.zeros((2, 3), dtype)
        array.view(np.uint8)[1] = 0xAB
        written, never = without_unwritten(array, 0xAB)
        assert (written == 0).all()
        assert never.tolist() == [False] * 3 + [True] * 3


def test_leaves_name_every_value_and_its_place() -> None:
    thing = Thing({"a": [1, Slotted(Tag(name="x"))], "b": {3, 1}, "c": {Slotted(2), Slotted(1)}, "d": sys.stdout})
    leaves = dict(state_leaves(thing))
    assert leaves["value['a'][0]"] == "1"
    assert leaves["value['a'][1].left.name"] == "'x'"
    assert leaves["value['b'][0]"] == "1"  # in an order that does not depend on addresses
    assert leaves["value['c']"] == "set of : Slotted with left, : Slotted with left, left: 1, left: 2"
    assert "value['d']" not in leaves
    assert not sys.stdout.closed


def test_a_plain_difference_can_be_assigned_to_a_third_object() -> None:
    one, other, third = ({"lr": [rate, 1], "n": Slotted(rate)} for rate in (0.1, 0.2, 0.3))
    third["more"] = 1
    for each in state_differences(one, other):
        assert each.simple
        each.assign(third)
    assert third["lr"] == [0.2, 1]
    assert third["n"].left == 0.2
    assert [each.simple for each in state_differences({"a": np.zeros(2)}, {"a": np.ones(2)})] == [False]
