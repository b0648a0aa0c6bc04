"""A server and its clients, with threads and real sockets, through their synchronous interface."""

import re
import threading
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from components.replay_buffers import (
    CheckpointError,
    Closed,
    Field,
    FrameStack,
    InvalidExperience,
    NameTaken,
    NStep,
    RolloutWindow,
    SampleToInsertRatio,
)
from components.replay_server import Disconnected, Full, Layout, ReplayClient, ReplayServer
from components.replay_server.client_session import UNDER_WAY
from components.replay_server.members import NO_ROUTE
from components.replay_server.protocol import ClientSampleMsg
from components.replay_server.server_actor import RemoteOwner
from orchestra import UsageError

FIELDS = {"item": Field(np.int64), "reward": Field(np.float32, finite=True), "done": Field(np.bool_)}
LONG = 30.0
"""Seconds to wait: so many that only a failing test needs them."""


def layout(capacity=512, **options):
    return Layout(FIELDS, capacity, **{"chunk": 8, "alpha": 1.0, "epsilon": 0.0} | options)


@contextmanager
def served(*names, given=None, client=None, **options):
    """A server, and a client for each name."""
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer(given or layout(), **{"seed": 1} | options))
        clients = [
            stack.enter_context(ReplayClient(server.address, name, secret=server.secret, seed=i, **client or {}))
            for i, name in enumerate(names)
        ]
        yield server, *clients


def rows(items, done=False):
    items = np.asarray(items, np.int64)
    return {"item": items, "reward": items.astype(np.float32), "done": np.full(len(items), done)}


def add(client, items, priorities=None):
    client.add_entries(rows(items), priorities=None if priorities is None else np.asarray(priorities, np.float64))
    client.flush(timeout=LONG)


