"""`memory://` delivers within turns of the loop, so that a test sees at once what does not arrive."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestra.errors import NobodyListens
from orchestra.wire.frames import Frame, Kind, frame_bytes
from orchestra.wire.transports.memory import MemoryConnection, MemoryTransport

Run = Callable[..., Any]
_numbers = itertools.count()


class Heard:
    """Writes down the frames of a connection, and its end."""

    def __init__(self, connection: MemoryConnection) -> None:
        self.headers: list[bytes] = []
        self.ends: list[Exception | None] = []
        connection.attach(self)

    def frame_received(self, frame: Frame) -> None:
        self.headers.append(bytes(frame.header))

    def connection_lost(self, error: Exception | None) -> None:
        self.ends.append(error)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def connected() -> tuple[MemoryConnection, Heard, MemoryConnection, Heard]:
    address = f"memory://turns-{next(_numbers)}"
    accepted: list[Any] = []
    listener = await MemoryTransport().listen(address, accepted.append)
    here = await MemoryTransport().dial(address)
    await listener.close()
    with pytest.raises(NobodyListens):
        await MemoryTransport().dial(address)
    (there,) = accepted
    return here, Heard(here), there, Heard(there)


def test_frames_arrive_whole_and_in_order_both_ways(run: Run) -> None:
    async def main() -> None:
        here, heard_here, there, heard_there = await connected()
        for number in range(3):
            frame = frame_bytes(Kind.HANDSHAKE, b"there %d" % number)
            here.send([frame[:7], frame[7:]])
            there.send([frame_bytes(Kind.HANDSHAKE, b"here %d" % number)])
        assert (heard_here.headers, heard_there.headers) == ([], [])
        await turns()
        assert heard_here.headers == [b"here 0", b"here 1", b"here 2"]
        assert heard_there.headers == [b"there 0", b"there 1", b"there 2"]
        assert heard_here.ends == heard_there.ends == []

    run(main())


def test_a_close_follows_what_was_sent_and_each_side_learns_of_it_once(run: Run) -> None:
    async def main() -> None:
        here, heard_here, there, heard_there = await connected()
        here.send([frame_bytes(Kind.HANDSHAKE, b"last")])
        here.close()
        await turns()
        assert heard_there.headers == [b"last"]
        assert heard_here.ends == [None]
        assert [type(end) for end in heard_there.ends] == [ConnectionResetError]
        there.send([frame_bytes(Kind.HANDSHAKE, b"late")])
        await turns()
        assert heard_here.headers == []

    run(main())


def test_an_abort_loses_what_was_sent_and_tells_both_sides(run: Run) -> None:
    async def main() -> None:
        here, heard_here, _, heard_there = await connected()
        here.send([frame_bytes(Kind.HANDSHAKE, b"lost")])
        error = ValueError("enough")
        here.abort(error)
        await turns()
        assert heard_there.headers == []
        assert heard_here.ends == [error]
        assert [type(end) for end in heard_there.ends] == [ConnectionResetError]

    run(main())
