"""Large arrays between two nodes on one host go by shared memory, and everything else is as it would be without."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from structlog.testing import capture_logs

from orchestra import Actor, Axes, Message, Node, Ref, Request, on
from orchestra.actors.arrays import is_frozen
from orchestra.actors.statistics import LinkStatistics
from orchestra.actors.system_messages import StopNodeMsg
from orchestra.errors import FrameError
from orchestra.runs.runner import run_loop
from orchestra.testing import Probe
from orchestra.wire import shared_memory
from orchestra.wire.arena import PAGE, Arena, NotShared
from orchestra.wire.blocks import CAPACITY
from orchestra.wire.frames import Frame, Kind, frame_prefix
from orchestra.wire.link import Link
from orchestra.wire.shared_memory import LEAST, PLACE
from orchestra.wire.transports import tls

Run = Callable[..., Any]
AddressOf = Callable[[str], str]
SECRET = b"the run's secret".ljust(32)
ROOT = str(Path(__file__).resolve().parents[3])


class ArrayMsg(Message):
    n: int
    x: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]
    y: Annotated[NDArray[np.float64], Axes("float64", "rows", "columns")] | None = None


class TwiceMsg(Request[ArrayMsg]):
    """Answered with the array, doubled."""

    x: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class CountMsg(Request[int]):
    """How many came, and were as they should be?"""


class Keeper(Actor[ArrayMsg | TwiceMsg | CountMsg]):
    """Checks what it is told, and keeps the first so many of its arrays."""

    def __init__(self, kept: list[ArrayMsg], keeps: int) -> None:
        self._kept, self._keeps = kept, keeps
        self._count = 0

    @on(ArrayMsg)
    def array(self, msg: ArrayMsg) -> None:
        assert msg.n == self._count
        assert (msg.x == msg.n % 251).all()
        self._count += 1
        if len(self._kept) < self._keeps:
            self._kept.append(msg)

    @on(TwiceMsg)
    def twice(self, msg: TwiceMsg) -> ArrayMsg:
        return ArrayMsg(n=len(msg.x), x=msg.x * 2)

    @on(CountMsg)
    def count(self, msg: CountMsg) -> int:
        return self._count


def filled(n: int, nbytes: int) -> ArrayMsg:
    return ArrayMsg(n=n, x=np.full(nbytes, n % 251, np.uint8))


def mapped() -> int:
    """How much shared memory of orchestra this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum("memfd:orchestra-" in line for line in file)


def memory(node: Node) -> LinkStatistics:
    (link,) = node.statistics().links
    return link


