"""Messages to bytes and back; and bytes that somebody tampered with."""

import enum
import functools
import random
import struct
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from orchestra.actors import codec
from orchestra.actors.arrays import freeze
from orchestra.actors.axes import Axes
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.errors import DecodeError, WireError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class InnerMsg(Message):
    label: str
    weights: Annotated[NDArray[np.float64], Axes("float64", "n")]


class OuterMsg(Message):
    count: int
    mode: Literal["fast", "slow"]
    colour: Colour
    path: PurePosixPath
    who: Ref[Any]
    inner: InnerMsg
    many: tuple[InnerMsg, ...] = ()
    table: dict[str, list[float | None]]
    tags: frozenset[str] = frozenset()
    obs: Annotated[NDArray[np.float32], Axes("float32", "steps", "features")]
    mask: Annotated[NDArray[np.bool_], Axes("bool", "steps")]


class SquareMsg(Message):
    n: int

    @functools.cached_property
    def square(self) -> int:
        return self.n * self.n


def outer() -> OuterMsg:
    inner = InnerMsg(label="é", weights=np.arange(3.0))
    return OuterMsg(
        count=2**40,
        mode="fast",
        colour=Colour.BLUE,
        path=PurePosixPath("a/b"),
        who=Ref("node/actor"),
        inner=inner,
        many=(inner, inner),
        table={"x": [1.5, None], "": []},
        tags=frozenset({"p", "q"}),
        obs=np.arange(8, dtype=np.float32).reshape(4, 2),
        mask=np.array([True, False, True, True]),
    )


def sent(value: Any) -> tuple[bytes, Any]:
    """Encode `value` as it goes on the wire: its header, and its payload in memory of its own, None if empty."""
    header, arrays = codec.Encoder().encode(value)
    return header, codec.payload_array(arrays) if codec.payload_size(arrays) else None


def travelled(value: Any) -> Any:
    return codec.decode(*sent(value))


def test_a_value_without_arrays_keeps_none_when_another_one_is_encoded() -> None:
    encoder = codec.Encoder()
    _, none = encoder.encode(["no array"])
    _, one = encoder.encode([np.zeros(3)])
    assert (len(none), len(one)) == (0, 1)


def marker(dtype: int, *shape: int) -> msgpack.ExtType:
    return msgpack.ExtType(codec.ARRAY, struct.pack(f"<B{len(shape)}Q", dtype, *shape))


def refusal(header: Any, payload: Any = None) -> str:
    with pytest.raises(DecodeError) as caught:
        codec.decode(header if isinstance(header, bytes) else msgpack.packb(header), payload)
    return str(caught.value)


def equal(left: Any, right: Any) -> bool:
    """Equality that tells 1 from 1.0 and True, sees NaN as itself, and compares arrays bit for bit."""
    if isinstance(left, np.ndarray):
        same_kind = isinstance(right, np.ndarray) and left.dtype == right.dtype and left.shape == right.shape
        return same_kind and left.tobytes() == right.tobytes()
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return type(left) is type(right) and (left == right or (left != left and right != right))


arrays = st.one_of(
    *(npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)) for dtype in codec.DTYPES)
)
atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.builds(Ref, st.text(max_size=20)),
    arrays,
)
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_decoded_equals_what_was_encoded(value: Any) -> None:
    assert equal(value, travelled(value))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", codec.DTYPES)
def test_an_array_of_every_dtype_and_shape_arrives_equal_and_read_only(dtype: str, shape: tuple[int]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    arrived = travelled([array])[0]

    assert equal(array, arrived)
    assert not arrived.flags.writeable
    if arrived.nbytes:  # of an empty one there is nothing to protect
        with pytest.raises(ValueError, match="WRITEABLE"):
            arrived.flags.writeable = True


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_views_that_are_not_contiguous_arrive_equal_frozen_or_not(rows: int, columns: int, frozen: bool) -> None:
    base = np.arange(4 * rows * columns, dtype=np.int32).reshape(2 * rows, 2 * columns)
    if frozen:
        base.flags.writeable = False
    view = base[::2, ::-2].T

    assert equal(np.ascontiguousarray(view), travelled([view])[0])


def test_each_array_begins_on_its_alignment_whatever_came_before() -> None:
    odd = [np.zeros(n, np.uint8) for n in (1, 15, 16, 17, 0)]
    arrived = travelled([*odd, np.arange(3, dtype=np.complex128)])

    assert equal(arrived[-1], np.arange(3, dtype=np.complex128))
    assert all(array.ctypes.data % codec.ALIGNMENT == arrived[0].ctypes.data % codec.ALIGNMENT for array in arrived[:4])


def test_a_frozen_array_is_sent_from_its_own_memory_and_stays_out_of_the_header() -> None:
    array = freeze(np.arange(100_000))
    header, aside = codec.Encoder().encode([array])
    (buffer,) = codec.payload_buffers(aside)

    assert aside[0] is array
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), array)
    assert len(header) < 32


def test_an_array_that_may_still_be_written_is_copied() -> None:
    array = np.zeros(4)
    _, aside = codec.Encoder().encode([array])
    array[:] = 1

    assert not aside[0].any()


