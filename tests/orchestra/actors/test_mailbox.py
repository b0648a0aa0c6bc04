"""Mailboxes: their bounds, their lanes, and who is let in when."""

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestra import ActorStopped, Lane, MailboxFull, Message
from orchestra.actors.mailbox import Envelope, Mailbox, Queued


class NumberMsg(Message):
    n: int


class NewestMsg(Message):
    lane: ClassVar[Lane] = Lane.LATEST
    n: int


class UrgentMsg(Message):
    lane: ClassVar[Lane] = Lane.SYSTEM
    n: int


class BoundedMsg(Message):
    lane: ClassVar[Lane] = Lane.SOLICITED
    n: int


class Credit:
    """An origin that counts what was given back."""

    def __init__(self) -> None:
        self.back: list[int] = []

    def consumed(self, recipient: str, nbytes: int) -> None:
        self.back.append(nbytes)

    def answer(self, correlation: int, value: Any) -> None:
        raise AssertionError

    def fail(self, correlation: int, error: Exception) -> None:
        raise AssertionError


def queued(message: Message, sender: str = "a/x", nbytes: int = 1, origin: Any = None) -> Queued:
    envelope = None if origin is None else Envelope("here/me", sender, message, nbytes, origin=origin)
    return (sender, message, nbytes, 0, 0.0, envelope)


async def written(mailbox: Mailbox, item: Queued) -> None:
    """Write as a sender does: wait if there is no room."""
    if not mailbox.put(item):
        await mailbox.wait_for_room(item)


def taken(mailbox: Mailbox) -> list[int]:
    return [number(one) for one in mailbox.drain()]


def number(item: Queued) -> int:
    message: Any = item[1]
    return int(message.n)


def test_a_full_mailbox_lets_nothing_more_in() -> None:
    mailbox = Mailbox("here/me", capacity=2)
    assert [mailbox.put(queued(NumberMsg(n=n))) for n in range(3)] == [True, True, False]
    assert taken(mailbox) == [0, 1]


def test_bytes_bound_a_mailbox_too() -> None:
    mailbox = Mailbox("here/me", capacity=100, capacity_bytes=10)
    assert mailbox.put(queued(NumberMsg(n=0), nbytes=6))
    assert not mailbox.put(queued(NumberMsg(n=1), nbytes=5))
    assert mailbox.put(queued(NumberMsg(n=2), nbytes=4))


def test_a_message_larger_than_the_mailbox_is_let_in_once_it_is_empty() -> None:
    mailbox = Mailbox("here/me", capacity_bytes=10)
    assert mailbox.put(queued(NumberMsg(n=0), nbytes=50))
    assert not mailbox.put(queued(NumberMsg(n=1), nbytes=50))


def test_system_messages_come_first_and_always_get_in() -> None:
    mailbox = Mailbox("here/me", capacity=1)
    mailbox.put(queued(NumberMsg(n=1)))
    mailbox.close()
    assert mailbox.put(queued(UrgentMsg(n=2)))
    assert taken(mailbox) == [2, 1]


def test_a_newer_message_takes_the_place_of_an_unread_one_of_its_sender() -> None:
    mailbox = Mailbox("here/me")
    for message, sender in [
        (NewestMsg(n=1), "a/x"),
        (NumberMsg(n=2), "a/x"),
        (NewestMsg(n=3), "a/y"),
        (NewestMsg(n=4), "a/x"),
    ]:
        mailbox.put(queued(message, sender))
    assert taken(mailbox) == [4, 2, 3]


def test_a_newer_message_after_the_older_was_read_queues_anew() -> None:
    mailbox = Mailbox("here/me")
    mailbox.put(queued(NewestMsg(n=1)))
    assert taken(mailbox) == [1]
    mailbox.put(queued(NewestMsg(n=2)))
    assert taken(mailbox) == [2]


def test_replacing_a_message_needs_no_room() -> None:
    mailbox = Mailbox("here/me", capacity=1)
    mailbox.put(queued(NewestMsg(n=1)))
    assert mailbox.put(queued(NewestMsg(n=2)))
    assert taken(mailbox) == [2]


def test_what_an_actor_tells_itself_is_let_in_up_to_twice_the_bounds_and_then_refused() -> None:
    mailbox = Mailbox("here/me", capacity=2, capacity_bytes=10)
    mine = [queued(NumberMsg(n=n), sender="here/me", nbytes=2) for n in range(6)]
    assert [mailbox.put(one) for one in mine[:4]] == [True] * 4
    with pytest.raises(MailboxFull, match="here/me cannot send itself a NumberMsg: 4 of its own messages"):
        mailbox.put(mine[4])
    assert not mailbox.put(queued(NumberMsg(n=9)))
    assert taken(mailbox) == [0, 1, 2, 3]
    assert mailbox.put(queued(NumberMsg(n=5), sender="here/me", nbytes=50)), "alone, any size is let in"
    with pytest.raises(MailboxFull, match=r"1 of its own messages \(50 bytes\)"):
        mailbox.put(mine[5])


