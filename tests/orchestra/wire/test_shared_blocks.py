"""A payload is in shared memory once, for all who read it, and no view of it ever changes."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orchestra import Actor, Axes, Lane, Message, MessageArrays, Node, Ref, Request, freeze, on
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import Buffer, payload_buffers, payload_size
from orchestra.clock import RealClock
from orchestra.nodes import failure_detection
from orchestra.runs.runner import run_loop
from orchestra.wire.arena import SURPLUS, Arena
from orchestra.wire.blocks import LentArena, SharedBlocks
from orchestra.wire.frames import PREFIX, Kind, Limits, frame_prefix
from orchestra.wire.link import Link
from orchestra.wire.settings import LinkSettings
from orchestra.wire.shared_memory import LEAST, SharedMemoryChannel

Run = Callable[..., Any]
AddressOf = Callable[[str], str]
SECRET = b"the run's secret".ljust(32)
ROOT = str(Path(__file__).resolve().parents[3])


class VersionMsg(Message):
    """A version of an array, all of whose entries are its number."""

    lane = Lane.LATEST

    version: int
    x: Annotated[NDArray[np.int64], Axes("int64", "entries")]


class SeenMsg(Request[tuple[int, int]]):
    """Answered with the newest version, and the number of checks so far that found an array to be another one."""


class ForgetMsg(Message):
    """Keep no array."""


class Reader(Actor[VersionMsg | SeenMsg | ForgetMsg]):
    """Keeps the newest arrays, and checks all that it keeps with every message; sends them on.

    Args:
        to: actors that get every message too.
        keeps: arrays that it keeps.
    """

    def __init__(self, to: tuple[Ref[VersionMsg], ...] = (), keeps: int = 1) -> None:
        self._to = to
        self._kept: deque[VersionMsg] = deque(maxlen=keeps)
        self._torn = 0
        self._version = -1

    @on(VersionMsg)
    async def version(self, msg: VersionMsg) -> None:
        self._kept.append(msg)
        self._version = msg.version
        self._torn += sum(not (kept.x == kept.version).all() for kept in self._kept)
        for ref in self._to:
            await ref.tell(msg)

    @on(SeenMsg)
    def seen(self, msg: SeenMsg) -> tuple[int, int]:
        self._torn += sum(not (kept.x == kept.version).all() for kept in self._kept)
        return self._version, self._torn

    @on(ForgetMsg)
    def forget(self, msg: ForgetMsg) -> None:
        self._kept.clear()


def version(number: int, entries: int = LEAST) -> VersionMsg:
    return VersionMsg(version=number, x=freeze(np.full(entries, number, np.int64)))


def link_to(node: Node, peer: str) -> Link:
    return next(link for link in node.peers._sessions.values() if link.peer == peer)


def mapped() -> int:
    """How much shared memory of orchestra this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return sum("memfd:orchestra-" in line for line in file)


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


@asynccontextmanager
async def star(address: str, names: list[str]) -> AsyncIterator[tuple[Node, list[Node]]]:
    """A root, and nodes that have joined it, to which it has sent something large before."""
    async with AsyncExitStack() as stack:
        root = await stack.enter_async_context(Node("root", listen=address, secret=SECRET).running())
        leaves = [
            await stack.enter_async_context(Node(name, join=root.listening, secret=SECRET).running()) for name in names
        ]
        yield root, leaves


async def tell_all(readers: list[Ref[Any]], message: Message) -> None:
    for ref in readers:
        await ref.tell(message)


async def share(node: Node, readers: list[Ref[Any]]) -> None:
    """Have the peers of `node` that share memory map its memory."""
    await tell_all(readers, version(-1))
    for ref in readers:
        await ref.ask(SeenMsg())
    await tell_all(readers, ForgetMsg())
    names = {ref.address.partition("/")[0] for ref in readers}
    await until(lambda: all(link_to(node, name).shared_memory.state == "shared" for name in names))
    await until(lambda: not held(node))


