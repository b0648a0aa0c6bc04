"""Coordinator without a network: inserts wait for samples, samples for inserts and for the items of clients."""

import asyncio
import re
from functools import partial

import numpy as np
import pytest

from components.replay_buffers import Field
from components.replay_buffers.federated import FederatedReplay
from components.replay_buffers.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay_buffers.limiter import SampleToInsertRatio
from components.replay_server.bounded_queue import Full
from components.replay_server.coordinator import Coordinator
from components.replay_server.layouts import Layout
from components.replay_server.server import ReplayServer
from orchestra import Unreachable

FIELDS = {"item": Field(np.int64), "reward": Field(np.float32, finite=True)}
NONE = np.zeros(0)


def layout(capacity=256, **options):
    return Layout(FIELDS, capacity, **{"chunk": 4, "alpha": 1.0, "epsilon": 0.0} | options)


def make(limiter=None, **options):
    given = options.pop("layout", None) or layout()
    union = partial(FederatedReplay, given.sample_fields)
    return Coordinator(given, union, limiter=limiter, rng=np.random.default_rng(3), **{"max_waiting": 8} | options)


def rows(*items):
    return {"item": np.array(items, np.int64), "reward": np.array(items, np.float32)}


def join(coordinator, name):
    coordinator.join(name)
    return coordinator.member(name)


async def turns(n=20):
    for _ in range(n):
        await asyncio.sleep(0)


class Far:
    """A client that keeps its own buffer, and answers once the test allows it."""

    def __init__(self, coordinator, name, *items):
        self.memory, self.rng, self.may = coordinator.layout.new_buffer(), np.random.default_rng(7), asyncio.Event()
        self.asked, self.error = [], None
        coordinator.join(name, self)
        if items:
            self.memory.insert(rows(*items))
        coordinator.receive(name, self.memory.share(0, self.rng))

    async def draw(self, n, route):
        if len(route[0]):
            self.memory.update(*route)
        if n:
            self.asked.append(n)
            await self.may.wait()
        if self.error is not None:
            raise self.error
        return self.memory.share(n, self.rng), ""


def test_inserted_entries_are_sampled_by_priority(run):
    async def main():
        coordinator = make()
        join(coordinator, "one")
        await coordinator.insert("one", rows(1, 2, 3), np.array([0.0, 1.0, 1.0]))
        sampled = await coordinator.sample(64)
        assert set(sampled.batch["item"]) == {2, 3}
        assert sampled.clients == ("one",) * 64
        coordinator.update(sampled, np.where(sampled.batch["item"] == 2, 0.0, 5.0))
        await turns()
        assert coordinator.union.clients == {"one": 5.0}
        assert set((await coordinator.sample(64)).batch["item"]) == {3}
        await coordinator.close()

    run(main())


def test_a_batch_waits_for_the_first_entries(run):
    async def main():
        coordinator = make()
        join(coordinator, "one")
        batch = asyncio.ensure_future(coordinator.sample(2))
        await turns()
        assert not batch.done()
        await coordinator.insert("one", rows(4), NONE)
        assert (await batch).batch["item"].tolist() == [4, 4]

    run(main())


def test_inserts_wait_for_samples_in_their_order_and_samples_for_inserts(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 4, 4.0, insert_size=4))
        join(coordinator, "one")
        join(coordinator, "other")
        order = []

        async def insert(client, *items):
            await coordinator.insert(client, rows(*items), NONE)
            order.append(client)

        await insert("one", 0, 1, 2, 3)
        await insert("one", 4, 5, 6, 7)  # diff is 8, the most
        tasks = [asyncio.ensure_future(insert(name, 1, 2)) for name in ("other", "one")]
        await turns()
        assert order == ["one", "one"]
        await coordinator.sample(2)
        await turns()
        assert order == ["one", "one", "other"]
        await coordinator.sample(2)
        await asyncio.gather(*tasks)
        assert (coordinator.limiter.inserted, coordinator.limiter.sampled) == (12, 4)
        for _ in range(2):
            await coordinator.sample(4)
        with pytest.raises(TimeoutError, match=r"no batch of 4 within 0.0 s: the limiter does not allow it"):
            await coordinator.sample(4, 0.0)

    run(main())


def test_a_cancelled_insert_leaves_the_queue(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 1, 8.0, insert_size=4))
        join(coordinator, "one")
        for _ in range(2):
            await coordinator.insert("one", rows(1, 2, 3, 4), NONE)
        given_up = asyncio.ensure_future(coordinator.insert("one", rows(5, 6), NONE))
        waiting = asyncio.ensure_future(coordinator.insert("one", rows(7, 8), NONE))
        await turns()
        given_up.cancel()
        await turns()
        assert not waiting.done()
        await coordinator.sample(2)
        await waiting
        assert coordinator.limiter.inserted == 10

    run(main())


