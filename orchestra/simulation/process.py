"""A simulated process: a node on a host of its own, which can be killed, paused and restarted."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from orchestra.actors.message import Message, Request
from orchestra.actors.ref import Ref
from orchestra.clock import TimerHandle
from orchestra.errors import OrchestraError, UsageError
from orchestra.nodes.node import Node
from orchestra.simulation.loop import SimulatedLoop, SimulatedThreads
from orchestra.simulation.network import Network
from orchestra.simulation.strands import Strand

T = TypeVar("T")
Setup = Callable[[Node], object]
Main = Callable[[Node], Awaitable[str]]
"""Runs in a process to its end, and returns the reason."""

RESTART_S = 1.0
"""Mean time after which a dead process is restarted."""
START = datetime(2026, 1, 1, tzinfo=UTC)


BOOTED_S = 1000.0
"""Reading of a simulated node's monotonic clock at the start of the simulation, in seconds."""


class ProcessDied(OrchestraError):
    """The simulated process of this call was killed, or has ended."""


class SimulatedClock:
    """The clock of simulated nodes: the loop's virtual time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """Return the virtual seconds since the start of the simulation, plus a thousand: no clock starts at 0."""
        return BOOTED_S + self._loop.time()

    def now(self) -> datetime:
        """Return the virtual time as a date, beginning at 2026-01-01 00:00 UTC."""
        return START + timedelta(seconds=self._loop.time())

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        """Run `call` after `delay` virtual seconds."""
        return self._loop.call_later(delay, call)


class Process:
    """A simulated process, which hosts one node. Made by `Simulation.node`.

    Args:
        loop: the simulation's loop.
        network: the simulation's network.
        name: the name of the process, its node and its host.
        setup: spawns the node's actors; called at every start.
        may_fail: whether the simulation continues if the node fails.
        auto_restart: whether it is restarted after it died, as by a launcher. Implies `may_fail`.
        main: runs in the process once its actors are spawned; when it returns, the process ends.
        options: further arguments of `Node`.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        name: str,
        setup: Setup | None,
        *,
        may_fail: bool,
        auto_restart: bool,
        main: Main | None = None,
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.starts = 0
        """The number of starts so far."""
        self.failures: list[BaseException] = []
        """The exceptions that ended it."""
        self.auto_restart = auto_restart
        """True while it is restarted after it died."""
        self._loop = loop
        self._network = network
        self._setup = setup
        self._may_fail = may_fail or auto_restart
        self._main = main or _until_asked_to_stop
        self._options = options
        self._strand: Strand | None = None
        self._node: Node | None = None
        self._ended: asyncio.Future[str] | None = None

    def __repr__(self) -> str:
        return f"<Process {self.name}, {'running' if self.running else 'not running'}>"

    @property
    def running(self) -> bool:
        """True from its start to its end."""
        return self._strand is not None and self._strand.alive

    @property
    def node(self) -> Node:
        """The node of the running process, for inspection; send with `ref`.

        Raises:
            ProcessDied: the process does not run.
        """
        if self._node is None or not self.running:
            raise ProcessDied(f"process {self.name} does not run")
        return self._node

    async def start(self) -> None:
        """Start or restart the process, and return when its node is open and its actors are spawned.

        Raises:
            UsageError: the process is running.
            ProcessDied: it ended before its node was open.
        """
        if self.running:
            raise UsageError(f"process {self.name} is running; stop or kill it first")
        loop = self._loop
        self.starts += 1
        strand = self._strand = loop.strands.create(self.name)
        self._ended = loop.create_future()
        self._network.add_host(self.name)
        opened: asyncio.Future[None] = loop.create_future()
        task = loop.create_task(self._live(opened), name=f"{self.name}: main", context=strand.context.copy())
        task.add_done_callback(lambda task: self._end(strand, task), context=loop.strands.outside.context)
        await _either(opened, self._ended)
        if not opened.done():
            raise ProcessDied(f"process {self.name} ended while it started: {self._ended.result()}")

    async def stop(self) -> None:
        """Stop gracefully without a restart, and wait for the end."""
        self.auto_restart = False
        self.node.request_stop("asked to stop")
        await self.ended()

    async def ended(self) -> str:
        """Wait for the end, and return the reason."""
        assert self._ended is not None, f"process {self.name} was never started"
        return await asyncio.shield(self._ended)

    def kill(self, *, silently: bool = False) -> None:
        """End the process at once: no callback of it, and no `finally`, runs again.

        Its connections break, as when an operating system cleans up after a process. With `silently` they hang, as
        after the loss of a machine.
        """
        if self._strand is None or not self._strand.alive:
            return
        self._loop.strands.end(self._strand)
        self._network.remove_host(self._strand, silently=silently)
        self._finish("killed")

    def pause(self, seconds: float) -> None:
        """Stop the process for some time, like a debugger or a busy machine; incoming bytes wait."""
        if self._strand is not None:
            self._loop.pause(self._strand, seconds)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in this process, outside of its actors, and return its result.

        Raises:
            ProcessDied: the process ended before `work`.
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
        """Return a ref that sends from this process, outside of its actors."""
        return Ref(address, _ProcessSender(self))

    async def _live(self, opened: asyncio.Future[None]) -> str:
        loop = self._loop
        node = self._node = Node(
            self.name,
            clock=SimulatedClock(loop),
            entropy=loop.random.bytes,
            executor=SimulatedThreads(loop),
            **self._options,
        )
        async with node.running():
            if self._setup is not None:
                self._setup(node)
            opened.set_result(None)
            return await self._main(node)

    def _end(self, strand: Strand, task: asyncio.Task[str]) -> None:
        if not strand.alive:
            return
        self._loop.strands.end(strand)
        self._network.remove_host(strand, silently=False)
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
        if self.auto_restart:
            name = f"launcher of {self.name}"
            self._loop.create_task(self._restart(), name=name, context=self._loop.strands.outside.context.copy())

    async def _restart(self) -> None:
        await asyncio.sleep(self._loop.random.exponential(RESTART_S))
        if not self.running:
            with contextlib.suppress(
                ProcessDied
            ):  # it failed to start, for example without the root; its end restarts it again
                await self.start()


async def _until_asked_to_stop(node: Node) -> str:
    return await node.stop_requested


class _ProcessSender:
    """Sends from the strand of a process, for code that runs outside of it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def post(self, recipient: str, message: Message) -> Awaitable[None]:
        return self._process.run(self._process.node.ref(recipient).tell(message))

    def post_nowait(self, recipient: str, message: Message) -> None:
        self._process.node.ref(recipient).tell_nowait(message)

    def post_threadsafe(self, recipient: str, message: Message) -> Future[None]:
        return self._process.node.ref(recipient).tell_threadsafe(message)

    async def ask(self, recipient: str, request: Request[Any]) -> Any:
        return await self._process.run(self._process.node.ref(recipient).ask(request))


async def _either(one: asyncio.Future[Any], other: asyncio.Future[Any]) -> None:
    await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
