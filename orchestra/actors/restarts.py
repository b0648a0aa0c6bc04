"""Restarts: the incarnations of an actor, one after the other, and what follows from the end of each."""

import asyncio
from functools import cached_property, partial
from typing import Protocol

from orchestra.actors.context import LiveContext
from orchestra.actors.host import Host
from orchestra.actors.statistics import Deliveries
from orchestra.actors.supervision import Escalate, OneForOne, RestartAfter, Stop
from orchestra.actors.supervisor import Child, Children
from orchestra.errors import ActorFailed, Unreachable

STOPPED = "stopped"
"""The reason of a graceful stop."""


class Halted(Exception):
    """This incarnation ended because a sibling failed."""


class Restartable(Child, Protocol):
    """A cell as its restart loop sees it."""

    task: asyncio.Task[None] | None
    """The task that runs the loop."""
    context: LiveContext
    """The actor's context."""
    delivered: Deliveries
    """The messages the actor has taken."""

    async def run_incarnation(self) -> None:
        """Run one incarnation, from the constructor to `stopped`."""

    def report_failure(self, error: Exception, *, expected: bool) -> None:
        """Record the failure of an incarnation, and fail the request in hand."""

    async def end_incarnation(self) -> list[ActorFailed]:
        """End everything that belonged to a failed incarnation; return the failures on the way."""

    def send_halt(self) -> None:
        """Have the incarnation raise `Halted` after the current message."""


class RestartLoop:
    """Runs the incarnations of one actor until a stop, an abort or the last failure.

    Args:
        cell: the actor.
        host: its node.
        siblings: the children of its parent, itself among them; None for an actor without a parent on this node. Such
            an actor restarts alone, and its node escalates its failures.
        parent: the address of its parent on another node; empty if it has none there.
    """

    def __init__(self, cell: Restartable, host: Host, siblings: Children | None, parent: str) -> None:
        self.count = 0
        """Restarts so far."""
        self.late: list[ActorFailed] = []
        """Failures that are not decided about: after a stop was requested, or of children that a halt stopped."""
        self._cell = cell
        self._host = host
        self._siblings = siblings
        self._parent = parent
        self._failures: list[float] = []
        self._wake: asyncio.Future[None] | None = None
        self._halting: asyncio.Future[None] | None = None
        self._interrupted = False

    async def run(self) -> str:
        """Run incarnations until none follows; return the reason. Only an abort raises."""
        while (error := await self._outcome()) is not None and await self._continues(error):
            pass
        return STOPPED if error is None else f"{type(error).__name__}: {error}"

    def started(self) -> None:
        """Note that the incarnation has started or is gone for good. In a round, the next sibling then has its turn."""
        if self._siblings is not None:
            self._siblings.leave(self._cell)

    # Pauses between incarnations

    @property
    def pausing(self) -> bool:
        """True while it waits to start the next incarnation."""
        return self._wake is not None and not self._wake.done()

    async def pause(self, delay: float | None = None) -> None:
        """Wait for `resume`, at most `delay` seconds. A stop resumes."""
        if self._cell.draining:
            return
        self._wake = self._host.loop.create_future()
        timer = None if delay is None else self._host.clock.call_later(delay, self.resume)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def resume(self) -> None:
        """End a pause."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # Restarts because a sibling failed

    def halt(self) -> asyncio.Future[None]:
        """End this incarnation after the current message; the future is done once it has ended."""
        if self._halting is None:
            self._halting = self._host.loop.create_future()
            self._cell.send_halt()
        return self._halting

    def check_halt(self) -> None:
        """Raise `Halted` if this incarnation has to end."""
        if self._halting is not None:
            raise Halted("a sibling failed")

    def interrupt(self) -> None:
        """Cancel the handler and end this incarnation."""
        if self._cell.task is not None and not self._interrupted:
            self._interrupted = True
            self._cell.task.cancel()

    # Inside

    async def _outcome(self) -> Exception | None:
        """Run one incarnation; return its failure, or None after a graceful stop."""
        task = self._cell.task
        assert task is not None
        try:
            await self._cell.run_incarnation()
        except (Exception, asyncio.CancelledError) as error:
            interrupted = self._take_interruption(task)
            if isinstance(error, Exception):
                return error
            if task.cancelling():
                raise
            if interrupted:
                return Halted("a sibling failed")
            # No abort: it awaited something that was cancelled elsewhere.
            return RuntimeError(f"{self._cell.address} awaited what was cancelled")
        self._take_interruption(task)
        return None

    def _take_interruption(self, task: asyncio.Task[None]) -> bool:
        """Return whether `interrupt` was called. Its cancellation of the task no longer counts."""
        if not self._interrupted:
            return False
        self._interrupted = False
        task.uncancel()
        return True

    async def _continues(self, error: Exception) -> bool:
        """End a failed incarnation, decide about it and act on that; return whether another one begins."""
        cell, host = self._cell, self._host
        # Expected during shutdown: the recipient has already stopped.
        harmless = host.stopping and isinstance(error, Unreachable)
        story = cell.delivered.story()
        said = f"{type(error).__name__}: {error}"
        halted = isinstance(error, Halted)
        cell.report_failure(error, expected=halted or harmless)
        if harmless:
            return False
        if halted:
            self.late += await cell.end_incarnation()
            return await self._rejoins()
        # For the log file only; people read the decision below, or the failure of the parent or node.
        cell.log.error("actor failed", error=said, story=story, exc_info=error, quiet=True)
        if others := await cell.end_incarnation():
            error = ExceptionGroup(f"{cell.address} failed, and so did children that it stopped", [error, *others])
        if self._halting is not None:
            cell.log.warning("actor failed and is started again, as its siblings are", error=said)
            return await self._rejoins()
        failed = ActorFailed(cell.address, f"{cell.address} ({cell.kind.__name__}) failed; {story}")
        failed.__cause__ = error
        match self._group.decide(cell, self._failures):
            case RestartAfter(delay):
                cell.log.warning("actor failed and is started again", error=said, after=delay)
                return await self._restarts(failed, delay)
            case Stop():
                if cell.address != host.main_actor:
                    cell.log.error("actor failed and stays stopped", error=said)
            case Escalate():
                self._group.escalate(failed)
        return False

    async def _restarts(self, failed: ActorFailed, delay: float) -> bool:
        if self._cell.draining:
            self.late.append(failed)
            return False
        self._begin()
        return await self._group.restart(self._cell, delay)

    async def _rejoins(self) -> bool:
        """Restart in the round that a sibling's failure began."""
        assert self._halting is not None
        halting, self._halting = self._halting, None
        if self._cell.draining:
            return False
        self._begin()
        self._group.join(self._cell)
        halting.set_result(None)
        return await self._group.turn(self._cell)

    @cached_property
    def _group(self) -> Children:
        """The siblings. An actor without siblings gets a group of its own at its first failure."""
        host, parent = self._host, self._parent
        return self._siblings or Children(
            parent,
            OneForOne(),
            host.clock,
            fail_parent=partial(host.escalate, parent=parent),
            stop_remote=partial(host.stop_remote, parent),
        )

    def _begin(self) -> None:
        self.count += 1
        self._cell.context.reset_for_restart()
