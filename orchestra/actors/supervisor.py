"""The children of an actor: which of them start anew together, in which order, and how they stop."""

import asyncio
from typing import TYPE_CHECKING, Any

from orchestra.actors import supervision
from orchestra.actors.envelope import node_of
from orchestra.actors.supervision import OneForOne
from orchestra.actors.system_messages import SYSTEM, ChildFailedMsg, StopActorMsg, TerminatedMsg
from orchestra.errors import ActorFailed, OrchestraError

if TYPE_CHECKING:
    from orchestra.actors.cell import Cell

STOP_S = 10.0
"""How long an actor may take to stop, or to end for a restart, before its handler is broken off."""


class Children:
    """The children of one incarnation of an actor, oldest first.

    Under `AllForOne` and `RestForOne` a failure begins a *round*: the siblings concerned end, the youngest first, each
    after the message it has in hand; then, after the backoff, they start in the order of spawning, each once `started`
    of the one before has returned. One that fails on the way begins anew; a failure elsewhere joins the round.
    """

    def __init__(self, parent: "Cell", expected: set[str] | None = None) -> None:
        self.expected = set() if expected is None else expected
        """Those on other nodes of whose end the parent need not be told: it stopped them, or they failed it. An
        incarnation leaves them to the next."""
        self._parent = parent
        self._strategy = parent.kind.children_strategy
        self._cells: list[Cell] = []
        self._remote: list[str] = []
        self._failures: list[float] = []
        self._escalated: list[ActorFailed] = []
        self._round: list[Cell] = []
        self._holds = 0

    def add(self, cell: "Cell") -> None:
        """Take note of a new child."""
        self._cells = [*(other for other in self._cells if not other.terminated.done()), cell]

    def add_remote(self, address: str) -> None:
        """Take note of a new child on another node; one that is on this node is a child already."""
        if node_of(address) != self._parent.node.name:
            self._remote.append(address)
            self.expected.discard(address)  # what was said of the end of the last of that name has arrived before this

    def is_news(self, address: str) -> bool:
        """Whether the parent, which watches it, should be told that the actor at `address` is gone."""
        if address in self.expected:
            self.expected.remove(address)
            return False
        return True

    def forget_remote(self, address: str) -> None:
        """Take note that a child on another node is gone, if it was one."""
        if address in self._remote:
            self._remote.remove(address)

    async def stop(self) -> list[ActorFailed]:
        """Stop all, those on other nodes first, then the youngest first; return what failed on the way."""
        far, self._remote = self._remote, []
        self.expected.update(far)
        for address in reversed(far):
            self._escalated += await self._stop_remote(address)
        for child in reversed(self._cells):
            if not child.terminated.done():
                self._escalated += await self._parent.node.stop_cell(child)
        failed, self._escalated = self._escalated, []
        return failed

    def request_stop(self) -> None:
        """Have all stop, without waiting for it."""
        for child in reversed(self._cells):
            child.request_stop()

    # Failures

    def decide(self, child: "Cell", own: list[float]) -> supervision.Decision:
        """Decide about a failure of `child` that happened now; `own` are the times of those before."""
        now = self._parent.node.clock.monotonic()
        policy = self._strategy.policy
        failures = own if policy is None else self._failures
        policy = policy or child.kind.supervision
        failures[:] = [*supervision.counted(policy, failures, now), now]
        return supervision.decide(policy, failures, now)

    def escalate(self, failed: ActorFailed) -> None:
        """Fail the parent, as soon as it has handled the message in hand."""
        self._escalated.append(failed)
        self._parent.child_failed(failed.address)

    def raise_escalated(self, message: ChildFailedMsg) -> None:
        """Raise what was escalated since the last call, if anything; of a child on another node `message` says it."""
        failed, self._escalated = self._escalated, []
        if message.address in self._remote:
            self._remote.remove(message.address)
            self.expected.add(message.address)
            failed.append(ActorFailed(message.address, message.reason))
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise ExceptionGroup(f"children of {self._parent.address} failed", failed)

    def on_terminated(self, message: TerminatedMsg) -> None:
        """Take note that an actor that was watched is gone; raise if it was a child, lost with its node."""
        if message.address in self._remote:
            self._remote.remove(message.address)
            if message.lost:
                raise ActorFailed(message.address, f"{message.address}, a child, is lost: {message.reason}")

    # Starting anew

    async def restart(self, failed: "Cell", delay: float) -> bool:
        """Wait until `failed` may start anew, with all that start anew with it; return false if it stops instead."""
        if isinstance(self._strategy, OneForOne):
            await failed.life.pause(delay)
            return not failed.draining
        self._holds += 1
        try:
            self.join(failed)
            for sibling in reversed(self._restarted_with(failed)):
                if sibling not in self._round:
                    await self._halt(sibling)
            await failed.life.pause(delay)
        finally:
            self._holds -= 1
            self._wake_next()
        return await self.turn(failed)

    async def turn(self, child: "Cell") -> bool:
        """Wait until it is the turn of `child` in the round; return false if it stops instead."""
        self.join(child)
        while not (child.draining or (self._holds == 0 and self._round[0] is child)):
            await child.life.pause()
        return not child.draining

    def leave(self, child: "Cell") -> None:
        """Take note that `child` is up again, or gone: the next one's turn has come."""
        if child in self._round:
            self._round.remove(child)
            self._wake_next()

    def join(self, child: "Cell") -> None:
        """Take note that `child` waits in the round."""
        if child not in self._round:
            self._round = [cell for cell in self._cells if cell is child or cell in self._round]

    def _wake_next(self) -> None:
        if self._holds == 0 and self._round:
            self._round[0].life.wake()

    def _restarted_with(self, failed: "Cell") -> list["Cell"]:
        there = [cell for cell in self._cells if cell is failed or not cell.stopping]
        chosen = supervision.restarted_with(self._strategy, there.index(failed), len(there))
        return [there[position] for position in chosen]

    async def _stop_remote(self, address: str) -> list[ActorFailed]:
        parent = self._parent
        if parent.node.peers.find(node_of(address)) is None:
            return []  # its node is lost, and it ends by itself
        try:
            async with asyncio.timeout(3 * STOP_S):  # its own node gives it less, to stop and then to be aborted
                said = await parent.node.asks.ask(
                    parent.address, f"{node_of(address)}/{SYSTEM}", StopActorMsg(address=address), (parent.address,)
                )
        except (OrchestraError, TimeoutError) as error:
            # The child watches its parent, and ends by itself.
            level = parent.log.info if parent.node.stopping else parent.log.warning
            level("a child on another node cannot be stopped", address=address, reason=str(error))
            return []
        return [ActorFailed(address, text) for text in said]

    async def _halt(self, sibling: "Cell") -> None:
        """Have the incarnation of `sibling` end; break its handler off if it takes too long, then abort it."""
        ended: set[asyncio.Future[Any]] = {sibling.life.halt(), sibling.terminated}
        for too_slow in (sibling.life.interrupt, sibling.abort):
            done, _ = await asyncio.wait(ended, timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            sibling.log.warning("a sibling failed, and this actor does not end in time", seconds=STOP_S)
            too_slow()
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
