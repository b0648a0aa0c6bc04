"""The network: `sim://HOST` connects the processes of a simulation, as well or as badly as the seed wants it.

What TCP does is what happens here: bytes arrive in order, in pieces that have nothing to do with how they were sent,
after a delay; or the connection breaks, and whatever was on its way is lost, also in the middle of a frame. One side
may hear of that long before the other, which hears of it when it sends something. Where no packet gets through, nothing
breaks: bytes wait, and connections with them.
"""

import asyncio
import math
import zlib
from collections.abc import Callable

from orchestra.actors.codec import Buffer
from orchestra.errors import NobodyListens, Unreachable, UsageError
from orchestra.simulation.dice import Dice
from orchestra.simulation.loop import SimulatedLoop, Strand
from orchestra.wire.transports.base import Accept, Listener
from orchestra.wire.transports.endpoint import Endpoint
from orchestra.wire.transports.registry import SCHEMES

PREFIX = "sim://"
LATENCY_S = (50e-6, 20e-3)
"""A link's usual delay is drawn from this range, evenly on a logarithmic scale."""
SPIKE = 0.01
"""How often bytes take much longer than usual."""
SPIKE_S = 0.2
SPLIT = 0.2
"""How often what was sent in one go arrives in several."""
LATE = 0.25
"""How often one side of a broken connection does not hear of it before it sends something."""
CONNECT_S = 75.0
"""How long a dialler tries while no packet gets through."""
RETRY_S = 1.0

Pair = tuple[str, str]


class Network:
    """All links of a simulation, and their faults."""

    def __init__(self, loop: SimulatedLoop, dice: Dice) -> None:
        self.doors: dict[str, _Door] = {}
        self._loop = loop
        self._dice = dice
        self._latency: dict[Pair, float] = {}
        self._blocked: set[Pair] = set()
        self._dark: set[str] = set()
        """Hosts that do not even say that nobody listens."""
        self._ends: dict[SimulatedConnection, None] = {}
        self._holding: dict[SimulatedConnection, None] = {}
        loop.network = self

    # Faults

    @property
    def links(self) -> list[Pair]:
        """The pairs of hosts that are connected, each once."""
        return list(dict.fromkeys(end.link for end in self._ends))

    def cut(self, one: str, other: str) -> int:
        """Break every connection between two hosts; return how many there were. They may connect again at once."""
        ends = [end for end in self._ends if end.link == _link(one, other)]
        for end in ends:
            end.sever(ConnectionResetError("the connection was cut"))
        return len(ends) // 2

    def block(self, source: str, target: str) -> None:
        """Let no packet from `source` reach `target`."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Let packets through again; what waited comes in, later."""
        if (source, target) not in self._blocked:
            return
        self._blocked.remove((source, target))
        for end in [end for end in self._holding if (end.host, end.peer_host) == (source, target)]:
            del self._holding[end]
            end.resend()

    def unblock_all(self) -> None:
        """Let all packets through again."""
        for source, target in sorted(self._blocked):
            self.unblock(source, target)

    def blocks(self, source: str, target: str) -> bool:
        """Whether no packet from `source` reaches `target`."""
        return (source, target) in self._blocked

    def slow_down(self, one: str, other: str, seconds: float) -> None:
        """Let bytes between two hosts take `seconds` on average, each way."""
        self._latency[_link(one, other)] = seconds

    def unplug(self, strand: Strand, *, silently: bool) -> None:
        """Take a host that died off the network; unless `silently`, its system tells those at the other ends."""
        if silently:
            self._dark.add(strand.name)
        for address in [address for address, door in self.doors.items() if door.strand is strand]:
            del self.doors[address]
        for end in [end for end in self._ends if end.strand is strand]:
            end.vanish(silently=silently)

    def plug_in(self, host: str) -> None:
        """Put a host that was gone on the network: it knows nothing of the connections that it had."""
        self._dark.discard(host)
        for end in self._ends:
            if end.peer_host == host:
                end.be_refused()

    # What connections ask

    def reaches(self, one: str, other: str) -> bool:
        """Whether two hosts can connect: packets get through both ways, and there is somebody to answer."""
        return not ({one, other} & self._dark or self.blocks(one, other) or self.blocks(other, one))

    def delay(self, one: str, other: str) -> float:
        """Return how long the next bytes take between two hosts."""
        dice = self._dice
        link = _link(one, other)
        usual = self._latency.get(link)
        if usual is None:
            low, high = LATENCY_S
            usual = self._latency[link] = low * math.exp(dice.uniform() * math.log(high / low))
        late = dice.exponential(SPIKE_S) if dice.chance(SPIKE) else 0.0
        return usual / 2 + dice.exponential(usual / 2) + late

    def connect(self, door: "_Door", address: str) -> "SimulatedConnection":
        """Return the dialler's end of a new connection, whose other end is at `door`."""
        here = SimulatedConnection(self, self._loop, self._loop.here(), address)
        there = SimulatedConnection(self, self._loop, door.strand, f"{PREFIX}{here.host}")
        here.other, there.other = there, here
        self._ends[here] = self._ends[there] = None
        door.accept(there)
        return here

    def hold(self, end: "SimulatedConnection") -> None:
        """Keep in mind that `end` has something to send again when packets get through."""
        self._holding[end] = None

    def forget(self, end: "SimulatedConnection") -> None:
        """Drop an end that is over."""
        self._ends.pop(end, None)


