"""Small messages travel many in a frame, by routes that have numbers: in order, within credit, and checked."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, Message, Node, Ref, Request, on
from orchestra.actors.message import REGISTRY
from orchestra.clock import RealClock
from orchestra.errors import DecodeError, FrameError, WireError
from orchestra.testing import Probe
from orchestra.trace.recording.settings import TraceSettings
from orchestra.wire.frames import Kind, Limits
from orchestra.wire.sender import ROUTES, LinkSender
from orchestra.wire.session import Session

Run = Callable[..., Any]
AddressOf = Callable[[str], str]


class NumberMsg(Message):
    n: int


class TextMsg(Message):
    text: str


class ArrayMsg(Message):
    x: Annotated[NDArray[np.float32], Axes("float32", "n")]


class AskMsg(Request[int]):
    n: int


HEARD = (NumberMsg, TextMsg, ArrayMsg, AskMsg)


@asynccontextmanager
async def pair(address_of: AddressOf, **options: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A root, and a leaf that has joined it."""
    options = {"secret": b"a secret of this run", **options}
    async with (
        Node("root", listen=address_of("tcp"), **options).running() as root,
        Node("leaf", listen=address_of("tcp"), join=root.listening, **options).running() as leaf,
    ):
        yield root, leaf


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Kind, Any]]:
    """The numbered frames that any node sends from now on: their kinds, and what their headers hold."""
    frames: list[tuple[Kind, Any]] = []
    send = Session.send

    def note(self: Session, frame: list[Any], nbytes: int) -> None:
        data = bytes(frame[0])
        frames.append((Kind(data[3]), msgpack.unpackb(data[16:]) if len(data) > 16 else None))
        send(self, frame, nbytes)

    monkeypatch.setattr(Session, "send", note)
    return frames


def test_what_is_told_in_one_turn_leaves_in_one_frame_and_names_its_route_once(
    run: Run, address_of: AddressOf, sent: list[tuple[Kind, Any]]
) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD)
            there = leaf.ref(probe.start(root, "probe").address)
            sent.clear()
            for turn in range(2):
                for n in range(5):
                    await there.tell(NumberMsg(n=5 * turn + n))
                assert await probe.heard(NumberMsg, 5 * turn + 5) == [NumberMsg(n=n) for n in range(5 * turn + 5)]
            tag = sorted(REGISTRY).index(NumberMsg.wire.tag)
            assert sent == [
                (Kind.BATCH, [[0, "leaf/outside", "root/probe", tag, 0], [[0], [1], [2], [3], [4]]]),
                (Kind.BATCH, [0, [[5], [6], [7], [8], [9]]]),
            ]

    run(main())


def test_whatever_travels_alone_keeps_its_place_among_what_travels_in_runs(run: Run, address_of: AddressOf) -> None:
    rng = random.Random(3)

    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD, answers={AskMsg: 1})
            there = leaf.ref(probe.start(root, "probe").address)
            told: list[Message] = []
            asks = []
            for n in range(2000):
                message: Message
                match rng.randrange(5):
                    case 0:
                        message = TextMsg(text="x" * rng.choice([1, 100, 70_000]))
                    case 1:
                        message = AskMsg(n=n)
                    case _:
                        message = NumberMsg(n=n)
                told.append(message)
                if isinstance(message, AskMsg):
                    asks.append(asyncio.ensure_future(there.ask(message)))
                    await asyncio.sleep(0)
                else:
                    await there.tell(message)
                if rng.random() < 0.1:
                    await asyncio.sleep(0)
            await asyncio.gather(*asks)
            await there.ask(AskMsg(n=-1))
            assert probe.messages == [*told, AskMsg(n=-1)]

    run(main())


def test_asks_in_company_travel_together_and_so_do_their_answers(
    run: Run, address_of: AddressOf, sent: list[tuple[Kind, Any]]
) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD, answers={AskMsg: 5})
            there = leaf.ref(probe.start(root, "probe").address)
            sent.clear()
            assert await there.ask(AskMsg(n=0)) == 5
            assert [kind for kind, _ in sent] == [Kind.MESSAGE, Kind.ANSWER]
            sent.clear()
            assert await asyncio.gather(*(there.ask(AskMsg(n=n)) for n in range(50))) == [5] * 50
            assert probe.messages == [AskMsg(n=0), *(AskMsg(n=n) for n in range(50))]
            kinds = [kind for kind, _ in sent]
            assert kinds[0] is Kind.MESSAGE  # nobody else asked yet
            assert kinds.count(Kind.BATCH) >= 2
            assert len(kinds) < 10
            assert not root.peers._links["leaf"].receiver.unanswered
            # Those whose asker gives up are taken back.
            probe.hold()
            asks = [asyncio.ensure_future(there.ask(AskMsg(n=n))) for n in range(10)]
            waiting = root.peers._links["leaf"].receiver
            await until(lambda: len(waiting.unanswered) == 10)
            for ask in asks[5:]:
                ask.cancel()
            await until(lambda: len(waiting.unanswered) == 5)
            probe.release()
            assert await asyncio.gather(*asks[:5]) == [5] * 5

    run(main())


