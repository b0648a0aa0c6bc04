"""What one side of a link sends: messages become frames, as far as their recipients have room.

Small messages travel in *runs*. Who tells whom what type is a *route*: it is told once in a session, and is a number
from then on; what follows it is the fields of one message after the other. Answers make runs as well. What is told in
one turn of the loop leaves in one frame, and a message costs what its fields cost. Arrays, the runtime's own messages,
and an ask that is the only one travel alone. What is sent arrives in the order in which it was sent, all of it.
"""

import asyncio
import enum
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from orchestra.actors import codec
from orchestra.actors.codec import Buffer
from orchestra.actors.message import REGISTRY, Lane, Message
from orchestra.errors import FrameError, MailboxFull, Unreachable
from orchestra.wire.flow_control import Window
from orchestra.wire.frames import Kind, frame_prefix

if TYPE_CHECKING:
    from orchestra.wire.link import Link

ROUTES = 4096
"""Routes that have a number at a time; the oldest gives its number to the next one."""
ANSWERS = -1
"""The number of what is no route: a run of answers, each a correlation, a clock and a value."""
RUNS_BYTES = 64 << 10
"""Bytes of rows after which the peer should have them, to work on them while more are told."""
ROW = 16
"""Bytes that a row is counted for besides its own, so that the rows of a frame are bounded too."""

_RUN = b"\xdc"
"""How msgpack begins a list of up to 65,535 entries; two bytes with their number follow."""


class RowSuffix(enum.IntEnum):
    """What follows the fields of a message in its row."""

    NONE = 0
    COUNTED = 1
    """The number and the clock of a recorded sender."""
    ASKED = 2
    """Of a request: correlation and chain of asks, number and clock."""


class Route:
    """A sender, a recipient and a type of message, for which a number stands.

    Args:
        names: the two addresses, the type, and what follows the fields of its messages.
        extras: the same.
        width: fields of a message.
        size: bytes that the names take.
        longest: bytes that a row may have to travel in a run.
    """

    __slots__ = ("extras", "longest", "names", "number", "size", "width", "window")

    def __init__(
        self, names: list[Any], window: Window, *, extras: "RowSuffix", width: int, size: int, longest: int
    ) -> None:
        self.names = names
        self.window = window
        self.extras = extras
        self.width = width
        self.size = size
        self.longest = longest
        self.number = b""
        """What stands for it; empty while the peer does not know."""