def link_of(node: Node) -> Link:
    (link,) = node.peers._sessions.values()
    return link


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    gc.collect()
    assert mapped() == 0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(200_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def shared(node: Node, there: Ref[Any]) -> None:
    """Have `node` share memory with the node of `there`."""
    await there.ask(TwiceMsg(x=np.zeros(LEAST, np.uint8)))
    await there.ask(CountMsg())  # the connection refers to the array of the answer until another frame arrives
    await until(lambda: memory(node).memory == "shared")


@asynccontextmanager
async def pair(address: str, **options: Any) -> AsyncIterator[tuple[Node, Node]]:
    """A root, and a leaf that has joined it."""
    async with (
        Node("root", listen=address, secret=SECRET).running() as root,
        Node("leaf", join=root.listening, secret=SECRET, **options).running() as leaf,
    ):
        yield root, leaf


# What goes by memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
def test_arrays_of_any_size_arrive_equal_and_large_ones_by_memory(run: Run, address_of: AddressOf, scheme: str) -> None:
    sizes = [0, 1, LEAST - 4096, LEAST, LEAST + 1, 300_001, 3 << 20]

    async def main() -> None:
        async with pair(address_of(scheme)) as (root, leaf):
            probe = Probe(ArrayMsg)
            there = leaf.ref(probe.start(root, "probe").address)
            root.spawn("keeper", Keeper, [], 0)
            await shared(leaf, leaf.ref("root/keeper"))
            rng = np.random.default_rng(1)
            sent = [
                ArrayMsg(n=n, x=rng.integers(0, 256, size, np.uint8), y=rng.random((n, 7)))
                for n, size in enumerate(sizes)
            ]
            for message in sent:
                await there.tell(message)
            came = await probe.heard(ArrayMsg, len(sizes))
            for one, other in zip(sent, came, strict=True):
                assert one.y is not None
                assert other.y is not None
                assert (one.n, one.x.shape, one.y.shape) == (other.n, other.x.shape, other.y.shape)
                assert (one.x == other.x).all()
                assert (one.y == other.y).all()
                assert is_frozen(other.x)
            large = sum(size for size in sizes if size >= LEAST)
            assert large < memory(leaf).memory_sent_bytes < large + 10_000
            assert memory(leaf).sent_bytes == memory(root).received_bytes  # they count as what they stand for
            assert memory(leaf).in_flight_bytes > large

    run(main())


def test_answers_go_by_memory_too_and_each_direction_has_its_own(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            for n in range(5):
                answer = await there.ask(TwiceMsg(x=np.full(2 * LEAST, n, np.uint8)))
                assert (answer.x == 2 * n).all()
                del answer
            assert (memory(leaf).memory, memory(root).memory) == ("shared", "shared")
            assert memory(root).memory_sent_bytes > 2 * LEAST
            await until(lambda: memory(leaf).memory_held_bytes == memory(root).memory_held_bytes == 0)

    run(main())


def test_what_nobody_looks_at_any_more_is_used_again_from_whichever_thread(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp"), shared_memory=4 * LEAST) as (root, leaf):
            probe = Probe(ArrayMsg)
            there = leaf.ref(probe.start(root, "probe").address)
            root.spawn("keeper", Keeper, [], 0)
            await shared(leaf, leaf.ref("root/keeper"))
            for n in range(3):
                await there.tell(filled(n, LEAST))
            await probe.heard(ArrayMsg, 3)
            assert memory(leaf).memory_held_bytes == 3 * LEAST
            del probe.messages[0]
            await until(lambda: memory(leaf).memory_held_bytes == 2 * LEAST)
            last = [message.x[5:100] for message in probe.messages if isinstance(message, ArrayMsg)]
            probe.messages.clear()
            for _ in range(10):
                await asyncio.sleep(0)
            assert memory(leaf).memory_held_bytes == 2 * LEAST  # views of them are left
            assert [int(part[0]) for part in last] == [1, 2]
            asyncio.get_running_loop().set_debug(True)  # so that it minds who calls it
            thread = threading.Thread(target=last.clear)
            thread.start()
            thread.join()
            await until(lambda: memory(leaf).memory_held_bytes == 0)

    run(main())


def test_an_actor_that_waits_for_the_next_message_keeps_nothing_of_the_last(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            await shared(leaf, there)
            await there.tell(filled(0, LEAST))
            assert memory(leaf).memory_held_bytes >= LEAST
            await until(lambda: memory(leaf).memory_held_bytes == 0)

    run(main())


def test_arrays_that_are_kept_stay_as_they_are_and_the_others_go_by_the_stream(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        kept: list[ArrayMsg] = []
        async with pair(address_of("tcp"), shared_memory=8 * LEAST) as (root, leaf):
            root.spawn("keeper", Keeper, kept, 20)
            there = leaf.ref("root/keeper")
            await shared(leaf, there)
            for n in range(2000):
                await there.tell(filled(n, LEAST))
            assert await there.ask(CountMsg()) == 2000
            assert [message.n for message in kept] == list(range(20))
            by_memory = memory(leaf).memory_sent_bytes
            assert memory(leaf).memory_held_bytes == 8 * LEAST  # all that there is
            assert by_memory < 2000 * LEAST
            await there.tell(filled(2000, LEAST))
            assert memory(leaf).memory_sent_bytes == by_memory
            del kept[3]
            await until(lambda: memory(leaf).memory_held_bytes == 7 * LEAST)
            await there.tell(filled(2001, LEAST))
            assert memory(leaf).memory_sent_bytes > by_memory
            assert await there.ask(CountMsg()) == 2002
        assert all((message.x == message.n % 251).all() for message in kept)  # also when the sender has gone
        kept.clear()

    run(main())


def test_a_message_larger_than_the_arena_goes_by_the_stream(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp"), shared_memory=2 * LEAST) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            await shared(leaf, there)
            before = memory(leaf).memory_sent_bytes
            await there.tell(filled(0, 3 * LEAST))
            await there.tell(filled(1, LEAST))
            assert await there.ask(CountMsg()) == 2
            assert LEAST < memory(leaf).memory_sent_bytes - before < 2 * LEAST

    run(main())


def test_who_tells_much_lets_others_have_their_turn(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            await shared(leaf, there)
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            for n in range(16):
                await there.tell(filled(n, shared_memory.TURN // 2))
            assert turns >= 8
            counting.cancel()

    run(main())


# Where it does not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["memory", "tls"])
def test_over_memory_and_tls_all_goes_by_the_connection(
    run: Run, address_of: AddressOf, certificates: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    if scheme == "tls":
        monkeypatch.setenv(tls.TLS_DIR_VARIABLE, str(certificates("good")))
    address = "tls://127.0.0.1:0" if scheme == "tls" else address_of(scheme)

    async def main() -> None:
        async with pair(address) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            for n in range(3):
                await there.tell(filled(n, LEAST))
            assert await there.ask(CountMsg()) == 3
            assert (memory(leaf).memory, memory(leaf).memory_sent_bytes) == ("", 0)
            assert mapped() == 0

    run(main())


@pytest.mark.parametrize(
    ("name", "reason"),
    [("leaf", "switched off"), ("root", "switched off at root")],
)
def test_either_side_can_do_without_and_says_so(run: Run, address_of: AddressOf, name: str, reason: str) -> None:
    async def main() -> None:
        async with (
            Node(
                "root", listen=address_of("tcp"), secret=SECRET, shared_memory=0 if name == "root" else CAPACITY
            ).running() as root,
            Node(
                "leaf", join=root.listening, secret=SECRET, shared_memory=0 if name == "leaf" else CAPACITY
            ).running() as leaf,
        ):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            for n in range(3):
                await there.tell(filled(n, LEAST))
            assert await there.ask(CountMsg()) == 3
            assert memory(leaf).memory == reason
            await there.tell(filled(3, LEAST))
            assert await there.ask(CountMsg()) == 4
            assert mapped() == 0

    run(main())


@pytest.mark.parametrize("spoiled", ["memfd_create", "readlink"])
def test_a_system_that_makes_or_finds_no_memory_is_no_failure_and_said_once(
    address_of: AddressOf, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(13, "Permission denied")

    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            monkeypatch.setattr(os, spoiled, fails)
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            for n in range(5):
                await there.tell(filled(n, LEAST))
                assert await there.ask(CountMsg()) == n + 1
            assert memory(leaf).memory.endswith("Permission denied")

    with capture_logs() as logs:
        run_loop(main())
    (line,) = [line for line in logs if line["event"] == "no shared memory"]
    assert (line["log_level"], line["peer"]) == ("debug", "root")
    assert line["reason"].endswith("Permission denied")


def test_what_a_peer_says_for_its_reason_is_cut_off(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise NotShared("no " * 100_000)

    monkeypatch.setattr(shared_memory, "ArenaView", refuses)

    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            for n in range(3):
                await there.tell(filled(n, LEAST))
            assert await there.ask(CountMsg()) == 3
            assert memory(leaf).memory == ("no " * 100)[: shared_memory.REFUSAL]

    run(main())


def test_a_node_that_sends_nothing_large_makes_no_memory(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            for n in range(50):
                await leaf.ref("root/keeper").tell(filled(n, 20_000))
            assert await leaf.ref("root/keeper").ask(CountMsg()) == 50
            assert mapped() == 0
            assert memory(leaf).memory == ""

    run(main())


# What breaks ----------------------------------------------------------------------------------------------------------


def test_what_was_placed_and_not_seen_when_the_connection_broke_is_seen_over_the_next(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.dialling.BACKOFF_S", 0.001)

    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            root.spawn("keeper", Keeper, [], 0)
            there = leaf.ref("root/keeper")
            await shared(leaf, there)
            rng = random.Random(5)
            for n in range(300):
                await there.tell(filled(n, rng.choice((100, LEAST, 2 * LEAST, 5 * LEAST))))
                if rng.random() < 0.15:
                    link_of(rng.choice((leaf, root))).interrupt(ConnectionResetError("cut by the test"))
                if rng.random() < 0.15:
                    await asyncio.sleep(0)
            assert await there.ask(CountMsg()) == 300
            assert memory(leaf).memory_sent_bytes > 20 * LEAST
            await until(lambda: memory(leaf).memory_held_bytes == 0)

    run(main())


PLACED_AT_0 = PLACE.pack(Kind.MESSAGE, 1, 0, LEAST)


@pytest.mark.parametrize(
    ("kind", "header", "text"),
    [
        (Kind.SHM_DATA, PLACE.pack(Kind.GOODBYE, 1, 0, 10), "places the payload of a frame of kind 9"),
        (Kind.SHM_DATA, PLACE.pack(Kind.SHM_DATA, 1, 0, 10), "places the payload of a frame of kind 16"),
        (Kind.SHM_DATA, PLACE.pack(200, 1, 0, 10), "places the payload of a frame of kind 200"),
        (Kind.SHM_DATA, PLACED_AT_0[:-1], "places a payload in memory that it does not share, or none"),
        (
            Kind.SHM_DATA,
            PLACE.pack(Kind.MESSAGE, 1, 5, 10),
            "places 10 bytes at 5, which is held already or not with",
        ),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, 0, 0), "places 0 bytes at 0, which"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, 0, 64 * PAGE + 1), "places 262,145 bytes at 0, which"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, 64 * PAGE, 1), "places 1 bytes at 262,144, which"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, 2**64 - PAGE, 10), "places 10 bytes at 18,446,744,073,709,547,520"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, PAGE, 10), "places 10 bytes at 4,096, which is held already"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 1, 0, PAGE) + b"\xc1", "no valid msgpack"),
        (Kind.SHM_DATA, PLACE.pack(Kind.MESSAGE, 2, 0, PAGE), "places a payload in memory that it does not share"),
        (Kind.SHM_RELEASE, msgpack.packb([[0]]), "gives back a block 0 that it does not have"),
        (
            Kind.SHM_RELEASE,
            msgpack.packb([[[1, 0, 1, False]]]),
            "gives back a block [1, 0, 1, False] that it",
        ),
        (Kind.SHM_RELEASE, msgpack.packb([["x" * 100]]), "gives back a block 'xxx"),
        (Kind.SHM_RETIRE, msgpack.packb([0]), "withdraws the memory 0, which it has not offered"),
        (Kind.SHM_RETIRE, msgpack.packb([2]), "withdraws the memory 2, which it has not offered"),
        (Kind.SHM_RELEASE, msgpack.packb([3]), "sent a SHM_RELEASE frame that does not hold list"),
        (Kind.SHM_ACCEPT, msgpack.packb([1, ""]), "answers an offer of memory that was not made"),
        (Kind.SHM_ACCEPT, msgpack.packb([0]), "sent a SHM_ACCEPT frame that does not hold int, str"),
        (Kind.SHM_OFFER, msgpack.packb([1, 1, 1, bytes(16), PAGE]), "offers memory out of turn, or none"),
        (
            Kind.SHM_OFFER,
            msgpack.packb([2, 1, 1, bytes(16)]),
            "sent a SHM_OFFER frame that does not hold int, int, int, bytes, int",
        ),
    ],
)
def test_a_peer_that_says_what_cannot_be_is_told_so_and_let_go(
    run: Run, address_of: AddressOf, kind: Kind, header: bytes, text: str
) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            link = link_of(root)
            mine = Arena(64 * PAGE, bytes(16))
            mine.write([b"x" * 2 * PAGE], 2 * PAGE)
            link.shared_memory.offered(1, os.getpid(), mine.descriptor, mine.name, 64 * PAGE)
            held = link.shared_memory.placed(PLACE.pack(Kind.MESSAGE, 1, PAGE, PAGE), None)
            with capture_logs() as logs:
                link.frame_received(Frame(kind, header, None))
            assert link.ended
            (line,) = [line for line in logs if line["event"] == "peer gone"]
            assert text in line["reason"], line
            assert held.payload is not None
            assert bytes(held.payload[:1]) == b"x"
            mine.close()
            await leaf.stop_requested

    run(main())


def test_memory_that_was_never_offered_holds_no_payload(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with pair(address_of("tcp")) as (root, leaf):
            for what in (
                lambda: link_of(root).shared_memory.placed(PLACED_AT_0, None),
                lambda: link_of(root).shared_memory.released([[1, 0, 1, False]]),
                lambda: link_of(root).shared_memory.offered(1, 0, 1, bytes(16), PAGE),
                lambda: link_of(root).shared_memory.offered(2, 1, -1, bytes(16), PAGE),
                lambda: link_of(root).shared_memory.offered(3, 1, 1, bytes(15), PAGE),
                lambda: link_of(root).shared_memory.offered(4, 1, 1, bytes(16), 0),
            ):
                with pytest.raises(FrameError):
                    what()
            assert memory(leaf).state == "open"

    run(main())


numbers = st.sampled_from([0, 1, PAGE, 2 * PAGE, LEAST, 2**32, 2**64 - 1]) | st.integers(0, 2**64 - 1)
kinds = st.sampled_from([Kind.MESSAGE, Kind.ANSWER]) | st.integers(0, 255)
placed = st.builds(PLACE.pack, kinds, numbers | st.just(1), numbers, numbers)
plain = st.none() | st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=20) | st.text(max_size=5)
said = st.lists(plain | st.lists(plain, max_size=3), max_size=5).map(msgpack.packb)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    talk=st.lists(
        st.tuples(
            st.sampled_from([Kind.SHM_OFFER, Kind.SHM_ACCEPT, Kind.SHM_DATA, Kind.SHM_RELEASE, Kind.SHM_RETIRE]),
            st.builds(bytes.__add__, placed, said | st.binary(max_size=20)) | said | st.binary(max_size=20),
        ),
        max_size=6,
    ),
    offers=st.booleans(),
)
def test_whatever_a_peer_says_of_memory_it_is_let_go_at_worst(
    talk: list[tuple[Kind, bytes]], offers: bool, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of("memory"), secret=SECRET).running() as root:
            probe = Probe(CountMsg, answers={CountMsg: 3})
            there = probe.start(root, "probe")
            async with Node("leaf", join=root.listening, secret=SECRET).running() as leaf:
                await until(lambda: bool(root.peers._sessions))
                link, back = link_of(root), link_of(leaf)
                mine = Arena(64 * PAGE, bytes(16))
                if offers:
                    assert back._connection is not None
                    assert link._connection is not None
                    link._connection.local = True
                    back.send(Kind.SHM_OFFER, 1, os.getpid(), mine.descriptor, mine.name, 64 * PAGE)
                for kind, header in talk:
                    back._put([frame_prefix(kind, len(header), 0) + header], 16 + len(header))
                for _ in range(10):
                    await asyncio.sleep(0)
                mine.close()
            await until(lambda: not root.peers._sessions)
            assert await there.ask(CountMsg()) == 3

    with capture_logs() as logs:
        run_loop(main())
    for line in logs:
        assert line["log_level"] != "error", line


# Two processes --------------------------------------------------------------------------------------------------------

CHILD = """
    import importlib, sys
    from orchestra import Node
    from orchestra.runs.runner import run_loop

    said = importlib.import_module({module!r})

    async def main():
        async with Node("child", listen="tcp://127.0.0.1:0", join={root!r}, secret=said.SECRET).running() as node:
            node.spawn("keeper", said.Keeper, [], 30)
            print("ready", flush=True)
            await node.stop_requested

    run_loop(main())
"""


def test_between_two_processes_nothing_is_left_of_it_however_they_end(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of("unix"), secret=SECRET).running() as root:
            for graceful in (True, False):
                async with child_of(root) as child:
                    there = root.ref("child/keeper")
                    kept = await there.ask(TwiceMsg(x=np.full(LEAST, 3, np.uint8)))
                    assert (kept.x == 6).all()
                    del kept
                    kept = await there.ask(TwiceMsg(x=np.full(LEAST, 4, np.uint8)))  # this one by memory, for certain
                    for n in range(200):
                        await there.tell(filled(n, 3 * LEAST))
                    assert await there.ask(CountMsg()) == 200
                    assert memory(root).memory == "shared"
                    assert memory(root).memory_held_bytes >= 30 * 3 * LEAST
                    assert memory(root).memory_sent_bytes > 100 * LEAST
                    assert mapped() == 2  # its own, and the child's
                    if graceful:
                        await root.ref("child/system").tell(StopNodeMsg())
                    else:
                        child.send_signal(signal.SIGKILL)
                    await child.wait()
                    await until_gone(root)
                    assert mapped() == 1
                    assert (kept.x == 8).all()
                    del kept
                    assert mapped() == 0
        assert not [name for name in os.listdir("/dev/shm") if "orchestra" in name]

    run(main())


@asynccontextmanager
async def child_of(root: Node) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process, with a keeper, that has joined `root`."""
    source = textwrap.dedent(CHILD).format(module=__name__, root=root.listening)
    env = {**os.environ, "PYTHONPATH": ROOT}
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=subprocess.PIPE, env=env)
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


async def until_gone(root: Node) -> None:
    while root.peers.names:  # noqa: ASYNC110 (it is dialled for a while first, in real time)
        await asyncio.sleep(0.01)