class CrowdMsg(Request[int]):
    """Ask `other` so many times at once."""

    count: int
    other: Ref[AskMsg]


class Asker(Actor[CrowdMsg]):
    @on(CrowdMsg)
    async def ask_at_once(self, msg: CrowdMsg) -> int:
        return sum(await asyncio.gather(*(msg.other.ask(AskMsg(n=n)) for n in range(msg.count))))


def test_a_mailbox_counts_no_bytes_when_all_requests_of_a_batch_are_answered(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD, answers={AskMsg: 5})
            there = leaf.ref(probe.start(root, "probe").address)
            for _ in range(3):
                await asyncio.gather(*(there.ask(AskMsg(n=n)) for n in range(50)))
            assert root.cell("root/probe").mailbox.statistics().nbytes == 0

    run(main())


def test_a_mailbox_counts_each_byte_of_a_batch_once(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD)
            there = leaf.ref(probe.start(root, "probe").address)
            mailbox = root.cell("root/probe").mailbox
            probe.hold()
            await there.tell(NumberMsg(n=-1))
            await until(lambda: bool(probe.messages))
            for n in range(50):
                await there.tell(TextMsg(text="x" * 100))
                await there.tell(NumberMsg(n=n))
            await until(lambda: mailbox.statistics().depth == 100)
            assert 50 * 100 < mailbox.statistics().nbytes < 50 * 300
            probe.release()
            await probe.heard(NumberMsg, 51)
            assert mailbox.statistics().nbytes == 0

    run(main())


def test_the_clock_of_a_node_passes_those_of_the_requests_of_a_batch(
    run: Run, address_of: AddressOf, tmp_path: Path
) -> None:
    async def main() -> None:
        settings, clock = TraceSettings(mode="full"), RealClock()
        recorders = [settings.recorder(name, tmp_path, clock=clock, seed=0) for name in ("root", "leaf")]
        secret = b"a secret of this run"
        root = Node("root", listen=address_of("tcp"), secret=secret, recorder=recorders[0])
        async with root.running():
            leaf = Node("leaf", join=root.listening, secret=secret, recorder=recorders[1])
            async with leaf.running():
                probe = Probe(*HEARD, answers={AskMsg: 5})
                recorders[1].witness(1_000)
                asker = leaf.spawn("asker", Asker)
                there: Ref[Any] = Ref(probe.start(root, "probe").address)
                assert await asker.ask(CrowdMsg(count=50, other=there)) == 250
                assert recorders[0].logical > 1_000

    run(main())


def test_a_sender_waits_for_credit_and_everything_arrives_in_order(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.flow_control.WINDOW", 7)

    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD, answers={AskMsg: 1})
            there = leaf.ref(probe.start(root, "probe").address)
            for n in range(100):
                await there.tell(NumberMsg(n=n))
            assert await there.ask(AskMsg(n=0)) == 1
            assert probe.messages == [*(NumberMsg(n=n) for n in range(100)), AskMsg(n=0)]
            link = leaf.peers._links["root"]
            assert max(window.count for window in link.sender.windows) <= 7

    run(main())