def until(holds):
    """Wait until another thread has made `holds` true."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


KEPT_BY = pytest.mark.parametrize("kept_by", ["clients", "server"])


@KEPT_BY
def test_added_entries_are_sampled_and_updates_reach_their_buffers(kept_by):
    with served("one", "two", given=layout(kept_by=kept_by)) as (server, one, two):
        assert one.layout == server.layout
        for i in range(20):
            one.add_entry({"item": i, "reward": i / 2, "done": i == 19}, i == 19, priority=1.0 if i in (3, 19) else 0.0)
        one.flush(timeout=LONG)
        add(two, [100, 101], [2.0, 0.0])
        sampled = server.sample(64, timeout=LONG)
        assert set(sampled.batch["item"].tolist()) == {3, 19, 100}
        assert {name: set(sampled.batch["item"][[c == name for c in sampled.clients]]) for name in ("one", "two")} == {
            "one": {3, 19},
            "two": {100},
        }
        np.testing.assert_array_equal(sampled.batch["done"], sampled.batch["item"] == 19)
        # Importance weights are those of the union: (1/2)^0.4 for the one of twice the priority.
        np.testing.assert_allclose(sampled.weights, np.where(sampled.batch["item"] == 100, 0.5**0.4, 1.0), rtol=1e-6)
        server.update(sampled, np.where(sampled.batch["item"] == 3, 1.0, 0.0))
        assert set(server.sample(32, timeout=LONG).batch["item"].tolist()) == {3}
        # A client may draw and update too.
        sampled = one.sample(32, timeout=LONG)
        assert set(sampled.batch["item"].tolist()) == {3}
        assert set(sampled.clients) == {"one"}
        one.update(sampled, np.zeros(32))
        until(lambda: server.coordinator.union.clients == {"one": 0.0, "two": 0.0})
        with pytest.raises(TimeoutError, match=r"no item has weight, with 2 clients"):
            server.sample(1, timeout=0.0)
        statistics = server.statistics()
        assert statistics.clients == {"one": 20, "two": 2}
        assert statistics.union.inserted == 22


def test_rows_of_one_window_belong_to_one_client():
    given = layout(window=RolloutWindow(3), kept_by="clients")
    with served("one", "two", given=given) as (server, one, two):
        for first, client in ((0, one), (100, two)):
            client.add_entries(rows(range(first, first + 6)))
            client.add_entry({"item": first + 6, "reward": 0.0, "done": True}, True)
            client.flush(timeout=LONG)
        batch = server.sample(64, timeout=LONG).batch
        last = batch["item"][:, -1:]
        np.testing.assert_array_equal(batch["item"], np.maximum(last + np.arange(-2, 1), last // 100 * 100))
        assert {0, 100} == set((last // 100 * 100).ravel().tolist())


@pytest.mark.parametrize(
    "options",
    [
        {"n_step": NStep(3, 0.9, arrival=("done",)), "kept_by": "server"},
        {"window": FrameStack(2, stacked=("item",), arrival={}), "decay": 0.5},
        {"window": RolloutWindow(4, burn_in=1, padded=False)},
    ],
)
def test_a_client_fetches_the_complete_layout(options):
    given = layout(**options)
    assert Layout.from_plain(given.to_plain()) == given
    with served("one", given=given) as (server, one):
        assert one.layout == given
        add(one, range(8))
        assert server.sample(4, timeout=LONG).batch.keys() == given.new_buffer().batch_fields.keys()


def chi_squared_is_usual(counts, weights):
    """Return whether counts fit draws in proportion to the weights, within four standard deviations."""
    expected = weights / weights.sum() * counts.sum()
    degrees = len(weights) - 1
    return ((counts - expected) ** 2 / expected).sum() < degrees + 4 * np.sqrt(2 * degrees)


@KEPT_BY
def test_samples_follow_the_union_of_clients_of_different_size_and_rate(kept_by):
    generator = np.random.default_rng(11)
    small, large = generator.gamma(0.5, 2.0, 4) + 0.05, generator.gamma(0.5, 1.0, 60) + 0.05
    assert 0.05 < small.sum() / large.sum() < 0.3, "sampling both clients equally would be wrong"
    with served("small", "large", given=layout(64, kept_by=kept_by), seed=5) as (server, one, two):
        add(two, range(4, 64), large)
        for _ in range(40):  # it inserts, and so speaks up, far more often; its last four rows are what counts
            add(one, [-1] * 4, np.zeros(4))
        add(one, range(4), small)
        counts = np.zeros(64)
        for _ in range(60):
            items, times = np.unique(server.sample(128, timeout=LONG).batch["item"], return_counts=True)
            counts[items] += times
            add(one, [-1], [0.0])
    assert chi_squared_is_usual(counts, np.concatenate([small, large]))


def test_two_phase_sampling_saves_the_bandwidth_of_entries_that_are_not_sampled():
    fields = {"picture": Field(np.uint8, (1000,)), "item": Field(np.int64)}
    for kept_by in ("clients", "server"):
        with served("one", given=Layout(fields, 256, kept_by=kept_by)) as (server, one):
            one.add_entries({"picture": np.zeros((200, 1000), np.uint8), "item": np.arange(200)})
            one.flush(timeout=LONG)
            server.sample(20, timeout=LONG)
            statistics = server.statistics()
            assert statistics.inserted_bytes == 200 * 1008
            expected = 20 * (1008 + 24) if kept_by == "clients" else 200 * 1008
            assert statistics.received_bytes == expected
            assert statistics.saved == pytest.approx(0.8976 if kept_by == "clients" else 0.0, abs=1e-3)


class Agent:
    """A client's actor with prepared answers."""

    def __init__(self, *answers):
        self.answers = list(answers)

    async def ask(self, request):
        return self.answers.pop(0)


def test_the_newest_sample_counts_when_answers_overtake_reports(run):
    memory = layout().new_buffer()
    memory.insert(rows([1, 2]), np.array([1.0, 2.0]))
    rng = np.random.default_rng(0)
    first, early = ClientSampleMsg.of(memory.share(0, rng), 1), ClientSampleMsg.of(memory.share(2, rng), 2)
    memory.insert(rows([3]), np.array([5.0]))
    late = ClientSampleMsg.of(memory.share(1, rng), 3)

    async def main():
        overtaken = RemoteOwner(Agent(late, early))
        assert overtaken.is_news(first)
        sample, _ = await overtaken.draw(1, NO_ROUTE)
        assert sample.total == 8.0
        assert not overtaken.is_news(early), "a newer sample arrived before"
        sample, _ = await overtaken.draw(2, NO_ROUTE)
        assert (len(sample.indices), sample.total, sample.held, sample.inserted) == (2, 8.0, 3, 3)

    run(main())


