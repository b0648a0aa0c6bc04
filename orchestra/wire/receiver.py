"""What one side of a link receives: frames become messages, validated, and the room that they take is counted."""

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any

from orchestra.actors import codec
from orchestra.actors.envelope import Envelope
from orchestra.actors.mailbox import Told
from orchestra.actors.message import REGISTRY, AnyArray, Lane, Message
from orchestra.errors import DecodeError, FrameError
from orchestra.wire.flow_control import ReceiveWindow
from orchestra.wire.frames import PREFIX, Frame, Kind
from orchestra.wire.sender import ANSWERS, ROUTES, RowSuffix

if TYPE_CHECKING:
    from orchestra.nodes.node import Node
    from orchestra.wire.link import Link

CREDITED = 256
"""Messages of a run after which the credit for them goes back, at the latest."""

_MESSAGE = (str, str, int, list, int, int, object, object)
"""What a message frame holds: recipient, sender, correlation, chain of asks, number, clock, type, fields."""
_ANSWER = (int, int, object)
"""What an answer holds: correlation, clock, value."""
_ROUTE = (int, str, str, object, int)
"""What a new route says: number, sender, recipient, type, and what follows the fields of its messages."""

_SYSTEM, _BOUNDED = Lane.SYSTEM, Lane.SOLICITED


class _InboundRoute:
    """A route of the peer: what its number stands for."""

    __slots__ = ("extras", "kind", "recipient", "sender")

    def __init__(self, sender: str, recipient: str, kind: type[Message], extras: int) -> None:
        self.sender = sender
        self.recipient = recipient
        self.kind = kind
        self.extras = extras