def test_all_credit_of_long_runs_comes_back(run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.wire.receiver.CREDITED", 16)

    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probe = Probe(*HEARD, answers={AskMsg: 1})
            there = leaf.ref(probe.start(root, "probe").address)
            link = root.peers._links["leaf"]
            for count in (1, 15, 16, 17, 31, 32, 33, 1000):
                for n in range(count):
                    await there.tell(TextMsg(text="x" * (n % 50)))
                await asyncio.gather(*(there.ask(AskMsg(n=10**n)) for n in range(min(count, 18))))
                (account,) = link._receive_window._accounts.values()
                assert (account.left, account.left_bytes) == (account.count, account.nbytes)

    run(main())


def test_more_routes_than_there_are_numbers_lead_where_they_should(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.sender.ROUTES", 3)
    monkeypatch.setattr("orchestra.wire.receiver.ROUTES", 3)
    rng = random.Random(1)

    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            probes = [Probe(*HEARD, answers={AskMsg: 1}) for _ in range(5)]
            there = [leaf.ref(probe.start(root, f"probe-{n}").address) for n, probe in enumerate(probes)]
            told: list[list[Message]] = [[] for _ in probes]
            for n in range(300):
                to = rng.randrange(5)
                message = NumberMsg(n=n) if rng.random() < 0.7 else TextMsg(text=str(n))
                told[to].append(message)
                await there[to].tell(message)
                if rng.random() < 0.2:
                    await asyncio.sleep(0)
            for ref, probe, expected in zip(there, probes, told, strict=True):
                await ref.ask(AskMsg(n=0))
                assert probe.messages == [*expected, AskMsg(n=0)]
            assert len(root.peers._links["leaf"].receiver._routes) <= 3

    run(main())


@pytest.mark.parametrize("header", [300, 3000])
def test_frames_of_runs_keep_within_small_limits(
    run: Run, address_of: AddressOf, sent: list[tuple[Kind, Any]], header: int
) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            for node, peer in ((root, "leaf"), (leaf, "root")):
                link = node.peers._links[peer]
                limits = Limits(header, 0)
                link.sender = LinkSender(link, link.session, link.shared_memory, link._put, limits, batching=True)
                link.post = link.sender.post
                assert link._connection is not None
                link._connection.limits = limits
            probe = Probe(*HEARD, answers={AskMsg: 1})
            there = leaf.ref(probe.start(root, "probe").address)
            sent.clear()
            for n in range(150):
                await there.tell(TextMsg(text="y" * n))
            await there.ask(AskMsg(n=0))
            assert probe.messages == [*(TextMsg(text="y" * n) for n in range(150)), AskMsg(n=0)]
            assert {Kind.BATCH, Kind.MESSAGE} <= {kind for kind, _ in sent}

    run(main())


def number_of(kind: type[Message]) -> int:
    return sorted(REGISTRY).index(kind.wire.tag)


@pytest.mark.parametrize(
    ("runs", "error", "text"),
    [
        ([7, [[1]]], DecodeError, "leaf sent messages by the unknown route 7"),
        ([True, [[1]]], DecodeError, "leaf sent a BATCH frame that does not hold int, str, str, any, int"),
        ([["route"], [[1]]], DecodeError, "leaf sent a BATCH frame that does not hold int, str, str, any, int"),
        (["new", []], DecodeError, "leaf sent an empty batch"),
        (["new", {}], DecodeError, "leaf sent an empty batch"),
        (["new", ["a"]], DecodeError, "NumberMsg: what came is no list of rows"),
        (["new", [[1], [1, 2]]], DecodeError, "NumberMsg: 2 values came for its 1 fields"),
        (["new", [[1], ["many"]]], DecodeError, "NumberMsg: n: Input should be a valid integer, unable to parse"),
        (["counted", [[1]]], DecodeError, "leaf sent a message without its number and clock"),
        (["counted", [[1, -1, 0]]], DecodeError, "leaf sent a message with the number -1 and the clock 0"),
        (["counted", [[1, 1, "x"]]], DecodeError, "leaf sent a message with the number 1 and the clock 'x'"),
        (["strange", [[1]]], DecodeError, "leaf sent a route with the unknown suffix 3"),
        (["asked", [[1, 0, 0]]], DecodeError, "leaf sent a request without its correlation"),
        (["asked", [[1, "x", [], 0, 0]]], DecodeError, "leaf sent a request with the correlation 'x'"),
        (["asked", [[1, 7, 7, 0, 0]]], DecodeError, "leaf sent a request with the correlation 7"),
        (["asked", [[1, 7, [7], 0, 0]]], DecodeError, "leaf sent a message with a malformed chain of asks"),
        ([-1, [[1, 0]]], DecodeError, "leaf sent a ANSWER frame that does not hold int, int, any"),
        ([-1, ["abc"]], DecodeError, "leaf sent a ANSWER frame that does not hold int, int, any"),
        ([-1, []], DecodeError, "leaf sent an empty batch"),
        (["array", [[1]]], DecodeError, "leaf sent a batch of ArrayMsg, which travels alone"),
        (["far", [[1]]], DecodeError, f"leaf gave a route the number {ROUTES}; allowed are 0 to {ROUTES - 1}"),
        (["new", [[1]] * 4097], FrameError, "a message to root/probe without credit: 0 messages (0 bytes) are th"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:40],
)
def test_runs_that_break_the_protocol_are_refused(
    run: Run, address_of: AddressOf, runs: list[Any], error: type[WireError], text: str
) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, leaf):
            Probe(*HEARD).start(root, "probe")
            await leaf.ref("root/probe").tell(NumberMsg(n=0))
            link = root.peers._links["leaf"]
            names = ["leaf/x", "root/probe"]
            routes: dict[Any, Any] = {
                "new": [5, *names, number_of(NumberMsg), 0],
                "counted": [5, *names, number_of(NumberMsg), 1],
                "strange": [5, *names, number_of(NumberMsg), 3],
                "asked": [5, *names, number_of(AskMsg), 2],
                "array": [5, *names, number_of(ArrayMsg), 0],
                "far": [ROUTES, *names, number_of(NumberMsg), 0],
            }
            route, rows = runs
            header = msgpack.packb([routes.get(route, route) if isinstance(route, str) else route, rows])
            with pytest.raises(error) as caught:
                link.receiver.batches(header, None)
            assert str(caught.value).startswith(text)

    run(main())


def test_runs_cannot_hold_arrays_nor_end_early(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of) as (root, _):
            link = root.peers._links["leaf"]
            payload = np.zeros(16, np.uint8)
            with pytest.raises(FrameError, match="leaf sent a BATCH frame with a payload"):
                link.receiver.batches(msgpack.packb([]), payload)
            for header in (b"\x92\x05", b"\x92\x05\x91", b"\x90\x00", b"\xc1", b""):
                with pytest.raises(DecodeError, match="the header is no valid msgpack"):
                    link.receiver.batches(header, None)

    run(main())