# Pacing and high-water marks ------------------------------------------------------------------------------------------


@KEPT_BY
def test_clients_wait_at_the_mark_until_samples_are_drawn(kept_by):
    limiter = SampleToInsertRatio(1.0, 8, 16.0, insert_size=8, sample_size=8)
    with served(
        "one", given=layout(kept_by=kept_by), limiter=limiter, client={"high_water": 16, "when_full": "block"}
    ) as (server, one):
        one.add_entries(rows(range(16)))
        one.add_entries(rows(range(16, 32)), timeout=LONG)
        with pytest.raises(TimeoutError, match=r"no room for 16 entries within 0\.05 s"):
            one.add_entries(rows(range(16)), timeout=0.05)
        assert one.statistics().waiting == 8  # diff may be 24
        assert one.statistics().inserted == 24
        server.sample(8, timeout=LONG)
        one.flush(timeout=LONG)
        assert one.statistics().inserted == 32
        server.pace(None)
        add(one, range(16))


@pytest.mark.parametrize(("policy", "dropped", "refused"), [("drop_oldest", 32, 0), ("refuse", 0, 32)])
def test_at_the_mark_the_oldest_are_dropped_or_the_newest_refused(policy, dropped, refused):
    limiter = SampleToInsertRatio(1.0, 8, 16.0, insert_size=8)
    with served("one", limiter=limiter, client={"high_water": 16, "when_full": policy}) as (_, one):
        for _ in range(3):
            add(one, range(8))
        until(lambda: one.statistics().inserted == 24)  # diff may be 24
        one.add_entries(rows(range(8)))
        until(lambda: not one._outbox.queue)  # it is on its way
        one.add_entries(rows(range(8)))
        for _ in range(4):
            if policy == "refuse":
                with pytest.raises(Full, match="entries that wait to be inserted"):
                    one.add_entries(rows(range(8)))
            else:
                one.add_entries(rows(range(8)))
        statistics = one.statistics()
        assert (statistics.waiting, statistics.dropped, statistics.refused) == (16, dropped, refused)
        one.close(timeout=0.0)


def test_a_sample_request_beyond_the_limit_is_refused():
    with served("one", max_waiting=1) as (server, one):
        waiting = threading.Thread(target=server.sample, args=(4,), kwargs={"timeout": LONG})
        waiting.start()
        until(lambda: server.coordinator._waiting == 1)
        for who in (server, one):
            with pytest.raises(Full, match="fewer than 1 batches"):
                who.sample(4, timeout=LONG)
        add(one, [1])
        waiting.join()
        assert server.statistics().refused_samples == 2


# Publications and lines -----------------------------------------------------------------------------------------------


def test_published_bytes_reach_the_subscribers():
    with served("one", "two") as (server, one, two):
        server.publish("params", b"first")
        params, other = one.subscribe("params"), two.subscribe("other", high_water=8)
        assert params.receive(LONG) == b"first"
        large = np.random.default_rng(0).bytes(3_000_000)  # more than a message's header may hold
        two.publish("params", large)
        assert params.receive(LONG) == large
        for i in range(4):
            server.publish("other", bytes([i]))
        assert [other.receive(LONG) for _ in range(4)] == [bytes([i]) for i in range(4)]
        one.unsubscribe(params)
        server.publish("params", b"unheard")
        with pytest.raises(TimeoutError):
            params.receive(0.05)
        with pytest.raises(ValueError, match="one without a subscription, got 'other'"):
            two.subscribe("other")
        with pytest.raises(InvalidExperience, match="topic"):
            one.publish("", b"")
        assert server.statistics().published == 7


