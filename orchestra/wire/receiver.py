"""The receiving half of a link: frames become validated messages, and the room that they take is accounted for."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

from orchestra.actors import codec
from orchestra.actors.axes import AnyArray
from orchestra.actors.mailbox import Envelope, Mailbox, Origin, Queued
from orchestra.actors.message import REGISTRY, Lane, Message
from orchestra.errors import DecodeError, FrameError
from orchestra.wire.flow_control import ReceiveWindow
from orchestra.wire.frames import CONTENTS, PREFIX, Frame, Kind
from orchestra.wire.sender import ANSWERS, ROUTES, RowSuffix
from orchestra.wire.settings import LinkState

CREDITED = 256
"""Messages of a batch that are credited together, once the last of them has left the mailbox."""

_MESSAGE = (str, str, int, list, int, int, object, object)
"""Contents of a message frame: recipient, sender, correlation, chain of asks, number, clock, type, fields."""
_ANSWER = (int, int, object)
"""Contents of an answer: correlation, clock, value."""
_ROUTE = (int, str, str, object, int)
"""Contents of a new route: number, sender, recipient, type, suffix of its rows."""

_SYSTEM, _SOLICITED, _LATEST = Lane.SYSTEM, Lane.SOLICITED, Lane.LATEST


class Receiver(Protocol):
    """The node, as its links see it: takes the messages and answers that arrive."""

    @property
    def logical(self) -> int:
        """The node's Lamport clock; 0 if nothing is recorded."""

    def witness(self, clock: int) -> float:
        """Merge a peer's Lamport clock; return the time of arrival in seconds, or 0.0 if nothing is recorded."""

    def deliver(self, envelope: Envelope, *, alone: bool = False) -> None:
        """Put a message into the mailbox of its recipient; a request that came `alone` may be answered at once."""

    def mailbox_for(self, recipient: str, kind: type[Message]) -> Mailbox | None:
        """Return the mailbox that takes messages of a type as they are; None if each has to be delivered singly."""

    def withdraw(self, envelope: Envelope) -> None:
        """Withdraw a request that was delivered: its asker no longer waits."""

    def answer(self, correlation: int, clock: int, value: Any) -> None:
        """Resolve a request of this node."""

    def reject(self, correlation: int, clock: int, error: Exception) -> None:
        """Fail a request of this node."""


class AnsweringLink(LinkState, Origin, Protocol):
    """A link, as its receiving half sees it: takes credit and the answers to the peer's requests."""

    def consumed(self, recipient: str, nbytes: int, count: int = 1) -> None:
        """Credit the peer for `count` messages that left the mailbox of `recipient`."""

    def taken(self, recipient: str, sender: str, tag: str) -> None:
        """Tell the peer that `recipient` has taken a latest-wins message, so that it sends a newer one."""


@dataclass(slots=True, eq=False)
class _PeerRoute:
    """A route that the peer announced."""

    sender: str
    recipient: str
    kind: type[Message]
    suffix: int


