"""Bounded queues, and outboxes of entries."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import Field, NStep, RolloutWindow
from components.replay_buffers.closed import Closed
from components.replay_buffers.invalid import InvalidExperience
from components.replay_server.bounded_queue import BoundedQueue, Full
from components.replay_server.layouts import Layout
from components.replay_server.outbox import Outbox
from orchestra.actors.arrays import is_frozen


def filled(policy, mark=3):
    queue = BoundedQueue("things", mark, policy)
    for item in "abc":
        assert queue.make_room()
        queue.append(item)
    return queue


def test_a_full_queue_makes_the_producer_wait():
    queue = filled("block")
    assert not queue.make_room()
    assert queue.take() == ("a", 1)
    assert not queue.make_room(), "a taken item occupies its room until it is freed"
    queue.free()
    assert queue.make_room()
    assert (queue.level, queue.dropped, queue.refused) == (3, 0, 0)


def test_dropped_items_are_counted_by_weight():
    queue = filled("drop_oldest")
    assert queue.make_room(2)
    queue.append("de", 2)
    assert [queue.take(), queue.take(), queue.take()] == [("c", 1), ("de", 2), None]
    assert (queue.dropped, queue.refused) == (2, 0)


def test_a_refused_item_is_counted_and_changes_nothing():
    queue = filled("refuse")
    with pytest.raises(Full, match="things: expected room for 2, but 3 of 3 are waiting"):
        queue.make_room(2)
    assert (len(queue), queue.level, queue.refused, queue.dropped) == (3, 3, 2, 0)


@pytest.mark.parametrize("policy", ["block", "drop_oldest", "refuse"])
def test_an_item_above_the_mark_is_accepted_by_an_empty_queue(policy):
    queue = BoundedQueue("things", 3, policy)
    assert queue.make_room(10)


def test_an_item_that_is_put_back_is_taken_first():
    queue = filled("block")
    item, weight = queue.take()
    queue.put_back(item, weight)
    assert queue.take() == ("a", 1)


@pytest.mark.parametrize(("mark", "policy"), [(0, "block"), (3, "hope")])
def test_marks_and_policies_out_of_range_are_refused(mark, policy):
    with pytest.raises(ValueError, match="things: expected"):
        BoundedQueue("things", mark, policy)


# Entries --------------------------------------------------------------------------------------------------------------

LAYOUT = Layout({"item": Field(np.int64), "reward": Field(np.float32, finite=True)}, 64, chunk=4)


def oldest(outbox):
    """Take the oldest chunk of an outbox alone."""
    bundle = outbox.take_bundle(1)
    return None if bundle is None else bundle.chunks[0]


class Consumer:
    """The taking side of an outbox: counts how often it was woken, and can be closed."""

    def __init__(self, policy="block", mark=8, layout=LAYOUT):
        self.woken, self.closed = 0, False
        self.outbox = Outbox(layout, mark, policy, self.check_open, self.wake)

    def check_open(self):
        if self.closed:
            raise Closed("closed")

    def wake(self):
        self.woken += 1

    def add(self, *items, last=False, priority=None, timeout=0.0):
        for item in items:
            self.outbox.add({"item": item, "reward": float(item)}, last, priority, timeout)

    def take(self):
        chunk = oldest(self.outbox)
        return None if chunk is None else chunk.rows["item"].tolist()


def test_entries_are_taken_as_full_chunks_or_at_the_end_of_an_episode():
    consumer = Consumer()
    consumer.add(0, 1, 2)
    assert (consumer.take(), consumer.woken) == (None, 0)
    consumer.add(3)
    assert (consumer.take(), consumer.woken) == ([0, 1, 2, 3], 1)
    consumer.add(4, last=True)
    assert consumer.take() == [4]


def test_entries_are_copied():
    consumer, item = Consumer(), np.array(5)
    consumer.outbox.add({"item": item, "reward": 0.0}, True, None, None)
    many = {"item": np.arange(3), "reward": np.zeros(3, np.float32)}
    consumer.outbox.add_many(many, None, None)
    item[...] = 99
    many["item"][:] = 99
    assert [consumer.take(), consumer.take()] == [[5], [0, 1, 2]]


def test_a_chunk_has_priorities_for_all_entries_or_none():
    consumer = Consumer()
    consumer.add(0)
    consumer.add(1, 2, priority=0.5)
    consumer.add(3, last=True)
    chunks = [oldest(consumer.outbox) for _ in range(3)]
    assert [(chunk.rows["item"].tolist(), chunk.priorities.tolist()) for chunk in chunks] == [
        ([0], []),
        ([1, 2], [0.5, 0.5]),
        ([3], []),
    ]


def test_many_entries_are_cut_into_chunks_after_the_waiting_ones():
    consumer = Consumer(mark=16)
    consumer.add(9)
    consumer.outbox.add_many({"item": np.arange(6), "reward": np.zeros(6, np.float32)}, np.arange(6.0), None)
    assert [consumer.take(), consumer.take(), consumer.take()] == [[9], [0, 1, 2, 3], [4, 5]]


def bundles(consumer, most=100):
    """Take everything; return the entries and chunk sizes of each bundle."""
    return [(it.rows["item"].tolist(), it.sizes) for it in iter(lambda: consumer.outbox.take_bundle(most), None)]


def test_waiting_chunks_are_taken_together_if_all_have_priorities_or_none():
    consumer = Consumer(mark=64)
    consumer.add(*range(6))
    consumer.outbox.add_many({"item": np.arange(6, 12), "reward": np.zeros(6, np.float32)}, None, None)
    consumer.add(12, last=True)
    consumer.add(13, 14, 15, 16, 17, last=True, priority=2.0)
    taken = [consumer.outbox.take_bundle(3), consumer.outbox.take_bundle(100), consumer.outbox.take_bundle(100)]
    assert [(it.rows["item"].tolist(), it.sizes, it.number, it.n) for it in taken] == [
        (list(range(10)), (4, 2, 4), 0, 10),
        ([10, 11, 12], (2, 1), 3, 3),
        ([13, 14, 15, 16, 17], (1, 1, 1, 1, 1), 5, 5),
    ]
    assert [it.priorities.tolist() for it in taken] == [[], [], [2.0] * 5]
    consumer.outbox.finish(taken[0])
    for chunk in reversed(taken[1].chunks):
        consumer.outbox.put_back(chunk)
    assert bundles(consumer) == [([10, 11, 12], (2, 1))]
    assert (consumer.outbox.done, consumer.outbox.queue.level) == (10, 8)


def test_taken_rows_are_never_written_again():
    consumer, taken, finished = Consumer(mark=64), [], 0
    for start in range(0, 20_000, 32):
        consumer.add(*range(start, start + 20))
        many = np.arange(start + 20, start + 32)
        consumer.outbox.add_many({"item": many, "reward": many.astype(np.float32)}, None, None)
        taken += iter(lambda: consumer.outbox.take_bundle(100), None)
        assert is_frozen(taken[-1].rows["item"])
        for bundle in taken[finished:]:
            consumer.outbox.finish(bundle)
        finished = len(taken)
    assert np.concatenate([it.rows["item"] for it in taken]).tolist() == list(range(20_000))


def test_the_taking_loop_is_woken_once_until_it_has_looked():
    consumer = Consumer(mark=64)
    consumer.add(*range(12))
    assert consumer.woken == 1
    assert bundles(consumer, most=2) == [(list(range(8)), (4, 4)), ([8, 9, 10, 11], (4,))]
    consumer.add(*range(8))
    assert consumer.woken == 2
    assert consumer.outbox.take_bundle(1) is not None
    consumer.add(*range(8))
    assert consumer.woken == 2, "a loop that has found a chunk looks again by itself"


def test_adding_waits_for_room_and_fails_after_the_timeout():
    consumer = Consumer()
    consumer.add(*range(8))
    with pytest.raises(TimeoutError, match=r"no room for 1 entries within 0.0 s: 8 of 8 wait to be inserted"):
        consumer.add(8)
    added = threading.Thread(target=consumer.add, args=(8,), kwargs={"timeout": 30.0})
    added.start()
    chunk = oldest(consumer.outbox)
    consumer.outbox.finish(chunk)
    added.join()
    assert (consumer.outbox.added, consumer.outbox.done, consumer.outbox.queue.level) == (9, 4, 5)


def test_the_oldest_chunks_are_dropped_unless_they_are_on_their_way():
    consumer = Consumer("drop_oldest", mark=12)
    consumer.add(*range(4))
    on_its_way = oldest(consumer.outbox)
    consumer.add(*range(4, 14))
    consumer.outbox.finish(on_its_way)
    assert [consumer.take(), consumer.take()] == [[8, 9, 10, 11], None]
    assert (consumer.outbox.queue.dropped, consumer.outbox.added, consumer.outbox.queue.level) == (4, 14, 6)


def test_refused_entries_are_counted():
    consumer = Consumer("refuse")
    consumer.add(*range(8))
    with pytest.raises(Full):
        consumer.add(8)
    assert (consumer.outbox.added, consumer.outbox.queue.refused) == (8, 1)


def test_malformed_entries_change_nothing():
    consumer = Consumer()
    for entry, priority in [
        ({"item": 1}, None),
        ({"item": 1.5, "reward": 0.0}, None),
        ({"item": 1, "reward": np.nan}, None),
        ({"item": 1, "reward": np.zeros(2, np.float32)}, None),
        ({"item": 1, "reward": 0.0}, -1.0),
        ({"item": 1, "reward": 0.0}, np.nan),
        ({"item": 1, "reward": 0.0}, 1e305),
    ]:
        if priority == 1e305:
            consumer = Consumer(layout=Layout(LAYOUT.fields, 64, chunk=4, alpha=1.0))
        with pytest.raises(InvalidExperience):
            consumer.outbox.add(entry, True, priority, None)
    with pytest.raises(InvalidExperience, match="at most 8 entries at a time"):
        consumer.outbox.add_many({"item": np.arange(9), "reward": np.zeros(9, np.float32)}, None, None)
    with pytest.raises(InvalidExperience, match="priorities"):
        consumer.outbox.add_many({"item": np.arange(2), "reward": np.zeros(2, np.float32)}, np.ones(3), None)
    assert (consumer.outbox.added, consumer.take()) == (0, None)


def test_closing_wakes_callers_that_wait_for_room():
    consumer = Consumer()
    consumer.add(*range(8))
    told = []

    def add():
        try:
            consumer.add(8, timeout=None)
        except Closed:
            told.append("closed")

    adding = threading.Thread(target=add)
    adding.start()
    consumer.closed = True
    while adding.is_alive():  # it may not have begun to wait yet
        consumer.outbox.wake()
        adding.join(0.01)
    assert told == ["closed"]


def test_marks_and_policies_that_cannot_work_are_refused():
    with pytest.raises(ValueError, match="high_water: expected at least 8, which is two chunks, got 7"):
        Consumer(mark=7)
    for options in ({"n_step": NStep(2, 0.9, arrival=("done",), stride=3)}, {"window": RolloutWindow(2, stride=3)}):
        with pytest.raises(ValueError, match="with stride 3 the rows of 3 episodes alternate"):
            Consumer("drop_oldest", layout=Layout(ENDING, 64, chunk=4, **options))


# Dropping whole episodes ----------------------------------------------------------------------------------------------

ENDING = {**LAYOUT.fields, "done": Field(np.bool_)}
TOGETHER = [{"n_step": NStep(3, 0.9, arrival=("done",))}, {"window": RolloutWindow(3)}]


def ending(*items):
    """Entries by their numbers; an episode ends with those below 0."""
    return [{"item": item, "reward": 0.0, "done": item < 0} for item in items]


def consumer_of_episodes(mark=8, options=TOGETHER[0]):
    return Consumer("drop_oldest", mark, Layout(ENDING, 64, chunk=4, **options))


def put(consumer, *items):
    for entry in ending(*items):
        consumer.outbox.add(entry, False, None, 0.0)


def taken(consumer):
    """Take all chunks one by one."""
    return list(iter(consumer.take, None))


@pytest.mark.parametrize("options", TOGETHER, ids=["n-step", "window"])
def test_the_oldest_whole_episode_is_dropped(options):
    consumer = consumer_of_episodes(options=options)
    put(consumer, 1, -2, 3, 4, -5, 6, -7, 8, 9)
    consumer.outbox._complete()
    assert taken(consumer) == [[3, 4, -5], [6, -7], [8, 9]]
    assert (consumer.outbox.queue.dropped, consumer.outbox.added) == (2, 9)


def test_a_partly_taken_episode_stays_and_the_next_is_dropped():
    consumer = consumer_of_episodes(mark=12)
    put(consumer, 1, 2, 3, 4)
    on_its_way = oldest(consumer.outbox)
    put(consumer, 5, -6, 7, -8, 9, 10, -11, 12, 13)
    assert consumer.outbox.queue.dropped == 2
    consumer.outbox.finish(on_its_way)
    consumer.outbox._complete()
    assert taken(consumer) == [[5, -6], [9, 10, -11], [12, 13]]


def test_a_chunk_that_was_put_back_may_have_been_inserted_and_stays():
    consumer = consumer_of_episodes()
    put(consumer, 1, -2, 3, -4, 5, -6)
    consumer.outbox.put_back(oldest(consumer.outbox))
    put(consumer, 7, 8, -9)
    assert taken(consumer) == [[1, -2], [5, -6], [7, 8, -9]]


def test_an_unfinished_episode_is_dropped_with_its_coming_entries():
    consumer = consumer_of_episodes()
    put(consumer, *range(1, 12))
    assert consumer.take() is None
    put(consumer, 12, -13, 14, -15)
    assert taken(consumer) == [[14, -15]]
    assert (consumer.outbox.queue.dropped, consumer.outbox.added, consumer.outbox.queue.level) == (13, 15, 2)


def test_an_unfinished_episode_on_its_way_is_waited_for():
    consumer = consumer_of_episodes()
    put(consumer, *range(1, 9))
    oldest(consumer.outbox)
    with pytest.raises(TimeoutError, match="8 of 8 wait to be inserted"):
        put(consumer, 9)
    assert (consumer.outbox.added, consumer.outbox.queue.dropped) == (8, 0)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 14), min_size=1, max_size=30),
    steps=st.lists(st.sampled_from(["one", "many", "take", "finish", "put back"]), min_size=10, max_size=120),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=20),
)
def test_consecutive_entries_that_arrive_were_added_consecutively(lengths, steps, sizes):
    """An episode arrives as a prefix, and completely if another one follows, whatever is dropped."""
    consumer, episodes = consumer_of_episodes(mark=12), []
    for number, n in enumerate(lengths):
        episodes += [100 * (number + 1) + i for i in range(n - 1)] + [-(100 * (number + 1) + n - 1)]
    arrived, under_way, at, size = [], None, 0, iter(sizes * 40)
    for step in steps:
        if step in ("one", "many"):
            entries = ending(*episodes[at : at + (1 if step == "one" else next(size))])
            try:
                if step == "one":
                    for entry in entries:
                        consumer.outbox.add(entry, False, None, 0.0)
                elif entries:
                    kinds = {"item": np.int64, "reward": np.float32, "done": np.bool_}
                    many = {name: np.array([it[name] for it in entries], kinds[name]) for name in kinds}
                    consumer.outbox.add_many(many, None, 0.0)
            except TimeoutError:
                continue
            at += len(entries)
        elif step == "take" and under_way is None:
            under_way = oldest(consumer.outbox)
        elif step == "finish" and under_way is not None:
            arrived += under_way.rows["item"].tolist()
            consumer.outbox.finish(under_way)
            under_way = None
        elif step == "put back" and under_way is not None:
            consumer.outbox.put_back(under_way)
            under_way = None
        outbox = consumer.outbox
        held = 0 if under_way is None else under_way.n
        assert outbox.added == at
        assert outbox.queue.level == sum(weight for _, weight in outbox.queue._items) + outbox._n + held
        assert outbox.added == outbox.done + outbox.queue.dropped + outbox.queue.level
    for before, after in zip([-99, *arrived], arrived, strict=False):
        if before < 0:
            assert abs(after) % 100 == 0, "after the end of an episode comes the beginning of another"
        else:
            assert abs(after) == before + 1, "within an episode nothing is missing"
