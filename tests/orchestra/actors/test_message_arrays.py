"""Arrays that are filled in place become a message whose memory is sent as it is."""

from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from orchestra import Arrays, Axes, Message, MessageArrays
from orchestra.actors import codec
from orchestra.actors.axes import is_frozen

SHAPES = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3).map(tuple), st.sampled_from(["bool", "int8", "int64", "float32"])
    ),
    min_size=1,
)


class FilmMsg(Message):
    """Arrays in a group and by themselves."""

    group: Arrays
    times: Annotated[NDArray[np.int32], Axes("int32", "frames")]


def no_memory(nbytes: int) -> None:
    """Lend nothing."""


@given(shapes=SHAPES)
def test_they_lie_back_to_back_as_in_a_payload_and_are_frozen(shapes: dict[str, Any]) -> None:
    lent: list[NDArray[np.uint8]] = []

    def lend(nbytes: int) -> NDArray[np.uint8]:
        lent.append(np.zeros(nbytes, np.uint8))
        return lent[-1]

    made = MessageArrays(shapes, lend)
    expected = {}
    for number, (name, (shape, dtype)) in enumerate(shapes.items(), start=1):
        assert (made.arrays[name].shape, made.arrays[name].dtype) == (shape, np.dtype(dtype))
        made.arrays[name][...] = number
        expected[name] = np.full(shape, number, dtype)
    frozen = made.freeze()
    assert made.arrays == {}
    assert list(frozen) == list(shapes)
    for name, array in frozen.items():
        assert is_frozen(array)
        np.testing.assert_array_equal(array, expected[name])
    assert lent[0].tobytes() == codec.payload_bytes(list(expected.values()))


def test_a_message_takes_them_without_a_copy() -> None:
    made = MessageArrays({"pixels": ((3, 4), "float32"), "times": ((3,), "int32")}, no_memory)
    frozen = made.freeze()
    message = FilmMsg(group=Arrays(pixels=frozen["pixels"]), times=frozen["times"])
    assert message.group["pixels"] is frozen["pixels"]
    assert message.times is frozen["times"]


def test_they_are_frozen_once() -> None:
    made = MessageArrays({"times": ((3,), "int32")}, no_memory)
    made.freeze()
    with pytest.raises(ValueError, match="have been frozen before"):
        made.freeze()
