"""Children of an actor: which of them restart together, in which order, and how they stop."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from orchestra.actors import supervision
from orchestra.actors.actor import Actor
from orchestra.actors.addresses import node_of
from orchestra.actors.recorder import Recorder
from orchestra.actors.supervision import OneForOne, Strategy
from orchestra.actors.system_messages import ChildFailedMsg, TerminatedMsg
from orchestra.clock import Clock
from orchestra.errors import ActorFailed

STOP_S = 10.0
"""Seconds an actor may take to stop, or to end for a restart, before its handler is interrupted."""


class Restarting(Protocol):
    """The restarts of a child."""

    async def pause(self, delay: float | None = None) -> None:
        """Wait for `resume`, at most `delay` seconds. A stop resumes."""

    def resume(self) -> None:
        """End a pause."""

    def halt(self) -> asyncio.Future[None]:
        """End the incarnation after the current message; the future is done once it has ended."""

    def interrupt(self) -> None:
        """Cancel the handler and end the incarnation."""


class Child(Protocol):
    """A cell as its parent's `Children` see it."""

    address: str
    kind: type[Actor[Any]]
    log: FilteringBoundLogger
    recorder: Recorder | None
    """Its recorder, if it is recorded."""
    terminated: asyncio.Future[str]
    """Done, with the reason, once the actor is gone for good."""
    draining: bool
    """True once a graceful stop was requested."""

    @property
    def stopping(self) -> bool:
        """True once its mailbox is closed."""

    def request_stop(self, *, graceful: bool = True) -> None:
        """Stop, without waiting for it."""

    async def stop(self, deadline: float = STOP_S) -> list[ActorFailed]:
        """Stop gracefully, abort after `deadline` seconds; return the failures on the way."""

    @property
    def restarts(self) -> Restarting: ...