def test_the_limiter_can_be_replaced_while_requests_wait_for_it(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 100, 200.0))
        join(coordinator, "one")
        await coordinator.insert("one", rows(1), NONE)
        batch = asyncio.ensure_future(coordinator.sample(1))
        await turns()
        assert not batch.done()
        coordinator.pace(SampleToInsertRatio.from_min_size(1))
        await batch
        assert coordinator.limiter.inserted == 1
        assert coordinator.limiter.min_size == 1

    run(main())


@pytest.mark.parametrize(
    ("limiter", "text"),
    [
        (SampleToInsertRatio.queue(2), "Inserting moves by 1.0 * 4 and sampling by 1: below 2 * max(1, 1.0 * 4) = 8.0"),
        (
            SampleToInsertRatio(1.0, 1, 3.0),
            "range of max_diff - min_diff = 4.0 - -2.0 = 6.0. Inserting moves by 1.0 * 4",
        ),
        (SampleToInsertRatio(1.0, 2, (-5.0, 4.0)), "with 1 items there, the next 4 would have to wait for samples"),
    ],
    ids=["never", "at times", "at the start"],
)
def test_a_limiter_under_which_chunks_and_samples_wait_for_each_other_is_refused(limiter, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        make(limiter)
    with pytest.raises(ValueError, match=re.escape(text)):
        ReplayServer(layout(), limiter=limiter)


def test_a_server_keeps_its_limiter_where_a_new_one_is_refused(run):
    async def main():
        coordinator = make(SampleToInsertRatio.from_min_size(1))
        with pytest.raises(ValueError, match="each can wait for the other"):
            coordinator.pace(SampleToInsertRatio(1.0, 1, 3.0))
        assert coordinator.limiter.max_diff == np.inf

    run(main())


def test_a_batch_that_inserts_could_wait_for_and_that_could_wait_for_inserts_is_refused(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 4, 4.0, insert_size=4))
        join(coordinator, "one")
        await coordinator.insert("one", rows(0, 1, 2, 3), NONE)
        with pytest.raises(ValueError, match=re.escape("sampling by 5: below 2 * max(5, 1.0 * 4) = 10 each can wait")):
            await coordinator.sample(5)
        assert len((await coordinator.sample(4)).whose) == 4

    run(main())


def test_only_picked_clients_are_asked_and_only_for_missing_items(run):
    async def main():
        coordinator = make()
        far, empty = Far(coordinator, "far", 1, 2, 3), Far(coordinator, "empty")
        batch = asyncio.ensure_future(coordinator.sample(5))
        await turns()
        assert (far.asked, empty.asked) == ([5], [])
        with pytest.raises(TimeoutError, match=r"earlier requests came first; clients have yet to send \{'far': 5\}"):
            await coordinator.sample(5, 0.0)
        assert far.asked == [5], "the client is asked again only after it has answered"
        far.may.set()
        assert set((await batch).batch["item"]) <= {1, 2, 3}

    run(main())


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_next_batches_are_requested_ahead(run, ahead):
    async def main():
        coordinator = make(ahead=ahead)
        far = Far(coordinator, "far", 1, 2, 3)
        far.may.set()
        await coordinator.sample(5)
        await turns()
        far.may.clear()
        assert far.asked == [5, 5 * ahead]
        for _ in range(ahead):
            await coordinator.sample(5, 1.0)  # it is here
        await turns()
        assert far.asked == [5, 5 * ahead, 5], "requested items are used before more are requested"
        with pytest.raises(TimeoutError):
            await coordinator.sample(5, 0.01)
        await coordinator.close()

    run(main())


def test_a_client_that_leaves_is_not_waited_for(run):
    async def main():
        coordinator = make()
        Far(coordinator, "far", *range(100))
        join(coordinator, "near")
        await coordinator.insert("near", rows(777), NONE)
        batch = asyncio.ensure_future(coordinator.sample(8))
        await turns()
        assert not batch.done()
        coordinator.leave("far")
        assert set((await batch).batch["item"]) == {777}
        await coordinator.close()

    run(main())


def test_an_unreachable_client_is_removed(run):
    async def main():
        coordinator = make()
        far = Far(coordinator, "far", 1)
        far.error = Unreachable("gone")
        far.may.set()
        batch = asyncio.ensure_future(coordinator.sample(1))
        await turns()
        assert "far" not in coordinator
        assert not batch.done()
        batch.cancel()
        await turns()

    run(main())


