"""The simulated network: `sim://HOST` connects the processes of a simulation, with the delays and faults of its seed.

It behaves like TCP. Bytes arrive in order, after a delay, in pieces that do not match the sends; or the connection
breaks, and bytes on their way are lost, also within a frame. One side may notice that long before the other, which
notices when it sends. In a partition nothing breaks: bytes and new connections wait.
"""

import asyncio
import math
import zlib
from collections import Counter
from weakref import WeakKeyDictionary, ref

from orchestra.actors.codec import Buffer
from orchestra.errors import NobodyListens, Unreachable, UsageError
from orchestra.simulation.loop import SimulatedLoop
from orchestra.simulation.strands import Strand
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.endpoint import Endpoint
from orchestra.wire.transports.registry import SCHEMES

PREFIX = "sim://"
LATENCY_S = (50e-6, 20e-3)
"""The range of a link's mean latency, which is distributed evenly on a logarithmic scale."""
SPIKE_PROBABILITY = 0.01
SPIKE_S = 0.2
"""Mean additional delay of a latency spike."""
SPLIT_PROBABILITY = 0.2
"""Probability that the bytes of one send arrive in several pieces."""
LATE_NOTICE_PROBABILITY = 0.25
"""Probability that one side of a broken connection notices only when it sends."""
CONNECT_S = 75.0
"""Time after which a dial through a partition fails."""
RETRY_S = 1.0

Link = tuple[str, str]


class Network:
    """All links of a simulation, and their faults.

    Args:
        loop: the simulation's loop. `sim://` addresses dialled or listened at in it belong to this network.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.listeners: dict[str, _SimulatedListener] = {}
        self._loop = loop
        self._random = loop.random
        self._latency: dict[Link, float] = {}
        self.blocked: set[Link] = set()
        """Source and target of the packets that are held back."""
        self.forbidden: set[Link] = set()
        """Source and target of dials that a firewall refuses."""
        self.traffic: Counter[Link] = Counter()
        """Bytes sent so far, by source and target."""
        self._vanished: set[str] = set()
        """Hosts that do not even refuse a connection."""
        self.ends: dict[SimulatedConnection, None] = {}
        """The ends of all connections."""
        self.stalled: dict[SimulatedConnection, None] = {}
        """Ends with bytes that a partition holds back."""
        _NETWORKS[loop] = ref(self)

    # Faults

    @property
    def links(self) -> list[Link]:
        """The connected pairs of hosts, each once."""
        return list(dict.fromkeys(end.link for end in self.ends))

    def cut(self, one: str, other: str) -> int:
        """Break every connection between two hosts, and return their number. The hosts may reconnect at once."""
        ends = [end for end in self.ends if end.link == _link(one, other)]
        for end in ends:
            end.break_off(ConnectionResetError("the connection was cut"))
        return len(ends) // 2

    def half_close(self, one: str, other: str) -> int:
        """End every stream from `one` to `other`, and return their number.

        `other` sees the end of the stream. `one` notices nothing: its bytes vanish, and none arrive.
        """
        ends = [end for end in self.ends if (end.host, end.peer_host) == (other, one)]
        for end in ends:
            end.half_close()
        return len(ends)

    def unblock(self, source: str, target: str) -> None:
        """Let packets through again; those held back arrive later."""
        self.blocked.discard((source, target))
        for end in [end for end in self.stalled if (end.host, end.peer_host) == (source, target)]:
            del self.stalled[end]
            end.resend()

    def slow_down(self, one: str, other: str, seconds: float) -> None:
        """Set the mean latency between two hosts, each way."""
        self._latency[_link(one, other)] = seconds

    def remove_host(self, strand: Strand, *, silently: bool) -> None:
        """Remove the host of a dead process. Unless `silently`, its operating system closes its connections."""
        if silently:
            self._vanished.add(strand.name)
        for address in [address for address, listener in self.listeners.items() if listener.strand is strand]:
            del self.listeners[address]
        for end in [end for end in self.ends if end.strand is strand]:
            end.vanish(silently=silently)

    def add_host(self, host: str) -> None:
        """Add a host that starts, without its earlier connections: a peer that still has one gets a reset."""
        self._vanished.discard(host)
        for end in self.ends:
            if end.peer_host == host:
                end.reset_on_send()

    # The interface of connections

    def reaches(self, one: str, other: str) -> bool:
        """Return whether two hosts can connect: no partition separates them, and neither has vanished."""
        return not ({one, other} & self._vanished or {(one, other), (other, one)} & self.blocked)

    def delay(self, one: str, other: str) -> float:
        """Draw the delay of the next bytes between two hosts, in seconds."""
        random = self._random
        link = _link(one, other)
        mean = self._latency.get(link)
        if mean is None:
            low, high = LATENCY_S
            mean = self._latency[link] = low * math.exp(random.uniform() * math.log(high / low))
        spike = random.exponential(SPIKE_S) if random.chance(SPIKE_PROBABILITY) else 0.0
        return mean / 2 + random.exponential(mean / 2) + spike

    def connect(self, listener: "_SimulatedListener", address: str) -> "SimulatedConnection":
        """Return the dialler's end of a new connection to `listener`."""
        here = SimulatedConnection(self, self._loop, self._loop.strands.current(), address)
        there = SimulatedConnection(self, self._loop, listener.strand, f"{PREFIX}{here.host}")
        here.other, there.other = there, here
        self.ends[here] = self.ends[there] = None
        self._loop.call_soon(listener.accept, there, context=listener.strand.context)
        return here