def held(node: Node) -> int:
    return sum(link.shared_memory.held_bytes for link in node.peers._sessions.values())


def copied(node: Node) -> int:
    return sum(link.shared_memory.copied_bytes for link in node.peers._sessions.values())


# Once for all ---------------------------------------------------------------------------------------------------------


def test_a_payload_for_many_peers_is_written_once_and_nothing_of_it_goes_by_the_socket(
    run: Run, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with star(address_of("unix"), [f"leaf-{n}" for n in range(6)]) as (root, leaves):
            for leaf in leaves:
                leaf.spawn("reader", Reader)
            readers = [root.ref(f"{leaf.name}/reader") for leaf in leaves]
            await share(root, readers)
            before = copied(root)
            told = version(7)
            await tell_all(readers, told)
            assert [await ref.ask(SeenMsg()) for ref in readers] == [(7, 0)] * 6
            assert told.x.nbytes <= copied(root) - before < 1.01 * told.x.nbytes
            assert held(root) == 6 * told.x.nbytes
            (block,) = {id(each.block): each.block for each in held_by(root)}.values()
            assert block.holders == 6
            await tell_all(readers, ForgetMsg())
            await until(lambda: held(root) == 0)
            assert root.peers._settings.shared_memory._written == {}

    run(main())


def held_by(node: Node) -> list[Any]:
    return [each for link in node.peers._sessions.values() for each in link.shared_memory._held.values()]


def test_a_peer_that_comes_later_reads_the_same_block_as_the_others(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["early", "late"]) as (root, leaves):
            for leaf in leaves:
                leaf.spawn("reader", Reader)
            early, late = (root.ref(f"{leaf.name}/reader") for leaf in leaves)
            await share(root, [early, late])
            told = version(1)
            await early.tell(told)
            await early.ask(SeenMsg())
            before = copied(root)
            for _ in range(3):  # and again, while it holds it
                await late.tell(told)
            assert await late.ask(SeenMsg()) == (1, 0)
            assert copied(root) == before
            await late.tell(version(2))
            assert await late.ask(SeenMsg()) == (2, 0)
            assert copied(root) > before  # other contents are no repetition
            await tell_all([early, late], ForgetMsg())
            await until(lambda: held(root) == 0)

    run(main())


def test_memory_that_is_frozen_again_with_other_contents_is_another_payload(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["leaf"]) as (root, (leaf,)):
            leaf.spawn("reader", Reader, keeps=100)
            there = root.ref("leaf/reader")
            await share(root, [there])
            memory = np.zeros(LEAST, np.int64)
            for n in range(20):
                memory[:] = n  # not frozen, so each message has a copy
                await there.tell(VersionMsg(version=n, x=memory))
                assert await there.ask(SeenMsg()) == (n, 0)

    run(main())


def test_an_array_in_the_place_of_one_that_has_gone_is_another_payload() -> None:
    memory = bytearray(LEAST)
    blocks = SharedBlocks(4 * LEAST, os.urandom)
    blocks.join(Nobody())
    arena = blocks.arena_to_offer({})
    assert arena is not None

    def pieces(array: AnyArray) -> list[Buffer]:
        return payload_buffers([array])

    array = np.frombuffer(memory, np.uint8)
    block = blocks.write(arena, pieces(array), LEAST)
    assert block is not None
    block.holders = 1
    assert blocks.find(pieces(array), LEAST) is block
    assert blocks.find(pieces(array[:-16]), LEAST - 16) is None
    gone, others = id(array), []
    del array
    while id(others[-1] if others else None) != gone:
        others.append(np.frombuffer(memory, np.uint8))
        assert len(others) < 10_000
    assert blocks.find(pieces(others[-1]), LEAST) is None
    blocks.drop(block, lost=False)
    assert blocks.find(pieces(others[-1]), LEAST) is None
    blocks.retire(arena)


def test_a_payload_that_is_sent_on_is_not_copied_and_returns_to_its_writer_behind_its_last_reader(
    run: Run, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["writer", "one", "two"]) as (proxy, (writer, *leaves)):
            for leaf in leaves:
                leaf.spawn("reader", Reader)
            readers = tuple(proxy.ref(f"{leaf.name}/reader") for leaf in leaves)
            proxy.spawn("proxy", Reader, readers)
            there = writer.ref("root/proxy")
            for _ in range(3):  # the writer's offer, the proxy's offers of it
                await there.tell(version(1))
                await there.ask(SeenMsg())
                for ref in readers:
                    await ref.ask(SeenMsg())
            await there.tell(ForgetMsg())
            await tell_all(list(readers), ForgetMsg())
            await until(lambda: held(writer) == held(proxy) == 0)
            before = copied(proxy)
            told = version(5)
            await there.tell(told)
            await there.ask(SeenMsg())
            assert [await ref.ask(SeenMsg()) for ref in readers] == [(5, 0)] * 2
            assert copied(proxy) == before
            assert (held(writer), held(proxy)) == (told.x.nbytes, 2 * told.x.nbytes)
            await there.tell(ForgetMsg())
            await there.ask(SeenMsg())
            await readers[0].tell(ForgetMsg())
            await until(lambda: held(proxy) == told.x.nbytes)
            for _ in range(20):
                await asyncio.sleep(0)
            assert held(writer) == told.x.nbytes  # the second reader still views it
            await readers[1].tell(ForgetMsg())
            await until(lambda: held(writer) == held(proxy) == 0)

    run(main())


def test_a_payload_that_came_by_the_network_is_sent_on_without_a_copy(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            proxy = await stack.enter_async_context(Node("proxy", listen=address_of("unix"), secret=SECRET).running())
            leaves = [
                await stack.enter_async_context(Node(name, join=proxy.listening, secret=SECRET, **options).running())
                for name, options in (("learner", {"shared_memory": 0}), ("one", {}), ("two", {}))
            ]
            for leaf in leaves[1:]:
                leaf.spawn("reader", Reader)
            readers = tuple(proxy.ref(f"{name}/reader") for name in ("one", "two"))
            proxy.spawn("proxy", Reader, readers)
            there = leaves[0].ref("proxy/proxy")
            await share(proxy, list(readers))
            await there.tell(version(0))
            assert [await ref.ask(SeenMsg()) for ref in (there, *readers)] == [(0, 0)] * 3
            before = copied(proxy)
            for n in range(1, 20):
                await there.tell(version(n))
                assert [await ref.ask(SeenMsg()) for ref in (there, *readers)] == [(n, 0)] * 3
            assert copied(proxy) == before
            (block,) = {id(each.block): each.block for each in held_by(proxy)}.values()
            assert block.holders == 3  # this node views it, too
            await there.tell(ForgetMsg())
            await there.ask(SeenMsg())
            assert [await ref.ask(SeenMsg()) for ref in readers] == [(19, 0)] * 2  # they still do
            await tell_all(list(readers), ForgetMsg())
            await until(lambda: held(proxy) == 0)
            await there.tell(version(20))
            await there.ask(SeenMsg())
            assert block.holders == 0

    run(main())


def test_half_of_an_arena_is_left_for_what_its_node_writes() -> None:
    blocks = SharedBlocks(8 * LEAST, os.urandom)
    assert blocks.lend_memory(LEAST) is None  # nobody maps an arena yet
    blocks.join(Nobody())
    arena = blocks.arena_to_offer({})
    assert arena is not None
    assert blocks.lend_memory(LEAST - 1) is None
    lent = [blocks.lend_memory(2 * LEAST) for _ in range(3)]
    assert [array is not None for array in lent] == [True, True, False]
    lent.clear()
    assert blocks.lend_memory(4 * LEAST) is not None
    assert blocks.lend_memory(4 * LEAST) is not None  # the view of the first has ended
    blocks.retire(arena)


class WriteMsg(Message):
    """Send a version whose array is written in the memory of messages."""

    version: int


class Writer(Actor[WriteMsg]):
    """Writes arrays of versions in a thread, where their readers read them.

    Args:
        to: gets the versions.
    """

    def __init__(self, to: Ref[VersionMsg]) -> None:
        self._to = to

    @on(WriteMsg)
    async def write(self, msg: WriteMsg) -> None:
        frozen = await self.offload(self._written, msg.version)
        await self._to.tell(VersionMsg(version=msg.version, **frozen))

    def _written(self, number: int) -> dict[str, AnyArray]:
        made = MessageArrays({"x": ((LEAST,), np.int64)}, self.message_memory)
        made.arrays["x"][:] = number
        return made.freeze()


def test_arrays_that_an_actor_writes_in_the_memory_of_messages_are_read_there(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["leaf"]) as (root, (leaf,)):
            reader = root.ref("leaf/reader")
            leaf.spawn("reader", Reader)
            writer = root.spawn("writer", Writer, reader)
            await share(root, [reader])
            link = link_to(root, "leaf")
            before, sent = link.statistics().memory_copied_bytes, link.statistics().memory_sent_bytes
            for number in range(300):  # more than an arena would hold
                await writer.tell(WriteMsg(version=number))
                await until(lambda: root.cells["root/writer"].idle)
                assert await reader.ask(SeenMsg()) == (number, 0)
            assert link.statistics().memory_copied_bytes == before
            assert link.statistics().memory_sent_bytes > sent + 299 * 8 * LEAST
            await reader.tell(ForgetMsg())
            await until(lambda: held(root) == 0)

    run(main())


def test_memory_is_lent_in_any_number_of_threads() -> None:
    blocks = SharedBlocks(256 * LEAST, os.urandom)
    blocks.join(Nobody())
    arena = blocks.arena_to_offer({})
    assert arena is not None
    torn = []

    def write(number: int) -> None:
        for _ in range(300):
            array = blocks.lend_memory(2 * LEAST)
            if array is not None:
                array[:] = number
                torn.append(not (array == number).all())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(torn) > 300
    assert not any(torn)
    blocks._drop_unviewed()
    assert arena.blocks.used == 0
    blocks.retire(arena)


def test_memory_that_was_needed_once_is_returned_after_two_heartbeats() -> None:
    blocks = SharedBlocks(256 * LEAST, os.urandom)
    blocks.join(Nobody())
    arena = blocks.arena_to_offer({})
    assert arena is not None
    kept, large = blocks.lend_memory(LEAST), blocks.lend_memory(100 * LEAST)
    assert kept is not None
    kept[:] = 1
    del large
    blocks._drop_unviewed()
    provided = []
    for _ in range(3):  # the first ends the period in which it was needed
        blocks.end_period()
        provided.append(os.fstat(arena.descriptor).st_blocks * 512)
    assert provided == [101 * LEAST, 101 * LEAST, LEAST]
    assert (kept == 1).all()
    blocks.retire(arena)


def test_a_node_at_rest_returns_the_memory_of_what_it_has_sent(
    run: Run, address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_detection, "HEARTBEAT_S", 0.05)

    async def main() -> None:
        async with star(address_of("unix"), ["leaf"]) as (root, (leaf,)):
            reader = root.ref("leaf/reader")
            leaf.spawn("reader", Reader)
            await share(root, [reader])
            await reader.tell(version(0, 4 << 20))
            await reader.tell(ForgetMsg())
            await until(lambda: held(root) == 0)
            (arena,) = root.peers._settings.shared_memory._arenas
            await until(lambda: os.fstat(arena.descriptor).st_blocks * 512 <= SURPLUS)

    run(main())


def test_the_room_grows_with_the_number_of_peers_that_keep_what_they_get(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            room = 4 * LEAST
            root = await stack.enter_async_context(
                Node("root", listen=address_of("unix"), secret=SECRET, shared_memory=room).running()
            )
            readers = []
            for name in ("one", "two"):
                leaf = await stack.enter_async_context(Node(name, join=root.listening, secret=SECRET).running())
                leaf.spawn("reader", Reader, keeps=100)
                readers.append(root.ref(f"{name}/reader"))
            for n in range(40):
                for ref in readers:
                    await ref.tell(version(n, LEAST // 8))  # each reader its own
                    await ref.ask(SeenMsg())
            assert [await ref.ask(SeenMsg()) for ref in readers] == [(39, 0)] * 2
            assert held(root) == 2 * room

    run(main())


# Who dies -------------------------------------------------------------------------------------------------------------


def test_memory_that_a_lost_peer_may_still_view_is_not_written_again(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["one", "two"]) as (root, leaves):
            kept = leaves[0].spawn("reader", Reader, keeps=3)
            leaves[1].spawn("reader", Reader, keeps=2)
            readers = [root.ref(f"{leaf.name}/reader") for leaf in leaves]
            await share(root, readers)
            for n in range(3):
                await tell_all(readers, version(n))
                await readers[1].ask(SeenMsg())
            assert await readers[0].ask(SeenMsg()) == (2, 0)
            link = link_to(root, "one")
            link.end(ConnectionResetError("taken for dead by the test"))
            for n in range(3, 30):
                await readers[1].tell(version(n))
                assert await readers[1].ask(SeenMsg()) == (n, 0)
            assert await leaves[0].ref(kept.address).ask(SeenMsg()) == (2, 0)
            assert link_to(root, "two").shared_memory.state == "shared"
            before = copied(root)
            await readers[1].tell(version(30))
            assert copied(root) > before  # by memory again, in a new arena

    run(main())


def test_memory_that_was_sent_on_to_a_lost_peer_is_not_written_again_by_its_writer(
    run: Run, address_of: AddressOf
) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["writer", "lost"]) as (proxy, (writer, lost)):
            kept = lost.spawn("reader", Reader, keeps=3)
            proxy.spawn("proxy", Reader, (proxy.ref("lost/reader"),))
            there = writer.ref("root/proxy")
            for n in range(4):
                await there.tell(version(n))
                await there.ask(SeenMsg())
                await proxy.ref("lost/reader").ask(SeenMsg())
            assert any(each.array is not None for each in held_by(proxy))
            link_to(proxy, "lost").end(ConnectionResetError("taken for dead by the test"))
            proxy.spawn("other", Reader)
            other = writer.ref("root/other")
            await there.tell(ForgetMsg())
            for n in range(4, 30):
                await other.tell(version(n))
                assert await other.ask(SeenMsg()) == (n, 0)
            assert await lost.ref(kept.address).ask(SeenMsg()) == (3, 0)

    run(main())


def test_a_peer_unmaps_memory_that_is_no_longer_written_once_nothing_views_it(run: Run, address_of: AddressOf) -> None:
    async def main() -> None:
        async with star(address_of("unix"), ["one", "two"]) as (root, leaves):
            for leaf in leaves:
                leaf.spawn("reader", Reader)
            readers = [root.ref(f"{leaf.name}/reader") for leaf in leaves]
            await share(root, readers)
            await tell_all(readers, version(1))
            for ref in readers:
                await ref.ask(SeenMsg())
            assert mapped() == 3  # of the root itself, and by both
            link_to(root, "one").end(ConnectionResetError("taken for dead by the test"))
            await readers[1].tell(version(2))  # by the stream, since the peer has yet to map the next arena
            assert await readers[1].ask(SeenMsg()) == (2, 0)
            await leaves[0].ref("one/reader").tell(ForgetMsg())
            await leaves[0].ref("one/reader").ask(SeenMsg())
            await until(lambda: mapped() == 2)  # the next arena, of the root and by the second

    run(main())


# Any order of events --------------------------------------------------------------------------------------------------

CAPACITY = 8 * LEAST


class Nobody:
    """A user of arenas that forgets nothing."""

    def withdraw(self, arena: Arena | LentArena) -> None:
        pass


class Wire:
    """One direction of a link between two sides: what was sent and has not arrived yet."""

    def __init__(self, peer: str) -> None:
        self.peer, self.ended, self.closing, self.local = peer, False, False, True
        self.queue: deque[tuple[Kind, Any]] = deque()


class Side:
    """A process with its links; views are kept by what they have to be."""

    def __init__(self, name: str) -> None:
        entropy = random.Random(name).randbytes
        blocks = SharedBlocks(CAPACITY, entropy)
        self.settings = LinkSettings(name, SECRET, b"", entropy, RealClock(), Limits(), False, blocks)
        self.name = name
        self.channels: dict[str, tuple[SharedMemoryChannel, Wire]] = {}
        self.views: list[tuple[int, AnyArray]] = []

    def connect(self, peer: str) -> None:
        wire = Wire(peer)
        channel = SharedMemoryChannel(self.settings, wire, lambda kind, *c: wire.queue.append((kind, c)))
        self.channels[peer] = channel, wire

    def write(self, number: int) -> None:
        self.views.append((number, freeze(np.full(LEAST + 100 * number, number % 251, np.uint8))))

    def receive(self, number: int) -> None:
        """Take what came by the network."""
        array = np.empty(LEAST + 100 * number, np.uint8)
        size = payload_size([array])
        memory = self.settings.shared_memory.lend_memory(size)
        memory = np.empty(size, np.uint8) if memory is None else memory
        memory[:] = number % 251
        payload = np.frombuffer(memory.data.toreadonly(), np.uint8)
        self.views.append((number, np.ndarray(array.shape, np.uint8, payload)))

    def send(self, place: int, peer: str) -> None:
        """Send a view to a peer, by shared memory or as a copy."""
        number, array = self.views[place % len(self.views)]
        channel, wire = self.channels[peer]
        size = payload_size([array])
        start = frame_prefix(Kind.MESSAGE, 0, size)
        pieces: list[Buffer] = [start, *payload_buffers([array])]
        placed = channel.place(pieces, len(start) + size)
        wire.queue.append(
            (Kind.MESSAGE, (number, array.copy())) if placed is None else (Kind.SHM_DATA, (number, placed))
        )

    def deliver(self, peer: "Side") -> None:
        """Take the next frame of a peer."""
        queue = peer.channels[self.name][1].queue
        if not queue:
            return
        kind, contents = queue.popleft()
        channel, _ = self.channels[peer.name]
        match kind:
            case Kind.MESSAGE:
                self.views.append((contents[0], freeze(contents[1])))
            case Kind.SHM_DATA:
                number, frame = contents
                payload = channel.placed(frame[PREFIX.size :], None).payload
                assert payload is not None
                self.views.append((number, np.ndarray((LEAST + 100 * number,), np.uint8, payload)))
            case Kind.SHM_OFFER:
                channel.offered(*contents)
            case Kind.SHM_ACCEPT:
                channel.accepted(*contents)
            case Kind.SHM_RELEASE:
                channel.released([list(entry) for entry in contents[0]])
            case Kind.SHM_RETIRE:
                channel.retired(*contents)

    def disconnect(self, peer: str) -> None:
        channel, wire = self.channels.pop(peer)
        wire.ended = True
        channel.end()

    def check(self) -> None:
        for number, array in self.views:
            assert (array == number % 251).all(), f"{self.name} views {number}, which has changed"


NAMES = ("writer", "proxy", "reader", "other")
LINKS = (("writer", "proxy"), ("proxy", "reader"), ("proxy", "other"), ("writer", "other"))
event = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("receive"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("send"), st.sampled_from([*LINKS, *(link[::-1] for link in LINKS)]), st.integers(0, 9)),
    st.tuples(st.just("deliver"), st.sampled_from([*LINKS, *(link[::-1] for link in LINKS)]), st.integers(1, 9)),
    st.tuples(st.just("forget"), st.sampled_from(NAMES), st.integers(0, 9)),
    st.tuples(st.just("turn"), st.just(""), st.just(0)),
    st.tuples(st.just("break"), st.sampled_from(LINKS), st.booleans()),
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(event, max_size=120))
def test_no_view_ever_changes_whatever_is_sent_on_returned_or_broken(events: list[tuple[str, Any, Any]]) -> None:
    async def main() -> None:
        sides = {name: Side(name) for name in NAMES}
        for one, other in LINKS:
            sides[one].connect(other)
            sides[other].connect(one)
        written = 0
        for name in NAMES:
            sides[name].write(written := written + 1)
        for what, where, extra in events:
            match what:
                case "write":
                    sides[where].write(written := written + 1)
                case "receive":
                    sides[where].receive(written := written + 1)
                case "send" if sides[where[0]].views:
                    sides[where[0]].send(extra, where[1])
                case "deliver":
                    for _ in range(extra):
                        sides[where[1]].deliver(sides[where[0]])
                case "forget" if sides[where].views:
                    sides[where].views.pop(extra % len(sides[where].views))
                case "turn":
                    await asyncio.sleep(0)
                case "break":  # one side may notice long before the other, while both go on
                    one, other = where if extra else where[::-1]
                    for each, peer in ((one, other), (other, one)):
                        sides[each].disconnect(peer)
                        sides[each].write(written := written + 1)
                        for third in list(sides[each].channels):
                            sides[each].send(len(sides[each].views) - 1, third)
                        sides[other].check()
                    sides[one].connect(other)
                    sides[other].connect(one)
            for side in sides.values():
                side.check()
        for side in sides.values():
            for peer in list(side.channels):
                side.disconnect(peer)

    asyncio.run(main())


# Many processes -------------------------------------------------------------------------------------------------------

CHILD = """
    import importlib, sys
    from orchestra import Node
    from orchestra.runs.runner import run_loop

    test = importlib.import_module({module!r})

    async def main():
        async with Node({name!r}, listen="tcp://127.0.0.1:0", join={root!r}, secret=test.SECRET).running() as node:
            node.spawn("reader", test.Reader, tuple(map(node.ref, {to!r})), keeps={keeps})
            print("ready", flush=True)
            await node.stop_requested

    run_loop(main())
"""


@asynccontextmanager
async def process(root: Node, name: str, *to: str, keeps: int) -> AsyncIterator[Any]:
    """A process with a reader that has joined `root`."""
    source = textwrap.dedent(CHILD).format(module=__name__, root=root.listening, name=name, to=to, keeps=keeps)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": ROOT}
    )
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@pytest.mark.slow
def test_processes_read_no_torn_array_while_others_are_killed_and_nothing_is_left(address_of: AddressOf) -> None:
    async def main() -> None:
        rng = random.Random(3)
        number, names = 0, [f"reader-{n}" for n in range(3)]
        async with (
            Node("root", listen=address_of("unix"), secret=SECRET).running() as root,
            AsyncExitStack() as stack,
        ):
            for n, name in enumerate(names):
                await stack.enter_async_context(process(root, name, keeps=1 + 2 * n))
            to = [f"{name}/reader" for name in names]
            for _ in range(4):
                async with process(root, "proxy", *to, keeps=2) as proxy, process(root, "victim", keeps=3) as victim:
                    refs = [root.ref(address) for address in ("proxy/reader", "victim/reader", *to)]
                    for _ in range(150):
                        told = version(number := number + 1, rng.choice((LEAST, 2 * LEAST, 5 * LEAST)))
                        for ref in refs:
                            await ref.tell(told)
                    for ref in refs:
                        assert (await ref.ask(SeenMsg()))[1] == 0
                    for child in rng.sample((victim, proxy), 2):
                        child.send_signal(signal.SIGKILL)
                        await child.wait()
            for address in to:
                await root.ref(address).tell(version(number := number + 1))
                assert await root.ref(address).ask(SeenMsg()) == (number, 0)
        gc.collect()
        assert mapped() == 0
        assert not [name for name in os.listdir("/dev/shm") if "orchestra" in name]

    run_loop(main())
