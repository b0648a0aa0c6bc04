"""Comparing the state of two objects."""

from collections import deque
from typing import Any

import numpy as np
import pytest

from orchestra import Message
from orchestra.replay.state import state_differences


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


def test_large_arrays_are_compared_on_request_only() -> None:
    one, other = np.zeros(1 << 20), np.ones(1 << 20)
    assert paths(one, other, large=False) == []
    assert paths(one, other) == ["value"]


def test_uninitialised_memory_is_not_compared() -> None:
    one, other = np.full(8, 0xAB, np.uint8), np.full(8, 0xCD, np.uint8)
    one[2] = other[2] = 7
    assert paths(one, other) == ["value"]
    assert paths(one, other, unwritten=(0xAB, 0xCD)) == []
    other[2] = 8
    assert paths(one, other, unwritten=(0xAB, 0xCD)) == ["value"]


def test_a_plain_difference_can_be_assigned_to_a_third_object() -> None:
    one, other, third = ({"lr": [rate, 1], "n": Slotted(rate)} for rate in (0.1, 0.2, 0.3))
    third["more"] = 1
    for each in state_differences(one, other):
        assert each.simple
        each.assign(third)
    assert third["lr"] == [0.2, 1]
    assert third["n"].left == 0.2
    assert [each.simple for each in state_differences({"a": np.zeros(2)}, {"a": np.ones(2)})] == [False]
