"""Down to whoever has joined: somebody who dies there must not hold up, or take along, those above."""

from typing import Any

from orchestra import MailboxFull, Message, Ref, Unreachable


async def send_downstream(ref: Ref[Any], message: Message) -> None:
    """Tell somebody who has joined `message`, or nobody, if they are gone: who watches them hears of that anyway.

    To `tell` would be to wait for a process that died to come back, with everybody else waiting too.
    """
    try:
        ref.tell_nowait(message)
    except MailboxFull:
        await ref.tell(message)
    except Unreachable:
        return


class Downstream:
    """Those who have joined, in the order in which they did, and how many workers each one brings along."""

    def __init__(self) -> None:
        self.refs: dict[str, Ref[Any]] = {}
        """By address."""
        self.each: dict[str, int] = {}
        """Workers, by the same."""

    @property
    def workers(self) -> int:
        """How many there are in all."""
        return sum(self.each.values())

    @property
    def players(self) -> list[Ref[Any]]:
        """Those with a worker, so that they can play a test."""
        return [ref for address, ref in self.refs.items() if self.each[address]]

    def join(self, ref: Ref[Any], workers: int) -> None:
        """Take note of one who has joined, again perhaps."""
        self.refs[ref.address] = ref
        self.each[ref.address] = workers

    def leave(self, address: str) -> bool:
        """Forget the one at `address`; return whether there was one."""
        if self.refs.pop(address, None) is None:
            return False
        self.each.pop(address, None)
        return True

    async def tell(self, *messages: Message) -> None:
        """Pass `messages` down to all."""
        for ref in self.refs.values():
            for message in messages:
                await send_downstream(ref, message)
