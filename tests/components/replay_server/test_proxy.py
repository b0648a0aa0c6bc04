"""Clients that reach their server through one or two proxies."""

import threading
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from components.replay_buffers import Closed, Field, InvalidExperience, NameTaken
from components.replay_server import Disconnected, Full, Layout, ReplayClient, ReplayProxy, ReplayServer

LAYOUT = Layout({"item": Field(np.int64), "reward": Field(np.float32)}, 64, chunk=4, alpha=1.0, epsilon=0.0)
SECRET = b"the secret".ljust(32)
LONG = 30.0
"""Seconds to wait: so many that only a failing test needs them."""


@contextmanager
def behind(n_proxies=1, layout=LAYOUT, **options):
    """A server, and the address of the last of `n_proxies` proxies."""
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer(layout, secret=SECRET, seed=0, **options))
        address = server.address
        for _ in range(n_proxies):
            address = stack.enter_context(ReplayProxy(address, secret=SECRET)).address
        yield server, address


def connect(address, name, **options):
    return ReplayClient(address, name, secret=SECRET, seed=0, **options)


def add(client, *items, priority=1.0):
    for item in items:
        client.add_entry({"item": item, "reward": 0.0}, priority=priority)
    client.flush(timeout=LONG)


def until(holds):
    """Wait until another thread has made `holds` true."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


@pytest.mark.parametrize("kept_by", ["clients", "server"])
@pytest.mark.parametrize("n_proxies", [1, 2])
def test_clients_behind_a_proxy_are_served_as_by_the_server_itself(tmp_path, kept_by, n_proxies):
    layout = Layout(LAYOUT.fields, 64, kept_by=kept_by, chunk=4, alpha=1.0, epsilon=0.0)
    path = tmp_path / "clients.log"
    with (
        behind(n_proxies, layout, log_path=path) as (server, address),
        connect(address, "far") as far,
        connect(server.address, "near") as near,
    ):
        assert far.layout == layout
        add(far, 1, 2)
        add(near, 3)
        sampled = server.sample(64, timeout=LONG)
        assert {(who, int(item)) for who, item in zip(sampled.clients, sampled.batch["item"], strict=True)} == {
            ("far", 1),
            ("far", 2),
            ("near", 3),
        }
        server.update(sampled, np.where(sampled.batch["item"] == 2, 1.0, 0.0))
        assert set(far.sample(16, timeout=LONG).batch["item"].tolist()) == {2}
        far.update(sampled, np.where(sampled.batch["item"] == 1, 1.0, 0.0))
        assert set(near.sample(16, timeout=LONG).batch["item"].tolist()) == {1}
        far.log("hello")
        assert path.read_text().endswith(",far,hello\n")
        with pytest.raises(InvalidExperience, match="priorities"):
            far.update(sampled, np.full(64, np.nan))
        with pytest.raises(ValueError, match="batch_size: expected 1 to 4096"):
            far.sample(0)
        for where in (address, server.address):
            with pytest.raises(NameTaken):
                connect(where, "far")
        far.close()
        until(lambda: "far" not in server.coordinator)
        assert server.statistics().left == (("far",) if kept_by == "server" else ())


def test_a_publication_arrives_once_and_reaches_all_subscribers_behind_the_proxy():
    with behind(2) as (server, address), connect(address, "one") as one, connect(address, "two") as two:
        server.publish("a", b"first")
        subscriptions = [one.subscribe("a"), two.subscribe("a")]
        assert [it.receive(LONG) for it in subscriptions] == [b"first"] * 2
        two.publish("a", b"second")
        assert [it.receive(LONG) for it in subscriptions] == [b"second"] * 2
        assert len(server.publications._subscribers) == 1
        one.unsubscribe(subscriptions[0])
        server.publish("a", b"third")
        assert subscriptions[1].receive(LONG) == b"third"
        with pytest.raises(InvalidExperience, match="topic"):
            one.subscribe("")


def test_clients_behind_a_proxy_reconnect_to_the_server(address_of):
    address = address_of("unix")
    with ExitStack() as stack:
        first = stack.enter_context(ReplayServer(LAYOUT, listen=address, secret=SECRET))
        proxy = stack.enter_context(ReplayProxy(address, secret=SECRET))
        one = stack.enter_context(connect(proxy.address, "one"))
        add(one, 1, 2)
        lost = []

        def wait():
            with pytest.raises(Disconnected):
                one.sample(16, timeout=LONG)
            lost.append(True)

        waiting = threading.Thread(target=wait)
        one.update(one.sample(16, timeout=LONG), np.zeros(16))
        until(lambda: first.coordinator.union.clients == {"one": 0.0})
        waiting.start()
        until(lambda: first.coordinator._waiting == 1)
        subscription = one.subscribe("a")
        first.close()
        waiting.join()
        assert lost
        until(lambda: not one.statistics().connected)
        second = stack.enter_context(ReplayServer(LAYOUT, listen=address, secret=SECRET))
        add(one, 3)
        assert set(second.sample(16, timeout=LONG).batch["item"].tolist()) == {3}
        second.publish("a", b"hello")
        assert subscription.receive(LONG) == b"hello"


def test_a_proxy_without_a_server_fails(address_of):
    with pytest.raises(Disconnected, match=r"no server was found at .* within 0\.1 s"):
        ReplayProxy(address_of("unix"), secret=SECRET, timeout=0.1)
    with ReplayServer(LAYOUT, secret=SECRET) as server:
        with pytest.raises(Disconnected, match="does not know this run's secret"):
            ReplayProxy(server.address, secret=b"a guess".ljust(32))
        with pytest.raises(ValueError, match="publications: expected a high-water mark of at least 1"):
            ReplayProxy(server.address, secret=SECRET, publish_mark=0)
        proxy = ReplayProxy(server.address, secret=SECRET, patience=0.1)
        one = connect(proxy.address, "one", patience=0.1)
        subscription = one.subscribe("a")
    with pytest.raises(Closed, match="no server was found"):
        subscription.receive(LONG)
    one.close()
    proxy.close()
    with pytest.raises(Closed), proxy:
        pass


def test_a_proxy_unsubscribes_when_the_last_subscriber_of_a_topic_has_left():
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer(LAYOUT, secret=SECRET))
        proxies = [stack.enter_context(ReplayProxy(server.address, secret=SECRET))]
        proxies.append(stack.enter_context(ReplayProxy(proxies[0].address, secret=SECRET)))
        one, two = (stack.enter_context(connect(proxies[1].address, name)) for name in ("one", "two"))
        first, second = one.subscribe("a"), two.subscribe("a")
        other = one.subscribe("b")
        server.publish("a", b"old")
        assert [it.receive(LONG) for it in (first, second)] == [b"old"] * 2
        one.unsubscribe(first)
        assert [it.statistics().topics for it in proxies] == [("a", "b")] * 2
        assert server.publications.topics == {"a", "b"}
        two.close()  # it goes without a word about its subscription
        until(lambda: server.publications.topics == {"b"})
        assert [it.statistics().topics for it in proxies] == [("b",)] * 2
        before = [it.statistics().published for it in proxies]
        server.publish("a", b"unheard")
        server.publish("b", b"heard")
        assert other.receive(LONG) == b"heard"
        assert [it.statistics().published for it in proxies] == [n + 1 for n in before]
        again = one.subscribe("a")
        assert again.receive(LONG) == b"unheard", "the newest publication comes from the server, not from the proxy"
        one.unsubscribe(again)
        one.unsubscribe(other)
        until(lambda: not server.publications.topics)
        assert server.publications._subscribers == {}


@pytest.mark.parametrize(("policy", "dropped", "refused"), [("drop_oldest", 3, 0), ("refuse", 0, 3)])
def test_publications_at_a_proxy_are_bounded(policy, dropped, refused):
    """Two publications wait unread at the client, one is on its way, and one waits for that."""
    with (
        ReplayServer(LAYOUT, secret=SECRET, publish_mark=64) as server,
        ReplayProxy(server.address, secret=SECRET, publish_mark=2, when_slow=policy) as proxy,
        connect(proxy.address, "one") as one,
        connect(proxy.address, "two") as two,
    ):
        slow, quick = one.subscribe("a", high_water=2, when_full="block"), two.subscribe("b", high_water=64)
        for i in range(7):
            server.publish("a", bytes([i]))
            server.publish("b", b"on")
            assert quick.receive(LONG) == b"on", "a slow subscriber of one topic does not delay another topic"
        statistics = proxy.statistics()
        assert (statistics.dropped_publications, statistics.refused_publications) == (dropped, refused)
        assert statistics.published == 14 - refused
        expected = [0, 1, 2, 6] if policy == "drop_oldest" else [0, 1, 2, 3]
        assert [slow.receive(LONG) for _ in expected] == [bytes([i]) for i in expected]


def test_a_proxy_that_blocks_keeps_its_server_waiting():
    with (
        ReplayServer(LAYOUT, secret=SECRET, publish_mark=1, when_slow="block") as server,
        ReplayProxy(server.address, secret=SECRET, publish_mark=1, when_slow="block") as proxy,
        connect(proxy.address, "one") as one,
    ):
        slow = one.subscribe("a", high_water=1, when_full="block")
        for i in range(3):  # one waits to be read, one at the proxy, and one at the server
            server.publish("a", bytes([i]), timeout=LONG)
        with pytest.raises(TimeoutError, match="a subscriber had no room"):
            server.publish("a", b"3", timeout=0.05)
        assert proxy.statistics().dropped_publications == 0
        assert [slow.receive(LONG) for _ in range(3)] == [b"\0", b"\1", b"\2"]


def test_a_request_beyond_a_proxy_s_limit_is_refused():
    with (
        ReplayServer(LAYOUT, secret=SECRET) as server,
        ReplayProxy(server.address, secret=SECRET, max_waiting=2) as proxy,
        connect(proxy.address, "one") as one,
    ):
        threads = [threading.Thread(target=one.sample, args=(1,), kwargs={"timeout": LONG}) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: server.coordinator._waiting == 2)
        for call in (lambda: one.sample(1, timeout=LONG), lambda: one.publish("a", b""), lambda: one.log("a")):
            with pytest.raises(Full, match="fewer than 2 requests to be under way, which is max_waiting"):
                call()
        add(one, 1)  # entries are let through
        for thread in threads:
            thread.join()
        one.publish("a", b"")
        statistics = proxy.statistics()
        assert (statistics.refused, statistics.passed_on, statistics.clients) == (3, 3, 1)
        assert (statistics.connected, statistics.connections) == (True, 1)
    assert not proxy.statistics().connected
    with pytest.raises(ValueError, match="max_waiting: expected at least 1, got 0"):
        ReplayProxy("tcp://127.0.0.1:1", secret=SECRET, max_waiting=0)