def test_priorities_travel_with_the_next_request_to_the_client(run):
    async def main():
        coordinator = make()
        far = Far(coordinator, "far", 1, 2, 3)
        heard = []

        async def draw(n, route, before=far.draw):
            heard.append((n, route[2].tolist()))
            return await before(n, route)

        far.draw = draw
        far.may.set()
        sampled = await coordinator.sample(3)
        coordinator.update(sampled, np.array([1.0, 2.0, 3.0]))
        coordinator.update(sampled, np.array([4.0, 5.0, 6.0]))
        following = asyncio.ensure_future(coordinator.sample(2))
        await following
        await turns()
        coordinator.update(sampled, np.zeros(3))  # and by themselves if nothing is asked
        await turns()
        assert heard == [(3, []), (2, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), (0, [0.0, 0.0, 0.0])]
        once, last = np.unique(sampled.indices[::-1], return_index=True)
        far.memory.update(sampled.indices, sampled.generations, np.array([4.0, 5.0, 6.0]))
        assert far.memory.priorities[once].tolist() == np.array([6.0, 5.0, 4.0])[last].tolist()

    run(main())


def test_a_client_that_refuses_priorities_is_not_removed(run):
    async def main():
        coordinator = make()
        far = Far(coordinator, "far", 1, 2, 3)

        async def draw(n, route):
            return far.memory.share(n, far.rng), "indices: expected others" if len(route[0]) else ""

        far.draw = draw
        sampled = await coordinator.sample(3)
        coordinator.update(sampled, np.ones(3))
        assert len((await coordinator.sample(2)).indices) == 2
        assert (coordinator.lost_updates, "far" in coordinator) == (3, True)

    run(main())


def test_a_client_that_sends_a_malformed_sample_is_removed(run):
    async def main():
        coordinator = make()
        far = Far(coordinator, "far", 1, 2)
        far.memory = Layout({"other": Field(np.int64)}, 8, chunk=4).new_buffer()
        far.memory.insert({"other": np.arange(8)})
        join(coordinator, "near")
        await coordinator.insert("near", rows(5), NONE)
        far.may.set()
        assert set((await coordinator.sample(16)).batch["item"]) == {5}
        assert "far" not in coordinator

    run(main())


def test_a_buffer_that_a_client_brings_along_does_not_change_the_ratio(run):
    async def main():
        coordinator = make(SampleToInsertRatio(2.0, 4, 20.0))
        Far(coordinator, "far", *range(10))
        limiter = coordinator.limiter
        assert (limiter.inserted, limiter.sampled, limiter.diff) == (10, 20, 0.0)
        coordinator.leave("far")
        assert limiter.deleted == 10

    run(main())


def test_a_sample_request_beyond_the_limit_is_refused(run):
    async def main():
        coordinator = make(max_waiting=1)
        batch = asyncio.ensure_future(coordinator.sample(1))
        await turns()
        with pytest.raises(Full, match="fewer than 1 batches"):
            await coordinator.sample(1)
        assert coordinator.refused == 1
        batch.cancel()
        await turns()
        with pytest.raises(TimeoutError, match="no item has weight, with 0 clients"):
            await coordinator.sample(1, 0.0)

    run(main())


def test_a_refused_request_changes_nothing(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 4, 64.0))
        holder = join(coordinator, "one")
        Far(coordinator, "far")
        with pytest.raises(NameTaken, match="'one', which has joined"):
            join(coordinator, "one")
        for client, given, priorities, error, text in [
            ("nobody", rows(1), NONE, UnknownClient, r"one that has joined, \['one', 'far'\], got 'nobody'"),
            ("far", rows(1), NONE, InvalidExperience, "one whose replay buffer the server keeps, got 'far'"),
            ("one", {"item": np.arange(1)}, NONE, InvalidExperience, "expected the fields"),
            ("one", rows(1), np.array([-1.0]), InvalidExperience, "priorities"),
            ("one", rows(1), np.ones(2), InvalidExperience, "priorities"),
            (
                "one",
                {"item": np.arange(1), "reward": np.full(1, np.nan, np.float32)},
                NONE,
                InvalidExperience,
                "reward",
            ),
        ]:
            with pytest.raises(error, match=text):
                await coordinator.insert(client, given, priorities)
        with pytest.raises(ValueError, match="1 to 4096, which is max_items"):
            await coordinator.sample(0)
        assert (coordinator.limiter.inserted, holder.buffer.inserted) == (0, 0)
        await coordinator.insert("one", rows(1, 2, 3, 4), NONE)
        sampled = await coordinator.sample(2)
        for wrong in (np.array([1.0, np.nan]), np.array([-1.0, 1.0]), np.ones(3), np.array([1e304, 1.0])):
            with pytest.raises(InvalidExperience, match="priorities"):
                coordinator.update(sampled, wrong)
        coordinator.forget("one")
        coordinator.update(sampled, np.ones(2))
        assert coordinator.lost_updates == 2

    run(main())


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="max_waiting"):
        make(max_waiting=0)
    with pytest.raises(ValueError, match="ahead"):
        make(ahead=-1)


