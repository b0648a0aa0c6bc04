"""What else happens between two nodes: credit, limits, silence, and peers that speak by hand.

The usual course over each transport, and who is refused, is in test_two_nodes.
"""

import asyncio
import hashlib
import hmac
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from structlog.testing import capture_logs

from orchestra import (
    AskFailed,
    Axes,
    Lane,
    MailboxFull,
    Message,
    Node,
    Ref,
    Request,
    TerminatedMsg,
    Unreachable,
)
from orchestra.actors import codec
from orchestra.actors.system_messages import StopMsg
from orchestra.errors import FrameError
from orchestra.nodes import failure_detection as failures
from orchestra.runs.runner import run_loop
from orchestra.testing import Probe
from orchestra.wire import handshake
from orchestra.wire.frames import Frame, Kind, Limits, frame_bytes
from orchestra.wire.transports import stream
from orchestra.wire.transports.base import Connection
from orchestra.wire.transports.registry import transport_for

Run = Callable[..., Any]
AddressOf = Callable[[str], str]
SECRET = b"a secret of this run"


class NumberMsg(Message):
    n: int


class AskMsg(Request[int]):
    """Answer."""


class ArrayMsg(Message):
    x: Annotated[NDArray[np.float32], Axes("float32", "rows", "columns")]


class NewestMsg(Message):
    lane: ClassVar[Lane] = Lane.LATEST
    n: int


