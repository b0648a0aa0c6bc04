"""Sparse arrays: what is read is what was written, and parts that do not fit each other are refused."""

import math
import struct
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from orchestra import Arrays, Axes, Message, SparseArray
from orchestra.actors import codec
from orchestra.actors.sparse_array import GROUP, opened
from orchestra.trace.analysis.values import recorded_fields, value_difference, value_text
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Digest
from orchestra.trace.recording.capture import digested, frozen_value


class PlayedMsg(Message):
    fields: Arrays
    lengths: Annotated[NDArray[np.int32], Axes("int32", "pieces")]


def plainly(array: NDArray[Any], pieces: tuple[int, ...]) -> SparseArray:
    """Return an array as differences, number by number."""
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    kind = f"u{array.dtype.itemsize}"
    n, groups = rows.shape[1], -(-rows.shape[1] // GROUP)
    bits, values, counts = np.zeros((len(rows), groups), np.uint16), [], []
    begin = 0
    for size in pieces:
        before, count = [0] * n, 0
        for row in range(begin, begin + size):
            numbers = rows[row].copy().view(kind).tolist()
            for j, number in enumerate(numbers):
                if number != before[j]:
                    bits[row, j // GROUP] |= 1 << j % GROUP
                    values.append(number ^ before[j])
                    count += 1
            before = numbers
        begin += size
        counts.append(count)
    changes = np.array(values, kind).view(array.dtype)
    return SparseArray(bits, changes, array.shape, pieces, tuple(counts))


def some_array(item: tuple[int, ...], pieces: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    """Return rows of which many numbers are zero or as in the row before, with NaN and -0.0."""
    rng = np.random.default_rng(seed)
    array = rng.choice(np.array([0.0, -0.0, np.nan, 1.5, -2.0]), (sum(pieces), *item)).astype(dtype)
    for row in range(1, len(array)):
        np.copyto(array[row, ...], array[row - 1, ...], where=rng.random(item) < 0.6)
    return array


items = st.sampled_from([(), (1,), (3,), (GROUP,), (2, GROUP + 1), (3, 2 * GROUP)])
sizes = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@given(item=items, pieces=sizes, dtype=st.sampled_from(["<f4", "<f8", "<f2"]), seed=st.integers(0, 99))
def test_every_number_is_restored_bit_for_bit(item, pieces, dtype, seed) -> None:
    array = some_array(item, pieces, dtype, seed)
    sparse = plainly(array, pieces)
    assert sparse.dense().tobytes() == array.tobytes()
    assert (sparse.dense().shape, sparse.dense().dtype, len(sparse)) == (array.shape, array.dtype, len(array))
    assert not sparse.dense().flags.writeable
    assert sparse.dense() is sparse.dense(), "it is made once"


def test_differences_are_those_of_the_row_before_in_the_piece() -> None:
    array = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]], np.float32)
    (one,) = struct.unpack("<I", struct.pack("<f", 1.0))
    (two,) = struct.unpack("<I", struct.pack("<f", 2.0))
    together, apart = plainly(array, (3,)), plainly(array, (2, 1))
    assert (together.bits.tolist(), apart.bits.tolist()) == ([[1], [2], [2]], [[1], [2], [1]])
    assert together.values.view(np.uint32).tolist() == [one, two, two]
    assert apart.values.view(np.uint32).tolist() == [one, two, one]
    assert (together.counts, apart.counts) == ((3,), (2, 1))
    assert apart.nbytes == 3 * 2 + 3 * 4


@given(pieces=sizes.filter(len), chosen=st.integers(0, 15), seed=st.integers(0, 99))
def test_pieces_are_chosen_and_left_out(pieces, chosen, seed) -> None:
    array = some_array((2, 9), pieces, "<f4", seed)
    sparse, parts = plainly(array, pieces), np.split(array, np.cumsum(pieces)[:-1])
    mask = np.array([bool(chosen >> i & 1) for i in range(len(pieces))])
    if mask.any():
        kept = [part for part, is_kept in zip(parts, mask, strict=True) if is_kept]
        assert sparse.select(mask).dense().tobytes() == b"".join(part.tobytes() for part in kept)
        assert not sparse.select(mask).values.flags.writeable
    for first in range(len(pieces)):
        assert sparse.since(first).dense().tobytes() == b"".join(part.tobytes() for part in parts[first:])


