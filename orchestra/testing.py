"""Tools for tests: a manual clock, probes, the contract of transports, and deterministic simulation.

    clock = ManualClock()
    async with Node("here", clock=clock).running() as node:
        ledger = Probe(ResultMsg)
        node.spawn("referee", Referee, ledger=ledger.start(node, "ledger"))
        clock.advance(60.0)
        assert await ledger.heard(ResultMsg) == [ResultMsg(team="marines", score=1.0)]

`Simulation` runs whole systems of nodes in virtual time, with faults.

No tool sleeps: a test advances the clock, waits for a message, or waits until all actors are idle.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, TypeVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.codec import Buffer
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.supervision import Stop, Supervision
from orchestra.errors import FrameError, Unreachable, UsageError
from orchestra.nodes.node import Node
from orchestra.simulation.loop import SimulationStuck
from orchestra.simulation.process import Process, ProcessDied
from orchestra.simulation.seeds import Scenario, each_seed, failing_seed, run_seed
from orchestra.simulation.simulation import Simulation
from orchestra.wire.frames import Frame, Kind, Limits, frame_bytes, frame_prefix
from orchestra.wire.transports.base import Connection
from orchestra.wire.transports.registry import transport_for

__all__ = [
    "ManualClock",
    "Probe",
    "Process",
    "ProcessDied",
    "Scenario",
    "Simulation",
    "SimulationStuck",
    "check_transport",
    "each_seed",
    "failing_seed",
    "run_seed",
    "settle",
]

M = TypeVar("M", bound=Message)

START_S = 1024.0
"""The time at which a manual clock starts, in seconds. With a power of two, fractions of seconds stay exact in sums."""
ARRIVAL_S = 10.0
"""Seconds after which `check_transport` takes what it waits for as lost."""
QUIET_TURNS = 3
"""Consecutive turns of the loop with all actors idle that count as settled: a frame in memory takes one to arrive."""


class ManualClock:
    """A clock that stands still until `advance`, which fires the due timers in the order of their times.

    It does not start at 0, where a time is easily taken for a duration.
    """

    def __init__(self) -> None:
        self._now = START_S
        self._timers: list[tuple[float, int, _Timer]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """Return the seconds advanced so far, plus 1,024."""
        return self._now

    def now(self) -> datetime:
        """Return 2026-01-01 00:00 UTC plus the seconds advanced so far."""
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._now - START_S)

    def call_later(self, delay: float, call: Callable[[], None]) -> "_Timer":
        """Run `call` when the clock has advanced by `delay` seconds."""
        timer = _Timer(call)
        heapq.heappush(self._timers, (self._now + delay, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Advance the time by `seconds`, and fire the timers that become due."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.call is not None:
                timer.call()
        self._now = end


@dataclass(slots=True, eq=False)
class _Timer:
    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class Probe:
    """An actor that records its messages for a test.

    Args:
        kinds: the message types that it understands.
        answers: the answers to requests, by type. An exception among them is raised instead.
    """

    def __init__(self, *kinds: type[Message], answers: Mapping[type[Message], Any] | None = None) -> None:
        self.messages: list[Message] = []
        """All received messages, in order."""
        self._answers = dict(answers or {})
        self._gate = asyncio.Event()
        self._gate.set()
        self._news = asyncio.Event()
        handlers = {f"take_{number}": _handler(kind) for number, kind in enumerate(kinds)}
        self._class: type[_Listener[Any]] = type("Listener", (_Listener,), handlers)

    def start(self, node: Node, name: str) -> Ref[Any]:
        """Spawn it on `node`, and return its ref."""
        return node.spawn(name, self._class, self)

    def hold(self) -> None:
        """Stay in the next handler until `release`, so that further messages fill the mailbox."""
        self._gate.clear()

    def release(self) -> None:
        """Leave the handler that `hold` keeps busy."""
        self._gate.set()

    async def heard(self, kind: type[M], count: int = 1) -> list[M]:
        """Wait for `count` messages of `kind`, and return all received ones."""
        while len(heard := [message for message in self.messages if isinstance(message, kind)]) < count:
            self._news.clear()
            await self._news.wait()
        return heard

    async def take(self, message: Message) -> Any:
        """Record a message and return its answer. Called by the probe's actor."""
        self.messages.append(message)
        self._news.set()
        await self._gate.wait()
        answer = self._answers.get(type(message))
        if isinstance(answer, Exception):
            raise answer
        return answer


