"""Messages from other threads than that of the node's event loop."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import Actor, ActorFailed, Axes, Escalate, Message, Node, Ref, Unreachable, UsageError, on
from orchestra.testing import Probe

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


class PixelsMsg(Message):
    pixels: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class Reporter(Actor[NoteMsg]):
    """Tells how far an offloaded function is, in the way that it is given."""

    supervision = Escalate()

    def __init__(self, to: Ref[NoteMsg], *, threadsafe: bool) -> None:
        self.to, self.threadsafe = to, threadsafe

    @on(NoteMsg)
    async def report(self, msg: NoteMsg) -> None:
        await self.offload(self.work, msg)

    def work(self, msg: NoteMsg) -> None:
        if self.threadsafe:
            self.to.tell_threadsafe(msg).result(10.0)
        else:
            self.to.tell_nowait(msg)


def test_tell_nowait_from_another_thread_raises_at_once_and_names_tell_threadsafe(run: Run) -> None:
    async def main() -> None:
        async with Node("here").running() as node:
            listener = Probe(NoteMsg)
            ref = listener.start(node, "listener")
            with pytest.raises(UsageError, match=r"tell_nowait to here/listener in the thread .*; use tell_threadsafe"):
                await asyncio.to_thread(ref.tell_nowait, NoteMsg(n=1))
            ref.tell_nowait(NoteMsg(n=2))
            assert await listener.heard(NoteMsg) == [NoteMsg(n=2)]

    run(main())


def test_an_offloaded_function_may_use_tell_threadsafe_and_not_tell_nowait(run: Run) -> None:
    async def main(*, threadsafe: bool) -> list[Message]:
        async with Node("here").running() as node:
            listener = Probe(NoteMsg)
            address = listener.start(node, "listener").address
            reporter = node.spawn("reporter", Reporter, Ref(address), threadsafe=threadsafe)
            await reporter.tell(NoteMsg(n=3))
            await listener.heard(NoteMsg)
            senders = {flow.sender for flow in node.statistics().message_counts if flow.recipient == address}
            assert senders == {"here/outside"}
            return listener.messages

    assert run(main(threadsafe=True)) == [NoteMsg(n=3)]
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed)) as caught:
        run(main(threadsafe=False))
    assert isinstance(caught.value.exceptions[0].__cause__, UsageError)


def test_tell_threadsafe_waits_for_room_and_takes_the_arrays_as_they_are_now(run: Run) -> None:
    async def main() -> None:
        async with Node("here").running() as node:
            listener = Probe(PixelsMsg)
            ref = listener.start(node, "listener")
            pixels = np.zeros(4, np.uint8)
            mailbox = node.cell(ref.address).mailbox
            mailbox._capacity = 1
            listener.hold()

            def work() -> list[Any]:
                told = []
                for n in range(5):
                    pixels[:] = n
                    told.append(ref.tell_threadsafe(PixelsMsg(pixels=pixels)))
                return told

            told = await asyncio.to_thread(work)
            while mailbox.statistics().waiting < 3:  # noqa: ASYNC110 (one is in hand, one is queued)
                await asyncio.sleep(0)
            for _ in range(3):
                await asyncio.sleep(0)
            done = [future.done() for future in told]
            listener.release()
            assert done == [True, True, False, False, False]
            heard = await listener.heard(PixelsMsg, 5)
            assert [int(message.pixels[0]) for message in heard] == [0, 1, 2, 3, 4]

    run(main())


def test_tell_threadsafe_to_nobody_or_a_node_that_has_stopped_is_unreachable(run: Run) -> None:
    async def main() -> Ref[Any]:
        async with Node("here").running() as node:
            nobody = await asyncio.to_thread(node.ref("here/nobody").tell_threadsafe, NoteMsg(n=1))
            with pytest.raises(Unreachable, match="there is no actor at here/nobody"):
                await asyncio.wrap_future(nobody)
            return node.ref("here/listener")

    ref = run(main())
    with pytest.raises(Unreachable, match="here/listener cannot be told anything: its node has stopped"):
        ref.tell_threadsafe(NoteMsg(n=1))
