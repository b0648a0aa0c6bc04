"""The sending half of a link: messages become frames as far as their recipients have credit.

Small messages travel in *message batches*. A route (sender, recipient, message type) is announced once in a session and
is a number afterwards; the fields of one message after another follow it. Answers are batched as well. All that is sent
in one turn of the loop leaves in one frame, so a message costs what its fields cost. Arrays, the runtime's own
messages, and an ask that is the only one pending travel alone. Messages arrive in the order in which they were sent.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from orchestra.actors import codec
from orchestra.actors.codec import Buffer
from orchestra.actors.message import REGISTRY, Lane, Message
from orchestra.errors import FrameError, MailboxFull, Unreachable
from orchestra.wire.flow_control import Window
from orchestra.wire.frames import Kind, Limits, frame_prefix
from orchestra.wire.latest import LatestVersions
from orchestra.wire.session import Session
from orchestra.wire.settings import LinkState
from orchestra.wire.shared_memory import SharedMemoryChannel

ROUTES = 4096
"""Routes that have a number at a time; a new route takes the number of the oldest."""
ANSWERS = -1
"""Stands in the place of a route before a batch of answers: correlation, clock and value each."""
BATCH_BYTES = 64 << 10
"""Bytes of rows after which a frame leaves at once, so that the peer works on it while more rows are added."""
ROW = 16
"""Bytes that a row counts for in addition to its own, which bounds the rows of a frame as well."""

_LIST = b"\xdc"
"""Begins a msgpack list of up to 65,535 entries; two bytes with their number follow."""


class RowSuffix(enum.IntEnum):
    """The values that follow a message's fields in its row."""

    NONE = 0
    COUNTED = 1
    """Number and clock of a recorded sender."""
    ASKED = 2
    """Correlation and chain of a request, then number and clock."""


@dataclass(slots=True, eq=False)
class Route:
    """A sender, a recipient and a message type, with the number that stands for them."""

    names: list[Any]
    """Both addresses, the type, and the suffix, as they are announced."""
    window: "Window[_Waiting]"
    """The credit for the recipient."""
    suffix: RowSuffix
    """The values that follow the fields of its messages."""
    width: int
    """Fields of a message."""
    size: int
    """Bytes that the names take."""
    longest: int
    """Bytes that a row may have to travel in a batch."""
    number: bytes = b""
    """The encoded number; empty until the route is announced."""


_Waiting = tuple[Route | None, list[Buffer], int]
"""A message that waits for credit: its route if it is a row, its pieces, their bytes."""