_NETWORKS: WeakKeyDictionary[asyncio.AbstractEventLoop, ref[Network]] = WeakKeyDictionary()
"""The network of each simulated loop. A network refers to its loop, so one that is kept here would keep the whole world
of every simulation for as long as the process lives."""


class _SimulatedListener:
    """A listening address."""

    def __init__(self, network: Network, strand: Strand, address: str, accept: Accept) -> None:
        self.address = address
        self.strand = strand
        self._network = network
        self._accept = accept

    @property
    def open(self) -> bool:
        """True until it is closed."""
        return self._network.listeners.get(self.address) is self

    async def close(self) -> None:
        if self.open:
            del self._network.listeners[self.address]

    def accept(self, connection: "SimulatedConnection") -> None:
        """Hand a connection to the owner of the listener; called in its process."""
        if self.open:
            self._accept(connection)
        else:
            connection.abort()


class SimulatedTransport:
    """Connections between the processes of the running simulation."""

    def check(self, address: str) -> None:
        if not address.startswith(PREFIX) or not _host(address):
            raise UsageError(f"expected an address like {PREFIX}learner, got {address!r}")

    async def listen(self, address: str, accept: Accept) -> Listener:
        await self.clear(address)
        loop, network = _running()
        listener = network.listeners[address] = _SimulatedListener(network, loop.strands.current(), address, accept)
        return listener

    async def clear(self, address: str) -> None:
        """Check that no process listens at `address`; a dead process leaves nothing to remove."""
        _, network = _running()
        self.check(address)
        if address in network.listeners:
            raise UsageError(f"{address} is in use by another process of this simulation")

    async def dial(self, address: str) -> "SimulatedConnection":
        loop, network = _running()
        self.check(address)
        here = loop.strands.current().name
        deadline = loop.time() + CONNECT_S
        while True:
            listener = network.listeners.get(address)
            there = listener.strand.name if listener is not None else _host(address)
            if (here, there) in network.forbidden:
                raise Unreachable(f"no route from {here} to {address}")
            await asyncio.sleep(network.delay(here, there))
            if network.reaches(here, there):
                break
            if loop.time() > deadline:
                raise Unreachable(f"no answer from {address} within {CONNECT_S:g} s")
            await asyncio.sleep(RETRY_S)
        listener = network.listeners.get(address)
        if listener is None:
            raise NobodyListens(f"no process listens at {address}")
        connection = network.connect(listener, address)
        try:
            await asyncio.sleep(network.delay(there, here))
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection


