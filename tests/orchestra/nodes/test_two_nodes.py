"""Two live nodes over each transport, and a node with a stranger who speaks the protocol by hand, well or badly."""

import asyncio
import hashlib
import hmac
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from orchestra import Actor, Axes, Message, Node, Ref, Request, TerminatedMsg, Unreachable, UsageError, freeze, on
from orchestra.actors.message import REGISTRY, Lane
from orchestra.actors.statistics import StatisticsMsg
from orchestra.errors import HandshakeError
from orchestra.testing import Probe, settle
from orchestra.wire.frames import Frame, Kind, Limits, frame_bytes, frame_prefix
from orchestra.wire.transports.base import Connection
from orchestra.wire.transports.registry import transport_for

Run = Callable[..., Any]
Logs = list[dict[str, Any]]

SECRET = b"the run's secret".ljust(32)
SKETCHY = b"another's secret".ljust(32)


class CountMsg(Message):
    n: int


class DoubleMsg(Request[int]):
    n: int


class NeverMsg(Request[int]):
    """Asked of whoever will not answer."""


class PictureMsg(Message):
    pixels: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class SystemNoteMsg(Message):
    lane = Lane.SYSTEM


class Doubler(Actor[DoubleMsg | NeverMsg]):
    def __init__(self) -> None:
        self.asked = asyncio.Event()

    @on(DoubleMsg)
    def double(self, msg: DoubleMsg) -> int:
        return 2 * msg.n

    @on(NeverMsg)
    def never(self, msg: NeverMsg) -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()


class Watcher(Actor[TerminatedMsg]):
    def __init__(self, target: Ref[Any], probe: Ref[Any]) -> None:
        self.target, self.probe = target, probe

    async def started(self) -> None:
        self.watch(self.target)

    @on(TerminatedMsg)
    async def terminated(self, msg: TerminatedMsg) -> None:
        await self.probe.tell(msg)


@pytest.fixture(params=["memory", "tcp", "unix"])
def addresses(request: pytest.FixtureRequest) -> Iterator[Callable[[], str]]:
    """Addresses of one scheme that nobody else has; no socket file is left when the test ends."""
    with tempfile.TemporaryDirectory(prefix="o") as folder:
        numbers = iter(range(10))

        def free() -> str:
            match request.param:
                case "memory":
                    return f"memory://{folder}-{next(numbers)}"
                case "unix":
                    return f"unix://{folder}/{next(numbers)}"
            return "tcp://127.0.0.1:0"

        yield free
        assert not list(Path(folder).iterdir())


@pytest.fixture
def logs() -> Iterator[Logs]:
    with capture_logs() as lines:
        yield lines


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    while not condition():  # noqa: ASYNC110 (there is no event: the test's own time limit ends it)
        await asyncio.sleep(0)


def reasons(logs: Logs, event: str) -> list[str]:
    """What was wrong, by the warnings."""
    return [line["reason"] for line in logs if line["event"] == event and line["log_level"] == "warning"]


@asynccontextmanager
async def two_nodes(addresses: Callable[[], str], **options: Any) -> AsyncIterator[tuple[Node, Node]]:
    async with (
        Node("here", listen=addresses(), secret=SECRET, **options).running() as here,
        Node("there", listen=addresses(), join=here.listening, secret=SECRET, **options).running() as there,
    ):
        yield here, there


@asynccontextmanager
async def one_node(addresses: Callable[[], str], **options: Any) -> AsyncIterator[Node]:
    async with Node("here", listen=addresses(), secret=SECRET, **options).running() as node:
        node.spawn("doubler", Doubler)
        yield node
        # Whatever was done to it, it goes on working for those who behave.
        async with Node("good", join=node.listening, secret=SECRET).running() as good:
            assert await good.ref("here/doubler").ask(DoubleMsg(n=21)) == 42


def proof(secret: bytes, role: bytes, dialer: bytes, listener: bytes) -> bytes:
    return hmac.new(secret, role + dialer + listener, hashlib.sha256).digest()