class Outbound:
    """The sending half of a link: credit, routes, and what was told in this turn of the loop."""

    def __init__(
        self, link: "Link", loop: asyncio.AbstractEventLoop, header: int, payload: int, *, together: bool = True
    ) -> None:
        self.count = self.nbytes = 0
        """Messages and answers sent, and their bytes."""
        self.tags = sorted(REGISTRY)
        """The types that the peer knows by their number in this list."""
        self._numbers = {tag: number for number, tag in enumerate(self.tags)}
        self.link = link
        self._account = link.account
        self._sharing = link.sharing
        self._loop = loop
        self._header, self._payload = header, payload
        self._runs_bytes = min(RUNS_BYTES, header // 4)
        self._leaves_at = self._runs_bytes if together else 0
        """Bytes told in a turn that do not wait for its end."""
        self._encoder = codec.Encoder()
        self._windows: dict[str, Window] = {}
        self._stalled: dict[str, Window] = {}
        """Those that have credit, and wait until the session keeps less."""
        self._routes: dict[tuple[str, str, type[Message]], Route] = {}
        self._answers = Route([], Window(), extras=_NONE, width=3, size=ROW, longest=self._runs_bytes)
        self._answers.number, _ = self._encoder.encode(ANSWERS)
        self._numbered: list[Route | None] = [None] * ROUTES
        self._next_number = 0
        self._runs: list[Buffer] = []
        self._run_count = 0
        self._route: Route | None = None
        """The route of the run that goes on."""
        self._run: list[Buffer] = []
        self._run_size = 0

    @property
    def due(self) -> bool:
        """Whether something was told in this turn that has not been sent yet."""
        return self._run_size > 0

    @property
    def windows(self) -> tuple[Window, ...]:
        """What is on its way to each recipient."""
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
        """Send `message`, or return what to await until the recipient has room; or until this node has breathed.

        `at_once` says that nothing else is to be expected in this turn of the loop. The other arguments are what
        `Envelope` says of them.

        Raises:
            Unreachable: the session has ended.
        """
        if at_once:
            return self._post_alone(sender, recipient, message, correlation, chain, number, clock, at_once=True)
        kind = type(message)
        route = self._routes.get((sender, recipient, kind))
        if route is not None or kind.wire.small:
            extras = _ASKED if correlation else _COUNTED if number else _NONE
            if route is None or route.extras is not extras:
                route = self._new_route(sender, recipient, kind, extras)
            fields = message.__dict__
            values = [*fields.values()] if len(fields) == route.width else codec.values_of(message)
            if extras is _COUNTED:
                values += (number, clock)
            elif extras is _ASKED:
                values += (correlation, chain, number, clock)
            row, arrays = self._encoder.encode(values)
            nbytes = len(row)
            if nbytes <= route.longest and not arrays:
                window = route.window
                if self._account.full or window.waiting or not window.take(nbytes):
                    return self._wait(recipient, window, route, [row], nbytes)
                if route is self._route:  # `_tell`, where there is least to do
                    self._run.append(row)
                    self._run_size += nbytes + ROW
                    if self._run_size < self._leaves_at:
                        return None
                    self.seal(at_once=True)
                else:
                    self._tell(route, row)
                return None
        return self._post_alone(sender, recipient, message, correlation, chain, number, clock)

    def post_nowait(self, sender: str, recipient: str, message: Message, number: int = 0, clock: int = 0) -> None:
        """Send `message` at once.

        Raises:
            MailboxFull: the recipient has no room.
        """
        window = self._window(recipient)
        if message.lane is not Lane.SYSTEM:
            account = self._account
            if account.full:
                raise MailboxFull(
                    f"{self.link.peer} has yet to acknowledge {account.kept} frames ({account.kept_bytes:,} bytes)"
                )
            spent = window.waiting or window.full
            if spent and message.lane is not Lane.SOLICITED:
                raise MailboxFull(
                    f"{recipient} has {window.count} messages ({window.nbytes:,} bytes) on their way already"
                )
        self.post(sender, recipient, message, number=number, clock=clock)

    def answer(self, correlation: int, clock: int, value: Any, *, at_once: bool) -> None:
        """Send the answer to a request; `at_once` if it is the only one that the peer waits for.

        Raises:
            FrameError: it is too large to travel.
        """
        header, arrays = self._encoder.encode([correlation, clock, value])
        if not at_once and not arrays and len(header) <= self._runs_bytes:
            self._tell(self._answers, header)
            return
        size = codec.payload_size(arrays) if arrays else 0
        if len(header) > self._header or size > self._payload:
            raise self._too_large("an answer", len(header), size)
        frame = frame_prefix(_ANSWER, len(header), size) + header
        pieces: list[Buffer] = [frame, *codec.payload_buffers(arrays)] if arrays else [frame]
        self._transmit(pieces, len(frame) + size, at_once=at_once)

    def seal(self, *, at_once: bool = False) -> None:
        """Send what was told in this turn so far, as one frame."""
        self._end_run()
        runs, self._runs = self._runs, []
        count, self._run_count, self._run_size = self._run_count, 0, 0
        header = b"".join([_RUN, (2 * count).to_bytes(2), *runs])
        frame = frame_prefix(Kind.RUNS, len(header), 0) + header
        self.nbytes += len(frame)
        self.link.put([frame], len(frame), at_once=at_once)

    def credited(self, recipient: str, count: int, nbytes: int) -> None:
        """Take note of what left the mailbox of `recipient`, and send what waited for that.

        Raises:
            FrameError: that much was not there.
        """
        window = self._windows.get(recipient)
        if window is None or not 0 <= count <= window.count or not 0 <= nbytes <= window.nbytes:
            peer = self.link.peer
            raise FrameError(f"{peer} credits {count} messages ({nbytes} bytes) of {recipient} that it never got")
        window.count -= count
        window.nbytes -= nbytes
        if window.waiting:
            self._let_go(recipient, window)

    def unstall(self) -> None:
        """Send what waited until the session keeps less, if it does now."""
        if self._stalled and not self._account.full:
            stalled, self._stalled = self._stalled, {}
            for recipient, window in stalled.items():
                self._let_go(recipient, window)

    def end(self, gone: Unreachable) -> None:
        """Fail what waits."""
        for window in self._windows.values():
            for turn, _, _, _ in window.waiting:
                if not turn.done():
                    turn.set_exception(gone)
                    turn.exception()  # seen, also if its sender has given up
        self._stalled.clear()
        self._routes.clear()
        self._runs, self._run, self._route, self._run_size = [], [], None, 0

    # Inside

    def _wait(
        self, recipient: str, window: Window, route: Route | None, pieces: list[Buffer], nbytes: int
    ) -> Awaitable[None]:
        turn: asyncio.Future[None] = self._loop.create_future()
        window.waiting.append((turn, route, pieces, nbytes))
        if self._account.full:
            self._stalled[recipient] = window
        return turn

    def _let_go(self, recipient: str, window: Window) -> None:
        """Send what waits, as far as there is room."""
        while window.waiting:
            turn, route, pieces, size = window.waiting[0]
            if turn.done():  # its sender gave up
                window.waiting.popleft()
                continue
            if self._account.full:
                self._stalled[recipient] = window
                return
            if not window.take(size):
                return
            window.waiting.popleft()
            if route is None:
                self._transmit(pieces, size)
            else:
                self._tell(route, pieces[0])
            turn.set_result(None)

    def _tell(self, route: Route, row: Buffer) -> None:
        """Add a message to what leaves at the end of this turn."""
        if route is not self._route:
            if not self._run_size:
                self._loop.call_soon(self._turn_over)
            self._end_run()
            self._route = route
            self._run_size += ROW if route.number else route.size
        self._run.append(row)
        self._run_size += len(row) + ROW
        if self._run_size >= self._leaves_at:
            self.seal(at_once=True)

    def _end_run(self) -> None:
        route, self._route = self._route, None
        if route is None:
            return
        run, self._run = self._run, []
        self.count += len(run)
        self._runs += (route.number or self._say(route), _RUN, len(run).to_bytes(2), *run)
        self._run_count += 1

    def _say(self, route: Route) -> bytes:
        """Give a route a number, and return what tells the peer."""
        number = self._next_number
        self._next_number = (number + 1) % ROUTES
        if (older := self._numbered[number]) is not None:
            older.number = b""
        self._numbered[number] = route
        route.number, _ = self._encoder.encode(number)
        says, _ = self._encoder.encode([number, *route.names])
        return says

    def _turn_over(self) -> None:
        if self._run_size:
            self.seal(at_once=True)

    def _new_route(self, sender: str, recipient: str, kind: type[Message], extras: RowSuffix) -> Route:
        names = [sender, recipient, self._tag(kind), extras]
        size = len(self._encoder.encode(names)[0]) + ROW
        longest = self._runs_bytes - size
        width = len(kind.wire.fields)
        route = Route(names, self._window(recipient), extras=extras, width=width, size=size, longest=longest)
        key = (sender, recipient, kind)
        self._routes.pop(key, None)
        if len(self._routes) >= ROUTES:
            del self._routes[next(iter(self._routes))]
        self._routes[key] = route
        return route

    def _window(self, recipient: str) -> Window:
        if self.link.ended:
            raise Unreachable(f"the connection to {self.link.peer} is lost")
        window = self._windows.get(recipient)
        if window is None:
            window = self._windows[recipient] = Window()
        return window

    def _transmit(self, pieces: list[Buffer], nbytes: int, *, at_once: bool = False) -> Awaitable[None] | None:
        """Send a frame; return what to await, if the loop should have its turn before more is sent."""
        if self._run_size:
            self.seal()
        turn = None
        if nbytes >= self._sharing.least and (placed := self._sharing.place(pieces, nbytes)) is not None:
            turn = self._sharing.turn()
            self.link.put([placed], len(placed), at_once=turn is not None)
        else:
            self.link.put(pieces, nbytes, at_once=at_once)
        self.count += 1
        self.nbytes += nbytes
        return turn

    def _tag(self, kind: type[Message]) -> Any:
        number = self._numbers.get(kind.wire.tag)
        return [kind.wire.tag, kind.wire.fingerprint] if number is None else number

    def _post_alone(
        self,
        sender: str,
        recipient: str,
        message: Message,
        correlation: int,
        chain: tuple[str, ...],
        number: int,
        clock: int,
        *,
        at_once: bool = False,
    ) -> Awaitable[None] | None:
        """Send `message` in a frame of its own, or return what to await until the recipient has room."""
        kind = type(message)
        wire = kind.wire
        fields = message.__dict__
        values = [*fields.values()] if len(fields) == len(wire.fields) else codec.values_of(message)
        tag = self._numbers.get(wire.tag)
        if tag is None:
            tag = self._tag(kind)
        content = [recipient, sender, correlation, chain, number, clock, tag, values]
        header, arrays = self._encoder.encode(content)
        size = codec.payload_size(arrays) if arrays else 0
        if len(header) > self._header or size > self._payload:
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
            bounded = lane is _BOUNDED
            if self._account.full or (window.waiting and not bounded) or not window.take(nbytes, bounded=bounded):
                return self._wait(recipient, window, None, pieces, nbytes)
        return self._transmit(pieces, nbytes, at_once=at_once)

    def _too_large(self, what: str, header: int, payload: int) -> FrameError:
        return FrameError(
            f"{what} takes {header:,} + {payload:,} bytes; at most {self._header:,} + {self._payload:,} may travel"
        )


# By names of this module: looking one up at its enumeration takes as long as all the rest of a comparison.
_MESSAGE, _ANSWER = Kind.MESSAGE, Kind.ANSWER
_SYSTEM, _BOUNDED = Lane.SYSTEM, Lane.SOLICITED
_NONE, _COUNTED, _ASKED = RowSuffix
