"""A byte stream to frames, wherever it is cut; and what is queued to writes."""

import gc
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.actors.arrays import frozen_copy
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Encoder, decode
from orchestra.errors import WireError
from orchestra.wire.frames import (
    CHUNK,
    PREFIX,
    Frame,
    FrameReader,
    Kind,
    Limits,
    Outbox,
    PayloadPool,
    frame_bytes,
    frame_prefix,
)

LIMITS = Limits(header=4 << 20, payload=64 << 20)

Sketch = tuple[Kind, bytes, bytes]
"""A frame as kind, header and payload."""


def stream_of(sketches: Sequence[Sketch]) -> bytes:
    return b"".join(frame_prefix(kind, len(head), len(body)) + head + body for kind, head, body in sketches)


def fed(reader: FrameReader, stream: bytes, cuts: Sequence[int] = ()) -> list[Frame]:
    """Hand `stream` over in pieces that end at `cuts`, never more at once than the reader has room for."""
    frames = []
    ends = [*sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    at = 0
    for end in ends:
        while at < end:
            buffer = reader.get_buffer()
            count = min(len(buffer), end - at)
            buffer[:count] = stream[at : at + count]
            at += count
            sole = reader.sole(count)
            frames += reader.received(count) if sole is None else [sole]
    return frames


def test_a_frame_that_comes_by_itself_needs_no_more_than_a_look() -> None:
    reader = FrameReader(LIMITS)
    one = frame_prefix(Kind.PING, 4, 0) + b"head"

    def look(data: bytes) -> Frame | None:
        reader.get_buffer()[: len(data)] = data
        return reader.sole(len(data))

    assert look(one) == look(one) == Frame(Kind.PING, b"head", None)
    for other in (one[:-1], one + b"x", one + one, one[:9], b"XX" + one[2:], stream_of([(Kind.MESSAGE, b"", b"body")])):
        assert look(other) is None, "there is more to do about it"
    reader.limits = Limits(header=3)
    assert look(one) is None
    assert look(one[:10]) is None
    assert not list(reader.received(10))
    reader.get_buffer()[:20] = one[10:] + one[:10]
    assert reader.sole(20) is None, "as long as a frame, but two halves"


def sketched(frames: Sequence[Frame]) -> list[Sketch]:
    return [(f.kind, f.header, b"" if f.payload is None else f.payload.tobytes()) for f in frames]


def refusal(stream: bytes, limits: Limits = LIMITS) -> str:
    with pytest.raises(WireError) as caught:
        fed(FrameReader(limits), stream)
    return str(caught.value)


sketches = st.lists(
    st.tuples(st.sampled_from(Kind), st.binary(max_size=40), st.binary(max_size=60)), min_size=1, max_size=6
)


@given(sketches, st.lists(st.integers(0, 700), max_size=30))
def test_wherever_a_stream_is_cut_the_same_frames_come_out(expected: list[Sketch], cuts: list[int]) -> None:
    assert sketched(fed(FrameReader(LIMITS), stream_of(expected), cuts)) == expected


@given(sketches)
def test_a_stream_that_comes_byte_by_byte_gives_the_same_frames(expected: list[Sketch]) -> None:
    stream = stream_of(expected)

    assert sketched(fed(FrameReader(LIMITS), stream, range(len(stream)))) == expected


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_headers_and_payloads_around_the_size_of_a_chunk_come_out_whole(data: st.DataObject) -> None:
    near = st.one_of(st.integers(0, 50), st.integers(CHUNK - 60, CHUNK + 60), st.integers(2 * CHUNK, 3 * CHUNK))
    sizes = data.draw(st.lists(st.tuples(near, near), min_size=1, max_size=4))
    expected = [(Kind.MESSAGE, bytes([i]) * head, bytes([100 + i]) * body) for i, (head, body) in enumerate(sizes)]
    stream = stream_of(expected)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))

    assert sketched(fed(FrameReader(LIMITS), stream, cuts)) == expected


