"""The actors that have joined the Orchestrator or a proxy, and the episodes that each of them may still send."""

from typing import Any, Literal

from pydantic.dataclasses import dataclass

from messages import ClaimRoleMsg, CollectMsg, InsertTransitionMsg
from messages.control import PAUSE
from orchestra import MailboxFull, Message, Ref, State, Unreachable

MOST_AHEAD = 16
"""Maximum credits for each environment, so that some are left for members that join later."""


async def send_downstream(ref: Ref[Any], message: Message) -> None:
    """Send `message` to an actor that has joined; drop the message if the actor is gone.

    `Ref.tell` would wait for a dead process to come back, and delay the other actors below. A watch reports the death.
    """
    try:
        ref.tell_nowait(message)
    except MailboxFull:
        await ref.tell(message)
    except Unreachable:
        return


def rejected(claim: ClaimRoleMsg, holder: Ref[Any] | None, upstream: Ref[Any]) -> str:
    """Return why `upstream` rejects a claim to the role of `holder`; empty if no other actor has the role."""
    if holder is None or holder == claim.ref:
        return ""
    who, role = claim.ref.address, claim.role.capitalize()
    return f"{who} cannot join {upstream.address}: {holder.address} is the {role} of this run, and a run has one"


@dataclass
class Member:
    """An actor that has joined: a worker, or a proxy with workers of its own."""

    ref: Ref[Any]
    workers: int
    """Workers behind it; 1 for a worker."""
    environments: int
    """Environments of these workers."""
    received: int = 0
    """Episodes received from it since it joined."""
    credit: int | None = 0
    """Episodes that it may send beyond those received; None for any number."""


class Downstream:
    """The actors that have joined, in the order of joining, and their credits.

    A *credit* is the permission, granted in advance, to send an episode. The credits of all members together never
    exceed the allowance of this actor, so that no member can send more than that, however slowly this actor answers. A
    member that leaves returns its credits. Members with fewer credits per environment get new ones first.
    """

    def __init__(self, unit: Literal["segments", "steps"] = "segments") -> None:
        self.members: dict[str, Member] = {}
        """Members by address."""
        self.unit = unit
        """What credits count."""

    @property
    def refs(self) -> dict[str, Ref[Any]]:
        """Refs by address."""
        return {address: member.ref for address, member in self.members.items()}

    @property
    def workers(self) -> int:
        """Number of workers in all."""
        return sum(member.workers for member in self.members.values())

    @property
    def environments(self) -> int:
        """Number of environments in all."""
        return sum(member.environments for member in self.members.values())

    def join(self, ref: Ref[Any], workers: int, environments: int) -> None:
        """Add an actor, or replace it if it has joined before."""
        self.members.pop(ref.address, None)
        self.members[ref.address] = Member(ref, workers, environments)

    def resize(self, address: str, workers: int, environments: int) -> None:
        """Set a member's numbers of workers and environments. A member without environments returns its credits."""
        if (member := self.members.get(address)) is not None:
            member.workers, member.environments = workers, environments
            if environments == 0:
                member.credit = 0

    def leave(self, address: str) -> bool:
        """Remove the actor at `address`; return whether it had joined."""
        return self.members.pop(address, None) is not None

    def counted(self, msg: InsertTransitionMsg) -> int:
        """Return how many credits the experience of `msg` uses up."""
        return msg.steps if self.unit == "steps" else msg.segments

    def receive(self, address: str, episodes: int) -> None:
        """Count `episodes` from the actor at `address`; ignore an actor that has left, which has no credits."""
        if (member := self.members.get(address)) is not None:
            member.received += episodes
            if member.credit is not None:
                member.credit = max(member.credit - episodes, 0)

    def revoke(self) -> None:
        """Take back all credits from members that have paused, so that the next `grant` starts from zero."""
        for member in self.members.values():
            member.credit = 0

    async def grant(self, allowance: int | None) -> None:
        """Tell the members to collect, with `allowance` credits in total, in proportion to their environments.

        If credits count segments, the share of a member is at most `MOST_AHEAD` for each environment. A member that
        has credits gets more only if these are at least a quarter of its share.

        Args:
            allowance: episodes that may be received beyond those received so far; None for any number.
        """
        free = 0 if allowance is None else allowance - sum(member.credit or 0 for member in self.members.values())
        environments = self.environments
        members = [member for member in self.members.values() if member.environments]
        for member in sorted(members, key=lambda each: (each.credit or 0) / each.environments):
            before = member.credit
            if allowance is None:
                member.credit = None
            else:
                share = -(-allowance * member.environments // environments)
                if self.unit == "segments":
                    share = min(share, MOST_AHEAD * member.environments)
                more = min(share - (before or 0), free)
                if more > 0 and (not before or 4 * more >= share):
                    member.credit = (before or 0) + more
                    free -= more
            if member.credit != before:
                await send_downstream(
                    member.ref, CollectMsg(episodes=member.credit, received=member.received, unit=self.unit)
                )

    async def pause(self) -> None:
        """Tell all members to pause, and take back their credits."""
        self.revoke()
        await self.tell(PAUSE)

    async def tell(self, *messages: Message) -> None:
        """Send `messages` to all actors."""
        for member in list(self.members.values()):
            for message in messages:
                await send_downstream(member.ref, message)

    def state(self) -> State:
        """Return the members, as plain values and refs, and the unit."""
        return {"members": [dict(vars(member)) for member in self.members.values()], "unit": self.unit}

    def load(self, state: State) -> None:
        """Continue with the members and the unit of another instance's `state`."""
        members = [Member(**each) for each in state["members"]]
        self.unit = state["unit"]
        self.members = {member.ref.address: member for member in members}
