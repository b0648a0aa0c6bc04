"""Connections that break between two live processes, and processes that are dead."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, Axes, MailboxFull, Message, Node, Ref, Request, TerminatedMsg, Unreachable, on
from orchestra.nodes.peers import GOODBYE_S
from orchestra.testing import Probe

Run = Callable[..., Any]
SECRET = b"the run's secret".ljust(32)


class CountMsg(Message):
    n: int


class ArrayMsg(Message):
    n: int
    x: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class DoubleMsg(Request[int]):
    n: int


class NeverMsg(Request[int]):
    """Asked of whoever does not even understand it, in vain."""


class Ledger(Actor[CountMsg | ArrayMsg | DoubleMsg]):
    """Keeps what it is told, and answers."""

    def __init__(self, told: list[int], asked: list[int]) -> None:
        self._told, self._asked = told, asked

    @on(CountMsg)
    def count(self, msg: CountMsg) -> None:
        self._told.append(msg.n)

    @on(ArrayMsg)
    def array(self, msg: ArrayMsg) -> None:
        assert (msg.x == msg.n % 256).all()
        self._told.append(msg.n)

    @on(DoubleMsg)
    def double(self, msg: DoubleMsg) -> int:
        self._asked.append(msg.n)
        return 2 * msg.n


class ChaosProxy:
    """Stands between two nodes: splits the bytes into odd pieces, delays them, and cuts connections in mid-frame.

    Args:
        seed: of all that it does.
        cuts: connections to cut before it lets things be.
    """

    def __init__(self, target: str, seed: int, cuts: int) -> None:
        self.calm = asyncio.Event()
        self.cuts = 0
        self.shut = False
        """Whether it hangs up on everybody who dials."""
        self.address = ""
        self._host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._port = int(port)
        self._rng = random.Random(seed)
        self._to_cut = cuts
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        await self.cut()

    def refuse(self) -> None:
        """Take no more connections, as the system does for a process that is dead."""
        self._server.close()

    async def cut(self) -> None:
        """Cut all connections."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.shut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:  # the node has stopped
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._writers |= ends
        pumps = [asyncio.ensure_future(self._pump(*ends)) for ends in ((reader, far_writer), (far_reader, writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        self._writers -= ends
        for end in ends:
            end.transport.abort() if self._rng.random() < 0.5 else end.close()
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rng = self._rng
        left = int(rng.expovariate(1 / 20_000))  # bytes until the cut; now and then there is one in the handshake
        while data := await reader.read(1 << 16):
            while data:
                piece = data[: rng.choice((1, 7, 100, 1 << 12, 1 << 16))]
                data = data[len(piece) :]
                cutting = left < len(piece) and self.cuts < self._to_cut
                writer.write(piece[:left] if cutting else piece)
                left -= len(piece)
                if cutting:
                    self.cuts += 1
                    if self.cuts == self._to_cut:
                        self.calm.set()
                    return
                if rng.random() < 0.05:
                    await asyncio.sleep(rng.random() * 0.002)
            try:
                await writer.drain()
            except ConnectionError:
                return


async def talk(here: Node, there: Ref[Any], until: asyncio.Event, rng: random.Random) -> tuple[int, int]:
    """Tell and ask `there` things until the event; return how many of each."""
    told = 0
    asks: list[asyncio.Task[int]] = []
    asked = 0
    while not until.is_set():
        for _ in range(rng.randrange(1, 30)):
            if rng.random() < 0.05:
                await there.tell(ArrayMsg(n=told, x=np.full(rng.randrange(20_000), told % 256, np.uint8)))
            else:
                await there.tell(CountMsg(n=told))
            told += 1
        asks.append(asyncio.ensure_future(there.ask(DoubleMsg(n=asked))))
        asked += 1
        if len(asks) > 3:
            assert await asks.pop(0) == 2 * (asked - 4)
        await asyncio.sleep(0)
    for n, ask in enumerate(asks, asked - len(asks)):
        assert await ask == 2 * n
    return told, asked


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.dialling.BACKOFF_S", 0.001)


@pytest.mark.usefixtures("hasty")
def test_nothing_is_lost_doubled_or_disordered_over_a_thousand_cuts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.dialling.BACKOFF_S", 0.001)
    leaves, cuts = 4, 1000
    books: dict[str, tuple[list[int], list[int]]] = {}

    def book(name: str) -> tuple[list[int], list[int]]:
        return books.setdefault(name, ([], []))

    async def leaf(root: Node, number: int, proxy: ChaosProxy) -> None:
        name = f"leaf{number}"
        async with Node(name, join=proxy.address, secret=SECRET).running() as node:
            node.spawn("ledger", Ledger, *book(name))
            root.spawn(f"ledger{number}", Ledger, *book(f"root{number}"))
            there, back = node.ref(f"root/ledger{number}"), root.ref(f"{name}/ledger")
            rngs = random.Random(number), random.Random(-number)
            counts = await asyncio.gather(talk(node, there, proxy.calm, rngs[0]), talk(root, back, proxy.calm, rngs[1]))
            for ref in (there, back):
                await ref.ask(DoubleMsg(n=-1))  # all that was told before has been handled
            for (told, asked), owner in zip(counts, (f"root{number}", name), strict=True):
                assert book(owner)[0] == list(range(told))
                assert book(owner)[1] == [*range(asked), -1]
                assert told > 1000

    async def main() -> None:
        async with (
            Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root,
            asyncio.TaskGroup() as group,
        ):
            for number in range(leaves):
                group.create_task(through_chaos(root, number))

    async def through_chaos(root: Node, number: int) -> None:
        async with ChaosProxy(root.listening, number, cuts // leaves) as proxy:
            await leaf(root, number, proxy)
            assert proxy.cuts == cuts // leaves

    run(main())


class Watcher(Actor[TerminatedMsg]):
    """Watches, and passes on what it hears."""

    def __init__(self, target: Ref[Any], probe: Ref[Any]) -> None:
        self._target, self._probe = target, probe

    async def started(self) -> None:
        self.watch(self._target)

    @on(TerminatedMsg)
    async def terminated(self, msg: TerminatedMsg) -> None:
        await self._probe.tell(msg)


class Through:
    """A root, a leaf that reaches it through a proxy, and what each has and hears."""

    def __init__(self, root: Node, leaf: Node, proxy: ChaosProxy) -> None:
        self.root, self.leaf, self.proxy = root, leaf, proxy
        self.probes = {node: Probe(CountMsg, DoubleMsg, TerminatedMsg, answers={DoubleMsg: 4}) for node in (root, leaf)}
        self.there: dict[Node, Ref[Any]] = {}
        """By node: the probe on the other one."""
        for node, other in ((root, leaf), (leaf, root)):
            self.there[other] = other.ref(self.probes[node].start(node, "probe").address)

    def watch(self) -> None:
        """Have each node watch the other's probe."""
        for node, there in self.there.items():
            node.spawn("watcher", Watcher, there, node.ref(f"{node.name}/probe"))


@asynccontextmanager
async def through(listen: str | None = None) -> AsyncIterator[Through]:
    async with (
        Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root,
        ChaosProxy(root.listening, 0, 0) as proxy,
        Node("leaf", listen=listen, join=proxy.address, secret=SECRET).running() as leaf,
    ):
        yield Through(root, leaf, proxy)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("listen", [None, "tcp://127.0.0.1:0"])
def test_a_dead_peer_fails_what_depends_on_it_at_both_ends_and_watchers_hear_once(
    run: Run, listen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.02)

    async def main() -> None:
        async with through(listen) as it:
            it.watch()
            for probe in it.probes.values():
                probe.hold()  # and so has not answered
            asks = [asyncio.ensure_future(there.ask(DoubleMsg(n=1))) for there in it.there.values()]
            for probe in it.probes.values():
                await probe.heard(DoubleMsg)

            it.proxy.refuse()
            if listen is not None:
                (listener,) = it.leaf.peers._listeners
                await listener.close()
            await it.proxy.cut()
            for ask, gone in zip(asks, ("root", "leaf"), strict=True):
                with pytest.raises(Unreachable, match=f"^node {gone} is gone: "):
                    await ask
            for node, probe in it.probes.items():
                probe.release()
                (told,) = await probe.heard(TerminatedMsg)
                assert told.address == it.there[node].address
                assert node.statistics().peers == ()
            assert (await it.leaf.stop_requested).startswith("the root is gone: no process answers at ")
            assert [len(await probe.heard(TerminatedMsg)) for probe in it.probes.values()] == [1, 1]

    run(main())


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_does_not_come_back_in_time_is_dead_though_somebody_listens(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.01)

    async def main() -> None:
        async with through("tcp://127.0.0.1:0") as it:
            asks = [asyncio.ensure_future(there.ask(NeverMsg())) for there in it.there.values()]
            it.proxy.shut = True
            await it.proxy.cut()
            for ask in asks:
                with pytest.raises(Unreachable, match=r" is gone: it did not come back within 0.07 s$"):
                    await ask

    run(main())


@pytest.mark.usefixtures("hasty")
def test_while_there_is_no_connection_senders_wait_when_too_much_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.wire.session.KEEP", 10)
    monkeypatch.setattr("orchestra.wire.session.ACKNOWLEDGE", 1)

    async def main() -> None:
        async with through() as it:
            there = it.there[it.leaf]
            await there.tell(CountMsg(n=0))
            it.proxy.shut = True
            await it.proxy.cut()
            link = it.leaf.peers._links["root"]
            telling = []
            for n in range(1, 31):
                telling.append(asyncio.ensure_future(there.tell(CountMsg(n=n))))
                for _ in range(3):  # a frame for each
                    await asyncio.sleep(0)
            assert link.session.kept == 10
            assert sum(task.done() for task in telling) in (9, 10)  # the first of all may not have arrived either
            with pytest.raises(MailboxFull, match=r"^root has yet to acknowledge 10 frames \(\d+ bytes\)$"):
                there.tell_nowait(CountMsg(n=99))
            # A system message is never kept out.
            there.tell_nowait(TerminatedMsg(address="a/b", reason="", graceful=True))
            assert link.session.kept == 11
            it.proxy.shut = False
            await asyncio.gather(*telling)
            assert await it.probes[it.root].heard(CountMsg, 31) == [CountMsg(n=n) for n in range(31)]

    run(main())


@pytest.mark.usefixtures("hasty")
def test_a_goodbye_comes_after_all_else_even_over_another_connection(run: Run) -> None:
    async def main() -> None:
        async with through() as it:
            it.watch()
            there = it.there[it.leaf]
            assert await there.ask(DoubleMsg(n=1)) == 4
            await it.proxy.cut()
            for n in range(100):
                await there.tell(CountMsg(n=n))
            await it.leaf.stop()
            assert it.leaf.statistics().peers == ()
            assert await it.probes[it.root].heard(CountMsg, 100) == [CountMsg(n=n) for n in range(100)]
            (told,) = await it.probes[it.root].heard(TerminatedMsg)
            assert told.graceful

    run(main())


def test_a_goodbye_that_nobody_hears_is_not_waited_for_for_ever(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.peers.GOODBYE_S", 0.01)

    async def main() -> None:
        async with through() as it:
            it.proxy.shut = True
            await it.proxy.cut()
            await it.leaf.stop()
            assert it.leaf.statistics().peers == ()

    run(main())


def test_a_goodbye_that_nobody_hears_is_waited_for_no_longer_than_the_run_may_last(run: Run) -> None:
    async def main() -> None:
        async with through() as it:
            it.proxy.shut = True
            await it.proxy.cut()
            it.leaf.peers.patience_s = 0.01
            async with asyncio.timeout(GOODBYE_S / 2):
                await it.leaf.stop()

    run(main())


@pytest.mark.usefixtures("hasty")
def test_who_hangs_up_at_first_is_tried_again_and_then_given_up(run: Run) -> None:
    async def main() -> None:
        async with through() as it:
            it.proxy.shut = True
            with pytest.raises(Unreachable, match=r"^the connection to 127.0.0.1:\d+ is lost: "):
                async with Node("late", join=it.proxy.address, secret=SECRET).running():
                    pytest.fail("joined nobody")

    run(main())


@pytest.mark.slow
def test_two_hundred_connections_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.1)
    # All of them share one loop, here: no peer is late because of anything that it did.
    monkeypatch.setattr("orchestra.wire.admission.MAX_PER_SOURCE", 200)
    monkeypatch.setattr("orchestra.wire.handshake.PROOF_SECONDS", 60.0)
    monkeypatch.setattr("orchestra.wire.handshake.ANSWER_SECONDS", 60.0)
    monkeypatch.setattr("orchestra.nodes.failure_detection.SILENT_BEATS", 600)
    told: list[int] = []

    async def leaf(root: Node, number: int, all_there: asyncio.Barrier) -> None:
        async with Node(f"leaf{number}", join=root.listening, secret=SECRET).running() as node:
            there = node.ref("root/ledger")
            await there.tell(CountMsg(n=number))
            await all_there.wait()
            assert await there.ask(DoubleMsg(n=number)) == 2 * number
            link = node.peers.find("root")
            assert link is not None
            while link.statistics().round_trip_s is None:  # noqa: ASYNC110 (a heartbeat is no event)
                await asyncio.sleep(0.01)

    async def main() -> None:
        all_there = asyncio.Barrier(200)
        async with Node("root", listen="tcp://127.0.0.1:0", secret=SECRET).running() as root:
            root.spawn("ledger", Ledger, told, [])
            await asyncio.gather(*(leaf(root, number, all_there) for number in range(200)))
            assert sorted(told) == list(range(200))

    run(main())