class Stranger:
    """The other end of a node's connection, at the level of frames: it can do everything wrong."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.nonce = os.urandom(32)
        self.incarnation = os.urandom(8)
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        connection.limits = Limits()
        connection.attach(self)

    @classmethod
    async def dial(cls, address: str) -> "Stranger":
        return cls(await transport_for(address).dial(address))

    def frame_received(self, frame: Frame) -> None:
        self.frames.put_nowait(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    def send(self, kind: Kind, header: bytes) -> None:
        self.connection.send([frame_bytes(kind, header)])

    def tell(self, *content: Any, kind: Kind = Kind.MESSAGE) -> None:
        self.send(kind, msgpack.packb(content))

    async def prove_as_dialer(self, secret: bytes = SECRET) -> bytes:
        """Take the dialer's part of the handshake; return the listener's nonce."""
        self.send(Kind.HANDSHAKE, self.nonce)
        header = (await self.frames.get()).header
        theirs = header[:32]
        assert header[32:] == proof(SECRET, b"listener", self.nonce, theirs)
        self.send(Kind.HANDSHAKE, proof(secret, b"dialer", self.nonce, theirs))
        return theirs

    async def prove_as_listener(self, secret: bytes = SECRET) -> None:
        theirs = (await self.frames.get()).header
        self.send(Kind.HANDSHAKE, self.nonce + proof(secret, b"listener", theirs, self.nonce))

    def say_hello(self, name: str = "stranger", **changes: Any) -> None:
        types = [[tag, kind.wire.fingerprint] for tag, kind in sorted(REGISTRY.items())]
        hello = {"node": name, "listening": "", "incarnation": self.incarnation, "session": self.nonce, "attempt": 1}
        hello |= {"host": "", "root": "", "joins": False}
        hello |= {"resumes": False, "received": 0, "after": b"", "types": types}
        self.send(Kind.HELLO, msgpack.packb(hello | changes))

    async def be_welcome(self) -> None:
        """Do all that is asked of a peer, and see that it was enough."""
        await self.prove_as_dialer()
        self.say_hello()
        assert (await self.frames.get()).kind is Kind.HELLO
        self.send(Kind.PING, b"")
        assert (await self.frames.get()).kind is Kind.PONG

    async def close(self) -> None:
        self.send(Kind.GOODBYE, b"")
        self.connection.close()
        await self.lost


def number_of(kind: type[Message]) -> int:
    return sorted(REGISTRY).index(kind.wire.tag)


# Two nodes that behave


def test_messages_and_asks_go_both_ways(run: Run, addresses: Callable[[], str]) -> None:
    async def main() -> None:
        async with two_nodes(addresses) as nodes:
            for node, other in (nodes, nodes[::-1]):
                probe = Probe(CountMsg)
                node.spawn("doubler", Doubler)
                address = probe.start(node, "probe").address
                await other.ref(address).tell(CountMsg(n=3))
                assert await probe.heard(CountMsg) == [CountMsg(n=3)]
                assert await other.ref(f"{node.name}/doubler").ask(DoubleMsg(n=4)) == 8

    run(main())


def test_a_large_array_arrives_intact_and_read_only(run: Run, addresses: Callable[[], str]) -> None:
    pixels = np.random.default_rng(7).integers(0, 256, 16 << 20, np.uint8)

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            probe = Probe(PictureMsg, CountMsg)
            far = there.ref(probe.start(here, "probe").address)
            await far.tell(PictureMsg(pixels=pixels))
            await far.tell(CountMsg(n=1))
            await probe.heard(CountMsg)
            (picture,) = await probe.heard(PictureMsg)
            assert np.array_equal(picture.pixels, pixels)
            assert not picture.pixels.flags.writeable

    run(main())


def test_thousands_of_messages_of_all_sizes_keep_their_order(run: Run, addresses: Callable[[], str]) -> None:
    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            probe = Probe(CountMsg, PictureMsg)
            far = there.ref(probe.start(here, "probe").address)
            for n in range(6000):
                await far.tell(CountMsg(n=n))
                if n % 500 == 0:
                    await far.tell(PictureMsg(pixels=np.full(n * 100, n // 500, np.uint8)))
            counts = await probe.heard(CountMsg, 6000)
            assert [message.n for message in counts] == list(range(6000))
            expected = [kind for n in range(6000) for kind in [CountMsg] + [PictureMsg] * (n % 500 == 0)]
            assert [type(message) for message in probe.messages] == expected

    run(main())


def test_who_does_not_read_holds_up_nobody_else_and_gets_no_more_than_the_window(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 8)

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            stuck, lively = Probe(CountMsg), Probe(CountMsg)
            stuck.hold()
            to_stuck = there.ref(stuck.start(here, "stuck").address)
            to_lively = there.ref(lively.start(here, "lively").address)
            told = 0

            async def tell_stuck() -> None:
                nonlocal told
                for n in range(100):
                    await to_stuck.tell(CountMsg(n=n))
                    told += 1

            telling = asyncio.create_task(tell_stuck())
            for n in range(100):
                await to_lively.tell(CountMsg(n=n))
            await lively.heard(CountMsg, 100)
            assert not telling.done()
            assert told <= 8 + 2  # the window, and what the first that it took gave back
            assert here.cell("here/stuck").statistics().mailbox.depth <= 8
            assert len(stuck.messages) == 1

            stuck.release()
            await telling
            assert [message.n for message in await stuck.heard(CountMsg, 100)] == list(range(100))

    run(main())


def test_the_window_counts_bytes_too(run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW_BYTES", 2500)

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            stuck = Probe(PictureMsg)
            stuck.hold()
            far = there.ref(stuck.start(here, "stuck").address)
            small = PictureMsg(pixels=np.zeros(1000, np.uint8))
            await far.tell(small)
            await stuck.heard(PictureMsg)  # and is busy with it; what it weighed is credited back
            turns = [asyncio.ensure_future(far.tell(small)) for _ in range(6)]
            assert await there.ref("here/system").ask(_statistics()) is not None
            assert sum(turn.done() for turn in turns) in (2, 3, 4)
            stuck.release()
            await asyncio.gather(*turns)
            await stuck.heard(PictureMsg, 7)

            huge = PictureMsg(pixels=np.zeros(1 << 20, np.uint8))
            await far.tell(huge)  # larger than the window as a whole, and still not stuck for ever
            await far.tell(huge)
            await stuck.heard(PictureMsg, 9)

    run(main())


def test_who_sends_more_than_it_has_credit_for_is_cut_off(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 4)

    async def main() -> None:
        async with one_node(addresses) as here:
            stuck = Probe(CountMsg)
            stuck.hold()
            stuck.start(here, "stuck")
            stranger = await Stranger.dial(here.listening)
            await stranger.be_welcome()
            for n in range(8):  # one is taken and gives its credit back, four wait
                stranger.tell("here/stuck", "stranger/x", 0, [], 0, 0, number_of(CountMsg), [n])
            await stranger.lost
            stuck.release()

    run(main())
    (reason,) = reasons(logs, "peer gone")
    assert reason.startswith("a message to here/stuck without credit: 4 messages (")


def test_a_stuck_actor_delays_nobody_nor_the_heartbeat_and_memory_stays_bounded(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW_BYTES", 1 << 20)
    monkeypatch.setattr("orchestra.wire.session.KEEP_BYTES", 4 << 20)
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.005)
    picture = PictureMsg(pixels=freeze(np.zeros(64 << 10, np.uint8)))

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            here.spawn("doubler", Doubler)
            stuck = Probe(PictureMsg)
            stuck.hold()
            far = there.ref(stuck.start(here, "stuck").address)

            async def tell(count: int) -> None:
                for _ in range(count):
                    await far.tell(picture)

            telling = [asyncio.create_task(tell(20)) for _ in range(50)]  # 62 MiB
            for n in range(300):
                assert await there.ref("here/doubler").ask(DoubleMsg(n=n)) == 2 * n
            (link,), (back,) = there.peers._links.values(), here.peers._links.values()
            # A heartbeat comes through each way; and what came is acknowledged, though it is not handled.
            await until(lambda: None not in (link.statistics().round_trip_s, back.statistics().round_trip_s))
            await until(lambda: not link.session.kept)
            assert not any(task.done() for task in telling)
            mailbox = here.cell("here/stuck").statistics().mailbox
            assert mailbox.nbytes <= (1 << 20) + (65 << 10)
            assert link.statistics().in_flight_bytes <= (1 << 20) + (65 << 10)
            assert link.statistics().waiting == 50  # one each: whoever waits makes no more
            stuck.release()
            await asyncio.gather(*telling)
            await stuck.heard(PictureMsg, 1000)

    run(main())
    assert not reasons(logs, "peer gone")


def test_cancelled_tells_to_a_stuck_actor_leave_no_waiter_here_or_there(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 8)

    async def cancelled(ref: Ref[Any], at_once: int) -> None:
        tasks = [asyncio.create_task(ref.tell(CountMsg(n=0))) for _ in range(at_once)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            stuck = Probe(CountMsg)
            stuck.hold()
            near = stuck.start(here, "stuck")
            here.cell("here/stuck").mailbox._capacity = 8
            far = there.ref(near.address)
            for n in range(4):
                await far.tell(CountMsg(n=n))
            await until(lambda: bool(stuck.messages))
            for ref in (far, near):
                for at_once in (1,) * 50 + (500,):
                    await cancelled(ref, at_once)
            (link,) = there.statistics().links
            mailbox = here.cell("here/stuck").statistics().mailbox
            last = asyncio.create_task(far.tell(CountMsg(n=99)))
            stuck.release()
            assert (link.in_flight, link.waiting) == (8, 0)
            assert (mailbox.depth, mailbox.capacity, mailbox.waiting) == (8, 8, 0)
            await last
            await until(lambda: stuck.messages[-1] == CountMsg(n=99))

    run(main())


def _statistics() -> Request[Any]:
    from orchestra.actors.statistics import StatisticsMsg

    return StatisticsMsg()


def test_system_messages_to_nobody_give_no_credit_that_was_never_taken(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 4)

    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            here.spawn("doubler", Doubler)
            for _ in range(20):
                await there.ref("here/nobody").tell(SystemNoteMsg())
            for n in range(20):
                assert await there.ref("here/doubler").ask(DoubleMsg(n=n)) == 2 * n
            for n in range(20):
                await there.ref("here/nobody").tell(CountMsg(n=n))
            assert await there.ref("here/doubler").ask(DoubleMsg(n=1)) == 2
            assert there.statistics().peers == ("here",)

    run(main())
    assert not reasons(logs, "peer gone")


def test_the_death_of_a_peer_fails_pending_asks_and_is_told_to_watchers_once(
    run: Run, addresses: Callable[[], str], logs: Logs
) -> None:
    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            there.spawn("doubler", Doubler)
            probe = Probe(TerminatedMsg)
            target = here.ref("there/doubler")
            here.spawn("watcher", Watcher, target, probe.start(here, "probe"))
            asks = [asyncio.ensure_future(target.ask(NeverMsg())) for _ in range(3)]
            await settle(here)
            assert await target.ask(DoubleMsg(n=1)) == 2  # all before it has arrived, the watch included

            there.peers._links["here"].end(ConnectionResetError("pulled out"))
            results = await asyncio.gather(*asks, return_exceptions=True)
            assert [type(result) for result in results] == [Unreachable] * 3
            assert {str(result) for result in results} == {"node there is gone: there ended the session: pulled out"}
            (told,) = await probe.heard(TerminatedMsg)
            assert (told.address, told.graceful) == ("there/doubler", False)
            assert await there.stop_requested == "the root is gone: pulled out"
        assert len(probe.messages) == 1

    run(main())
    assert {line["log_level"] for line in logs if line["event"] == "peer gone"} == {"warning"}


def test_a_graceful_end_is_no_alarm(run: Run, addresses: Callable[[], str], logs: Logs) -> None:
    async def main() -> None:
        async with two_nodes(addresses) as (here, there):
            probe = Probe(TerminatedMsg)
            there.spawn("doubler", Doubler)
            here.spawn("watcher", Watcher, here.ref("there/doubler"), probe.start(here, "probe"))
            await settle(here)  # it has asked to be told
            assert await here.ref("there/doubler").ask(DoubleMsg(n=1)) == 2
            await there.stop()
            (told,) = await probe.heard(TerminatedMsg)
            assert told.graceful

    run(main())
    assert not [line for line in logs if line["log_level"] in ("warning", "error")]


def test_asks_of_a_process_whose_place_another_took_fail_and_its_watchers_are_told(
    run: Run, addresses: Callable[[], str]
) -> None:
    """It may have been killed, and started again, before anybody noticed that the old connection is dead."""

    async def main() -> None:
        async with one_node(addresses) as here:
            first, second = [await Stranger.dial(here.listening) for _ in range(2)]
            await first.be_welcome()
            probe = Probe(TerminatedMsg)
            here.spawn("watcher", Watcher, here.ref("stranger/x"), probe.start(here, "probe"))
            ask = asyncio.ensure_future(here.ref("stranger/x").ask(NeverMsg()))
            for _ in range(2):
                assert (await first.frames.get()).kind is Kind.MESSAGE

            await second.be_welcome()
            assert isinstance(await first.lost, ConnectionError)
            with pytest.raises(Unreachable, match=r"^node stranger is gone: "):
                await ask
            (told,) = await probe.heard(TerminatedMsg)
            assert (told.address, told.graceful) == ("stranger/x", False)

            ask = asyncio.ensure_future(here.ref("stranger/x").ask(NeverMsg()))
            assert (await second.frames.get()).kind is Kind.MESSAGE
            await second.close()
            with pytest.raises(Unreachable):
                await ask

    run(main())


# A stranger that goes on with a session over another connection


async def again(first: Stranger, address: str, **changes: Any) -> Stranger:
    """Dial for the session of `first` once more."""
    second = await Stranger.dial(address)
    await second.prove_as_dialer()
    second.incarnation = first.incarnation
    second.say_hello(**{"session": first.nonce, "attempt": 2, "resumes": True, **changes})
    return second


async def heard(stranger: Stranger, kind: Kind) -> Any:
    """Return what the next frame says, which must be of `kind`."""
    frame = await stranger.frames.get()
    assert frame.kind is kind
    if kind is Kind.REFUSAL:
        return frame.header[1:].decode()
    return frame.header.decode() if kind is Kind.GOODBYE else msgpack.unpackb(frame.header)


def test_a_new_connection_gets_what_the_peer_lacks_and_takes_the_place_of_the_old_one(
    run: Run, addresses: Callable[[], str], logs: Logs
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            first = await Stranger.dial(here.listening)
            await first.be_welcome()
            for n in range(3):
                await here.ref("stranger/x").tell(CountMsg(n=n))
                assert (await heard(first, Kind.BATCH))[-1] == [[n]]
            first.tell("here/doubler", "stranger/x", 7, [], 0, 0, number_of(DoubleMsg), [4])
            assert await heard(first, Kind.ANSWER) == [7, 0, 8]

            second = await again(first, here.listening, received=1)  # three frames of four were lost on the way
            assert (await heard(second, Kind.HELLO))["received"] == 1
            await first.lost
            assert [(await heard(second, Kind.BATCH))[-1] for _ in range(2)] == [[[1]], [[2]]]
            assert await heard(second, Kind.ANSWER) == [7, 0, 8]
            await here.ref("stranger/x").tell(CountMsg(n=3))
            assert (await heard(second, Kind.BATCH))[-1] == [[3]]

            late = await again(first, here.listening, received=0)  # an older try, that was held up on its way
            assert isinstance(await late.lost, ConnectionError)
            assert late.frames.empty()
            await here.ref("stranger/x").tell(CountMsg(n=4))
            assert (await heard(second, Kind.BATCH))[-1] == [[4]]
            await second.close()

    run(main())
    assert not [line for line in logs if line["log_level"] == "warning"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"session": b"another"}, "here has ended the session with stranger"),
        ({"incarnation": b"another"}, "stranger names the session of another node"),
        ({"name": "somebody"}, "somebody names the session of another node"),
    ],
    ids=["session", "incarnation", "name"],
)
def test_who_may_not_go_on_with_a_session_is_told_why_and_it_lives_on(
    run: Run, addresses: Callable[[], str], logs: Logs, changes: dict[str, Any], text: str
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            first = await Stranger.dial(here.listening)
            await first.be_welcome()
            second = await again(first, here.listening, **changes)
            assert await heard(second, Kind.REFUSAL) == text
            assert isinstance(await second.lost, ConnectionError)
            assert here.statistics().peers == ("stranger",)
            await first.close()

    run(main())
    assert reasons(logs, "connection refused") == [text]


def test_who_claims_frames_that_it_was_not_sent_does_not_go_on(
    run: Run, addresses: Callable[[], str], logs: Logs
) -> None:
    text = "the peer claims 5 frames; it was sent 0 and has acknowledged 0"

    async def main() -> None:
        async with one_node(addresses) as here:
            first = await Stranger.dial(here.listening)
            await first.be_welcome()
            second = await again(first, here.listening, received=5)
            await second.lost
            first.send(Kind.ACKNOWLEDGE, struct.pack("<Q", 5))
            assert await heard(first, Kind.GOODBYE) == text
            await first.lost

    run(main())
    assert reasons(logs, "connection refused") == [f"stranger cannot go on with the session: {text}"]
    assert reasons(logs, "peer gone") == [text]


def test_who_is_refused_hears_why(run: Run, addresses: Callable[[], str]) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            with pytest.raises(HandshakeError, match=r"^refused by .*: .* calls itself 'here', as this node does$"):
                async with Node("here", join=here.listening, secret=SECRET).running():
                    pytest.fail("let in")

    run(main())


def test_who_breaks_it_off_says_why(run: Run, addresses: Callable[[], str], logs: Logs) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.be_welcome()
            ask = asyncio.ensure_future(here.ref("stranger/x").ask(NeverMsg()))
            assert (await stranger.frames.get()).kind is Kind.MESSAGE
            stranger.send(Kind.GOODBYE, b"this makes no sense")
            with pytest.raises(
                Unreachable, match=r"^node stranger is gone: stranger ended the session: this makes no sen"
            ):
                await ask
            await stranger.lost

    run(main())


# A peer that does not prove itself


def test_a_listener_that_does_not_know_the_secret_is_refused_by_who_dials(
    run: Run, addresses: Callable[[], str]
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            with pytest.raises(HandshakeError, match=r" does not know this run's secret$"):
                async with Node("there", join=here.listening, secret=SKETCHY).running():
                    pytest.fail("let in")
            assert here.statistics().peers == ()

    run(main())


def test_a_dialer_that_does_not_know_the_secret_is_refused_by_who_listens(
    run: Run, addresses: Callable[[], str], logs: Logs
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.prove_as_dialer(SKETCHY)
            assert isinstance(await stranger.lost, ConnectionError)
            assert stranger.frames.empty()  # not even a hello

    run(main())
    (reason,) = reasons(logs, "connection refused")
    assert reason.endswith(" does not know this run's secret")


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", "expected a frame to begin with b'OR', got b'GE'"),
        (bytes(range(255, 0, -1)) * 3, "expected a frame to begin with b'OR', got b'\\xff\\xfe'"),
        (struct.pack("<2sBBIQ", b"OR", 9, 1, 32, 0), "the peer speaks protocol version 9, this node speaks 4"),
        (frame_prefix(Kind.HANDSHAKE, 257, 0), "a header of 257 bytes; at most 256 are allowed"),
        (frame_prefix(Kind.HANDSHAKE, 32, 1), "a payload of 1 bytes; at most 0 are allowed"),
        (frame_prefix(Kind.MESSAGE, 8, 1 << 40), "a payload of 1,099,511,627,776 bytes; at most 0 are allowed"),
        (frame_bytes(Kind.MESSAGE, b"\x90"), " sent a MESSAGE frame before it proved itself"),
        (frame_bytes(Kind.HELLO, b"\x80"), " sent a HELLO frame before it proved itself"),
        (frame_bytes(Kind.HANDSHAKE, b"short"), " sent a proof of 5 bytes instead of 32"),
        (frame_bytes(Kind.HANDSHAKE, bytes(32)) * 2, " does not know this run's secret"),
        (frame_bytes(Kind.HANDSHAKE, bytes(32)) + frame_bytes(Kind.PING, b""), " sent a PING frame before it proved"),
    ],
    ids=[
        "HTTP",
        "noise",
        "version",
        "long header",
        "payload",
        "terabyte",
        "message",
        "hello",
        "short nonce",
        "no proof",
        "ping",
    ],
)
def test_garbage_before_the_handshake_closes_the_connection_and_the_node_goes_on(
    run: Run, addresses: Callable[[], str], logs: Logs, sent: bytes, text: str
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            stranger.connection.send([sent])
            assert isinstance(await stranger.lost, ConnectionError)
            assert here.statistics().peers == ()

    run(main())
    (reason,) = reasons(logs, "connection refused")
    assert text in reason


def test_a_silent_peer_is_cut_off(
    run: Run, addresses: Callable[[], str], logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            with monkeypatch.context() as patch:
                patch.setattr("orchestra.wire.handshake.PROOF_SECONDS", 0.05)
                silent = [await Stranger.dial(here.listening) for _ in range(3)]
                half = await Stranger.dial(here.listening)
                half.send(Kind.HANDSHAKE, half.nonce)
                proven = await Stranger.dial(here.listening)
                await proven.prove_as_dialer()  # and then says no hello
                for stranger in (*silent, half, proven):
                    assert isinstance(await stranger.lost, ConnectionError)

    run(main())
    texts = reasons(logs, "connection refused")
    assert [text.endswith(" did not prove itself within 0.05 s") for text in texts] == [True]
    assert [line["count"] for line in logs if line["event"] == "more connections refused"] == [4]


def test_a_node_that_stood_still_itself_does_not_hold_that_against_who_joins(
    run: Run, addresses: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.handshake.PROOF_SECONDS", 0.5)

    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await until(lambda: len(here.peers._acceptor._handshakes) == 1)
            time.sleep(1.0)  # noqa: ASYNC251 (which is the point)
            await stranger.be_welcome()
            await stranger.close()

    run(main())


def test_a_proof_that_is_reflected_is_refused(run: Run, addresses: Callable[[], str], logs: Logs) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            stranger.send(Kind.HANDSHAKE, stranger.nonce)
            theirs = (await stranger.frames.get()).header
            stranger.send(Kind.HANDSHAKE, theirs[32:])
            await stranger.lost

    run(main())
    (reason,) = reasons(logs, "connection refused")
    assert reason.endswith(" does not know this run's secret")


def test_a_handshake_that_was_overheard_is_of_no_use_again(run: Run, addresses: Callable[[], str], logs: Logs) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            honest = await Stranger.dial(here.listening)
            theirs = await honest.prove_as_dialer()
            overheard = [honest.nonce, proof(SECRET, b"dialer", honest.nonce, theirs)]
            honest.connection.abort()

            thief = await Stranger.dial(here.listening)
            for header in overheard:
                thief.send(Kind.HANDSHAKE, header)
            await thief.lost

    run(main())
    assert [text.endswith(" does not know this run's secret") for text in reasons(logs, "connection refused")] == [True]


@asynccontextmanager
async def evil_listener(addresses: Callable[[], str]) -> AsyncIterator[tuple[str, asyncio.Queue[Stranger]]]:
    accepted: asyncio.Queue[Stranger] = asyncio.Queue()
    address = addresses()
    listener = await transport_for(address).listen(address, lambda it: accepted.put_nowait(Stranger(it)))
    try:
        yield listener.address, accepted
    finally:
        await listener.close()


async def joined(address: str) -> None:
    async with Node("there", join=address, secret=SECRET).running():
        pytest.fail("it took an impostor for the root")


def test_who_dials_is_not_taken_in_by_its_own_nonce(run: Run, addresses: Callable[[], str]) -> None:
    async def main() -> None:
        async with evil_listener(addresses) as (address, accepted):
            joining = asyncio.ensure_future(joined(address))
            evil = await accepted.get()
            theirs = (await evil.frames.get()).header
            evil.send(Kind.HANDSHAKE, theirs + theirs)
            with pytest.raises(HandshakeError, match=r" does not know this run's secret$"):
                await joining
            await evil.lost

    run(main())


# A peer that belongs to the run, but runs other code


def test_a_peer_with_other_fields_in_a_message_is_refused_by_name_at_either_end(
    run: Run, addresses: Callable[[], str], logs: Logs
) -> None:
    types = [[tag, kind.wire.fingerprint] for tag, kind in REGISTRY.items()]
    tag = CountMsg.wire.tag
    skewed = [[name, bytes(8) if name == tag else mark] for name, mark in types]
    text = f"disagree about the fields of {tag}: they run different versions of the code"

    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.prove_as_dialer()
            stranger.say_hello(types=skewed)
            await stranger.lost
            assert here.statistics().peers == ()
        assert reasons(logs, "connection refused") == [f"stranger and here {text}"]

        async with evil_listener(addresses) as (address, accepted):
            joining = asyncio.ensure_future(joined(address))
            root = await accepted.get()
            await root.prove_as_listener()
            root.say_hello("root", types=skewed)
            with pytest.raises(HandshakeError) as caught:
                await joining
            assert str(caught.value) == f"root and there {text}"
            await root.lost

    run(main())


@pytest.mark.parametrize(("kind", "refused"), [(CountMsg, False), (StatisticsMsg, True)])
def test_only_the_runtime_s_own_messages_are_compared_with_an_observer(
    run: Run, addresses: Callable[[], str], logs: Logs, kind: type[Message], refused: bool
) -> None:
    skewed = [[tag, bytes(8) if each is kind else each.wire.fingerprint] for tag, each in REGISTRY.items()]

    async def main() -> None:
        async with one_node(addresses) as here:
            observer = await Stranger.dial(here.listening)
            await observer.prove_as_dialer()
            observer.say_hello("observer-1", types=skewed)
            if refused:
                await observer.lost
            else:
                assert (await observer.frames.get()).kind is Kind.HELLO

    run(main())
    assert len(reasons(logs, "connection refused")) == refused


def test_a_type_that_only_one_side_knows_is_no_reason_to_refuse_it(run: Run, addresses: Callable[[], str]) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.prove_as_dialer()
            stranger.say_hello(types=[["elsewhere.OtherMsg", bytes(8)]])
            stranger.send(Kind.PING, b"")
            assert [(await stranger.frames.get()).kind for _ in range(2)] == [Kind.HELLO, Kind.PONG]
            await stranger.close()

    run(main())


@pytest.mark.parametrize(
    "changes",
    [{"node": ""}, {"node": 3}, {"incarnation": "text"}, {"types": {}}, {"types": [["a"]]}, {"types": [[1, b"x"]]}],
    ids=repr,
)
def test_a_malformed_hello_is_refused(
    run: Run, addresses: Callable[[], str], logs: Logs, changes: dict[str, Any]
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.prove_as_dialer()
            stranger.say_hello(**changes)
            await stranger.lost

    run(main())
    (reason,) = reasons(logs, "connection refused")
    assert reason.endswith(" sent no valid hello: its fields are not those of a hello")


@pytest.mark.parametrize(
    ("send", "text"),
    [
        (
            lambda it: it.connection.send([frame_prefix(Kind.MESSAGE, 2**32 - 1, 0)]),
            "a header of 4,294,967,295 bytes; at most 16,777,216 are allowed",
        ),
        (
            lambda it: it.connection.send([frame_prefix(Kind.MESSAGE, 0, 2**40)]),
            "a payload of 1,099,511,627,776 bytes; at most 1,073,741,824 are allowed",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], 0, 0, 9999, {}),
            "stranger sent a message of the unknown type 9999",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], 0, 0, -1, {}),
            "stranger sent a message of the unknown type -1",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], 0, 0, ["os.system", bytes(8)], {}),
            "stranger sent a os.system, a type that this node does not know",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], 0, 0, [CountMsg.wire.tag, bytes(8)], {"n": 1}),
            f"stranger has other fields in {CountMsg.wire.tag} than this node",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], 0, 0, number_of(DoubleMsg), {"n": "many"}),
            "DoubleMsg: n: Input should be a valid integer, unable to parse string as an integer",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [3], 0, 0, number_of(DoubleMsg), {"n": 1}),
            "stranger sent a message with a malformed chain of asks",
        ),
        (
            lambda it: it.tell("here/doubler", "stranger/x", 0, [], -1, 0, number_of(DoubleMsg), {"n": 1}),
            "stranger sent a message with the number -1 and the clock 0",
        ),
        (
            lambda it: it.tell("here/doubler", kind=Kind.CREDIT),
            "stranger sent a CREDIT frame that ",
        ),
        (
            lambda it: it.tell("here/doubler", 5, 7, kind=Kind.CREDIT),
            "stranger credits 5 messages (7 bytes) of here/doubler that it never got",
        ),
        (
            lambda it: it.tell("here/doubler", "here/x", "orchestra.StopMsg", kind=Kind.TAKEN),
            "stranger has taken a orchestra.StopMsg for here/doubler that it never got",
        ),
        (lambda it: it.send(Kind.MESSAGE, b"\xc1"), "the header is no valid msgpack: "),
        (lambda it: it.send(Kind.HANDSHAKE, bytes(32)), "HANDSHAKE is out of place here"),
        (lambda it: it.say_hello("somebody else"), "HELLO is out of place here"),
    ],
    ids=[
        "header",
        "payload",
        "number",
        "negative",
        "name",
        "fingerprint",
        "field",
        "chain",
        "count",
        "short credit",
        "credit",
        "taken",
        "no msgpack",
        "handshake",
        "hello",
    ],
)
def test_a_frame_that_breaks_the_protocol_closes_the_connection_and_the_log_says_why(
    run: Run, addresses: Callable[[], str], logs: Logs, send: Callable[[Stranger], None], text: str
) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.be_welcome()
            send(stranger)
            assert isinstance(await stranger.lost, ConnectionError)
            assert here.statistics().peers == ()

    run(main())
    (reason,) = reasons(logs, "peer gone")
    assert reason.startswith(text)
    assert reason == text or text[-1] == " "


def test_a_peer_that_credits_more_than_it_got_is_cut_off(run: Run, addresses: Callable[[], str], logs: Logs) -> None:
    async def main() -> None:
        async with one_node(addresses) as here:
            for count, size in ((2, 0), (0, 10_000), (-1, 0), (1, -1)):
                stranger = await Stranger.dial(here.listening)
                await stranger.be_welcome()
                await here.ref("stranger/x").tell(CountMsg(n=1))
                stranger.tell("stranger/x", count, size, kind=Kind.CREDIT)
                assert isinstance(await stranger.lost, ConnectionError)

    run(main())
    assert [reason.split(" of ")[0] for reason in reasons(logs, "peer gone")] == [
        "stranger credits 2 messages (0 bytes)",
        "stranger credits 0 messages (10000 bytes)",
        "stranger credits -1 messages (0 bytes)",
        "stranger credits 1 messages (-1 bytes)",
    ]


def test_a_message_by_hand_is_handled_and_answered(run: Run, addresses: Callable[[], str]) -> None:
    # The other tests of strangers would pass for nothing if what they send were wrong in every way.
    async def main() -> None:
        async with one_node(addresses) as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.be_welcome()
            stranger.tell("here/doubler", "stranger/x", 7, [], 0, 0, number_of(DoubleMsg), {"n": 4})
            answer = await stranger.frames.get()
            assert (answer.kind, msgpack.unpackb(answer.header)) == (Kind.ANSWER, [7, 0, 8])
            await stranger.close()

    run(main())


def tampered(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(changed) or 1)
        changed[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(changed)


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    choices: list[Any] = [None, True, -1, 0, 2**63, 1.5, "here/doubler", "", b"x", msgpack.ExtType(2, b"a/b")]
    if depth < 2 and rng.random() < 0.4:
        inner = [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        return inner if rng.random() < 0.5 else {str(n): value for n, value in enumerate(inner)}
    return rng.choice(choices)


def test_thousands_of_frames_that_make_no_sense_are_refused_and_nothing_else_happens(run: Run, logs: Logs) -> None:
    rng = random.Random(5)  # fixed: what fails must fail again
    sound = {
        Kind.MESSAGE: ["here/doubler", "stranger/x", 0, [], 0, 0, number_of(CountMsg), {"n": 1}],
        Kind.BATCH: [
            [3, "stranger/x", "here/doubler", number_of(CountMsg), True],
            [[1, 2, 3], [2, 3, 4]],
            3,
            [[1, 2, 3]],
        ],
        Kind.ANSWER: [1, 0, 2],
        Kind.FAILURE: [1, 0, "AskFailed", "text"],
        Kind.CREDIT: ["here/doubler", 0, 0],
        Kind.TAKEN: ["here/doubler", "here/x", "orchestra.StopMsg"],
    }

    async def main() -> None:
        async with one_node(lambda: f"memory://fuzz-{id(rng)}") as here:
            stranger = await Stranger.dial(here.listening)
            await stranger.be_welcome()
            link = here.peers._links["stranger"]
            refused = 0
            for _ in range(3000):
                kind = rng.choice(list(sound))
                content = list(sound[kind])
                if rng.random() < 0.5:
                    content[rng.randrange(len(content))] = odd_value(rng)
                    header = msgpack.packb(content)
                else:
                    header = tampered(msgpack.packb(content), rng)
                with patch.object(link, "end") as end:  # else the first one would be the last
                    link.frame_received(Frame(kind, header, None))
                refused += end.called
            assert refused > 1000
            await stranger.close()

    run(main())


# What only sockets have


def refusal(run: Run, address: str, act: str) -> str:
    transport = transport_for(address)

    async def main() -> None:
        await (transport.listen(address, lambda connection: None) if act == "listen" else transport.clear(address))

    with pytest.raises(UsageError) as caught:
        run(main())
    return str(caught.value)


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "a\0b"])
def test_a_host_that_no_resolver_takes_is_a_malformed_address(run: Run, host: str) -> None:
    address = f"tcp://{host}:1"

    assert refusal(run, address, "listen") == (
        f"cannot use the address {address!r}: write tcp://HOST:PORT, PORT from 0 to 65535"
    )


@pytest.mark.parametrize("act", ["listen", "clear"])
@pytest.mark.parametrize("path", ["/tmp/a\0b", "/tmp/\udcff"])
def test_a_path_that_no_system_takes_is_a_malformed_address(run: Run, path: str, act: str) -> None:
    address = f"unix://{path}"

    assert refusal(run, address, act) == (
        f"cannot use the address {address!r}: write unix:///PATH, absolute and at most 100 bytes long"
    )


def test_a_socket_below_a_file_is_a_usage_error(run: Run) -> None:
    with tempfile.NamedTemporaryFile(prefix="o") as file:
        for act in ("listen", "clear"):
            assert refusal(run, f"unix://{file.name}/s", act) == (
                f"cannot listen at unix://{file.name}/s: Not a directory"
            )


def test_the_address_of_an_ipv6_listener_can_be_written_down_and_dialled(run: Run) -> None:
    async def main() -> None:
        try:
            listener = await transport_for("tcp://").listen("tcp://[::1]:0", lambda connection: connection.abort())
        except UsageError:
            pytest.skip("no IPv6 here")
        try:
            assert listener.address.startswith("tcp://[::1]:")
            stranger = await Stranger.dial(listener.address)
            await stranger.lost
        finally:
            await listener.close()

    run(main())


def test_a_socket_whose_owner_is_too_busy_to_answer_is_left_alone(run: Run) -> None:
    with tempfile.TemporaryDirectory(prefix="o") as folder, socket.socket(socket.AF_UNIX) as busy:
        path = f"{folder}/s"
        busy.bind(path)
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        try:
            for caller in waiting:
                caller.setblocking(False)
                caller.connect_ex(path)
            for act in ("listen", "clear"):
                said = refusal(run, f"unix://{path}", act)
                assert said.startswith(f"cannot listen at unix://{path}: another process ")
            assert os.path.exists(path)
        finally:
            for caller in waiting:
                caller.close()


def test_several_that_clear_what_a_dead_process_left_do_not_get_in_each_others_way(run: Run) -> None:
    async def main(address: str) -> None:
        await asyncio.gather(*(transport_for(address).clear(address) for _ in range(5)))

    with tempfile.TemporaryDirectory(prefix="o") as folder:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{folder}/s")
        run(main(f"unix://{folder}/s"))
        assert not list(Path(folder).iterdir())