def test_what_holds_credit_is_let_in_and_credited_when_it_leaves() -> None:
    mailbox, credit = Mailbox("here/me", capacity=1), Credit()
    mailbox.put(queued(NumberMsg(n=0)))
    assert mailbox.put(queued(NumberMsg(n=1), nbytes=7, origin=credit))
    assert credit.back == []
    assert taken(mailbox) == [0, 1]
    assert credit.back == [7]


def test_a_replaced_message_is_credited_too() -> None:
    mailbox, credit = Mailbox("here/me"), Credit()
    mailbox.put(queued(NewestMsg(n=1), nbytes=3, origin=credit))
    mailbox.put(queued(NewestMsg(n=2), nbytes=4, origin=credit))
    assert credit.back == [3]


def test_writers_are_let_in_in_the_order_they_came(run: Callable[..., Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me", capacity=1)
        mailbox.put(queued(NumberMsg(n=0)))
        writers = [asyncio.create_task(written(mailbox, queued(NumberMsg(n=n)))) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        assert mailbox.statistics().waiting == 3
        order = []
        while (one := mailbox.take()) is not None:
            order.append(number(one))
            assert not mailbox.put(queued(NumberMsg(n=99))) or not mailbox.statistics().waiting
            if number(one) == 3:
                break
        await asyncio.gather(*writers)
        assert order == [0, 1, 2, 3]

    run(main())


def test_a_writer_that_gave_up_is_passed_over(run: Callable[..., Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me", capacity=1)
        mailbox.put(queued(NumberMsg(n=0)))
        first, second = (asyncio.create_task(written(mailbox, queued(NumberMsg(n=n)))) for n in (1, 2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert taken(mailbox) == [0, 2]
        await second

    run(main())


@pytest.mark.parametrize("at_once", [1, 1000])
def test_cancelled_writers_leave_nothing_behind(run: Callable[..., Any], at_once: int) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me", capacity=1)
        mailbox.put(queued(NumberMsg(n=0)))
        patient = asyncio.create_task(written(mailbox, queued(NumberMsg(n=1))))
        await asyncio.sleep(0)
        for _ in range(2000 // at_once):
            writers = [asyncio.create_task(written(mailbox, queued(NumberMsg(n=2)))) for _ in range(at_once)]
            await asyncio.sleep(0)
            for writer in writers:
                writer.cancel()
            await asyncio.wait(writers)
        assert mailbox.statistics().waiting == 1
        assert taken(mailbox) == [0, 1]
        await patient

    run(main())


def test_a_writer_that_gives_up_lets_those_behind_it_in_if_they_fit(run: Callable[..., Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me", capacity_bytes=10)
        mailbox.put(queued(NumberMsg(n=0), nbytes=6))
        large, small = (asyncio.create_task(written(mailbox, queued(NumberMsg(n=n), nbytes=n))) for n in (5, 4))
        await asyncio.sleep(0)
        assert mailbox.statistics().waiting == 2
        large.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert small.done()
        assert taken(mailbox) == [0, 4]

    run(main())


def test_an_actor_may_exceed_the_bounds_where_newest_wins_messages_are_queued() -> None:
    mailbox = Mailbox("here/me", capacity=2)
    mailbox.put(queued(NewestMsg(n=0), sender="here/me", nbytes=3))
    mailbox.put(queued(NewestMsg(n=1)))
    for n in (2, 3, 4):
        assert mailbox.put(queued(NumberMsg(n=n), sender="here/me", nbytes=3))
    with pytest.raises(MailboxFull, match=r"4 of its own messages \(12 bytes\)"):
        mailbox.put(queued(NumberMsg(n=5), sender="here/me"))
    assert taken(mailbox) == [0, 1, 2, 3, 4]


def test_what_its_receiver_has_bounded_is_let_in_in_order() -> None:
    mailbox = Mailbox("here/me", capacity=1)
    messages = [NumberMsg(n=0), BoundedMsg(n=1), BoundedMsg(n=2), NumberMsg(n=3)]
    assert [mailbox.put(queued(message)) for message in messages] == [True, True, True, False]
    assert taken(mailbox) == [0, 1, 2]


def test_what_others_told_takes_no_room_from_what_an_actor_tells_itself() -> None:
    mailbox = Mailbox("here/me", capacity=2)
    for n in range(5):
        mailbox.put(queued(NumberMsg(n=n), origin=Credit()))
    for n in (5, 6, 7, 8):
        assert mailbox.put(queued(NumberMsg(n=n), sender="here/me"))
    with pytest.raises(MailboxFull, match=r"here/me cannot send itself a NumberMsg: 4 of its own messages \(4 bytes\)"):
        mailbox.put(queued(NumberMsg(n=9), sender="here/me"))
    assert taken(mailbox) == list(range(9))


def test_closing_turns_waiting_writers_away_and_keeps_what_is_queued(run: Callable[..., Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me", capacity=1)
        mailbox.put(queued(NumberMsg(n=0)))
        writer = asyncio.create_task(written(mailbox, queued(NumberMsg(n=1))))
        await asyncio.sleep(0)
        mailbox.close()
        with pytest.raises(ActorStopped, match="here/me stopped while its mailbox was full"):
            await writer
        with pytest.raises(ActorStopped, match="here/me has stopped"):
            mailbox.put(queued(NumberMsg(n=2)))
        assert taken(mailbox) == [0]

    run(main())


def test_a_reader_wakes_when_something_comes(run: Callable[..., Any]) -> None:
    async def main() -> None:
        mailbox = Mailbox("here/me")
        reader = mailbox.news(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert mailbox.idle
        mailbox.put(queued(NumberMsg(n=1)))
        assert not mailbox.idle
        await reader
        assert taken(mailbox) == [1]

    run(main())


@pytest.mark.parametrize(("capacity", "capacity_bytes"), [(0, 1), (1, 0)])
def test_a_mailbox_without_room_is_refused(capacity: int, capacity_bytes: int) -> None:
    with pytest.raises(ValueError, match="a mailbox holds at least one message"):
        Mailbox("here/me", capacity, capacity_bytes)


class Model(RuleBasedStateMachine):
    """A mailbox against two lists."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox = Mailbox("here/me", capacity=4, capacity_bytes=20)
        self.system: list[int] = []
        self.ordered: list[tuple[str, int, int]] = []  # the sender if newest wins, the number, the bytes
        self.n = 0
        self.credit = Credit()
        self.credited: dict[int, int] = {}  # by the number of the last message of a batch, its bytes

    def fits(self, nbytes: int) -> bool:
        held = sum(size for _, _, size in self.ordered)
        return len(self.ordered) < 4 and (not self.ordered or held + nbytes <= 20)

    @rule(nbytes=st.integers(1, 30))
    def put(self, nbytes: int) -> None:
        self.n += 1
        fits = self.fits(nbytes)
        assert self.mailbox.put(queued(NumberMsg(n=self.n), nbytes=nbytes)) is fits
        if fits:
            self.ordered.append(("", self.n, nbytes))

    @rule(nbytes=st.integers(1, 30))
    def append(self, nbytes: int) -> None:
        self.n += 1
        fits = len(self.ordered) < 4 and sum(size for _, _, size in self.ordered) + nbytes <= 20
        assert self.mailbox.append(queued(NumberMsg(n=self.n), nbytes=nbytes)) is fits
        if fits:
            self.ordered.append(("", self.n, nbytes))

    @rule(sender=st.sampled_from(["a/x", "a/y"]), nbytes=st.integers(1, 30))
    def put_newest(self, sender: str, nbytes: int) -> None:
        self.n += 1
        at = next((i for i, (who, _, _) in enumerate(self.ordered) if who == sender), None)
        fits = at is not None or self.fits(nbytes)
        assert self.mailbox.put(queued(NewestMsg(n=self.n), sender, nbytes)) is fits
        if at is not None:
            self.ordered[at] = (sender, self.n, nbytes)
        elif fits:
            self.ordered.append((sender, self.n, nbytes))

    @rule(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5))
    def put_batch(self, sizes: list[int]) -> None:
        """A batch from a connection: beyond the bounds, with the credit of all at its last message."""
        batch = [queued(NumberMsg(n=self.n + i), nbytes=nbytes) for i, nbytes in enumerate(sizes, start=1)]
        batch[-1] = queued(batch[-1][1], nbytes=sizes[-1], origin=self.credit)
        self.mailbox.put_batch(batch, sum(sizes))
        self.ordered += [("", self.n + i, nbytes) for i, nbytes in enumerate(sizes, start=1)]
        self.n += len(sizes)
        self.credited[self.n] = sizes[-1]

    @rule()
    def put_urgent(self) -> None:
        self.n += 1
        assert self.mailbox.put(queued(UrgentMsg(n=self.n)))
        self.system.append(self.n)

    @precondition(lambda self: self.system or self.ordered)
    @rule()
    def get(self) -> None:
        expected = self.system.pop(0) if self.system else self.ordered.pop(0)[1]
        before = len(self.credit.back)
        one = self.mailbox.take()
        assert one is not None
        assert number(one) == expected
        assert self.credit.back[before:] == ([self.credited[expected]] if expected in self.credited else [])

    @invariant()
    def account(self) -> None:
        statistics = self.mailbox.statistics()
        assert statistics.depth == len(self.system) + len(self.ordered)
        assert statistics.nbytes == sum(size for _, _, size in self.ordered)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