WHOLE = some_array((2, 9), (2, 3), "<f4", 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bits": np.zeros((5, 2), np.int16)}, "expected bits uint16(5, 2), got int16(5, 2)"),
        ({"bits": np.zeros((5, 3), np.uint16)}, "expected bits uint16(5, 2), got uint16(5, 3)"),
        ({"bits": [[1]]}, "expected arrays of bits and of values, got [[1]]"),
        ({"values": np.zeros((1, 2), np.float32)}, "expected arrays of bits and of values"),
        ({"shape": ()}, "expected bits uint16(), got uint16(5, 2)"),
        ({"pieces": (2, 2)}, "a sparse array of 5 rows: expected as many in pieces of 1 or more, got (2, 2)"),
        ({"pieces": (5, 0)}, "expected as many in pieces of 1 or more, got (5, 0)"),
        ({"counts": (1, 2, 3)}, "expected as many in counts of 0 or more, got (1, 2, 3)"),
        ({"counts": (-1, 10**6)}, "expected as many in counts of 0 or more"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    record = plainly(WHOLE, (2, 3)).record() | changed
    with pytest.raises(ValueError, match="a sparse array") as caught:
        SparseArray(**record)
    assert said in str(caught.value)
    with pytest.raises(ValidationError, match="a sparse array"):
        PlayedMsg(fields={"obs": record}, lengths=np.zeros(2, np.int32))  # type: ignore[arg-type]  # as it arrives


def test_counts_that_are_not_those_of_the_bits_are_refused_when_it_is_read() -> None:
    sparse = plainly(WHOLE, (2, 3))
    first, second = sparse.counts
    with pytest.raises(ValueError, match="expected counts as bits are set in the pieces") as caught:
        SparseArray(sparse.bits, sparse.values, sparse.shape, sparse.pieces, (first - 1, second + 1)).dense()
    assert f"[{first}, {second}], got ({first - 1}, {second + 1})" in str(caught.value)


def played() -> PlayedMsg:
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    return PlayedMsg(fields=Arrays(obs=plainly(WHOLE, (2, 3)), reward=frozen), lengths=np.array([1, 2], np.int32))


def test_it_travels_in_a_message_as_differences() -> None:
    message = played()
    header, arrays = codec.Encoder().encode(codec.values_of(message))
    assert sum(array.nbytes for array in arrays) == message.fields.nbytes + 8
    assert message.fields.nbytes == plainly(WHOLE, (2, 3)).nbytes + 3 * 8
    arrived = codec.build(PlayedMsg, codec.decode(header, codec.payload_array(arrays)))
    assert isinstance(arrived.fields.plain()["obs"], SparseArray)
    assert arrived.fields["obs"].tobytes() == WHOLE.tobytes()
    assert arrived.fields["reward"].tolist() == [0.0, 1.0, 2.0]
    assert repr(arrived.fields) == "Arrays(obs=float32[5, 2, 9], reward=float64[3])"


def test_parts_to_which_their_owner_can_write_are_copied() -> None:
    sparse = plainly(WHOLE, (2, 3))
    held = Arrays(obs=sparse)
    sparse.values[:] = 7.0
    assert held["obs"].tobytes() == WHOLE.tobytes()
    again = Arrays(obs=held.plain()["obs"])
    assert again.plain()["obs"] is held.plain()["obs"], "read-only parts are shared"


# In traces ------------------------------------------------------------------------------------------------------------


def test_a_record_without_arrays_has_digests_of_the_parts() -> None:
    many = np.concatenate([WHOLE] * 200)  # of which most rows differ from those before
    message = PlayedMsg(fields=Arrays(obs=plainly(many, (1000,))), lengths=np.zeros(1, np.int32))
    kept, nbytes = digested(message, None)
    obs, whole = kept.fields.plain()["obs"], message.fields.plain()["obs"]
    assert isinstance(obs.bits, Digest)
    assert isinstance(obs.values, Digest)
    assert obs.values.digest == digest_of(whole.values)
    assert obs.bits.digest == digest_of(whole.bits)
    assert obs.pieces == (1000,)
    assert nbytes < 2000 < message.fields.nbytes
    assert frozen_value({"fields": message.fields})["fields"]["obs"]["counts"] == list(whole.counts)


def test_trace_tools_show_the_array_itself() -> None:
    record = recorded_fields(played())["fields"]["obs"]
    assert value_text(record) == value_text(WHOLE)
    assert opened({"a": [record]})["a"][0].tobytes() == WHOLE.tobytes()
    unknown = Digest(np.dtype(np.float32), (4,), bytes(16))
    assert value_text({**record, "values": unknown}) == "float32[5, 2, 9] 00000000"
    assert opened({**record, "values": unknown})["values"] is unknown


def test_trace_tools_compare_the_arrays_themselves() -> None:
    other = WHOLE.copy()
    other[3, 1, 4] = 9.0
    one, two = (
        recorded_fields(PlayedMsg(fields=Arrays(obs=plainly(each, (2, 3))), lengths=np.zeros(1, np.int32)))
        for each in (WHOLE, other)
    )
    assert value_difference(one, one) is None
    found = value_difference(one, two)
    assert found is not None
    assert found.path == "fields.obs[3][1][4]"
    assert found.right.startswith("9.0")
    dense = recorded_fields(PlayedMsg(fields=Arrays(obs=WHOLE), lengths=np.zeros(1, np.int32)))
    assert value_difference(one, dense) is None, "only the form differs"
    stored = {digest_of(part): part.reshape(-1).view(np.uint8) for part in (two["fields"]["obs"]["values"],)}
    (digest,) = stored
    lost = {
        **two["fields"]["obs"],
        "values": Digest(np.dtype(np.float32), two["fields"]["obs"]["values"].shape, digest),
    }
    looked_up = value_difference(one["fields"]["obs"], lost, find_array=lambda each: stored.get(each.digest))
    assert looked_up is not None
    assert looked_up.path == "[3][1][4]"
    unknown = value_difference(one["fields"]["obs"], lost)
    assert unknown is not None
    assert unknown.path == ".values" or unknown.path.startswith(".bits")