class Inbound:
    """The receiving half of a link: accounts, routes, and requests that wait for their answers.

    Args:
        room: the accounts of what is here of the peer's.
    """

    def __init__(self, link: "Link", node: "Node", room: ReceiveWindow) -> None:
        self.count = self.nbytes = 0
        """Messages and answers that came, and their bytes."""
        self.types: list[type[Message] | str] = []
        """The types that the peer names by number."""
        self.asked: dict[int, Envelope] = {}
        """The peer's requests that are not answered yet, by correlation."""
        self._link = link
        self._node = node
        self._room = room
        self._decoder = codec.Decoder()
        self._known: dict[int, tuple[Lane, Callable[[Any], Message]]] = {}
        """The lane of each type that has come alone, and what makes a message of it, by the peer's number."""
        self._routes: dict[int, _InboundRoute] = {}

    def unpack(self, frame: Frame, kinds: tuple[type, ...]) -> list[Any]:
        """Return what the header of a frame holds.

        Raises:
            DecodeError: something else than `kinds`.
        """
        value = self._decoder.decode(frame.header, frame.payload)
        if not isinstance(value, list) or len(value) != len(kinds) or not all(map(isinstance, value, kinds)):
            raise self._malformed(frame.kind, kinds)
        return value

    def message(self, header: bytes, payload: AnyArray | None, nbytes: int) -> None:
        """Deliver a message that travelled alone, in a frame of so many bytes.

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
        known = self._known.get(tag) if type(tag) is int else None
        lane, build = known or self._know(tag)
        if lane is not _SYSTEM:
            self._room.take(recipient, nbytes, bounded=lane is _BOUNDED)
        message = build(fields)
        envelope = Envelope(recipient, sender, message, nbytes, correlation, waiting, self._link, number, clock)
        if correlation:
            self.asked[correlation] = envelope
        self._node.arrivals.deliver(envelope, alone=True)

    def answer(self, header: bytes, payload: AnyArray | None, nbytes: int) -> None:
        """Hand over the answer to a request of this node, in a frame of so many bytes.

        Raises:
            DecodeError: it breaks the protocol.
        """
        self.count += 1
        self.nbytes += nbytes
        self._resolve(self._decoder.decode(header, payload))

    def runs(self, header: bytes, payload: AnyArray | None) -> None:
        """Deliver the messages of a frame of runs, which has no payload.

        Raises:
            WireError: it breaks the protocol.
        """
        if payload is not None:
            raise FrameError(f"{self._link.peer} sent a RUNS frame with a payload")
        self.nbytes += PREFIX.size + len(header)
        for route, rows, nbytes in self._decoder.runs(header):
            if type(rows) is not list or not rows:
                raise DecodeError(f"{self._link.peer} sent an empty run")
            count = len(rows)
            if type(route) is int and route == ANSWERS:
                self.count += count
                for answer in rows:
                    self._resolve(answer)
                continue
            way = self._way(route)
            self._room.take(way.recipient, nbytes, bounded=False, count=count)
            self.count += count
            numbers, clocks = self._numbers(rows) if way.extras else (None, None)
            if way.extras == RowSuffix.ASKED:
                assert numbers is not None
                assert clocks is not None
                self._requests(way, rows, nbytes, numbers, clocks)
                continue
            messages = codec.build_all(way.kind, rows)
            mailbox = self._node.arrivals.mailbox_for(way.recipient, way.kind)
            if mailbox is None:
                enclosed = self._enclosed(way, messages, nbytes)
                for envelope, number, clock in zip(enclosed, numbers or repeat(0), clocks or repeat(0), strict=False):
                    envelope.number, envelope.clock = number, clock
                    self._node.arrivals.deliver(envelope)
                continue
            each, sender = nbytes // count, way.sender
            told: list[Told]
            recorder = self._node.recorder
            if recorder is None:
                told = [(sender, message, each) for message in messages]
            else:
                recorder.witness(max(clocks) if clocks else 0)
                now = self._node.clock.monotonic()
                pairs = zip(messages, numbers or repeat(0), strict=False)
                told = [(sender, message, each, number, now) for message, number in pairs]
            while len(told) > CREDITED:
                mailbox.put_run(way.recipient, told[:CREDITED], _Credit(self._link, CREDITED, each * CREDITED))
                nbytes -= each * CREDITED
                del told[:CREDITED]
            mailbox.put_run(way.recipient, told, _Credit(self._link, len(told), nbytes))

    def end(self) -> list[Envelope]:
        """Forget all that the peer said; return its requests that are not answered."""
        asked, self.asked = self.asked, {}
        self._routes.clear()
        return list(asked.values())

    # Inside

    def _resolve(self, content: Any) -> None:
        if type(content) is not list or len(content) != 3 or not type(content[0]) is type(content[1]) is int:
            raise self._malformed(Kind.ANSWER, _ANSWER)
        correlation, clock, value = content
        node = self._node
        if node.recorder is not None:
            node.recorder.witness(clock)
        node.asks.resolve(correlation, value)

    def _requests(
        self, way: _InboundRoute, rows: list[Any], nbytes: int, numbers: list[int], clocks: list[int]
    ) -> None:
        """Deliver requests that take so many bytes together."""
        if min(map(len, rows)) < 2:
            raise DecodeError(f"{self._link.peer} sent a request without its correlation")
        chains = [row.pop() for row in rows]
        correlations = [row.pop() for row in rows]
        enclosed = self._enclosed(way, codec.build_all(way.kind, rows), nbytes)
        for envelope, *rest in zip(enclosed, correlations, chains, numbers, clocks, strict=True):
            envelope.correlation, chain, envelope.number, envelope.clock = rest
            if type(envelope.correlation) is not int or type(chain) is not list:
                raise DecodeError(f"{self._link.peer} sent a request with the correlation {rest[0]!r:.80}")
            if chain:
                envelope.chain = self._chain(chain)
            if envelope.correlation:
                self.asked[envelope.correlation] = envelope
            self._node.arrivals.deliver(envelope)

    def _chain(self, chain: list[Any]) -> tuple[str, ...]:
        if not all(isinstance(address, str) for address in chain):
            raise DecodeError(f"{self._link.peer} sent a message with a malformed chain of asks")
        return tuple(chain)

    def _enclosed(self, way: _InboundRoute, messages: list[Message], nbytes: int) -> list[Envelope]:
        """Envelopes for messages that take so many bytes together."""
        each = nbytes // len(messages)
        link = self._link
        enclosed = [Envelope(way.recipient, way.sender, message, each, 0, (), link) for message in messages]
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

    def _way(self, route: Any) -> _InboundRoute:
        if type(route) is int:
            way = self._routes.get(route)
            if way is None:
                raise DecodeError(f"{self._link.peer} sent messages by the unknown route {route}")
            return way
        if type(route) is not list or len(route) != len(_ROUTE) or not all(map(isinstance, route, _ROUTE)):
            raise self._malformed(Kind.RUNS, _ROUTE)
        number, sender, recipient, tag, extras = route
        if extras not in tuple(RowSuffix):
            raise DecodeError(f"{self._link.peer} sent a route with the extras {extras}")
        if not 0 <= number < ROUTES:
            raise DecodeError(f"{self._link.peer} gave a route the number {number}; there are {ROUTES}")
        kind = self._type(tag)
        if not kind.wire.small:
            raise DecodeError(f"{self._link.peer} sent a run of {kind.__name__}, which travels alone")
        way = self._routes[number] = _InboundRoute(sender, recipient, kind, extras)
        return way

    def _know(self, tag: Any) -> tuple[Lane, Callable[[Any], Message]]:
        kind = self._type(tag)
        known = kind.lane, codec.builder(kind)
        if type(tag) is int:
            self._known[tag] = known
        return known

    def _type(self, tag: Any) -> type[Message]:
        if type(tag) is int and 0 <= tag < len(self.types):
            kind = self.types[tag]
            if isinstance(kind, str):
                # It may have been imported here since the handshake.
                kind = self.types[tag] = self._named(kind, None)
            return kind
        match tag:
            case [str(name), bytes(fingerprint)]:
                return self._named(name, fingerprint)
        raise DecodeError(f"{self._link.peer} sent a message of the unknown type {tag!r}")

    def _named(self, tag: str, fingerprint: bytes | None) -> type[Message]:
        kind = REGISTRY.get(tag)
        if kind is None:
            raise DecodeError(f"{self._link.peer} sent a {tag}, a type that this node does not know")
        if fingerprint is not None and kind.wire.fingerprint != fingerprint:
            raise DecodeError(f"{self._link.peer} has other fields in {tag} than this node")
        return kind

    def _miscounted(self, number: Any, clock: Any) -> DecodeError:
        return DecodeError(f"{self._link.peer} sent a message with the number {number!r} and the clock {clock!r}")

    def _malformed(self, kind: Kind, kinds: tuple[type, ...]) -> DecodeError:
        wanted = ", ".join("any" if kind is object else kind.__name__ for kind in kinds)
        return DecodeError(f"{self._link.peer} sent a {kind.name} frame that does not hold {wanted}")


class _Credit:
    """What the last message of a run brings along: the credit for all of them, once it has left the mailbox."""

    __slots__ = ("_count", "_link", "_nbytes")

    def __init__(self, link: "Link", count: int, nbytes: int) -> None:
        self._link = link
        self._count = count
        self._nbytes = nbytes

    def consumed(self, recipient: str, nbytes: int) -> None:
        """Those before it have left as well: the lane keeps its order."""
        self._link.consumed(recipient, self._nbytes, self._count)

    def answer(self, correlation: int, value: Any) -> None:
        """Nobody asked."""

    def fail(self, correlation: int, error: Exception) -> None:
        """Nobody asked."""
