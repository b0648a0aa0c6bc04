"""An actor that sends reminders, and its test with a manual clock."""

import asyncio

from orchestra import Actor, Message, Node, Ref, on
from orchestra.testing import ManualClock, Probe, settle


class RemindMsg(Message):
    """A request to be reminded after some seconds."""

    text: str
    seconds: float


class ReminderMsg(Message):
    """A reminder that is due."""

    text: str


class Reminder(Actor[RemindMsg | ReminderMsg]):
    """Sends each reminder when it is due."""

    def __init__(self, to: Ref[ReminderMsg]) -> None:
        self._to = to

    @on(RemindMsg)
    def remind(self, msg: RemindMsg) -> None:
        self.after(msg.seconds, ReminderMsg(text=msg.text))

    @on(ReminderMsg)
    async def due(self, msg: ReminderMsg) -> None:
        await self._to.tell(msg)


async def reminders() -> None:
    """Request two reminders, advance the clock, and check what is sent."""
    clock = ManualClock()
    async with Node("here", clock=clock).running() as node:
        listener = Probe(ReminderMsg)
        reminder = node.spawn("reminder", Reminder, listener.start(node, "listener"))
        await reminder.tell(RemindMsg(text="tea", seconds=180.0))
        await reminder.tell(RemindMsg(text="eggs", seconds=300.0))
        await settle(node)
        clock.advance(200.0)
        assert await listener.heard(ReminderMsg) == [ReminderMsg(text="tea")]
        clock.advance(100.0)
        await settle(node)
        assert listener.messages[1:] == [ReminderMsg(text="eggs")]


def test_reminders_are_sent_when_they_are_due() -> None:
    asyncio.run(reminders())
