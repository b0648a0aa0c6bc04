"""What to do about a failure: pure decisions, no clock and no task inside.

What happens to the actor that failed is its *policy*: `Restart`, `Stop` or `Escalate`. Which of its siblings start anew
with it is the *strategy* of their parent: `OneForOne`, `AllForOne` or `RestForOne`. The terms are those of Erlang/OTP.
"""

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
    """Fail whoever is above: the parent, whose own policy then decides; above an actor without one, the whole node."""


Supervision = Restart | Stop | Escalate


@dataclass(frozen=True, slots=True)
class OneForOne:
    """Only the child that failed starts anew."""

    policy: Supervision | None = None
    """What to do about the failure of any child, counted over all children together. None leaves that to the class of
    each child, and counts for each child alone."""


@dataclass(frozen=True, slots=True)
class AllForOne:
    """All children start anew when one does: for those that hold parts of one state."""

    policy: Supervision | None = None
    """As in `OneForOne`."""


@dataclass(frozen=True, slots=True)
class RestForOne:
    """The children spawned after the one that failed start anew with it: for a chain, each built on the one before."""

    policy: Supervision | None = None
    """As in `OneForOne`."""


Strategy = OneForOne | AllForOne | RestForOne


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """The decision to restart, and how long to wait before it."""

    delay: float


Decision = RestartAfter | Stop | Escalate


def decide(policy: Supervision, failures: Sequence[float], now: float) -> Decision:
    """Decide about the newest of `failures`, given as the times (seconds) of all that count together."""
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
    """Return those of `failures` that still count: the others may be forgotten."""
    if not isinstance(policy, Restart):
        return []
    return [failure for failure in failures if failure > now - policy.within]


def restarted_with(strategy: Strategy, failed: int, count: int) -> range:
    """Return which of `count` children start anew when the one at `failed` does, itself included, oldest first."""
    match strategy:
        case OneForOne():
            return range(failed, failed + 1)
        case AllForOne():
            return range(count)
        case RestForOne():
            return range(failed, count)