def test_a_slow_reader_blocks_the_publisher_if_both_policies_are_block():
    with served("one", publish_mark=2, when_slow="block") as (server, one):
        slow = one.subscribe("a", high_water=1, when_full="block")
        for i in range(3):
            server.publish("a", bytes([i]), timeout=LONG)
        with pytest.raises(TimeoutError):
            server.publish("a", b"x", timeout=0.05)
        assert [slow.receive(LONG) for _ in range(3)] == [b"\0", b"\1", b"\2"]


def test_lines_are_written_by_the_server_and_cannot_be_forged(tmp_path):
    path = tmp_path / "clients.log"
    with served("one", "two", log_path=path) as (server, one, two):
        one.log("hello, world")
        two.log("a\n2026-01-01 00:00:00.000,one,forged\x1b[31m ä")
        with pytest.raises(InvalidExperience, match="at most 65536 characters"):
            one.log("x" * 70_000)
        assert server.statistics().log_lines == 2
    stamped = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3},")
    lines = path.read_text().splitlines()
    assert all(stamped.match(line) for line in lines)
    assert [stamped.sub("", line, count=1) for line in lines] == [
        "one,hello, world",
        r"two,a\n2026-01-01 00:00:00.000,one,forged\x1b[31m ä",
    ]
    with served("one") as (_, one), pytest.raises(InvalidExperience, match="a server with a log_path"):
        one.log("hello")


# Errors ---------------------------------------------------------------------------------------------------------------


@KEPT_BY
def test_malformed_entries_are_refused_in_the_client_and_change_nothing(kept_by):
    with served("one", given=layout(kept_by=kept_by)) as (server, one):
        for entry, text in [
            ({"item": 1, "reward": 0.0}, r"expected the fields \['item', 'reward', 'done'\]"),
            ({"item": 1, "reward": np.nan, "done": False}, "reward: expected finite numbers, got nan"),
            ({"item": np.zeros(2, np.int64), "reward": 0.0, "done": False}, r"item: expected int64 of shape \(\)"),
            ({"item": 1, "reward": np.float64(0.0), "done": False}, r"reward: expected float32 of shape \(\)"),
        ]:
            with pytest.raises(InvalidExperience, match=text):
                one.add_entry(entry, True)
        for priority in (np.nan, -1.0, np.inf, 1e304):
            with pytest.raises(InvalidExperience, match="priorities"):
                one.add_entry({"item": 1, "reward": 0.0, "done": False}, True, priority=priority)
        assert (one.statistics().added, server.statistics().clients) == (0, {"one": 0})
        add(one, [1, 2])
        sampled = server.sample(2, timeout=LONG)
        for who in (server, one):
            for wrong in (np.array([1.0, np.nan]), np.array([1.0, -1.0]), np.ones(3), [1.0, 1.0]):
                with pytest.raises(InvalidExperience, match="priorities"):
                    who.update(sampled, wrong)
        for who in (server, one):
            with pytest.raises(ValueError, match="batch_size: expected 1 to 4096, which is max_items, got 5000"):
                who.sample(5000)


def test_clients_with_a_wrong_name_secret_or_address_are_refused():
    with served("one") as (server, _):
        with pytest.raises(NameTaken, match="'one', which has joined and is alive"):
            ReplayClient(server.address, "one", secret=server.secret)
        with pytest.raises(UsageError, match="'no/name' cannot name a client"):
            ReplayClient(server.address, "no/name", secret=server.secret)
        with pytest.raises(Disconnected, match="does not know this run's secret"):
            ReplayClient(server.address, "two", secret=b"a guess".ljust(32))
        with pytest.raises(UsageError, match="must begin with one of"):
            ReplayClient("nowhere", "two", secret=server.secret)
        assert list(server.statistics().clients) == ["one"]


def test_clients_and_servers_with_an_unusable_address_or_file_fail(address_of):
    with pytest.raises(Disconnected, match=r"no server was found at .* within 0\.1 s"):
        ReplayClient(address_of("unix"), "one", secret=b"s" * 16, timeout=0.1)
    with pytest.raises(UsageError):
        ReplayServer(layout(), listen="nowhere")
    with pytest.raises(OSError, match="No such file"):
        ReplayServer(layout(), log_path="/nowhere/at/all")


