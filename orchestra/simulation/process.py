"""A process of a simulation: a node with a machine of its own. It can be killed, held up, and started again."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref
from orchestra.clock import Handle
from orchestra.errors import OrchestraError, UsageError
from orchestra.nodes.node import Node
from orchestra.simulation.loop import SimulatedLoop, SimulatedThreads, Strand

if TYPE_CHECKING:
    from orchestra.simulation.network import Network

T = TypeVar("T")
Setup = Callable[[Node], object]

DEAD_S = 1.0
"""How long a process that is kept is dead, on average."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class ProcessDied(OrchestraError):
    """The simulated process that should have done this was killed, or ended."""


class SimulatedClock:
    """The loop's virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Return the virtual seconds since the simulation began."""
        return self._loop.time()

    def now(self) -> datetime:
        """Return the first of January 2026, and the virtual seconds since the simulation began."""
        return BEGIN + timedelta(seconds=self._loop.time())

    def call_later(self, delay: float, call: Callable[[], None]) -> Handle:
        """Arrange that `call` runs after `delay` virtual seconds."""
        return self._loop.call_later(delay, call)


class Process:
    """A simulated process, which hosts one node. Made by `Simulation.node`.

    Args:
        loop: where it runs.
        name: its own, its node's, and its host's on the network.
        setup: spawns the node's actors; called again for each new start.
        may_fail: whether the simulation goes on when an actor of it fails for good, which ends the process.
        kept: whether it is started again when it has died, as a launcher does; then it may fail, too.
        options: what else `Node` is given.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        setup: Setup | None,
        *,
        may_fail: bool,
        kept: bool,
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.starts = 0
        """How often it was started."""
        self.failures: list[BaseException] = []
        """What it died of, where it died of itself."""
        self.kept = kept
        """Whether it is started again when it has died."""
        self._loop = loop
        self._network: Network = loop.network
        self._setup = setup
        self._may_fail = may_fail or kept
        self._options = options
        self._strand: Strand | None = None
        self._node: Node | None = None
        self._ended: asyncio.Future[str] | None = None

    def __repr__(self) -> str:
        return f"<Process {self.name}, {'running' if self.running else 'not running'}>"

    @property
    def running(self) -> bool:
        """Whether it has begun, and has not ended."""
        return self._strand is not None and self._strand.alive

    @property
    def node(self) -> Node:
        """The node of a process that runs: to look at, not to send from.

        Raises:
            ProcessDied: it does not run.
        """
        if self._node is None or not self.running:
            raise ProcessDied(f"process {self.name} does not run")
        return self._node

    async def start(self) -> None:
        """Begin, or begin again with nothing in memory; return when the node is open and its actors are spawned.

        Raises:
            UsageError: it runs already.
            ProcessDied: it ended before its node was open.
        """
        if self.running:
            raise UsageError(f"process {self.name} runs already")
        loop = self._loop
        self.starts += 1
        strand = self._strand = Strand(self.name, loop.lateness())
        self._ended = loop.create_future()
        self._network.plug_in(self.name)
        opened: asyncio.Future[None] = loop.create_future()
        task = loop.create_task(self._live(opened), name=f"{self.name}: main", context=strand.context.copy())
        task.add_done_callback(lambda task: self._end(strand, task), context=loop.outside.context)
        await _either(opened, self._ended)
        if not opened.done():
            raise ProcessDied(f"process {self.name} ended as it began: {self._ended.result()}")

    async def stop(self) -> None:
        """Stop gracefully and for good, and wait for the end."""
        self.kept = False
        self.node.request_stop("asked to stop")
        await self.ended()

    async def ended(self) -> str:
        """Wait until it has ended, and say why."""
        assert self._ended is not None, f"process {self.name} was never started"
        return await asyncio.shield(self._ended)

    def kill(self, *, silently: bool = False) -> None:
        """Let it die at once, without a goodbye: nothing of it runs any more, and its listener is closed.

        Its peers' connections break, as when a system cleans up after a process; `silently`, they just hear nothing
        any more, as when a whole machine is gone.
        """
        if self._strand is None or not self._strand.alive:
            return
        self._loop.end(self._strand)
        self._network.unplug(self._strand, silently=silently)
        self._finish("killed")

    def stand_still(self, seconds: float) -> None:
        """Let it do nothing for so long, as a debugger or a busy machine would; what it is sent waits."""
        if self._strand is not None:
            self._loop.stand(self._strand, seconds)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` as code of this process, outside of its actors, and return its result.

        Raises:
            ProcessDied: the process ended before the work was done.
        """
        if self._strand is None or self._ended is None or not self.running:
            work.close()
            raise ProcessDied(f"process {self.name} does not run")
        ended = self._ended
        task = self._loop.create_task(work, context=self._strand.context.copy())
        try:
            await _either(task, ended)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            raise ProcessDied(f"process {self.name} has ended: {ended.result()}")
        return task.result()

    def ref(self, address: str) -> Ref[Any]:
        """Return a ref that sends through the node of this process, from outside of its actors."""
        return Ref(address, _Hop(self))

    async def _live(self, opened: asyncio.Future[None]) -> str:
        loop = self._loop
        node = self._node = Node(
            self.name,
            clock=SimulatedClock(loop),
            entropy=loop.dice.bytes,
            executor=SimulatedThreads(loop),
            **self._options,
        )
        async with node.running():
            if self._setup is not None:
                self._setup(node)
            opened.set_result(None)
            return await node.stop_requested

    def _end(self, strand: Strand, task: asyncio.Task[str]) -> None:
        if not strand.alive:
            return
        self._loop.end(strand)
        self._network.unplug(strand, silently=False)
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._finish("cancelled" if task.cancelled() else task.result())
            return
        self.failures.append(error)
        if not self._may_fail:
            self._loop.fail(error)
        self._finish(repr(error))

    def _finish(self, reason: str) -> None:
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(reason)
        if self.kept:
            name = f"launcher of {self.name}"
            self._loop.create_task(self._revive(), name=name, context=self._loop.outside.context.copy())

    async def _revive(self) -> None:
        await asyncio.sleep(self._loop.dice.exponential(DEAD_S))
        if not self.running:
            with contextlib.suppress(ProcessDied):  # it did not reach the root, say; its end has been seen to already
                await self.start()


class _Hop:
    """Speaks for the code around a node that runs in another strand: it goes there to speak."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def post(self, recipient: str, message: Message) -> Awaitable[None]:
        return self._process.run(self._process.node.ref(recipient).tell(message))

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._process.node.ref(recipient).tell_nowait(message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        return await self._process.run(self._process.node.ref(recipient).ask(request))


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