def test_the_arrays_of_a_message_are_views_of_the_payload_it_came_with() -> None:
    header, payload = sent([np.arange(10), np.arange(5.0)])

    assert all(np.shares_memory(payload, array) for array in codec.decode(header, payload))


def test_a_message_with_messages_refs_enums_and_paths_inside_travels() -> None:
    message = outer()
    arrived = codec.copied(message)

    assert isinstance(arrived, OuterMsg)
    for name in ("count", "mode", "colour", "path", "who", "table", "tags"):
        assert getattr(arrived, name) == getattr(message, name)
    assert equal(arrived.obs, message.obs)
    assert [inner.label for inner in arrived.many] == ["é", "é"]
    assert equal(arrived.many[1].weights, np.arange(3.0))


def test_a_decoded_ref_speaks_for_whoever_decoded_it() -> None:
    home: Any = object()
    (ref,) = codec.decode(msgpack.packb([msgpack.ExtType(codec.REF, b"a/b")]), None, home)

    assert ref.address == "a/b"
    assert ref._home is home


def test_numpy_scalars_travel_as_python_numbers() -> None:
    assert equal(travelled([np.float32(0.5), np.int8(-3), np.bool_(True)]), [0.5, -3, True])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([{}, None], dtype=object), "an array of dtype object cannot travel in a message"),
        (np.array(["a"]), "an array of dtype <U1 cannot travel in a message"),
        (np.zeros(2, ">f4"), "an array of dtype >f4 cannot travel in a message"),
        (np.zeros(1, "M8[s]"), r"an array of dtype datetime64\[s\] cannot travel in a message"),
        (object, "a type cannot travel in a message: <class 'object'>"),
        (2**64, "a int cannot travel in a message: 18446744073709551616"),
    ],
    ids=["object", "text", "big-endian", "datetime", "class", "huge integer"],
)
def test_what_cannot_travel_is_refused_by_name(value: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"^{text}$"):
        codec.Encoder().encode([value])


def test_an_encoder_that_refused_something_is_as_good_as_new() -> None:
    encoder = codec.Encoder()
    with pytest.raises(TypeError):
        encoder.encode([np.zeros(3), object()])
    header, aside = encoder.encode([1])

    assert (codec.decode(header, None), aside) == ([1], [])


# What somebody else may send


def test_an_array_marker_that_claims_more_than_the_payload_is_refused() -> None:
    assert refusal([marker(1, 17)], np.zeros(16, np.uint8)) == (
        "an array int8[17] reaches beyond the 0+ bytes that came with it"
    )
    assert refusal([marker(1, 16), marker(1, 1)], np.zeros(16, np.uint8)) == (
        "an array int8[1] reaches beyond the 16+ bytes that came with it"
    )
    assert "reaches beyond the 0+ bytes" in refusal([marker(1, 1)])


@pytest.mark.parametrize("shape", [(2**63,), (2**64 - 1, 2**64 - 1), (2**33, 2**31), (2**40,)])
def test_a_marker_that_claims_memory_nobody_has_is_refused_before_any_is_taken(shape: tuple[int, ...]) -> None:
    assert "reaches beyond" in refusal([marker(11, *shape)], np.zeros(16, np.uint8))


@pytest.mark.parametrize("payload", [None, np.zeros(16, np.uint8)], ids=["alone", "with a payload"])
@pytest.mark.parametrize("shape", [(0, 2**62), (0, 2**63), (2**64 - 1, 0), (0, 2**62, 2**62)])
def test_an_empty_array_of_an_impossible_shape_is_refused(shape: tuple[int, ...], payload: Any) -> None:
    entries = [marker(11, *shape)] if payload is None else [marker(11, *shape), marker(1, 16)]
    with pytest.raises(DecodeError):
        codec.decode(msgpack.packb(entries), payload)


def test_payload_that_no_array_accounts_for_is_refused() -> None:
    assert refusal([marker(1, 4)], np.zeros(32, np.uint8)) == (
        "32 bytes came with the message, its arrays account for 16"
    )
    assert refusal([1], np.zeros(16, np.uint8)) == "16 bytes came with the message, its arrays account for 0"


def test_more_arrays_than_allowed_are_refused() -> None:
    allowed = [marker(1, 0)] * codec.MAX_ARRAYS

    assert len(codec.decode(msgpack.packb(allowed), None)) == codec.MAX_ARRAYS
    assert refusal([*allowed, marker(1, 0)]) == "more than 1024 arrays in one message"


@pytest.mark.parametrize("code", [0, 3, 42, 127])
def test_an_extension_that_nobody_defined_is_refused(code: int) -> None:
    assert refusal([msgpack.ExtType(code, b"xyz")]) == f"unknown msgpack extension {code}"