class EchoMsg(Request[tuple[Ref[Any], ...]]):
    refs: tuple[Ref[Any], ...]


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@asynccontextmanager
async def pair(address_of: AddressOf, scheme: str = "memory", **options: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A root, and a leaf that has joined it."""
    options = {"secret": SECRET, **options}
    async with (
        Node("root", listen=address_of(scheme), **options).running() as root,
        Node("leaf", listen=address_of(scheme), join=root.listening, **options).running() as leaf,
    ):
        await until(lambda: "leaf" in root.statistics().peers)  # its hello may still be on the way
        yield root, leaf


# What a link does -----------------------------------------------------------------------------------------------------


def test_refs_in_messages_and_answers_live_on_the_other_side(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(NumberMsg, EchoMsg, answers={EchoMsg: (Ref("root/probe"),)})
            probe.start(root, "probe")
            assert await leaf.ref("root/probe").ask(EchoMsg(refs=(Ref("leaf/x"),))) == (Ref("root/probe"),)
            assert (await probe.heard(EchoMsg))[0].refs == (Ref("leaf/x"),)

    run(main())


# Flow control ---------------------------------------------------------------------------------------------------------


def test_replaced_messages_give_their_credit_back(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 4)

    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(NewestMsg)
            probe.hold()
            there = leaf.ref(probe.start(root, "probe").address)
            for n in range(50):
                await there.tell(NewestMsg(n=n))
                await asyncio.sleep(0)
            probe.release()
            await until(lambda: NewestMsg(n=49) in probe.messages)
            assert len(probe.messages) < 50

    run(main())


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 4)


@pytest.mark.usefixtures("narrow")
def test_without_credit_telling_at_once_is_refused_unless_it_is_a_system_message(
    run: Run, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(NumberMsg, TerminatedMsg)
            probe.hold()
            there = leaf.ref(probe.start(root, "probe").address)
            for n in range(4):
                there.tell_nowait(NumberMsg(n=n))
            with pytest.raises(MailboxFull, match=r"^root/probe has 4 messages \(\d+ bytes\) in flight already$"):
                there.tell_nowait(NumberMsg(n=4))
            there.tell_nowait(TerminatedMsg(address="a/b", reason="", graceful=True))
            probe.release()
            await probe.heard(TerminatedMsg)
            assert await probe.heard(NumberMsg, 4) == [NumberMsg(n=n) for n in range(4)]

    run(main())


@pytest.mark.usefixtures("narrow")
def test_what_waits_for_credit_fails_when_the_link_is_lost(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(NumberMsg, AskMsg)
            probe.hold()
            there = root.ref(probe.start(leaf, "probe").address)
            for n in range(4):
                there.tell_nowait(NumberMsg(n=n))
            waiting = [asyncio.create_task(there.tell(NumberMsg(n=4))), asyncio.create_task(there.ask(AskMsg()))]
            await asyncio.sleep(0)
            root.peers._links["leaf"].end(ConnectionResetError("cut"))
            for ended in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(ended, Unreachable)
                assert str(ended) == "the connection to leaf is lost: cut"
            probe.release()

    run(main())


# What is too large, what is unknown -----------------------------------------------------------------------------------


def test_a_message_over_the_limits_is_refused_at_its_sender_and_the_link_lives_on(
    run: Run, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with pair(address_of, limits=Limits(header=100_000, payload=1000)) as (root, leaf):
            probe = Probe(NumberMsg, ArrayMsg, AskMsg, answers={AskMsg: "x" * 200_000})
            there = leaf.ref(probe.start(root, "probe").address)
            with pytest.raises(
                FrameError, match=r"ArrayMsg to root/probe takes \d+ \+ 4,000 bytes; at most 100,000 \+"
            ):
                await there.tell(ArrayMsg(x=np.zeros((10, 100), np.float32)))
            await there.tell(NumberMsg(n=1))
            assert await probe.heard(NumberMsg) == [NumberMsg(n=1)]
            with pytest.raises(
                AskFailed, match=r"FrameError: an answer takes 200,\d+ \+ 0 bytes; at most 100,000 \+ 1,000"
            ):
                await there.ask(AskMsg())
            assert leaf.statistics().peers == ("root",)

    run(main())


def test_a_node_without_a_link_says_how_to_make_one(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of("memory"), secret=SECRET).running() as root:
            with pytest.raises(Unreachable, match="root has no connection to leaf yet; `tell` makes one"):
                root.ref("leaf/x").tell_nowait(NumberMsg(n=1))

    run(main())


def test_an_answer_of_another_type_than_asked_for_fails_the_ask(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(AskMsg, answers={AskMsg: "many"})
            there = leaf.ref(probe.start(root, "probe").address)
            with pytest.raises(AskFailed, match="the answer is not what was asked for"):
                await there.ask(AskMsg())

    run(main())


# Ends -----------------------------------------------------------------------------------------------------------------


def test_a_peer_that_is_silent_for_too_long_is_taken_for_dead(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.005)
    monkeypatch.setattr("orchestra.nodes.failure_detection.SILENT_BEATS", 2)
    monkeypatch.setattr("orchestra.nodes.failure_detection.ABSENT_BEATS", 2)

    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            peer = await Impostor.dial(root.listening)
            await peer.join()
            assert (await peer.heard()).kind is Kind.PING
            await peer.lost
            assert root.statistics().peers == ("impostor",)  # it may come back by another connection
            await until(lambda: not root.statistics().peers)

    run(main())


def test_a_peer_that_answers_pings_is_not_however_long_the_node_itself_was_busy(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.005)
    monkeypatch.setattr("orchestra.nodes.failure_detection.SILENT_BEATS", 2)
    monkeypatch.setattr("orchestra.nodes.failure_detection.ABSENT_BEATS", 2)

    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            peer = await Impostor.dial(root.listening)
            await peer.join()
            for beat in range(20):
                assert (await peer.heard()).kind is Kind.PING
                peer.send(Kind.PONG)
                if beat == 10:  # the whole node stands still, for longer than the peer may be silent
                    time.sleep(0.03)  # noqa: ASYNC251 (which is the point)
            assert root.statistics().peers == ("impostor",)
            peer.close()
            await peer.lost

    run(main())


def test_a_half_closed_connection_is_aborted_at_once_and_its_session_resumes_on_another(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 1000.0)  # no silence is noticed

    async def main() -> None:
        async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
            peer = await Impostor.dial(root.listening)
            await peer.join()
            transport: Any = peer.connection._transport  # type: ignore[attr-defined]  # a stream's
            transport.pause_reading()
            link = root.peers.find("impostor")
            assert link is not None
            there, count = root.ref("impostor/x"), 64
            for n in range(count):  # more than the system buffers for a peer that does not read
                there.tell_nowait(ArrayMsg(x=np.full((1000, 256), n, np.float32)))
            transport.write_eof()
            again = await Impostor.dial(root.listening)
            await again.prove()
            noticed = not link.connected  # what came before the proof has been read
            transport.abort()
            assert noticed
            assert root.peers.find("impostor") is link
            again.hello(session=peer.nonce, attempt=2, resumes=True)
            assert (await again.heard()).kind is Kind.HELLO
            kinds = [(await again.heard()).kind for _ in range(count + 1)]
            assert kinds == [Kind.SHM_OFFER, *[Kind.MESSAGE] * count]
            assert root.peers.find("impostor") is link
            again.close()
            await again.lost
            await until(lambda: root.peers.find("impostor") is None)

    run(main())


def test_nodes_that_dial_each_other_at_once_both_get_through(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with (
            pair(address_of, "tcp") as (root, one),
            Node("two", listen=address_of("tcp"), join=root.listening, secret=SECRET).running() as two,
        ):
            probes = {node: Probe(NumberMsg, AskMsg, answers={AskMsg: 5}) for node in (one, two)}
            for node, probe in probes.items():
                probe.start(node, "probe")

            async def send(here: Node, there: Node) -> None:
                ref = here.ref(f"{there.name}/probe")
                for n in range(100):
                    await ref.tell(NumberMsg(n=n))
                assert await ref.ask(AskMsg()) == 5

            await asyncio.gather(send(one, two), send(two, one))
            for probe in probes.values():
                assert await probe.heard(NumberMsg, 100) == [NumberMsg(n=n) for n in range(100)]

    run(main())


# Who may join ---------------------------------------------------------------------------------------------------------


class Impostor:
    """A peer that speaks the protocol by hand."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self.nonce, self.other_nonce = os.urandom(32), b""
        connection.limits = Limits()
        connection.attach(self)

    @classmethod
    async def dial(cls, address: str) -> "Impostor":
        return cls(await transport_for(address).dial(address))

    def frame_received(self, frame: Frame) -> None:
        self._frames.put_nowait(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)
        self._frames.put_nowait(None)

    async def heard(self) -> Frame:
        """Return the next frame that is no acknowledgement."""
        while True:
            frame = await self._frames.get()
            assert frame is not None, "the connection was closed instead"
            if frame.kind is not Kind.ACKNOWLEDGE:
                return frame

    async def closed(self) -> None:
        """Wait until the other side has closed the connection, and check that it said nothing any more."""
        assert await self._frames.get() is None

    def send(self, kind: Kind, header: bytes = b"") -> None:
        self.connection.send([frame_bytes(kind, header)])

    def say(self, kind: Kind, value: Any) -> None:
        self.send(kind, msgpack.packb(value))

    def close(self) -> None:
        self.send(Kind.GOODBYE)
        self.connection.close()

    def mac(self, role: bytes, secret: bytes) -> bytes:
        return hmac.new(secret, role + self.nonce + self.other_nonce, hashlib.sha256).digest()

    async def prove(self, secret: bytes = SECRET) -> None:
        self.send(Kind.HANDSHAKE, self.nonce)
        answer = (await self.heard()).header
        self.other_nonce = answer[:32]
        assert answer[32:] == self.mac(b"listener", SECRET)
        self.send(Kind.HANDSHAKE, self.mac(b"dialer", secret))

    def hello(self, **changes: Any) -> None:
        said = {"node": "impostor", "listening": "", "incarnation": b"1", "session": self.nonce, "attempt": 1}
        said |= {"host": "", "root": "", "joins": False}
        said |= {"resumes": False, "received": 0, "after": b"", "types": []}
        self.say(Kind.HELLO, {**said, **changes})

    async def join(self, **changes: Any) -> None:
        await self.prove()
        self.hello(**changes)
        assert (await self.heard()).kind is Kind.HELLO


Root = Callable[[Callable[[Node, Impostor], Any]], list[Any]]


@pytest.fixture
def meet(address_of: AddressOf) -> Root:
    """Run a conversation of a root and an impostor; return what the root logged at warning or above."""

    def met(conversation: Callable[[Node, Impostor], Any]) -> list[Any]:
        async def main() -> None:
            async with Node("root", listen=address_of("tcp"), secret=SECRET).running() as root:
                peer = await Impostor.dial(root.listening)
                async with asyncio.timeout(10):
                    await conversation(root, peer)
                peer.close()
                await peer.lost
                await until(lambda: not root.peers._sessions and not root.peers._acceptor._handshakes)

        with capture_logs() as logs:
            run_loop(main())
        loud = [line for line in logs if line["log_level"] in ("warning", "error")]
        return [line for line in loud if line.get("reason") != "closed by the other side"]  # in the end, by the test

    return met


def test_nothing_is_decoded_before_the_proof(meet: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = codec.decode
    monkeypatch.setattr(codec, "decode", lambda *given: decoded.append(given) or decode(*given))

    async def conversation(root: Node, peer: Impostor) -> None:
        peer.send(Kind.HANDSHAKE, peer.nonce)
        peer.other_nonce = (await peer.heard()).header[:32]
        peer.hello()
        await peer.closed()
        assert decoded == []

    assert meet(conversation)


def test_a_peer_that_does_not_prove_itself_in_time_is_let_go(meet: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.handshake.PROOF_SECONDS", 0.02)

    async def conversation(root: Node, peer: Impostor) -> None:
        await peer.closed()
        slow = await Impostor.dial(root.listening)
        await slow.prove()
        await slow.closed()  # it proved itself, and then said nothing

    lines = meet(conversation)
    assert [line.get("reason", line.get("last")).partition(" ")[2] for line in lines] == [
        "did not prove itself within 0.02 s"
    ] * 2


def test_a_try_that_takes_as_long_as_one_may_is_over_before_its_peer_is_taken_for_dead() -> None:
    noticed_s = (failures.SILENT_BEATS + 1) * failures.HEARTBEAT_S  # by the side that sees no end, at the latest
    assert noticed_s + failures.DIAL_S + handshake.ANSWER_SECONDS <= failures.ABSENT_BEATS * failures.HEARTBEAT_S
    assert stream.HANDSHAKE_S <= failures.DIAL_S  # a part of it
    assert handshake.PROOF_SECONDS < handshake.ANSWER_SECONDS


def test_only_so_many_unproven_peers_are_let_in(meet: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.admission.MAX_PER_SOURCE", 3)

    async def conversation(root: Node, peer: Impostor) -> None:
        await peer.join()  # proven: it does not count
        silent = [await Impostor.dial(root.listening) for _ in range(3)]
        await until(lambda: len(root.peers._acceptor._handshakes) == 3)
        silent.append(await Impostor.dial(root.listening))
        await silent[0].closed()  # the oldest makes room
        await silent[3].join(node="late")
        for one in silent[1:3]:
            one.connection.close()
        silent[3].close()
        await silent[3].lost

    (line,) = [line for line in meet(conversation) if line["event"] == "connection refused"]
    assert line["reason"].endswith(" was silent for longest of too many connections")


def test_a_peer_of_the_same_name_is_refused(meet: Root) -> None:
    async def conversation(root: Node, peer: Impostor) -> None:
        await peer.prove()
        peer.hello(node="root")
        assert (await peer.heard()).kind is Kind.REFUSAL
        await peer.closed()

    (line,) = meet(conversation)
    assert line["reason"].endswith("calls itself 'root', as this node does")


TAG = [NumberMsg.wire.tag, NumberMsg.wire.fingerprint]


def test_an_answer_that_nobody_awaits_any_more_is_let_pass(meet: Root) -> None:
    async def conversation(root: Node, peer: Impostor) -> None:
        await peer.join()
        peer.say(Kind.ANSWER, [12345, 0, "x"])
        peer.say(Kind.FAILURE, [12345, 0, "NoSuchError", "x"])
        peer.send(Kind.PING)
        assert (await peer.heard()).kind is Kind.PONG

    assert meet(conversation) == []


def test_an_unknown_failure_is_a_failed_ask(meet: Root) -> None:
    async def conversation(root: Node, peer: Impostor) -> None:
        await peer.join()
        asking = asyncio.create_task(root.ref("impostor/x").ask(AskMsg()))
        _, _, correlation, *_ = msgpack.unpackb((await peer.heard()).header)
        peer.say(Kind.FAILURE, [correlation, 0, "SystemExit", "3"])
        with pytest.raises(AskFailed, match=r"^3$"):
            await asking

    assert meet(conversation) == []


plain = st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=5) | st.binary(max_size=5)
nested = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
likely = st.tuples(
    st.sampled_from(["root/x", "root/none", "leaf/x", "x", ""]) | nested,
    st.sampled_from(["impostor/y", ""]) | nested,
    st.sampled_from([0, 1, -1]) | nested,
    st.just([]) | nested,
    st.just(0) | nested,
    st.just(0) | nested,
    st.sampled_from([TAG, [StopMsg.wire.tag, StopMsg.wire.fingerprint], 0]) | nested,
    st.sampled_from([{"n": 1}, {}]) | nested,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    talk=st.lists(
        st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=40) | (nested | likely).map(msgpack.packb)),
        max_size=6,
    )
)
def test_whatever_a_proven_peer_says_the_connection_is_closed_at_worst(talk: list[Any], meet: Root) -> None:
    async def conversation(root: Node, peer: Impostor) -> None:
        unheard: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        probe = Probe(NumberMsg, AskMsg, answers={AskMsg: 3})
        there = probe.start(root, "probe")
        await peer.join(types=[TAG])
        for kind, header in talk:
            peer.send(kind, header)
        peer.close()
        await peer.lost
        await until(lambda: not root.statistics().peers)
        assert await there.ask(AskMsg()) == 3
        assert not unheard

    for line in meet(conversation):
        assert line["event"] in ("peer gone", "dead letter"), line
