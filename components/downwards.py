"""Down to whoever has joined: somebody who dies there must not hold up, or take along, those above."""

from typing import Any

from orchestra import MailboxFull, Message, Ref, Unreachable


async def pass_down(ref: Ref[Any], message: Message) -> None:
    """Tell somebody who has joined `message`, or nobody, if they are gone: who watches them hears of that anyway.

    To `tell` would be to wait for a process that died to come back, with everybody else waiting too.
    """
    try:
        ref.tell_nowait(message)
    except MailboxFull:
        await ref.tell(message)
    except Unreachable:
        return