class LinkSender:
    """The sending half of a link: credit, routes, and the batches of this turn of the loop.

    Args:
        link: state of the link.
        session: keeps the frames that are sent.
        shared_memory: carries large payloads.
        put: sends a frame by the link: its pieces, their bytes, and whether it leaves at once.
        limits: the largest frame that may be sent.
        batching: False to send every message in a frame of its own.
    """

    def __init__(
        self,
        link: LinkState,
        session: Session,
        shared_memory: SharedMemoryChannel,
        put: Callable[[list[Buffer], int, bool], None],
        limits: Limits,
        *,
        batching: bool,
    ) -> None:
        self.count = self.nbytes = 0
        """Messages and answers sent, and their bytes."""
        self.tags = sorted(REGISTRY)
        """The types that the peer knows by their number in this list."""
        self._numbers = {tag: number for number, tag in enumerate(self.tags)}
        self._link = link
        self._session = session
        self._shared_memory = shared_memory
        self._put = put
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._batch_bytes = min(BATCH_BYTES, limits.header // 4)
        self._flush_at = self._batch_bytes if batching else 0
        """Pending bytes that do not wait for the end of the turn."""
        self._encoder = codec.Encoder()
        self._windows: dict[str, Window[_Waiting]] = {}
        self._stalled: dict[str, Window[_Waiting]] = {}
        """Windows that have credit and wait for acknowledgements, since the session keeps too much."""
        self._routes: dict[tuple[str, str, type[Message]], Route] = {}
        number, _ = self._encoder.encode(ANSWERS)
        self._answers = Route([], Window(), _NONE, width=3, size=ROW, longest=self._batch_bytes, number=number)
        self._numbered: list[Route | None] = [None] * ROUTES
        self._next_number = 0
        self._batches: list[Buffer] = []
        self._batch_count = 0
        self._route: Route | None = None
        """The route of the batch that is being filled."""
        self._rows: list[Buffer] = []
        self._pending_bytes = 0

    @property
    def windows(self) -> tuple[Window[_Waiting], ...]:
        """The credit accounts of all recipients."""
        return tuple(self._windows.values())

    def post(
        self,
        sender: str,
        recipient: str,
        message: Message,
        correlation: int = 0,
        chain: tuple[str, ...] = (),
        number: int = 0,
        clock: int = 0,
        *,
        at_once: bool = False,
    ) -> Awaitable[None] | None:
        """Send `message`; return an awaitable where the sender has to wait for credit or should yield to the loop.

        Args:
            sender, recipient, correlation, chain, number, clock: see `Envelope`.
            at_once: send it in a frame of its own, because nothing else is expected in this turn.

        Raises:
            FrameError: the message exceeds the limits.
            Unreachable: the session has ended.
        """
        kind = type(message)
        fields = message.__dict__
        route = None if at_once else self._routes.get((sender, recipient, kind))
        if route is not None or (kind.wire.small and not at_once):
            suffix = _ASKED if correlation else _COUNTED if number else _NONE
            if route is None or route.suffix is not suffix:
                route = self._new_route(sender, recipient, kind, suffix)
            values = [*fields.values()] if len(fields) == route.width else codec.values_of(message)
            if suffix is _COUNTED:
                values += (number, clock)
            elif suffix is _ASKED:
                values += (correlation, chain, number, clock)
            row, arrays = self._encoder.encode(values)
            nbytes = len(row)
            if nbytes <= route.longest and not arrays:
                window = route.window
                if window.latest is not None and window.latest.held:
                    self._send_held(recipient, window)
                if self._session.full or window.waiting or not window.take(nbytes):
                    return self._wait(recipient, window, route, [row], nbytes)
                if route is self._route:  # the common case of `_append`, without a call
                    self._rows.append(row)
                    self._pending_bytes += nbytes + ROW
                    if self._pending_bytes >= self._flush_at:
                        self.flush(at_once=True)
                else:
                    self._append(route, row)
                return None
        # It travels in a frame of its own.
        wire = kind.wire
        values = [*fields.values()] if len(fields) == len(wire.fields) else codec.values_of(message)
        tag = self._numbers.get(wire.tag)
        if tag is None:
            tag = self._tag(kind)
        header, arrays = self._encoder.encode([recipient, sender, correlation, chain, number, clock, tag, values])
        size = codec.payload_size(arrays) if arrays else 0
        if len(header) > self._limits.header or size > self._limits.payload:
            raise self._too_large(f"{wire.tag} to {recipient}", len(header), size)
        frame = frame_prefix(_MESSAGE, len(header), size) + header
        nbytes = len(frame) + size
        pieces: list[Buffer] = [frame]
        if arrays and size <= codec.SMALL:
            pieces = [frame + codec.payload_bytes(arrays)]
        elif arrays:
            pieces += codec.payload_buffers(arrays)
        lane = kind.lane
        if lane is not _SYSTEM:
            window = self._windows.get(recipient) or self._window(recipient)
            latest, solicited = window.latest, lane is _SOLICITED
            if lane is _LATEST:
                if latest is None:
                    latest = window.latest = LatestVersions()
                if latest.put((sender, wire.tag), (pieces, nbytes)):
                    self._send_version(recipient, window, pieces, nbytes)
                return None
            if latest is not None and latest.held:
                self._send_held(recipient, window)
            if self._session.full or (window.waiting and not solicited) or not window.take(nbytes, solicited=solicited):
                return self._wait(recipient, window, None, pieces, nbytes)
        return self._transmit(pieces, nbytes, at_once=at_once)

    def post_nowait(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` without waiting.

        Raises:
            FrameError: the message exceeds the limits.
            MailboxFull: no credit is left, or the peer has too much to acknowledge.
            Unreachable: the session has ended.
        """
        window = self._window(recipient)
        if message.lane is not Lane.SYSTEM and message.lane is not Lane.LATEST:
            session = self._session
            if session.full:
                raise MailboxFull(
                    f"{self._link.peer} has yet to acknowledge {session.kept} frames ({session.kept_bytes:,} bytes)"
                )
            spent = window.waiting or window.full
            if spent and message.lane is not Lane.SOLICITED:
                raise MailboxFull(
                    f"{recipient} has {window.count} messages ({window.nbytes:,} bytes) in flight already"
                )
        self.post(sender, recipient, message, number=number, clock=clock)

    def answer(self, correlation: int, clock: int, value: Any, *, at_once: bool) -> None:
        """Send the answer to a request; `at_once` if the peer waits for no other one.

        Raises:
            FrameError: the answer exceeds the limits.
        """
        header, arrays = self._encoder.encode([correlation, clock, value])
        if not at_once and not arrays and len(header) <= self._batch_bytes:
            self._append(self._answers, header)
            return
        size = codec.payload_size(arrays) if arrays else 0
        if len(header) > self._limits.header or size > self._limits.payload:
            raise self._too_large("an answer", len(header), size)
        frame = frame_prefix(_ANSWER, len(header), size) + header
        pieces: list[Buffer] = [frame, *codec.payload_buffers(arrays)] if arrays else [frame]
        self._transmit(pieces, len(frame) + size, at_once=at_once)

    def flush(self, *, at_once: bool = False) -> None:
        """Send the batches of this turn so far, if there are any, as one frame."""
        if not self._pending_bytes:
            return
        self._end_batch()
        batches, self._batches = self._batches, []
        count, self._batch_count, self._pending_bytes = self._batch_count, 0, 0
        header = b"".join([_LIST, (2 * count).to_bytes(2), *batches])
        frame = frame_prefix(Kind.BATCH, len(header), 0) + header
        self.nbytes += len(frame)
        self._put([frame], len(frame), at_once)

    def credit(self, recipient: str, count: int, nbytes: int) -> None:
        """Account for messages that left the mailbox of `recipient`, and send the messages that waited for credit.

        Raises:
            FrameError: the peer credits more than was sent.
        """
        window = self._windows.get(recipient)
        if window is None or not 0 <= count <= window.count or not 0 <= nbytes <= window.nbytes:
            peer = self._link.peer
            raise FrameError(f"{peer} credits {count} messages ({nbytes} bytes) of {recipient} that it never got")
        window.count -= count
        window.nbytes -= nbytes
        if window.waiting:
            self._release(recipient, window)

    def taken(self, recipient: str, sender: str, tag: str) -> None:
        """Send the newest version of a latest-wins message, if there is one: `recipient` has taken an earlier one.

        Raises:
            FrameError: there was none.
        """
        window = self._windows.get(recipient)
        if window is None or window.latest is None or (sender, tag) not in window.latest:
            raise FrameError(f"{self._link.peer} has taken a {tag} for {recipient} that it never got")
        newest = window.latest.taken((sender, tag))
        if newest is not None:
            self._send_version(recipient, window, *newest)

    def resume_stalled(self) -> None:
        """Send the messages that waited for acknowledgements, if the session keeps less now."""
        if self._stalled and not self._session.full:
            stalled, self._stalled = self._stalled, {}
            for recipient, window in stalled.items():
                self._release(recipient, window)

    def end(self, gone: Unreachable) -> None:
        """Fail the messages that wait for credit."""
        for window in self._windows.values():
            for turn in window.waiting:
                if not turn.done():
                    turn.set_exception(gone)
                    turn.exception()  # retrieved, also if its sender has been cancelled
        self._stalled.clear()
        self._routes.clear()
        self._batches, self._rows, self._route, self._pending_bytes = [], [], None, 0

    # Inside

    def _wait(
        self, recipient: str, window: Window[_Waiting], route: Route | None, pieces: list[Buffer], nbytes: int
    ) -> Awaitable[None]:
        if self._session.full:
            self._stalled[recipient] = window
        return window.wait(self._loop.create_future(), (route, pieces, nbytes))

    def _send_version(self, recipient: str, window: Window[_Waiting], pieces: list[Buffer], nbytes: int) -> None:
        """Send a version of a latest-wins message. Without credit it is queued; no sender waits for it."""
        if not (self._session.full or window.waiting) and window.take(nbytes):
            self._transmit(pieces, nbytes)
            return
        if self._session.full:
            self._stalled[recipient] = window
        window.waiting[self._loop.create_future()] = (None, pieces, nbytes)

    def _send_held(self, recipient: str, window: Window[_Waiting]) -> None:
        """Send the versions that are held: an ordered message follows, which must not overtake them."""
        assert window.latest is not None
        for pieces, nbytes in window.latest.release():
            self._send_version(recipient, window, pieces, nbytes)

    def _release(self, recipient: str, window: Window[_Waiting]) -> None:
        """Send waiting messages as far as the credit reaches."""
        while window.waiting:
            turn, (route, pieces, size) = next(iter(window.waiting.items()))
            if turn.done():  # its sender was cancelled
                del window.waiting[turn]
                continue
            if self._session.full:
                self._stalled[recipient] = window
                return
            if not window.take(size):
                return
            del window.waiting[turn]
            if route is None:
                self._transmit(pieces, size)
            else:
                self._append(route, pieces[0])
            turn.set_result(None)

    def _append(self, route: Route, row: Buffer) -> None:
        """Add a row to the frame that leaves at the end of this turn."""
        if route is not self._route:
            if not self._pending_bytes:
                self._loop.call_soon(self._end_turn)
            self._end_batch()
            self._route = route
            self._pending_bytes += ROW if route.number else route.size
        self._rows.append(row)
        self._pending_bytes += len(row) + ROW
        if self._pending_bytes >= self._flush_at:
            self.flush(at_once=True)

    def _end_batch(self) -> None:
        route, self._route = self._route, None
        if route is None:
            return
        rows, self._rows = self._rows, []
        self.count += len(rows)
        self._batches += (route.number or self._announce_route(route), _LIST, len(rows).to_bytes(2), *rows)
        self._batch_count += 1

    def _announce_route(self, route: Route) -> bytes:
        """Give a route a number, and return its announcement to the peer."""
        number = self._next_number
        self._next_number = (number + 1) % ROUTES
        if (older := self._numbered[number]) is not None:
            older.number = b""
        self._numbered[number] = route
        route.number, _ = self._encoder.encode(number)
        announcement, _ = self._encoder.encode([number, *route.names])
        return announcement

    def _end_turn(self) -> None:
        self.flush(at_once=True)

    def _new_route(self, sender: str, recipient: str, kind: type[Message], suffix: RowSuffix) -> Route:
        names = [sender, recipient, self._tag(kind), suffix]
        size = len(self._encoder.encode(names)[0]) + ROW
        longest = self._batch_bytes - size
        width = len(kind.wire.fields)
        route = Route(names, self._window(recipient), suffix=suffix, width=width, size=size, longest=longest)
        key = (sender, recipient, kind)
        self._routes.pop(key, None)
        if len(self._routes) >= ROUTES:
            del self._routes[next(iter(self._routes))]
        self._routes[key] = route
        return route

    def _window(self, recipient: str) -> Window[_Waiting]:
        if self._link.ended:
            raise Unreachable(f"the connection to {self._link.peer} is lost")
        window = self._windows.get(recipient)
        if window is None:
            window = self._windows[recipient] = Window()
        return window

    def _transmit(self, pieces: list[Buffer], nbytes: int, *, at_once: bool = False) -> Awaitable[None] | None:
        """Send a frame; return an awaitable if the loop should run once before more is sent."""
        if self._pending_bytes:
            self.flush()
        turn = None
        shared_memory = self._shared_memory
        if nbytes >= shared_memory.least and (placed := shared_memory.place(pieces, nbytes)) is not None:
            turn = shared_memory.turn()
            self._put([placed], len(placed), turn is not None or not shared_memory.was_copied)
        else:
            self._put(pieces, nbytes, at_once)
        self.count += 1
        self.nbytes += nbytes
        return turn

    def _tag(self, kind: type[Message]) -> Any:
        number = self._numbers.get(kind.wire.tag)
        return [kind.wire.tag, kind.wire.fingerprint] if number is None else number

    def _too_large(self, what: str, header: int, payload: int) -> FrameError:
        limits = self._limits
        return FrameError(
            f"{what} takes {header:,} + {payload:,} bytes; at most {limits.header:,} + {limits.payload:,} may travel"
        )


# Names of this module: a look-up in the enumeration takes as long as the rest of a comparison.
_MESSAGE, _ANSWER = Kind.MESSAGE, Kind.ANSWER
_SYSTEM, _SOLICITED, _LATEST = Lane.SYSTEM, Lane.SOLICITED, Lane.LATEST
_NONE, _COUNTED, _ASKED = RowSuffix