class _Door:
    """An address that is listened at."""

    def __init__(self, network: Network, loop: SimulatedLoop, address: str, accept: Accept) -> None:
        self.address = address
        self.strand = loop.here()
        self._network = network
        self._loop = loop
        self._accept = accept

    @property
    def open(self) -> bool:
        """Whether somebody would hear a knock."""
        return self._network.doors.get(self.address) is self

    def accept(self, connection: "SimulatedConnection") -> None:
        """Let whoever listens know of a connection."""
        self._loop.call_soon(self._let_in, connection, context=self.strand.context)

    async def close(self) -> None:
        if self.open:
            del self._network.doors[self.address]

    def _let_in(self, connection: "SimulatedConnection") -> None:
        if self.open:
            self._accept(connection)
        else:
            connection.abort()


class SimulatedTransport:
    """Connections between the processes of the simulation that runs."""

    def check(self, address: str) -> None:
        if not address.startswith(PREFIX) or not _host(address):
            raise UsageError(f"expected an address like {PREFIX}learner, got {address!r}")

    async def listen(self, address: str, accept: Accept) -> Listener:
        loop, network = _running()
        self.check(address)
        if address in network.doors:
            raise UsageError(f"{address} is taken by another process of this simulation")
        door = network.doors[address] = _Door(network, loop, address, accept)
        return door

    async def clear(self, address: str) -> None:
        """A dead process leaves nothing behind."""
        _, network = _running()
        self.check(address)
        if address in network.doors:
            raise UsageError(f"{address} is in use: somebody listens there")

    async def dial(self, address: str) -> "SimulatedConnection":
        loop, network = _running()
        self.check(address)
        here = loop.here().name
        until = loop.time() + CONNECT_S
        while True:
            door = network.doors.get(address)
            there = door.strand.name if door is not None else _host(address)
            await asyncio.sleep(network.delay(here, there))
            if network.reaches(here, there):
                break
            if loop.time() > until:
                raise Unreachable(f"nobody answers at {address}: timed out")
            await asyncio.sleep(RETRY_S)
        door = network.doors.get(address)
        if door is None:
            raise NobodyListens(f"nobody listens at {address}")
        connection = network.connect(door, address)
        try:
            await asyncio.sleep(network.delay(there, here))
        except asyncio.CancelledError:
            connection.abort()
            raise
        return connection