@dataclass(eq=False, repr=False)
class Children:
    """The children of one incarnation of an actor, oldest first.

    Under `AllForOne` and `RestForOne` a failure begins a *round*: the siblings concerned end, youngest first, each
    after its current message. After the backoff they start in the order of spawning, each once `started` of the one
    before has returned. A sibling that fails during the round restarts in it; other failures join the round.
    """

    parent: str
    """The address of the actor."""
    strategy: Strategy
    """Decides which children restart together."""
    clock: Clock
    """The runtime's. The parent's own clock may be recorded, and these decisions are not the parent's."""
    fail_parent: Callable[[ActorFailed], None]
    """Fails the actor, after its current message, with a failure of a child."""
    stop_remote: Callable[[str], Awaitable[list[ActorFailed]]]
    """Stops a child on another node; returns the failures on the way."""
    expected: set[str] = field(default_factory=set)
    """Remote children whose end is no news to the parent: it stopped them, or they failed it. The next incarnation
    takes them over."""
    _children: list[Child] = field(default_factory=list, init=False)
    _remote: list[str] = field(default_factory=list, init=False)
    _failures: list[float] = field(default_factory=list, init=False)
    _escalated: list[ActorFailed] = field(default_factory=list, init=False)
    _round: list[Child] = field(default_factory=list, init=False)
    _holds: int = field(default=0, init=False)

    def add(self, child: Child) -> None:
        """Add a new child."""
        self._children = [*(other for other in self._children if not other.terminated.done()), child]

    def add_remote(self, address: str) -> None:
        """Add a new child on another node. A child on this node was added when it started."""
        if node_of(address) != node_of(self.parent):
            self._remote.append(address)
            self.expected.discard(address)  # messages about an earlier child of that name have arrived before this

    def is_news(self, address: str) -> bool:
        """Return whether the parent, which watches the actor at `address`, should learn of its end."""
        if address in self.expected:
            self.expected.remove(address)
            return False
        return True

    def forget_remote(self, address: str) -> None:
        """Remove a child on another node, if it is one."""
        if address in self._remote:
            self._remote.remove(address)

    async def stop(self) -> list[ActorFailed]:
        """Stop all: remote children first, then the others, youngest first. Return the failures on the way."""
        remote, self._remote = self._remote, []
        self.expected.update(remote)
        for address in reversed(remote):
            self._escalated += await self.stop_remote(address)
        for child in reversed(self._children):
            if not child.terminated.done():
                self._escalated += await child.stop()
        failed, self._escalated = self._escalated, []
        return failed

    def request_stop(self) -> None:
        """Stop all, without waiting for it."""
        for child in reversed(self._children):
            child.request_stop()

    # Failures

    def decide(self, child: Child, own: list[float]) -> supervision.Decision:
        """Decide about a failure of `child`. `own` holds the times of its earlier failures, and gets this one."""
        now = self.clock.monotonic()
        policy = self.strategy.policy
        failures = own if policy is None else self._failures
        policy = policy or child.kind.supervision
        failures[:] = [*supervision.counted(policy, failures, now), now]
        return supervision.decide(policy, failures, now)

    def escalate(self, failed: ActorFailed) -> None:
        """Fail the parent after its current message."""
        self._escalated.append(failed)
        self.fail_parent(failed)

    def raise_escalated(self, message: ChildFailedMsg) -> None:
        """Raise the failures escalated since the last call, and that of a remote child as `message` reports it."""
        failed, self._escalated = self._escalated, []
        if message.address in self._remote:
            self._remote.remove(message.address)
            failed.append(ActorFailed(message.address, message.reason))
        if len(failed) == 1:
            raise failed[0]
        if failed:
            raise ExceptionGroup(f"children of {self.parent} failed", failed)

    def on_terminated(self, message: TerminatedMsg) -> None:
        """Remove a watched actor that has ended. Raise `ActorFailed` for a child lost with its node."""
        if message.address in self._remote:
            self._remote.remove(message.address)
            if message.lost:
                raise ActorFailed(message.address, f"{message.address}, a child, is lost: {message.reason}")

    # Restarts

    async def restart(self, failed: Child, delay: float) -> bool:
        """Wait until `failed` may start again, together with its siblings; return false if it stops instead."""
        if isinstance(self.strategy, OneForOne):
            await failed.restarts.pause(delay)
            return not failed.draining
        self._holds += 1
        try:
            self.join(failed)
            for sibling in reversed(self._restarted_with(failed)):
                if sibling not in self._round:
                    await self._halt(sibling)
            await failed.restarts.pause(delay)
        finally:
            self._holds -= 1
            self._wake_next()
        return await self.turn(failed)

    async def turn(self, child: Child) -> bool:
        """Wait for the turn of `child` in the round; return false if it stops instead."""
        self.join(child)
        while not (child.draining or (self._holds == 0 and self._round[0] is child)):
            await child.restarts.pause()
        return not child.draining

    def leave(self, child: Child) -> None:
        """Remove `child`, which has started or is gone, from the round; the next one has its turn."""
        if child in self._round:
            self._round.remove(child)
            self._wake_next()

    def join(self, child: Child) -> None:
        """Add `child` to the round."""
        if child not in self._round:
            self._round = [each for each in self._children if each is child or each in self._round]

    def _wake_next(self) -> None:
        if self._holds == 0 and self._round:
            self._round[0].restarts.resume()

    def _restarted_with(self, failed: Child) -> list[Child]:
        there = [child for child in self._children if child is failed or not child.stopping]
        chosen = self.strategy.restarted_with(there.index(failed), len(there))
        return [there[position] for position in chosen]

    async def _halt(self, sibling: Child) -> None:
        """End the incarnation of `sibling`; interrupt it if it takes too long, then abort it."""
        ended: set[asyncio.Future[Any]] = {sibling.restarts.halt(), sibling.terminated}
        for too_slow in (sibling.restarts.interrupt, lambda: sibling.request_stop(graceful=False)):
            done, _ = await asyncio.wait(ended, timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            sibling.log.warning("a sibling failed, and this actor does not end in time", seconds=STOP_S)
            too_slow()
        await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