def _handler(kind: type[Message]) -> Callable[[Any, Any], Awaitable[Any]]:
    @on(kind)
    async def take(listener: "_Listener[Any]", message: Message) -> Any:
        return await listener.probe.take(message)

    return take


class _Listener(Actor[M]):
    supervision: ClassVar[Supervision] = Stop()

    def __init__(self, probe: Probe) -> None:
        self.probe = probe


async def settle(*nodes: Node) -> None:
    """Wait until all actors of `nodes` are idle, and no message is on its way between them in memory.

    Messages over sockets, threads and timers are not waited for.
    """
    quiet = 0
    while quiet < QUIET_TURNS:
        await asyncio.sleep(0)
        quiet = quiet + 1 if all(node.idle for node in nodes) else 0


class _FrameRecorder:
    """A receiver that records frames and losses."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.losses: list[Exception | None] = []
        self._news = asyncio.Event()
        self.refuse: Exception | None = None

    def frame_received(self, frame: Frame) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.frames.append(frame)
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.losses.append(error)
        self._news.set()

    async def got(self, count: int) -> list[Frame]:
        await self._until(lambda: len(self.frames) >= count, f"{count} frames")
        return self.frames

    async def lost(self) -> Exception | None:
        await self._until(lambda: bool(self.losses), "the end of the connection")
        return self.losses[0]

    async def _until(self, arrived: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(ARRIVAL_S):
                while not arrived():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            got = f"{len(self.frames)} frames and {len(self.losses)} ends"
            raise AssertionError(f"expected {what} within {ARRIVAL_S:g} s, got {got}") from None


class _Pair:
    """Two ends of a connection."""

    def __init__(self, dialer: Connection, listener: Connection) -> None:
        self.dialer, self.listener = dialer, listener
        self.at_dialer, self.at_listener = _FrameRecorder(), _FrameRecorder()
        for connection, ear in ((dialer, self.at_dialer), (listener, self.at_listener)):
            connection.limits = Limits()
            connection.attach(ear)


async def check_transport(address: str) -> None:
    """Check that a transport keeps the contract of `orchestra.wire.transports.base`.

    Args:
        address: an address that the transport can listen at.

    Raises:
        AssertionError: the transport violates the contract.
    """
    transport = transport_for(address)
    accepted: asyncio.Queue[Connection] = asyncio.Queue()
    listener = await transport.listen(address, accepted.put_nowait)
    try:
        for check in _CHECKS:
            dialled = await transport.dial(listener.address)
            pair = _Pair(dialled, await accepted.get())
            try:
                await check(pair)
            finally:
                for end, ear in ((pair.dialer, pair.at_dialer), (pair.listener, pair.at_listener)):
                    end.abort()
                    await ear.lost()
        await _frames_wait_for_a_receiver(await transport.dial(listener.address), await accepted.get())
        await _is_refused(partial(transport.listen, listener.address, accepted.put_nowait), UsageError)
    finally:
        for _ in range(5):  # turns in which the probing connection of `listen` arrives
            await asyncio.sleep(0)
        await listener.close()
        while not accepted.empty():
            accepted.get_nowait().abort()
    await _is_refused(partial(transport.dial, listener.address), Unreachable)
    await transport.clear(listener.address)


async def _is_refused(call: Callable[[], Awaitable[object]], error: type[Exception]) -> None:
    try:
        await call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def _message(header: bytes, payload: bytes = b"") -> list[Buffer]:
    pieces: list[Buffer] = [frame_prefix(Kind.MESSAGE, len(header), len(payload)) + header]
    return [*pieces, memoryview(payload)] if payload else pieces


async def _frames_arrive_whole_and_in_order_both_ways(pair: _Pair) -> None:
    sent = [(b"%d" % n, b"x" * (n * 37 % 5000)) for n in range(1000)]
    for header, payload in sent:
        pair.dialer.send(_message(header, payload))
        pair.listener.send(_message(header, payload))
    for ear in (pair.at_dialer, pair.at_listener):
        got = [(f.header, b"" if f.payload is None else f.payload.tobytes()) for f in await ear.got(len(sent))]
        assert got == sent


async def _a_large_payload_arrives_intact_and_read_only(pair: _Pair) -> None:
    payload = bytes(range(256)) * (5 << 12)  # 5 MiB
    pair.dialer.send(_message(b"large", payload))
    pair.dialer.send(_message(b"after"))
    large, after = await pair.at_listener.got(2)
    assert large.payload is not None
    assert large.payload.tobytes() == payload
    assert not large.payload.flags.writeable
    assert after.header == b"after"


async def _what_was_sent_before_a_close_arrives(pair: _Pair) -> None:
    pair.dialer.send(_message(b"large", b"y" * 100_000))
    pair.dialer.send(_message(b"small"))
    pair.dialer.close()
    assert [frame.header for frame in await pair.at_listener.got(2)] == [b"large", b"small"]
    assert isinstance(await pair.at_listener.lost(), ConnectionError)
    assert await pair.at_dialer.lost() is None


async def _sending_after_a_close_does_nothing(pair: _Pair) -> None:
    pair.dialer.close()
    await pair.at_listener.lost()
    await pair.at_dialer.lost()
    for end in (pair.dialer, pair.listener):
        end.send(_message(b"late"))
        end.close()
    await asyncio.sleep(0)
    assert not pair.at_listener.frames
    assert not pair.at_dialer.frames


async def _the_receiver_gets_the_error_of_an_abort(pair: _Pair) -> None:
    error = FrameError("on purpose")
    pair.dialer.abort(error)
    assert await pair.at_dialer.lost() is error
    assert isinstance(await pair.at_listener.lost(), ConnectionError)


async def _a_loss_is_reported_once(pair: _Pair) -> None:
    pair.dialer.abort()
    pair.dialer.abort(FrameError("again"))
    pair.listener.close()
    await pair.at_dialer.lost()
    await pair.at_listener.lost()
    await asyncio.sleep(0)
    assert len(pair.at_dialer.losses) == len(pair.at_listener.losses) == 1


async def _bytes_that_are_no_frame_end_the_connection(pair: _Pair) -> None:
    pair.dialer.send([b"GET / HTTP/1.1\r\n\r\n"])
    assert isinstance(await pair.at_listener.lost(), FrameError)
    assert isinstance(await pair.at_dialer.lost(), ConnectionError)


async def _a_frame_over_the_limits_ends_the_connection(pair: _Pair) -> None:
    pair.listener.limits = Limits(header=8, payload=8)
    pair.dialer.send(_message(b"12345678"))
    pair.dialer.send(_message(b"123456789"))
    assert isinstance(await pair.at_listener.lost(), FrameError)
    assert [frame.header for frame in pair.at_listener.frames] == [b"12345678"]


async def _a_frame_that_the_receiver_refuses_ends_the_connection(pair: _Pair) -> None:
    pair.at_listener.refuse = FrameError("refused")
    pair.dialer.send(_message(b"x"))
    assert await pair.at_listener.lost() is pair.at_listener.refuse
    await pair.at_dialer.lost()


_CHECKS: tuple[Callable[[_Pair], Awaitable[None]], ...] = (
    _frames_arrive_whole_and_in_order_both_ways,
    _a_large_payload_arrives_intact_and_read_only,
    _what_was_sent_before_a_close_arrives,
    _sending_after_a_close_does_nothing,
    _the_receiver_gets_the_error_of_an_abort,
    _a_loss_is_reported_once,
    _bytes_that_are_no_frame_end_the_connection,
    _a_frame_over_the_limits_ends_the_connection,
    _a_frame_that_the_receiver_refuses_ends_the_connection,
)


async def _frames_wait_for_a_receiver(dialer: Connection, listener: Connection) -> None:
    """A receiver that is attached late gets the frames that came before, and may refuse them."""
    dialer.send([frame_bytes(Kind.HANDSHAKE, b"early")])
    at_dialer, at_listener = _FrameRecorder(), _FrameRecorder()
    dialer.attach(at_dialer)
    for _ in range(20):  # turns in which the frame arrives
        await asyncio.sleep(0)
    at_listener.refuse = FrameError("refused")
    listener.attach(at_listener)
    assert await at_listener.lost() is at_listener.refuse
    assert isinstance(await at_dialer.lost(), ConnectionError)
