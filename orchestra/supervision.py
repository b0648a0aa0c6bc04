"""What to do about a failure: pure decisions, no clock and no task inside."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restart:
    """Make a new actor from the same recipe, with the same mailbox; the message that failed is not tried again.

    More than `limit` failures within `within` seconds escalate. The n-th failure in that window waits
    `backoff * 2**(n-1)` seconds, at most `backoff_max`.
    """

    limit: int = 3
    within: float = 60.0
    backoff: float = 0.1
    backoff_max: float = 5.0


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the actor; its watchers hear of it, the rest goes on."""


@dataclass(frozen=True, slots=True)
class Escalate:
    """Fail the whole node: the exception leaves `Node.running()`."""


Supervision = Restart | Stop | Escalate


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """The decision to restart, and how long to wait before it."""

    delay: float


Decision = RestartAfter | Stop | Escalate


def decide(policy: Supervision, failures: Sequence[float], now: float) -> Decision:
    """Decide about the newest of `failures`, given as the times (seconds) at which this actor failed."""
    match policy:
        case Stop() | Escalate():
            return policy
        case Restart(limit, within, backoff, backoff_max):
            recent = sum(1 for failure in failures if failure > now - within)
            if recent > limit:
                return Escalate()
            return RestartAfter(min(backoff * 2.0 ** (max(recent, 1) - 1), backoff_max))