class SimulatedConnection(Endpoint):
    """One end of a connection; it belongs to a process, and what it hears is heard there."""

    other: "SimulatedConnection"

    def __init__(self, network: Network, loop: SimulatedLoop, strand: Strand, peer: str) -> None:
        super().__init__(peer)
        self.strand = strand
        self.host = strand.name
        self._network = network
        self._loop = loop
        self._dice = loop.dice
        self._outbox: list[Buffer] = []
        self._waiting_to_resend: list[bytes | None] = []
        self._arrives = 0.0
        """When the last of what was sent arrives; nothing overtakes it."""
        self._closing = False
        self._broken = False
        """Whether what is sent from here gets nowhere, and what was on its way to here is lost."""
        self._unheard = False
        """Whether this side will hear that the connection is broken when it sends something."""

    @property
    def peer_host(self) -> str:
        """The host at the other end."""
        return self.other.host

    @property
    def link(self) -> Pair:
        """The two hosts, sorted."""
        return _link(self.host, self.peer_host)

    # The contract

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
        self._hear(self._end, None)

    def abort(self, error: Exception | None = None) -> None:
        if self._closing:
            return
        self._closing = self._deaf = True
        if not self._broken:
            self._transmit(None)
            self._broken = True
        self._hear(self._end, error)

    # What happens to it

    def sever(self, error: Exception) -> None:
        """Lose what is on its way to this side, and let it hear that it is over, sooner or later."""
        if self._broken:
            return
        self._broken = True
        if self._dice.chance(LATE):
            self._unheard = True
        else:
            self._loop.call_later(self._delay(), self._end, error, context=self.strand.context)

    def vanish(self, *, silently: bool) -> None:
        """Be gone: the process that this end belongs to is no more."""
        self._network.forget(self)
        if self._closing:
            return
        self._closing = self._deaf = self._broken = True
        if silently:
            self.other.blind()
        elif self._dice.chance(0.5):
            self._transmit(None)  # its system sends what it was given, and then the end
        else:
            self.other.sever(ConnectionResetError("the peer's process is gone"))

    def blind(self) -> None:
        """Send into the void from here on: the peer's host is gone, with whatever could have told so."""
        self._broken = True

    def be_refused(self) -> None:
        """Hear, with the next thing that is sent, that nobody at the other end knows of this connection."""
        if self._broken and not self._closing:
            self._unheard = True

    def resend(self) -> None:
        """Send what did not get through; TCP has noticed by now that it should try seldom."""
        waiting, self._waiting_to_resend = self._waiting_to_resend, []
        self._arrives = max(self._arrives, self._loop.time() + self._dice.exponential(RETRY_S))
        for data in waiting:
            self._transmit(data)

    # Inside

    def _delay(self) -> float:
        return self._network.delay(self.host, self.peer_host)

    def _hear(self, call: Callable[[Exception | None], None], error: Exception | None) -> None:
        self._loop.call_soon(call, error, context=self.strand.context)

    def _flush(self) -> None:
        if not self._outbox or self._closing:
            return
        data = b"".join(self._outbox)
        self._outbox.clear()
        if self._unheard:
            self._unheard = False
            error = ConnectionResetError("the connection was cut some time ago")
            self._loop.call_later(self._delay(), self._end, error, context=self.strand.context)
        dice = self._dice
        while len(data) > 1 and dice.chance(SPLIT):
            size = 1 + dice.below(len(data) - 1)
            self._transmit(data[:size])
            data = data[size:]
        self._transmit(data)

    def _transmit(self, data: bytes | None) -> None:
        """Send `data`, or that there is no more."""
        if self._broken and data is not None:
            return
        if self._network.blocks(self.host, self.peer_host):
            self._waiting_to_resend.append(data)
            self._network.hold(self)
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
        rest = memoryview(data)
        while rest and not self._deaf:
            buffer = self._reader.get_buffer()
            count = min(len(buffer), len(rest))
            buffer[:count] = rest[:count]
            rest = rest[count:]
            self.buffer_updated(count)

    def _end(self, error: Exception | None) -> None:
        self._closing = self._deaf = self._broken = True
        self._network.forget(self)
        self._lose(error)


def _link(one: str, other: str) -> Pair:
    return (one, other) if one <= other else (other, one)


def _host(address: str) -> str:
    return address.removeprefix(PREFIX)


def _running() -> tuple[SimulatedLoop, Network]:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimulatedLoop):
        raise UsageError(f"{PREFIX} addresses exist in a simulation only")
    return loop, loop.network


SCHEMES["sim"] = SimulatedTransport
