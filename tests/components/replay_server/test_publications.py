"""Publications, their subscribers, and slow subscribers."""

import asyncio

import numpy as np
import pytest

from components.replay_buffers.closed import Closed
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import Full
from components.replay_server.publications import Publications, Subscription
from orchestra import Unreachable


def data(text):
    return np.frombuffer(text.encode(), np.uint8)


class Reader:
    """A subscriber that accepts publications once the test allows it."""

    def __init__(self, may=True):
        self.heard, self.may = [], asyncio.Event()
        if may:
            self.may.set()

    async def deliver(self, topic, data):
        await self.may.wait()
        self.heard.append((topic, data.tobytes().decode()))


async def turns(n=20):
    for _ in range(n):
        await asyncio.sleep(0)


def test_a_subscriber_gets_the_newest_publication_and_all_later_ones_in_order(run):
    async def main():
        publications, early, late = Publications(4, "block"), Reader(), Reader()
        publications.subscribe("early", "a", early.deliver)
        publications.subscribe("early", "a", early.deliver)
        publications.subscribe("early", "b", early.deliver)
        for topic, text in [("a", "1"), ("b", "2"), ("ab", "3"), ("a", "4")]:
            await publications.publish(topic, data(text))
        publications.subscribe("late", "a", late.deliver)
        await turns()
        assert early.heard == [("a", "1"), ("b", "2"), ("a", "4")]
        assert late.heard == [("a", "4")]
        await publications.unsubscribe("early", "a")
        await publications.publish("a", data("5"))
        await publications.publish("b", data("6"))
        await turns()
        assert early.heard[3:] == [("b", "6")]
        assert publications.topics == {"a", "b"}
        await publications.unsubscribe("early", "b")
        await publications.unsubscribe("nobody")
        assert publications.topics == {"a"}
        await publications.close()

    run(main())


def test_a_slow_subscriber_does_not_delay_the_others(run):
    async def main():
        publications, slow, quick = Publications(2, "drop_oldest"), Reader(may=False), Reader()
        publications.subscribe("slow", "a", slow.deliver)
        publications.subscribe("quick", "a", quick.deliver)
        for i in range(6):
            await publications.publish("a", data(str(i)))
            await turns()
        assert [text for _, text in quick.heard] == list("012345")
        slow.may.set()
        await turns()
        assert [text for _, text in slow.heard] == ["0", "5"], (
            "the first was on its way, of the others the newest is left"
        )
        assert (publications.dropped, publications.published) == (4, 6)
        await publications.close()
        assert publications.dropped == 4

    run(main())


def test_a_blocked_publisher_waits_until_a_slow_subscriber_has_room_or_leaves(run):
    async def main():
        publications, slow = Publications(2, "block"), Reader(may=False)
        publications.subscribe("slow", "a", slow.deliver)
        for i in range(2):
            await publications.publish("a", data(str(i)))
        third = asyncio.ensure_future(publications.publish("a", data("2")))
        await turns()
        assert not third.done()
        slow.may.set()
        await third
        slow.may.clear()
        for text in "34":
            await publications.publish("a", data(text))
        last = asyncio.ensure_future(publications.publish("a", data("5")))
        await turns()
        assert not last.done()
        await publications.unsubscribe("slow")
        await last
        await publications.close()

    run(main())


def test_a_publication_refused_for_one_subscriber_reaches_none(run):
    async def main():
        publications, slow, quick = Publications(1, "refuse"), Reader(may=False), Reader()
        publications.subscribe("slow", "a", slow.deliver)
        publications.subscribe("quick", "a", quick.deliver)
        await publications.publish("a", data("0"))
        await turns()
        with pytest.raises(Full, match=r"not for \['slow'\]"):
            await publications.publish("a", data("1"))
        await turns()
        assert (quick.heard, publications.refused, publications.published) == ([("a", "0")], 1, 1)
        await publications.close()

    run(main())


def test_an_unreachable_subscriber_is_no_error(run):
    async def main():
        publications = Publications(1, "block")

        async def deliver(topic, data):
            raise Unreachable("gone")

        publications.subscribe("gone", "a", deliver)
        for text in "012":
            await publications.publish("a", data(text))
        await publications.close()

    run(main())


@pytest.mark.parametrize("topic", ["", "x" * 256])
def test_topics_of_a_wrong_length_are_refused(run, topic):
    async def main():
        publications = Publications(1, "block")
        with pytest.raises(InvalidExperience, match="topic: expected 1 to 255 characters"):
            publications.subscribe("one", topic, Reader().deliver)
        with pytest.raises(InvalidExperience, match="topic: expected 1 to 255 characters"):
            await publications.publish(topic, data("0"))

    run(main())


# Subscriptions --------------------------------------------------------------------------------------------------------


def always_open():
    """Do nothing: the client is open."""


def test_with_drop_oldest_only_the_newest_publications_wait(run):
    subscription = Subscription("a", 1, "drop_oldest", always_open)

    async def main():
        for text in "012":
            await subscription.put(data(text))

    run(main())
    assert (subscription.poll(), subscription.dropped, subscription.poll()) == (b"2", 2, None)
    with pytest.raises(TimeoutError, match="nothing was published on 'a' within"):
        subscription.receive(0.0)


def test_with_refuse_publications_without_room_are_dropped(run):
    subscription = Subscription("a", 1, "refuse", always_open)

    async def main():
        for text in "012":
            await subscription.put(data(text))

    run(main())
    assert (subscription.receive(), subscription.dropped) == (b"0", 2)


def test_with_block_a_publication_waits_until_a_thread_has_read(run):
    subscription = Subscription("a", 1, "block", always_open)

    async def main():
        await subscription.put(data("0"))
        second = asyncio.ensure_future(subscription.put(data("1")))
        await turns()
        assert not second.done()
        assert await asyncio.to_thread(subscription.receive) == b"0"
        await second
        assert await asyncio.to_thread(subscription.receive) == b"1"

    run(main())


def test_closing_wakes_a_waiting_reader(run):
    closed = False

    def check_open():
        if closed:
            raise Closed("closed")

    subscription = Subscription("a", 1, "block", check_open)

    async def main():
        nonlocal closed
        reading = asyncio.ensure_future(asyncio.to_thread(subscription.receive))
        await turns()
        closed = True
        while not reading.done():
            subscription.wake()
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await reading

    run(main())