def test_a_chunk_sent_again_after_a_lost_answer_is_inserted_once(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 4, 4.0, insert_size=4))
        holder = join(coordinator, "one")

        def insert(writer, number, *items):
            return asyncio.ensure_future(coordinator.insert("one", rows(*items), NONE, writer, number))

        await insert(5, 0, 1, 2, 3, 4)
        await insert(5, 0, 1, 2, 3, 4)
        await insert(5, 1, 5, 6, 7, 8)  # diff is 8, the most
        first, again, other, following = insert(5, 2, 9), insert(5, 2, 9), insert(6, 0, 10), insert(5, 3, 11)
        await turns()
        await coordinator.sample(2)
        await asyncio.gather(first, again, other)
        assert (holder.buffer.inserted, coordinator.limiter.inserted) == (10, 10)
        assert holder.buffer._store.arrays["item"][:10].tolist() == list(range(1, 11))
        assert not following.done()
        following.cancel()
        await turns()

    run(main())


def test_chunks_of_one_message_are_inserted_as_if_they_came_one_by_one(run):
    async def main():
        coordinator = make()
        holder = join(coordinator, "one")
        await coordinator.insert("one", rows(1, 2, 3), NONE, 5, 0, (2, 1))
        await coordinator.insert("one", rows(3, 4, 5, 6), np.ones(4), 5, 1, (1, 2, 1))  # the first has come before
        await coordinator.insert("one", rows(4, 5, 6), np.ones(3), 5, 2, (2, 1))  # and here all have
        await coordinator.insert("one", rows(7, 8), NONE, 5, 4, (1, 1))
        await coordinator.insert("one", rows(8), NONE, 5, 5)
        await coordinator.insert("one", rows(9), NONE, 5, 6)
        assert holder.buffer.state()["rows/item"].tolist() == list(range(1, 10))
        assert coordinator.inserted_bytes == 9 * 12
        assert coordinator.union.held == {"one": 9}

    run(main())


@pytest.mark.parametrize("limiter", [None, SampleToInsertRatio.from_min_size(1)], ids=["", "paced"])
@pytest.mark.parametrize("wrong", ["reward", "priorities"])
def test_only_the_malformed_chunk_of_a_message_is_refused(run, wrong, limiter):
    async def main():
        coordinator = make(limiter)
        holder = join(coordinator, "one")
        given, priorities = rows(1, 2, 3, 4, 5, 6), np.ones(6)
        (given["reward"] if wrong == "reward" else priorities)[3] = np.nan
        with pytest.raises(InvalidExperience, match=f"{wrong}: expected finite numbers"):
            await coordinator.insert("one", given, priorities, 5, 0, (2, 3, 1))
        assert holder.buffer.state()["rows/item"].tolist() == [1, 2, 6]
        with pytest.raises(InvalidExperience, match="expected the fields"):
            await coordinator.insert("one", {"item": given["item"]}, NONE, 5, 3, (2, 4))
        for sizes, text in [
            ((2, 3), "rows"),
            ((2, 3, 0, 1), "sizes: expected chunks of at least 1"),
            ((7, -1), "sizes"),
        ]:
            with pytest.raises(InvalidExperience, match=text):
                await coordinator.insert("one", rows(1, 2, 3, 4, 5, 6), NONE, 5, 9, sizes)
        with pytest.raises(InvalidExperience, match="item: expected 3 rows"):
            await coordinator.insert("one", rows(1, 2, 3) | {"item": np.array(5)}, NONE, 5, 9, (2, 1))
        with pytest.raises(InvalidExperience, match="3 priorities or none"):
            await coordinator.insert("one", rows(1, 2, 3), np.ones(2), 5, 9, (2, 1))
        assert (holder.buffer.inserted, coordinator.union.held) == (3, {"one": 3})

    run(main())


def test_the_limiter_admits_the_chunks_of_one_message_one_by_one(run):
    async def main():
        coordinator = make(SampleToInsertRatio(1.0, 4, 4.0, insert_size=4))
        holder = join(coordinator, "one")
        coming = asyncio.ensure_future(coordinator.insert("one", rows(*range(12)), NONE, 5, 0, (4, 4, 4)))
        following = asyncio.ensure_future(coordinator.insert("one", rows(12), NONE, 5, 3))
        await turns()
        assert (holder.buffer.inserted, coming.done()) == (8, False)  # diff is 8, the most
        await coordinator.sample(4)
        await coming
        assert not following.done()
        await coordinator.sample(1)
        await following
        assert holder.buffer.state()["rows/item"].tolist() == list(range(13))

    run(main())