def test_a_client_that_leaves_takes_its_own_buffer_along():
    with served("one", "two") as (server, one, two):
        add(one, [1])
        add(two, [2])
        two.close()
        assert set(server.sample(16, timeout=LONG).batch["item"].tolist()) == {1}
        with ReplayClient(server.address, "two", secret=server.secret) as again:
            add(again, [3])
            assert 3 in server.sample(64, timeout=LONG).batch["item"]


def test_every_method_of_a_closed_object_raises_closed():
    with served("one") as (server, one):
        add(one, [1])
        subscription, sampled = one.subscribe("a"), server.sample(1, timeout=LONG)
    server.close()
    one.close()
    for call in (
        lambda: server.sample(1),
        lambda: server.update(sampled, np.ones(1)),
        lambda: server.publish("a", b""),
        lambda: server.statistics(),
        lambda: server.pace(None),
        lambda: server.__enter__(),
        lambda: one.add_entry({"item": 1, "reward": 0.0, "done": False}),
        lambda: one.add_entries(rows([1])),
        lambda: one.flush(),
        lambda: one.sample(1),
        lambda: one.update(sampled, np.ones(1)),
        lambda: one.publish("a", b""),
        lambda: one.subscribe("b"),
        lambda: one.log("hello"),
        lambda: one.save("nowhere"),
        lambda: one.__enter__(),
        lambda: subscription.receive(),
    ):
        with pytest.raises(Closed, match="expected one that is open, it was closed"):
            call()
    assert one.statistics().inserted == 1
    assert not one.statistics().connected


def test_closing_wakes_all_waiting_calls():
    told = []

    def wait(call):
        with pytest.raises((Closed, Disconnected)):
            call()
        told.append(True)

    pacing = {"limiter": SampleToInsertRatio(1.0, 8, 16.0, insert_size=8), "client": {"high_water": 16}}
    with served("one") as (server, one), served("slow", **pacing) as (paced, slow):
        subscription = one.subscribe("a")
        slow.add_entries(rows(range(16)))
        slow.add_entries(rows(range(16)), timeout=LONG)  # eight of these have to wait
        calls = (
            lambda: server.sample(8),
            lambda: one.sample(8),
            lambda: slow.add_entries(rows(range(16))),
            lambda: slow.flush(),
            lambda: subscription.receive(),
        )
        threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        until(lambda: server.coordinator._waiting == 2)
        for it in (one, slow):
            it.close(timeout=0.0)
        for it in (server, paced):
            it.close()
        for thread in threads:
            thread.join()
    assert len(told) == len(calls)


# The server goes, and comes back --------------------------------------------------------------------------------------


def test_a_client_reconnects_and_brings_its_buffer_along(address_of):
    address, secret = address_of("unix"), b"the secret".ljust(32)
    with ReplayServer(layout(), listen=address, secret=secret) as first:
        one = ReplayClient(address, "one", secret=secret)
        add(one, [1, 2, 3])
        subscription = one.subscribe("a")
    until(lambda: not one.statistics().connected)
    assert first
    with pytest.raises(Disconnected, match=r"there is no server at .* now"):
        one.sample(1)
    one.add_entries(rows([4]))  # waits
    with ReplayServer(layout(), listen=address, secret=secret) as second:
        one.flush(timeout=LONG)
        until(lambda: second.statistics().clients == {"one": 4})
        assert set(second.sample(200, timeout=LONG).batch["item"].tolist()) == {1, 2, 3, 4}
        second.publish("a", b"hello")
        assert subscription.receive(LONG) == b"hello"
        assert one.statistics().connections == 2
        one.close()