def test_a_header_larger_than_the_readers_chunk_comes_out_whole_and_so_does_what_follows() -> None:
    expected = [
        (Kind.PING, b"before", b""),
        (Kind.MESSAGE, bytes(range(256)) * (5 * CHUNK // 256), b"payload"),
        (Kind.PONG, b"after", b""),
    ]

    assert sketched(fed(FrameReader(LIMITS), stream_of(expected), [3, CHUNK, CHUNK + 1])) == expected


def test_frames_that_came_earlier_stay_as_they_were_when_the_readers_memory_is_used_again() -> None:
    reader = FrameReader(LIMITS)
    first = fed(reader, stream_of([(Kind.MESSAGE, b"head", b"body" * 5)]))
    fed(reader, stream_of([(Kind.MESSAGE, b"x" * CHUNK, b"y" * CHUNK)] * 4))

    assert sketched(first) == [(Kind.MESSAGE, b"head", b"body" * 5)]


def test_a_payload_is_received_into_its_final_memory() -> None:
    reader = FrameReader(LIMITS)
    body = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8)
    fed(reader, frame_prefix(Kind.MESSAGE, 2, body.nbytes) + b"hd")
    buffer = reader.get_buffer()
    buffer[:] = body.data
    (frame,) = reader.received(len(buffer))

    assert len(buffer) == body.nbytes
    assert np.shares_memory(np.frombuffer(buffer, np.uint8), frame.payload)
    assert np.array_equal(frame.payload, body)


def test_a_payload_is_read_only_once_it_is_complete() -> None:
    for size in (5, CHUNK * 2):
        (frame,) = fed(FrameReader(LIMITS), stream_of([(Kind.MESSAGE, b"", bytes(size))]))

        assert not frame.payload.flags.writeable


def test_a_frame_knows_its_size_on_the_wire() -> None:
    expected = [(Kind.MESSAGE, b"abc", b"de"), (Kind.PING, b"", b"")]

    assert [frame.nbytes for frame in fed(FrameReader(LIMITS), stream_of(expected))] == [PREFIX.size + 5, PREFIX.size]


def test_a_frame_without_payload_is_made_in_one_piece() -> None:
    assert sketched(fed(FrameReader(LIMITS), frame_bytes(Kind.CREDIT, b"xyz"))) == [(Kind.CREDIT, b"xyz", b"")]


# What somebody else may send


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (b"HTTP/1.1 200 OK\r\n", "expected a frame to begin with b'OR', got b'HT'"),
        (struct.pack("<2sBBIQ", b"OR", 1, 3, 0, 0), "the peer speaks protocol version 1, this node speaks 4"),
        (struct.pack("<2sBBIQ", b"OR", 4, 0, 0, 0), "unknown kind of frame 0"),
        (struct.pack("<2sBBIQ", b"OR", 4, 200, 0, 0), "unknown kind of frame 200"),
        (
            struct.pack("<2sBBIQ", b"OR", 4, 3, 2**32 - 1, 0),
            "a header of 4,294,967,295 bytes; at most 4,194,304 are allowed",
        ),
        (
            struct.pack("<2sBBIQ", b"OR", 4, 3, 8, 2**40),
            "a payload of 1,099,511,627,776 bytes; at most 67,108,864 are allowed",
        ),
    ],
    ids=["magic", "version", "kind 0", "kind 200", "header", "payload"],
)
def test_a_prefix_that_breaks_the_protocol_is_refused_at_once(prefix: bytes, text: str) -> None:
    assert refusal(prefix) == text


def test_nothing_is_allocated_for_what_a_peer_only_claims_beyond_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(*_: object) -> None:
        raise AssertionError("allocated before the limit was checked")

    monkeypatch.setattr("orchestra.wire.frames.np.empty", allocate)

    assert "1,099,511,627,776 bytes" in refusal(struct.pack("<2sBBIQ", b"OR", 4, 3, 0, 1 << 40))
    assert "bytes; at most 256 are allowed" in refusal(frame_prefix(Kind.MESSAGE, 257, 0), Limits(256, 0))


def test_what_is_just_within_the_limits_is_let_through() -> None:
    expected = [(Kind.MESSAGE, b"h" * 10, b"p" * 20)]

    assert sketched(fed(FrameReader(Limits(10, 20)), stream_of(expected))) == expected
    assert refusal(stream_of([(Kind.MESSAGE, b"h" * 11, b"")]), Limits(10, 20))
    assert refusal(stream_of([(Kind.MESSAGE, b"", b"p" * 21)]), Limits(10, 20))


