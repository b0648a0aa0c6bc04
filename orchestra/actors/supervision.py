"""Supervision: pure decisions about failures, without clock or task.

The *policy* of an actor decides what follows its failure: `Restart`, `Stop` or `Escalate`. The *strategy* of its parent
decides which siblings restart with it: `OneForOne`, `AllForOne` or `RestForOne`. The terms are those of Erlang/OTP.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restart:
    """Make a new actor with the same factory and mailbox. The message that failed is not retried.

    More than `limit` failures within `within` seconds escalate. The n-th failure in that window waits
    `backoff * 2**(n-1)` seconds, at most `backoff_max`.
    """

    limit: int = 3
    within: float = 60.0
    backoff: float = 0.1
    backoff_max: float = 5.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the actor and notify its watchers; all others continue."""


@dataclass(frozen=True, slots=True)
class Escalate:
    """Fail the parent, whose own policy then decides; without a parent, the whole node."""


Supervision = Restart | Stop | Escalate


@dataclass(frozen=True, slots=True)
class Strategy(ABC):
    """Decides which children of an actor restart together."""

    policy: Supervision | None = None
    """The policy for a failure of any child, counted over all children. None uses the policy of each child's class,
    and counts each child alone."""

    @abstractmethod
    def restarted_with(self, failed: int, count: int) -> range:
        """Return the positions of the children to restart, oldest first, `failed` among them, of `count` in all."""


class OneForOne(Strategy):
    """Restart only the child that failed."""

    def restarted_with(self, failed: int, count: int) -> range:
        return range(failed, failed + 1)


class AllForOne(Strategy):
    """Restart all children together: for children that share one state."""

    def restarted_with(self, failed: int, count: int) -> range:
        return range(count)


class RestForOne(Strategy):
    """Restart the failed child and those spawned after it: for a chain in which each depends on the one before."""

    def restarted_with(self, failed: int, count: int) -> range:
        return range(failed, count)


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """The decision to restart after `delay` seconds."""

    delay: float


Decision = RestartAfter | Stop | Escalate


def decide(policy: Supervision, failures: Sequence[float], now: float) -> Decision:
    """Decide about the newest of `failures`, the times in seconds of all failures that count together."""
    match policy:
        case Stop() | Escalate():
            return policy
        case Restart(limit, _, backoff, backoff_max):
            recent = len(counted(policy, failures, now))
            if recent > limit:
                return Escalate()
            doublings = min(max(recent, 1) - 1, 60)  # enough for any wait, and no float overflows
            return RestartAfter(min(backoff * 2.0**doublings, backoff_max))


def counted(policy: Supervision, failures: Sequence[float], now: float) -> list[float]:
    """Return the `failures` that still count."""
    if not isinstance(policy, Restart):
        return []
    return [failure for failure in failures if failure > now - policy.within]