@pytest.mark.parametrize(
    "data", [b"", b"\x01\x00", bytes([len(codec.DTYPES)]), b"\xff" + bytes(8), b"\x01" + bytes(8 * 9)]
)
def test_a_malformed_array_marker_is_refused(data: bytes) -> None:
    assert refusal([msgpack.ExtType(codec.ARRAY, data)]) == f"a malformed array marker of {len(data)} bytes"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x01\x02",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\x90\x01",
        b"\x81" + msgpack.packb(marker(1, 0)) + b"\x01",
        b"\xc7\x01\x02\xff",
    ],
    ids=[
        "nothing",
        "a reserved byte",
        "cut short",
        "two values",
        "no UTF-8",
        "a list of 4 billion",
        "nested 100,000 deep",
        "a list as key",
        "an array as key",
        "a ref of no UTF-8",
    ],
)
def test_a_header_that_is_no_msgpack_is_refused(header: bytes) -> None:
    assert refusal(header).startswith("the header is no valid msgpack: ")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": "many"}, "OuterMsg: count: Input should be a valid integer, unable to parse string as an integer"),
        ({"mode": "slowly"}, "OuterMsg: mode: Input should be 'fast' or 'slow'"),
        ({"colour": 1}, "OuterMsg: colour: Input should be 'red' or 'blue'"),
        ({"who": "a/b"}, "OuterMsg: who: expected a Ref, got str"),
        ({"obs": [1.0]}, "OuterMsg: obs: expected an array float32[steps, features], got list"),
        ({"obs": np.zeros((4, 2))}, "OuterMsg: obs: expected an array float32[steps, features], got dtype float64"),
        ({"obs": np.zeros(4, "f4")}, "OuterMsg: obs: expected an array float32[steps, features], got shape (4,)"),
        ({"mask": np.ones(3, bool)}, "OuterMsg: the message: axis 'steps' has length 4 in obs but 3 in mask"),
        ({"inner": {"label": "x"}}, "OuterMsg: inner.weights: Field required"),
        ({"many": [{"label": 3}]}, "OuterMsg: many.0.label: Input should be a valid string"),
        ({"extra": 1}, "OuterMsg: extra: Extra inputs are not permitted"),
    ],
    ids=lambda case: "" if isinstance(case, str) else next(iter(case)),
)
def test_building_a_message_names_the_field_that_is_wrong(change: dict[str, Any], text: str) -> None:
    fields = codec.fields_of(outer()) | change
    with pytest.raises(DecodeError) as caught:
        codec.build(OuterMsg, fields)

    assert str(caught.value) == text


def test_building_a_message_from_what_is_no_dict_is_refused() -> None:
    for fields in (None, 3, (), "count", np.zeros(3), Ref("a/b")):
        with pytest.raises(DecodeError, match=r"^OuterMsg: the message: "):
            codec.build(OuterMsg, fields)


def test_the_fields_of_a_message_travel_by_their_order_alone() -> None:
    message = outer()
    values = travelled(codec.values_of(message))
    assert equal(travelled(codec.fields_of(codec.build(OuterMsg, values))), travelled(codec.fields_of(message)))
    for other in (values[:-1], [*values, None], []):
        with pytest.raises(DecodeError) as caught:
            codec.build(OuterMsg, other)
        assert str(caught.value) == f"OuterMsg: {len(other)} values came for its 11 fields"


def test_what_a_message_keeps_beside_its_fields_does_not_travel() -> None:
    message = SquareMsg(n=3)
    assert message.square == 9
    assert "square" in vars(message)
    assert codec.values_of(message) == [3]
    assert codec.copied(message) == SquareMsg(n=3)


def tampered(data: bytes, rng: random.Random) -> bytes:
    """Return `data` with one to four of its bytes changed, cut, doubled or torn off its end."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0:
                del changed[at:]
            case 1:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                changed[at:at] = rng.randbytes(rng.randint(1, 9))
            case 3:
                del changed[at : at + rng.randint(1, 9)]
            case 4:
                changed[at:at] = changed[at // 2 : at]
    return bytes(changed)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_tampered_messages_are_built_or_refused_and_nothing_else_happens(seed: int) -> None:
    rng = random.Random(seed)
    header, payload = sent(codec.fields_of(outer()))
    for _ in range(100):
        cut = payload[: rng.randrange(payload.nbytes + 1)] if rng.random() < 0.2 else payload
        try:
            message = codec.build(OuterMsg, codec.decode(tampered(header, rng), cut))
        except WireError:
            continue
        assert isinstance(message, OuterMsg)


@given(st.binary(max_size=60), st.integers(0, 64))
def test_bytes_of_any_kind_are_decoded_or_refused_and_nothing_else_happens(header: bytes, nbytes: int) -> None:
    try:
        codec.decode(header, np.zeros(nbytes, np.uint8) if nbytes else None)
    except WireError:
        return


@given(st.lists(st.tuples(st.integers(0, 15), st.lists(st.integers(0, 2**64 - 1), max_size=9)), max_size=3))
def test_array_markers_of_any_kind_are_decoded_or_refused(markers: list[tuple[int, list[int]]]) -> None:
    try:
        codec.decode(msgpack.packb([marker(dtype, *shape) for dtype, shape in markers]), np.zeros(64, np.uint8))
    except WireError:
        return