def test_limits_raised_by_whoever_handles_a_frame_hold_for_the_next_one_of_the_same_bytes() -> None:
    reader = FrameReader(Limits(4, 0))
    stream = stream_of([(Kind.HANDSHAKE, b"1234", b""), (Kind.MESSAGE, b"12345678", b"payload")])
    reader.get_buffer()[: len(stream)] = stream
    frames = reader.received(len(stream))
    first = next(frames)
    reader.limits = LIMITS

    assert sketched([first, *frames]) == [(Kind.HANDSHAKE, b"1234", b""), (Kind.MESSAGE, b"12345678", b"payload")]


@given(st.binary(min_size=16, max_size=80), st.lists(st.integers(0, 80), max_size=10))
def test_bytes_of_any_kind_give_frames_or_are_refused_and_nothing_else_happens(stream: bytes, cuts: list[int]) -> None:
    for prefix in (b"", b"OR", b"OR\x01\x03"):
        try:
            fed(FrameReader(Limits(64, 64)), prefix + stream, cuts)
        except WireError:
            continue


# What is to be written


def test_small_pieces_leave_as_one_and_large_ones_as_they_are() -> None:
    outbox = Outbox()
    large = memoryview(bytes(Outbox.JOIN))
    outbox.extend([b"a", b"b"])
    outbox.extend([large, b"c"])
    outbox.extend([b"d", large, large])
    taken = outbox.take()

    assert taken == [b"ab", large, b"cd", large, large]
    assert all(piece is large for piece in taken if len(piece) == Outbox.JOIN)


def test_an_outbox_is_due_once_a_write_is_worth_its_system_call() -> None:
    outbox = Outbox()
    outbox.extend([b"x" * (Outbox.JOIN - 1)])
    assert not outbox.due
    outbox.extend([b"x"])
    assert outbox.due
    outbox.take()
    assert not outbox.due


def test_an_outbox_is_empty_once_all_was_taken() -> None:
    outbox = Outbox()

    assert not outbox
    assert outbox.take() == []
    outbox.extend([b"a"])
    assert outbox
    assert outbox.take() == [b"a"]
    assert not outbox


@given(st.lists(st.binary(max_size=20)), st.integers(1, 20))
def test_what_is_queued_leaves_whole_and_in_order(pieces: list[bytes], join: int) -> None:
    outbox = Outbox()
    outbox.JOIN = join
    outbox.extend(list(pieces))

    assert b"".join(outbox.take()) == b"".join(pieces)


# Memory of payloads


def address(array: AnyArray) -> int:
    return int(array.ctypes.data)


