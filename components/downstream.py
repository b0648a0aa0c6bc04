"""The actors that have joined the Orchestrator or a proxy; the death of one neither delays nor fails the sender."""

from typing import Any

from messages import ClaimRoleMsg
from orchestra import MailboxFull, Message, Ref, Unreachable


async def send_downstream(ref: Ref[Any], message: Message) -> None:
    """Tell an actor that has joined `message`; drop the message if the actor is gone.

    `Ref.tell` would wait for a dead process to come back, and delay the other actors below. A watch reports the death.
    """
    try:
        ref.tell_nowait(message)
    except MailboxFull:
        await ref.tell(message)
    except Unreachable:
        return


def rejected(claim: ClaimRoleMsg, holder: Ref[Any] | None, upstream: Ref[Any]) -> str:
    """Return why `upstream` rejects a claim to the role of `holder`; empty if it does not, as nobody else has it."""
    if holder is None or holder == claim.ref:
        return ""
    who, role = claim.ref.address, claim.role.capitalize()
    return f"{who} cannot join {upstream.address}: {holder.address} is the {role} of this run, and a run has one"


class Downstream:
    """The actors that have joined, in the order of joining, with their numbers of workers."""

    def __init__(self) -> None:
        self.refs: dict[str, Ref[Any]] = {}
        """Refs by address."""
        self.each: dict[str, int] = {}
        """Numbers of workers by address: 1 for a worker, any number for a proxy."""

    @property
    def workers(self) -> int:
        """Number of workers in all."""
        return sum(self.each.values())

    def join(self, ref: Ref[Any], workers: int) -> None:
        """Add an actor, or replace it if it has joined before."""
        self.refs[ref.address] = ref
        self.each[ref.address] = workers

    def leave(self, address: str) -> bool:
        """Remove the actor at `address`; return whether it had joined."""
        if self.refs.pop(address, None) is None:
            return False
        self.each.pop(address, None)
        return True

    async def tell(self, *messages: Message) -> None:
        """Send `messages` to all actors."""
        for ref in self.refs.values():
            for message in messages:
                await send_downstream(ref, message)