class SimulatedConnection(Endpoint):
    """One end of a connection; its callbacks run in the process that it belongs to."""

    other: "SimulatedConnection"

    def __init__(self, network: Network, loop: SimulatedLoop, strand: Strand, peer: str) -> None:
        super().__init__(peer)
        self.strand = strand
        self.host = strand.name
        self.source = peer.removeprefix(PREFIX)
        self._network = network
        self._loop = loop
        self._random = loop.random
        self._outbox: list[Buffer] = []
        self._held_back: list[bytes | None] = []
        self._arrives = 0.0
        """The time at which the last bytes arrive; later ones do not overtake them."""
        self._closing = False
        self._broken = False
        """True if sent bytes are lost, as are bytes on their way to here."""
        self._breaks_on_send = False
        """True if this side notices the break at its next send."""

    @property
    def peer_host(self) -> str:
        """The host at the other end."""
        return self.other.host

    @property
    def link(self) -> Link:
        """The two hosts, sorted."""
        return _link(self.host, self.peer_host)

    # The contract of a connection

    def send(self, pieces: list[Buffer], *, at_once: bool = False) -> None:
        if self._lost or self._closing:
            return
        if not self._outbox:
            self._loop.call_soon(self._flush, context=self.strand.context)
        self._outbox.extend(pieces)

    def close(self) -> None:
        if self._closing:
            return
        self._flush()
        self._closing = self._deaf = True
        self._transmit(None)
        self._end_soon(None)

    def abort(self, error: Exception | None = None) -> None:
        if self._closing:
            return
        self._closing = self._deaf = True
        if not self._broken:
            self._transmit(None)
            self._broken = True
        self._end_soon(error)

    # Faults

    def break_off(self, error: Exception) -> None:
        """Lose the bytes on their way to this side; it notices after a delay, or at its next send."""
        if self._broken:
            return
        self._broken = True
        if self._random.chance(LATE_NOTICE_PROBABILITY):
            self._breaks_on_send = True
        else:
            self._end_later(error)

    def half_close(self) -> None:
        """See the end of the stream after a delay; the other side notices nothing."""
        if not self._broken:
            self._broken = self.other._broken = True
            self._end_later(ConnectionResetError("closed by the other side"))

    def vanish(self, *, silently: bool) -> None:
        """End with the process that this end belongs to. Unless `silently`, the other side is informed."""
        self._network.ends.pop(self, None)
        if self._closing:
            return
        self._closing = self._deaf = self._broken = True
        if silently:
            self.other._broken = True
        elif self._random.chance(0.5):
            self._transmit(None)  # the operating system sends what was queued, then closes
        else:
            self.other.break_off(ConnectionResetError("the peer's process is gone"))

    def reset_on_send(self) -> None:
        """Get a reset at the next send: the peer has restarted without this connection."""
        if self._broken and not self._closing:
            self._breaks_on_send = True

    def resend(self) -> None:
        """Send the bytes that a partition held back, after a delay: TCP retries seldom by now."""
        held_back, self._held_back = self._held_back, []
        self._arrives = max(self._arrives, self._loop.time() + self._random.exponential(RETRY_S))
        for data in held_back:
            self._transmit(data)

    # Inside

    def _end_soon(self, error: Exception | None) -> None:
        self._loop.call_soon(self._end, error, context=self.strand.context)

    def _end_later(self, error: Exception) -> None:
        self._loop.call_later(self._delay(), self._end, error, context=self.strand.context)

    def _delay(self) -> float:
        return self._network.delay(self.host, self.peer_host)

    def _flush(self) -> None:
        if not self._outbox or self._closing:
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._network.traffic[self.host, self.peer_host] += len(data)
        if self._breaks_on_send:
            self._breaks_on_send = False
            self._end_later(ConnectionResetError("the connection was cut some time ago"))
        while len(data) > 1 and self._random.chance(SPLIT_PROBABILITY):
            size = 1 + self._random.below(len(data) - 1)
            self._transmit(data[:size])
            data = data[size:]
        self._transmit(data)

    def _transmit(self, data: bytes | None) -> None:
        """Send `data`, or the end of the stream for None."""
        if self._broken and data is not None:
            return
        if (self.host, self.peer_host) in self._network.blocked:
            self._held_back.append(data)
            self._network.stalled[self] = None
            return
        self._arrives = max(self._arrives, self._loop.time() + self._delay())
        self._loop.call_at(self._arrives, self.other._arrive, data, context=self.other.strand.context)

    def _arrive(self, data: bytes | None) -> None:
        if self._broken or self._closing:
            return
        if data is None:
            self._end(ConnectionResetError("closed by the other side"))
            return
        self._loop.note(self.strand, f"{len(data)} bytes, {zlib.crc32(data):08x}")
        self._feed(data)

    def _end(self, error: Exception | None) -> None:
        self._closing = self._deaf = self._broken = True
        self._network.ends.pop(self, None)
        self._lose(error)


def _link(one: str, other: str) -> Link:
    return (one, other) if one <= other else (other, one)


def _host(address: str) -> str:
    return address.removeprefix(PREFIX)


def _running() -> tuple[SimulatedLoop, Network]:
    loop = asyncio.get_running_loop()
    network = _NETWORKS[loop]() if loop in _NETWORKS else None
    if not isinstance(loop, SimulatedLoop) or network is None:
        raise UsageError(f"{PREFIX} addresses exist only in a simulation")
    return loop, network


SCHEMES["sim"] = SimulatedTransport