def test_chunks_on_their_way_to_a_lost_server_are_inserted_by_the_next_in_order(address_of):
    address, secret, given = address_of("tcp"), b"known to both sides", layout(kept_by="server")
    with ExitStack() as stack:
        first = stack.enter_context(ReplayServer(given, listen=address, secret=secret))
        one = stack.enter_context(ReplayClient(first.address, "one", secret=secret))
        add(one, range(24))
        first.pace(SampleToInsertRatio(1.0, 8, 16.0, insert_size=8))
        for start in range(24, 320, 74):
            one.add_entries(rows(range(start, start + 74)))
            until(lambda: first.coordinator._entering.locked())
        # The first message waits in the middle, since diff may be 24, and what follows it behind it.
        until(
            lambda: first.coordinator._entering._waiters and len(first.coordinator._entering._waiters) == UNDER_WAY - 1
        )
        assert (one.statistics().inserted, first.coordinator.member("one").buffer.inserted) == (24, 48)
        first.close()
        second = stack.enter_context(ReplayServer(given, listen=first.address, secret=secret))
        one.flush(timeout=LONG)
        kept = second.coordinator.member("one").buffer
        assert kept.state()["rows/item"].tolist() == list(range(24, 320))


def test_a_client_closes_itself_when_its_patience_ends(address_of):
    address, secret = address_of("unix"), b"the secret".ljust(32)
    with ReplayServer(layout(), listen=address, secret=secret):
        one = ReplayClient(address, "one", secret=secret, patience=0.1)
        subscription = one.subscribe("a")
    with pytest.raises(Closed, match=r"no server was found at .* within 0\.1 s"):
        subscription.receive(LONG)
    with pytest.raises(Closed, match="has failed"):
        one.add_entries(rows([1]))
    one.close()


def test_a_client_closes_itself_at_a_server_of_another_layout(address_of):
    address, secret = address_of("unix"), b"the secret".ljust(32)
    with ReplayServer(layout(), listen=address, secret=secret):
        one = ReplayClient(address, "one", secret=secret)
        subscription = one.subscribe("a")
    with ReplayServer(layout(capacity=64), listen=address, secret=secret):
        with pytest.raises(Closed, match="layout: expected the one from before"):
            subscription.receive(LONG)
        one.close()


def test_a_client_s_buffer_is_saved_and_restored(tmp_path):
    with served("one") as (server, one):
        add(one, [1, 2, 3], [0.0, 1.0, 0.0])
        one.save(tmp_path / "memory")
    with served("one") as (server, one):
        one.load(tmp_path / "memory")
        assert set(server.sample(8, timeout=LONG).batch["item"].tolist()) == {2}
    with served("one", given=layout(capacity=64)) as (server, one):
        add(one, [7])
        with pytest.raises(CheckpointError, match="capacity: expected 64, got 512"):
            one.load(tmp_path / "memory")
        assert set(server.sample(8, timeout=LONG).batch["item"].tolist()) == {7}
    with served("one", given=layout(kept_by="server")) as (_, one), pytest.raises(InvalidExperience, match="kept_by"):
        one.save(tmp_path / "other")


# Layouts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "options", "text"),
    [
        ({}, {}, "fields: expected at least one"),
        ({"name": Field(np.dtype("U8"))}, {}, "name: expected numbers that can travel, got <U8"),
        ({"big": Field(np.dtype(">f4"))}, {}, "big: expected numbers that can travel"),
        (FIELDS, {"chunk": 0}, "chunk: expected 1 to 512, which is the capacity, got 0"),
        (FIELDS, {"kept_by": "nobody"}, "kept_by: expected clients or server, got 'nobody'"),
        (FIELDS, {"alpha": -1.0}, "alpha"),
        (FIELDS, {"n_step": NStep(3, 0.9)}, "n_step: expected the names of fields"),
    ],
)
def test_layouts_out_of_range_are_refused(fields, options, text):
    with pytest.raises(ValueError, match=text):
        Layout(fields, 512, **options)


@pytest.mark.parametrize("plain", [{}, {"fields": 3}, layout().to_plain() | {"window": ["Window", {}]}])
def test_values_that_are_no_layout_are_refused(plain):
    with pytest.raises(InvalidExperience, match="layout: expected that of a replay server of this version"):
        Layout.from_plain(plain)