def encoded(nbytes: int) -> tuple[bytes, AnyArray]:
    """Return the header and the payload of an array."""
    header, arrays = Encoder().encode(frozen_copy(np.arange(nbytes // 4, dtype=np.float32)))
    return header, np.frombuffer(arrays[0], np.uint8)


def decoded(header: bytes, payload: AnyArray) -> AnyArray:
    array = decode(header, payload)
    assert isinstance(array, np.ndarray)
    return array


def pool_of_known_size() -> PayloadPool:
    """Return a pool that has seen a payload of `PayloadPool.LEAST` bytes, so that it keeps the memory of the next."""
    pool = PayloadPool()
    pool.lend(PayloadPool.LEAST)
    return pool


HOLDERS: dict[str, Callable[[AnyArray], object]] = {
    "the payload": lambda payload: payload,
    "a view": lambda payload: payload[10:20].view(np.int8),
    "a view of a view": lambda payload: payload[:800].view(np.int32).reshape(2, 100)[1:],
    "a memoryview": lambda payload: payload.data[10:20],
    "an array of its buffer": lambda payload: np.frombuffer(payload, np.float32),
    "a decoded array": lambda payload: decoded(encoded(PayloadPool.LEAST)[0], payload)[100:],
    "a cycle": lambda payload: (cycle := [payload], cycle.append(cycle))[0],
}


@pytest.mark.parametrize("held", HOLDERS)
def test_memory_of_a_payload_is_lent_again_after_the_last_view_of_it_and_not_before(held: str) -> None:
    pool = pool_of_known_size()
    payload = pool.lend(PayloadPool.LEAST)
    payload[:] = encoded(PayloadPool.LEAST)[1]
    place = address(payload)
    holder = HOLDERS[held](np.frombuffer(payload.data.toreadonly(), np.uint8))
    del payload
    others = [pool.lend(PayloadPool.LEAST) for _ in range(3)]
    assert place not in map(address, others)
    del holder
    gc.collect()
    again = pool.lend(PayloadPool.LEAST)
    assert address(again) == place
    assert again.flags.writeable
    assert pool.lend(PayloadPool.LEAST + 1).nbytes == PayloadPool.LEAST + 1


def test_memory_of_payloads_whose_size_does_not_repeat_is_not_kept() -> None:
    pool = PayloadPool()
    for nbytes in range(PayloadPool.LEAST, PayloadPool.LEAST + 2 * PayloadPool.MOST):
        pool.lend(nbytes)
    assert pool.nbytes == 0
    for nbytes in (PayloadPool.LEAST, PayloadPool.LEAST, PayloadPool.LEAST):
        pool.lend(nbytes)
    assert pool.nbytes == PayloadPool.LEAST


def test_leases_do_not_depend_on_reference_counts_which_no_python_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    def uncounted(_: object) -> int:
        raise AssertionError("reference counts were read")

    monkeypatch.setattr(sys, "getrefcount", uncounted)
    pool = pool_of_known_size()
    first = pool.lend(PayloadPool.LEAST)
    place = address(first)
    assert address(pool.lend(PayloadPool.LEAST)) != place
    del first
    assert address(pool.lend(PayloadPool.LEAST)) == place


def test_threads_that_share_a_pool_are_never_lent_the_same_memory() -> None:
    pool, errors = PayloadPool(), []

    def fill(number: int) -> None:
        for turn in range(300):
            payload = pool.lend(PayloadPool.LEAST)
            payload[:8] = number
            handed_over.append(payload)  # the lease ends in whichever thread makes room
            if not (payload[:8] == number).all():
                errors.append((number, turn))

    handed_over: deque[AnyArray] = deque(maxlen=8)
    filling = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in filling:
            thread.start()
        for thread in filling:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []


def test_a_received_payload_cannot_be_made_writable_by_whoever_holds_a_view() -> None:
    reader = FrameReader(LIMITS)
    (frame,) = fed(reader, stream_of([(Kind.MESSAGE, b"head", bytes(PayloadPool.LEAST))]))
    assert frame.payload is not None
    for array in (frame.payload, frame.payload[10:]):
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_what_is_kept_of_payloads_is_bounded_and_small_ones_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PayloadPool, "MOST", 3)
    monkeypatch.setattr(PayloadPool, "MOST_BYTES", 5 * PayloadPool.LEAST)
    pool = pool_of_known_size()
    lent = []
    for times in (1, 1, 1, 1, 3, 3, 2, 2, 2, 1, 6, 6):
        lent.append(pool.lend(times * PayloadPool.LEAST))
        kept = [lease.memory.nbytes for lease in pool._kept]
        assert sum(kept) == pool.nbytes <= PayloadPool.MOST_BYTES
        assert len(kept) <= 3
    pool.lend(PayloadPool.LEAST - 1)
    pool.lend(PayloadPool.LEAST - 1)
    assert PayloadPool.LEAST - 1 not in [lease.memory.nbytes for lease in pool._kept]


def test_large_payloads_that_follow_each_other_are_received_where_they_stay() -> None:
    payload = bytes(range(256)) * (2 * CHUNK // 256)
    stream = stream_of([(Kind.MESSAGE, b"head", payload)] * 3 + [(Kind.PING, b"", b"")])
    reader = FrameReader(LIMITS)
    frames: list[Frame] = []
    at, beside = 0, 0
    while at < len(stream):
        buffer = reader.get_buffer()
        count = min(len(buffer), len(stream) - at)
        if reader._payload is None:
            beside += count
        buffer[:count] = stream[at : at + count]
        at += count
        frames += reader.received(count)
    assert sketched(frames) == [(Kind.MESSAGE, b"head", payload)] * 3 + [(Kind.PING, b"", b"")]
    assert beside < 2 * CHUNK  # of the first, before it was known how large it is; little of the others
