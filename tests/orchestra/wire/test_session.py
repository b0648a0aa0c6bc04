"""What two sessions promise each other, by arbitrary histories of sends, losses and new connections."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestra.errors import FrameError
from orchestra.wire import session
from orchestra.wire.session import Session


class Side:
    """A session, what its connection brings it, and what its owner has seen and sent."""

    def __init__(self) -> None:
        self.session = Session()
        self.wire: deque[bytes | int] = deque()
        """What is on its way to this side: frames, and acknowledgements as numbers."""
        self.seen: list[bytes] = []
        self.sent: list[bytes] = []
        self.other: Side

    def send(self, size: int) -> None:
        frame = b"%d" % len(self.sent)
        self.sent.append(frame)
        self.session.send([frame], size)
        self.other.wire.append(frame)

    def take(self, count: int) -> None:
        for _ in range(min(count, len(self.wire))):
            item = self.wire.popleft()
            if isinstance(item, int):
                self.session.forget(item)
                continue
            self.seen.append(item)
            if self.session.receive(1):
                self.acknowledge()

    def acknowledge(self) -> None:
        self.other.wire.append(self.session.acknowledge())


def reconnect(one: Side, two: Side) -> None:
    """Lose what is on the wire, and make a new connection."""
    for side in (one, two):
        side.wire.clear()
    received = {side: side.session.received for side in (one, two)}
    for side in (one, two):
        for (frame,) in side.session.resume(received[side.other]):
            assert isinstance(frame, bytes)
            side.other.wire.append(frame)


def sides() -> tuple[Side, Side]:
    one, two = Side(), Side()
    one.other, two.other = two, one
    return one, two


steps = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 5)),
    st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.just("acknowledge"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("reconnect"), st.just(0), st.just(0)),
)


@settings(max_examples=500, deadline=None)
@given(history=st.lists(steps, max_size=60))
def test_every_frame_arrives_once_and_in_order_over_any_history(history: list[tuple[str, int, int]]) -> None:
    pair = sides()
    for what, which, count in history:
        side = pair[which]
        match what:
            case "send":
                for _ in range(count):
                    side.send(count)
            case "take":
                side.take(count)
            case "acknowledge":
                side.acknowledge()
            case "reconnect":
                reconnect(*pair)
        for one in pair:
            assert one.seen == one.other.sent[: len(one.seen)]
            assert one.session.sent == len(one.sent)
            assert one.session.kept >= len(one.sent) - len(one.other.seen)  # what may be lacking is kept
    reconnect(*pair)
    for one in pair:
        one.take(len(one.wire))
    for one in pair:
        assert one.seen == one.other.sent
        one.acknowledge()
    for one in pair:
        one.take(len(one.wire))
        assert (one.session.kept, one.session.kept_bytes) == (0, 0)


@pytest.mark.parametrize("count", [-1, 2, 6, 2**64])
def test_a_peer_cannot_have_what_it_was_not_sent_nor_lose_what_it_had(count: int) -> None:
    one = Session()
    for _ in range(5):
        one.send([b"x"], 1)
    one.forget(3)

    for call in (one.forget, one.resume):
        with pytest.raises(
            FrameError, match=rf"^the peer claims {count} frames; it was sent 5 and has acknowledged 3$"
        ):
            call(count)
    assert one.resume(3) == [[b"x"]] * 2


@pytest.mark.parametrize(("keep", "kept_bytes"), [("KEEP", 3), ("KEEP_BYTES", 30)])
def test_it_is_full_by_count_and_by_bytes_until_the_peer_has_some(
    monkeypatch: pytest.MonkeyPatch, keep: str, kept_bytes: int
) -> None:
    monkeypatch.setattr(session, keep, kept_bytes)
    one = Session()
    states: list[Any] = []
    for _ in range(3):
        states.append(one.full)
        one.send([b"x" * 10], 10)
    states.append(one.full)
    one.forget(1)
    states.append(one.full)

    assert states == [False, False, False, True, False]


def test_it_is_time_to_acknowledge_after_many_frames_or_many_bytes() -> None:
    one = Session()
    due = [number for number in range(1, 1000) if one.receive(1) and one.acknowledge()]
    assert due == [256, 512, 768]
    assert one.receive(1 << 20)
    assert one.owes
    assert one.acknowledge() == 1000
    assert not one.owes
