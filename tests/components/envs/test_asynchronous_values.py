"""Factories and values reach other processes as they were, without unpickling."""

import functools
from contextlib import suppress
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hosted_envs import Walk
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from components.envs.asynchronous import frames
from components.envs.asynchronous.arrays import anonymous_file, nbytes_of, shared_arrays
from components.envs.asynchronous.factories import built, described
from orchestra import UsageError

scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
plain = st.recursive(
    scalars | st.binary() | st.sampled_from([Walk, Path("/a/b"), Path.cwd]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@given(st.lists(plain, max_size=2), st.dictionaries(st.text(), plain, max_size=2))
def test_a_factory_is_built_as_it_was_described(arguments: list, keywords: dict) -> None:
    factory = functools.partial(Walk, *arguments, **keywords)
    back = built(msgpack.unpackb(msgpack.packb(described(factory))))
    assert (back.func, back.args, back.keywords) == (factory.func, factory.args, factory.keywords)


@pytest.mark.parametrize(
    "value", [lambda: None, object(), {1, 2}, np.zeros(1)], ids=["lambda", "object", "set", "array"]
)
def test_what_cannot_be_described_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="cannot be made in another process"):
        described(functools.partial(Walk, value))


def test_a_function_that_another_has_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = Walk
    monkeypatch.setattr("hosted_envs.Walk", None)
    with pytest.raises(UsageError, match=r"hosted_envs\.Walk is something else"):
        described(factory)


dtypes = npst.boolean_dtypes() | npst.integer_dtypes() | npst.floating_dtypes(sizes=(32, 64))


@given(npst.arrays(dtypes, npst.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_an_array_travels_as_it_is(array: np.ndarray) -> None:
    back = frames.unpacked(frames.packed({"a": [array, array.dtype.type(1)]})[4:])["a"]
    np.testing.assert_array_equal(back[0], array)
    assert (back[0].dtype, back[1]) == (array.dtype, 1)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_value_are_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        frames.unpacked(data)


def test_an_object_does_not_travel() -> None:
    with pytest.raises(TypeError, match="neither a plain value nor an array"):
        frames.packed({"infos": object()})
    with pytest.raises(TypeError, match="neither a plain value nor an array"):
        frames.packed(np.array([object()]))


shapes = st.lists(st.integers(0, 3), max_size=2).map(tuple)


@given(st.lists(st.tuples(shapes, dtypes), max_size=5), st.integers(1, 4))
def test_arrays_in_shared_memory_do_not_overlap(kinds: list, copies: int) -> None:
    fields = {str(i): (shape, dtype.str) for i, (shape, dtype) in enumerate(kinds)}
    descriptor = anonymous_file(nbytes_of(fields, copies))
    arrays = shared_arrays(descriptor, fields, copies)
    for i, array in enumerate(arrays.values()):
        array[...] = i % 2
    mapped_again = shared_arrays(descriptor, fields, copies)
    for i, (name, (shape, dtype)) in enumerate(fields.items()):
        assert (mapped_again[name].shape, mapped_again[name].dtype) == ((copies, *shape), dtype)
        assert (mapped_again[name] == i % 2).all()