class LinkReceiver:
    """The receiving half of a link: decoding, credit, routes, and the peer's unanswered requests.

    Args:
        link: the origin of the messages.
        node: takes the messages.
        window: accounts for the peer's messages that are queued here.
    """

    def __init__(self, link: AnsweringLink, node: Receiver, window: ReceiveWindow) -> None:
        self.count = self.nbytes = 0
        """Messages and answers received, and their bytes."""
        self.types: list[tuple[str, bytes]] = []
        """Tag and fingerprint of the types that the peer names by number."""
        self.unanswered: dict[int, Envelope] = {}
        """The peer's unanswered requests, by correlation."""
        self._link = link
        self._node = node
        self._window = window
        self._decoder = codec.Decoder()
        self._builders: dict[int, tuple[Lane, Callable[[Any], Message]]] = {}
        """Lane and builder of each type that has come alone, by the peer's number."""
        self._routes: dict[int, _PeerRoute] = {}

    def unpack(self, frame: Frame) -> list[Any]:
        """Return the contents of a frame's header.

        Raises:
            DecodeError: they are not those of its kind.
        """
        kinds = CONTENTS[frame.kind]
        value = self._decoder.decode(frame.header, frame.payload)
        if not isinstance(value, list) or len(value) != len(kinds) or not all(map(isinstance, value, kinds)):
            raise self._malformed(frame.kind, kinds)
        return value

    def message(self, header: bytes, payload: AnyArray | None, nbytes: int) -> None:
        """Deliver a message that travelled alone, in a frame of `nbytes`.

        Raises:
            WireError: it breaks the protocol.
        """
        self.count += 1
        self.nbytes += nbytes
        content = self._decoder.decode(header, payload)
        try:
            recipient, sender, correlation, chain, number, clock, tag, fields = content
            sound = (
                type(recipient) is type(sender) is str
                and type(correlation) is type(number) is type(clock) is int
                and type(chain) is list
            )
        except (TypeError, ValueError):
            sound = False
        if not sound or type(content) is not list:
            raise self._malformed(Kind.MESSAGE, _MESSAGE)
        waiting = self._chain(chain) if chain else ()
        if number < 0 or clock < 0:
            raise self._miscounted(number, clock)
        known = self._builders.get(tag) if type(tag) is int else None
        lane, build = known or self._builder(tag)
        if lane is not _SYSTEM:
            self._window.take(recipient, nbytes, solicited=lane is _SOLICITED)
        message = build(fields)
        origin = self._link if lane is not _LATEST else _VersionCredit(self._link, sender, type(message).wire.tag)
        envelope = Envelope(recipient, sender, message, nbytes, correlation, waiting, origin, number, clock)
        if correlation:
            self.unanswered[correlation] = envelope
        self._node.deliver(envelope, alone=True)

    def answer(self, header: bytes, payload: AnyArray | None, nbytes: int) -> None:
        """Resolve a request of this node with an answer that travelled alone, in a frame of `nbytes`.

        Raises:
            DecodeError: it breaks the protocol.
        """
        self.count += 1
        self.nbytes += nbytes
        self._resolve(self._decoder.decode(header, payload))

    def batches(self, header: bytes, payload: AnyArray | None) -> None:
        """Deliver the messages of a frame of batches, which has no payload.

        Raises:
            WireError: it breaks the protocol.
        """
        if payload is not None:
            raise FrameError(f"{self._link.peer} sent a BATCH frame with a payload")
        self.nbytes += PREFIX.size + len(header)
        for named, rows, nbytes in self._decoder.batches(header):
            if type(rows) is not list or not rows:
                raise DecodeError(f"{self._link.peer} sent an empty batch")
            count = len(rows)
            self.count += count
            if type(named) is int and named == ANSWERS:
                for answer in rows:
                    self._resolve(answer)
                continue
            route = self._route(named)
            self._window.take(route.recipient, nbytes, solicited=False, count=count)
            numbers, clocks = self._numbers(rows) if route.suffix else ([], [])
            if route.suffix == RowSuffix.ASKED:
                self._requests(route, rows, nbytes, numbers, clocks)
                continue
            messages = codec.build_all(route.kind, rows)
            mailbox = self._node.mailbox_for(route.recipient, route.kind)
            if mailbox is None:
                enclosed = self._enclosed(route, messages, nbytes)
                for envelope, number, clock in zip(enclosed, numbers or repeat(0), clocks or repeat(0), strict=False):
                    envelope.number, envelope.clock = number, clock
                    self._node.deliver(envelope)
                continue
            each, sender = nbytes // count, route.sender
            now = self._node.witness(max(clocks, default=0))
            items: list[Queued] = [
                (sender, message, each, number, now, None)
                for message, number in zip(messages, numbers or repeat(0), strict=False)
            ]
            for begin in range(0, count, CREDITED):
                batch = items[begin : begin + CREDITED]
                size = each * len(batch) if begin + CREDITED < count else nbytes - each * begin
                credit = _BatchCredit(self._link, len(batch), size)
                last = batch[-1]
                batch[-1] = (*last[:5], Envelope(route.recipient, sender, last[1], each, origin=credit))
                mailbox.put_batch(batch, each * len(batch))

    def end(self) -> list[Envelope]:
        """Forget the peer's routes and requests; return the unanswered ones."""
        unanswered, self.unanswered = self.unanswered, {}
        self._routes.clear()
        return list(unanswered.values())

    # Inside

    def _resolve(self, content: Any) -> None:
        if type(content) is not list or len(content) != 3 or not type(content[0]) is type(content[1]) is int:
            raise self._malformed(Kind.ANSWER, _ANSWER)
        self._node.answer(*content)

    def _requests(self, route: _PeerRoute, rows: list[Any], nbytes: int, numbers: list[int], clocks: list[int]) -> None:
        """Deliver requests that take `nbytes` together."""
        if min(map(len, rows)) < 2:
            raise DecodeError(f"{self._link.peer} sent a request without its correlation")
        chains = [row.pop() for row in rows]
        correlations = [row.pop() for row in rows]
        enclosed = self._enclosed(route, codec.build_all(route.kind, rows), nbytes)
        mailbox = self._node.mailbox_for(route.recipient, route.kind)
        for envelope, *rest in zip(enclosed, correlations, chains, numbers, clocks, strict=True):
            envelope.correlation, chain, envelope.number, envelope.clock = rest
            if type(envelope.correlation) is not int or type(chain) is not list:
                raise DecodeError(f"{self._link.peer} sent a request with the correlation {rest[0]!r:.80}")
            if chain:
                envelope.chain = self._chain(chain)
            if envelope.correlation:
                self.unanswered[envelope.correlation] = envelope
            if mailbox is None:
                self._node.deliver(envelope)
        if mailbox is not None:
            now = self._node.witness(max(clocks))
            mailbox.put_batch([(e.sender, e.message, e.nbytes, e.number, now, e) for e in enclosed], nbytes)

    def _chain(self, chain: list[Any]) -> tuple[str, ...]:
        if not all(isinstance(address, str) for address in chain):
            raise DecodeError(f"{self._link.peer} sent a message with a malformed chain of asks")
        return tuple(chain)

    def _enclosed(self, route: _PeerRoute, messages: list[Message], nbytes: int) -> list[Envelope]:
        """Return envelopes for messages that take `nbytes` together."""
        each = nbytes // len(messages)
        link = self._link
        enclosed = [Envelope(route.recipient, route.sender, message, each, 0, (), link) for message in messages]
        enclosed[-1].nbytes += nbytes - each * len(messages)
        return enclosed

    def _numbers(self, rows: list[Any]) -> tuple[list[int], list[int]]:
        """Take number and clock off the end of every row."""
        if set(map(type, rows)) != {list} or min(map(len, rows)) < 2:
            raise DecodeError(f"{self._link.peer} sent a message without its number and clock")
        clocks = [row.pop() for row in rows]
        numbers = [row.pop() for row in rows]
        if set(map(type, clocks)) != {int} or set(map(type, numbers)) != {int} or min(clocks) < 0 or min(numbers) < 0:
            number, clock = next(
                (number, clock)
                for number, clock in zip(numbers, clocks, strict=True)
                if type(number) is not int or type(clock) is not int or number < 0 or clock < 0
            )
            raise self._miscounted(number, clock)
        return numbers, clocks

    def _route(self, named: Any) -> _PeerRoute:
        """Return the route that a number or an announcement names."""
        if type(named) is int:
            known = self._routes.get(named)
            if known is None:
                raise DecodeError(f"{self._link.peer} sent messages by the unknown route {named}")
            return known
        if type(named) is not list or len(named) != len(_ROUTE) or not all(map(isinstance, named, _ROUTE)):
            raise self._malformed(Kind.BATCH, _ROUTE)
        number, sender, recipient, tag, suffix = named
        if suffix not in tuple(RowSuffix):
            raise DecodeError(f"{self._link.peer} sent a route with the unknown suffix {suffix}")
        if not 0 <= number < ROUTES:
            raise DecodeError(f"{self._link.peer} gave a route the number {number}; allowed are 0 to {ROUTES - 1}")
        kind = self._type(tag)
        if not kind.wire.small:
            raise DecodeError(f"{self._link.peer} sent a batch of {kind.__name__}, which travels alone")
        route = self._routes[number] = _PeerRoute(sender, recipient, kind, suffix)
        return route

    def _builder(self, tag: Any) -> tuple[Lane, Callable[[Any], Message]]:
        kind = self._type(tag)
        builder = kind.lane, codec.builder(kind)
        if type(tag) is int:
            self._builders[tag] = builder
        return builder

    def _type(self, tag: Any) -> type[Message]:
        match self.types[tag] if type(tag) is int and 0 <= tag < len(self.types) else tag:
            case [str(name), bytes(fingerprint)]:
                kind = REGISTRY.get(name)  # it may have been imported here since the handshake
                if kind is None:
                    raise DecodeError(f"{self._link.peer} sent a {name}, a type that this node does not know")
                if kind.wire.fingerprint != fingerprint:
                    raise DecodeError(f"{self._link.peer} has other fields in {name} than this node")
                return kind
        raise DecodeError(f"{self._link.peer} sent a message of the unknown type {tag!r}")

    def _miscounted(self, number: Any, clock: Any) -> DecodeError:
        return DecodeError(f"{self._link.peer} sent a message with the number {number!r} and the clock {clock!r}")

    def _malformed(self, kind: Kind, kinds: tuple[type, ...]) -> DecodeError:
        wanted = ", ".join("any" if kind is object else kind.__name__ for kind in kinds)
        return DecodeError(f"{self._link.peer} sent a {kind.name} frame that does not hold {wanted}")


@dataclass(slots=True, eq=False)
class _BatchCredit:
    """The origin of a batch's last message: credits the whole batch once that message has left the mailbox."""

    link: AnsweringLink
    count: int
    nbytes: int

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Credit all of them: the lane keeps its order, so the others have left before."""
        self.link.consumed(recipient, self.nbytes, self.count)

    def answer(self, correlation: int, value: Any) -> None:
        """Do nothing: no message of a batch is a request."""

    def fail(self, correlation: int, error: Exception) -> None:
        """Do nothing: no message of a batch is a request."""


@dataclass(slots=True, eq=False)
class _VersionCredit:
    """The origin of a latest-wins message: its sender learns at once that it has left the mailbox."""

    link: AnsweringLink
    sender: str
    tag: str

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Credit the message, and ask for a newer one."""
        self.link.consumed(recipient, nbytes)
        self.link.taken(recipient, self.sender, self.tag)

    def answer(self, correlation: int, value: Any) -> None:
        """Send the answer to a request."""
        self.link.answer(correlation, value)

    def fail(self, correlation: int, error: Exception) -> None:
        """Send an error instead of the answer to a request."""
        self.link.fail(correlation, error)
