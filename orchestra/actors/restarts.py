"""The incarnations of an actor: what each one ends with, and whether there is another."""

import asyncio
from typing import TYPE_CHECKING

from orchestra.actors import supervision
from orchestra.actors.envelope import Envelope
from orchestra.actors.supervisor import Children
from orchestra.actors.system_messages import HaltMsg
from orchestra.errors import ActorFailed, ActorStopped, Unreachable

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell

STOPPED = "stopped"
"""The reason of a graceful stop."""


class Halted(Exception):
    """This incarnation ends because a sibling failed."""


class Life:
    """What a cell goes through between its start and its end.

    Args:
        siblings: the children of its parent, itself among them; None for an actor without a parent on this node.
    """

    def __init__(self, cell: "Cell", siblings: Children | None) -> None:
        self.siblings = siblings
        self.restarts = 0
        self.late: list[ActorFailed] = []
        """What failed here after it was asked to stop, when no restart could mend it."""
        self._cell = cell
        self._failures: list[float] = []
        self._wake: asyncio.Future[None] | None = None
        self._halting: asyncio.Future[None] | None = None
        self._interrupted = False

    async def run(self) -> str:
        """Live until there is no further incarnation; return the reason. Only an abort cancels this."""
        while (error := await self._incarnation()) is not None and await self._outlives(error):
            pass
        return STOPPED if error is None else f"{type(error).__name__}: {error}"

    # Pauses between incarnations

    @property
    def pausing(self) -> bool:
        """Whether it waits to be started again."""
        return self._wake is not None and not self._wake.done()

    async def pause(self, delay: float | None = None) -> None:
        """Wait until `wake`, for at most `delay` seconds. A stop wakes it."""
        node = self._cell.node
        if self._cell.draining:
            return
        self._wake = node.loop.create_future()
        timer = None if delay is None else node.clock.call_later(delay, self.wake)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """End a pause."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # What siblings want of it

    def halt(self) -> asyncio.Future[None]:
        """Have this incarnation end after the message in hand; the future is done once it has."""
        cell = self._cell
        if self._halting is None:
            self._halting = cell.node.loop.create_future()
            cell.mailbox.put_nowait(Envelope(cell.address, cell.address, HaltMsg()))
        return self._halting

    def interrupt(self) -> None:
        """Break off whatever this incarnation awaits, and end it."""
        if self._cell.task is not None and not self._interrupted:
            self._interrupted = True
            self._cell.task.cancel()

    def check_halt(self) -> None:
        """Raise `Halted` if this incarnation is to end."""
        if self._halting is not None:
            raise Halted("a sibling failed")

    # Inside

    async def _incarnation(self) -> Exception | None:
        """Live once; return what that ended with, None for a graceful stop."""
        task = self._cell.task
        assert task is not None
        try:
            await self._cell.live()
        except (Exception, asyncio.CancelledError) as error:
            interrupted = self._take_back_interruption(task)
            if isinstance(error, Exception):
                return error
            if task.cancelling():
                raise
            if interrupted:
                return Halted("a sibling failed")
            # Nobody aborts this actor: it awaited something that somebody else cancelled.
            return RuntimeError(f"{self._cell.address} awaited what was cancelled")
        self._take_back_interruption(task)
        return None

    def _take_back_interruption(self, task: "asyncio.Task[None]") -> bool:
        """Whether `interrupt` was called; it no longer counts as a cancellation of the task."""
        if not self._interrupted:
            return False
        self._interrupted = False
        task.uncancel()
        return True

    async def _outlives(self, error: Exception) -> bool:
        """Do what follows from the end of an incarnation; return whether there is another one."""
        cell = self._cell
        cell.serving.be_idle()
        # Where the others stopped first, there is nobody left to tell, and no harm done.
        harmless = cell.node.stopping and isinstance(error, Unreachable)
        if cell.recorder is not None:
            cell.recorder.failed(error, expected=harmless or isinstance(error, Halted))
        if isinstance(error, Halted):
            cell.requests.fail_in_hand(ActorStopped(f"a sibling of {cell.address} failed"))
            self.late += await cell.end_incarnation()
            return await self._starts_with_siblings()
        cell.requests.fail_in_hand(cell.requests.blame(error))
        if harmless:
            return False
        said = f"{type(error).__name__}: {error}"
        # For the file alone: people are told below what follows from it, or by whoever is above what that was.
        cell.log.error("actor failed", error=said, story=cell.delivered.story(), exc_info=error, quiet=True)
        if others := await cell.end_incarnation():
            error = ExceptionGroup(f"{cell.address} failed, and so did children that it stopped", [error, *others])
        if self._halting is not None:
            cell.log.warning("actor failed and is started again, as its siblings are", error=said)
            return await self._starts_with_siblings()
        match self._decide():
            case supervision.RestartAfter(delay):
                cell.log.warning("actor failed and is started again", error=said, after=delay)
                return await self._starts_anew(error, delay)
            case supervision.Stop():
                if cell.address != cell.node.main_actor:
                    cell.log.error("actor failed and stays stopped", error=said)
                return False
            case supervision.Escalate():
                self._escalate(self._verdict(error))
                return False

    def _decide(self) -> supervision.Decision:
        if self.siblings is not None:
            return self.siblings.decide(self._cell, self._failures)
        now = self._cell.node.clock.monotonic()
        policy = self._cell.kind.supervision
        self._failures = [*supervision.counted(policy, self._failures, now), now]
        return supervision.decide(policy, self._failures, now)

    async def _starts_anew(self, error: Exception, delay: float) -> bool:
        cell = self._cell
        if cell.draining:
            self.late.append(self._verdict(error))
            return False
        self._begin()
        if self.siblings is not None:
            return await self.siblings.restart(cell, delay)
        await self.pause(delay)
        return not cell.draining

    async def _starts_with_siblings(self) -> bool:
        """Wait for its turn to start anew, after a failure that was not, or not only, its own."""
        cell = self._cell
        assert self.siblings is not None
        assert self._halting is not None
        halting, self._halting = self._halting, None
        if cell.draining:
            return False
        self._begin()
        self.siblings.join(cell)
        halting.set_result(None)
        return await self.siblings.turn(cell)

    def _begin(self) -> None:
        self.restarts += 1
        self._cell.reset_for_restart()

    def _verdict(self, error: Exception) -> ActorFailed:
        cell = self._cell
        failed = ActorFailed(cell.address, f"{cell.address} ({cell.kind.__name__}) failed; {cell.delivered.story()}")
        failed.__cause__ = error
        return failed

    def _escalate(self, failed: ActorFailed) -> None:
        cell = self._cell
        if self.siblings is not None:
            self.siblings.escalate(failed)
        elif cell.parent:
            cell.node.escalate_remote(cell.parent, failed)
        else:
            cell.node.escalate(failed)
