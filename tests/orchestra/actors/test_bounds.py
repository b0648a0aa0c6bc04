"""What a node remembers of names that members of its run make up, and says of connections it refused, has an end."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from orchestra import Message, Node, UsageError
from orchestra.actors.statistics import MAX_SENDER, Deliveries, MessageCounts, others_like
from orchestra.errors import DecodeError
from orchestra.log import get
from orchestra.testing import Probe, settle
from orchestra.wire.handshake import LONGEST_ID, LONGEST_NODE, Hello
from orchestra.wire.refusals import INTERVAL_S, REFUSALS, Refusals
from orchestra.wire.transports.registry import transport_for

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


# Flows


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from("ab"), st.integers(1, 9))), st.integers(0, 10))
def test_flows_are_few_and_miss_no_message(told: list[tuple[int, str, int]], most: int) -> None:
    message_counts: MessageCounts[tuple[str, str]] = MessageCounts(most)
    for sender, kind, count in told:
        message_counts.add((f"node/{sender}", kind), count, ("others", kind))
    counted = message_counts.counted()
    for kind in "ab":
        assert sum(n for (_, k), n in counted.items() if k == kind) == sum(n for _, k, n in told if k == kind)
    apart = Counter(flow for flow in counted if flow[0] != "others")
    assert len(apart) <= most
    assert len(counted) <= most + 2


def test_what_is_told_apart_stays_so_and_names_longer_than_any_do_not() -> None:
    message_counts: MessageCounts[tuple[str, str]] = MessageCounts(3)
    for sender in ("b" * (MAX_SENDER + 1), "a/x", "a/y", "a/z", "a/x"):
        message_counts.add((sender, "k"), 1, (others_like(sender), "k"))
    assert message_counts.counted() == {("a/x", "k"): 2, ("a/y", "k"): 1, ("others", "k"): 2}


def test_observers_are_no_part_of_the_run_among_the_others_neither() -> None:
    assert others_like("observer-17/outside") == "observer-others"
    assert others_like("worker/a") == "others"


def test_an_actor_tells_so_many_senders_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.actors.statistics.MAX_FLOWS", 10)
    delivered = Deliveries()
    for n in range(1000):
        delivered.turn(NoteMsg, f"liar/{n}")
        delivered.count += 2
    delivered.turn(NoteMsg, "liar/1000")
    assert len(delivered._counts.counted()) == 11
    assert delivered.message_counts()["others", NoteMsg] == 2 * 990
    assert delivered.message_counts().total() == delivered.count == 2000


def test_a_member_that_makes_up_senders_fills_no_table(
    run: Run, address_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.actors.statistics.MAX_FLOWS", 20)

    async def main() -> None:
        async with (
            Node("root", listen=address_of("memory")).running() as root,
            Node("leaf", join=root.listening, secret=root.secret).running() as leaf,
        ):
            probe = Probe(NoteMsg)
            probe.start(root, "probe")
            link = leaf.peers.find("root")
            assert link is not None
            for n in range(200):
                link.post(f"leaf/nobody-{n}", "root/probe", NoteMsg(n=n))
            assert len(await probe.heard(NoteMsg, 200)) == 200
            message_counts = [flow for flow in root.statistics().message_counts if flow.recipient == "root/probe"]
            assert len(message_counts) <= 22
            assert sum(flow.count for flow in message_counts) == 200
            assert {flow.sender for flow in message_counts} >= {"leaf/nobody-0", "others"}

    run(main())


def test_of_actors_that_are_gone_so_many_flows_are_told_apart(
    run: Run, address_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.accounts.PAST_COUNTS", 10)

    async def main() -> None:
        async with Node("root", listen=address_of("memory")).running() as root:
            for n in range(50):
                there = Probe(NoteMsg).start(root, f"probe-{n}")
                await there.tell(NoteMsg(n=n))
                await settle(root)
                await root.cell(there.address).stop()
            assert (
                len(root.accounts._past.counted()) <= 10 + 2
            )  # one for each type: of notes, and of what stops an actor
            notes = [flow for flow in root.statistics().message_counts if flow.type == "NoteMsg"]
            assert sum(flow.count for flow in notes) == 50
            assert any(flow.recipient == flow.sender == "others" for flow in notes)

    run(main())


# Sessions that have ended


def test_ended_sessions_are_forgotten_the_oldest_first_and_live_ones_go_on(
    run: Run, address_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestra.nodes.peers.ENDED", 3)

    async def main() -> None:
        async with (
            Node("root", listen=address_of("memory")).running() as root,
            Node("steady", listen=address_of("memory"), join=root.listening, secret=root.secret).running() as steady,
        ):
            probe = Probe(NoteMsg)
            probe.start(root, "probe")
            link = root.peers.find("steady")
            for n, name in enumerate([*"abcdefa", *"bcda"]):
                await steady.ref("root/probe").tell(NoteMsg(n=2 * n))
                async with Node(name, join=root.listening, secret=root.secret).running() as leaf:
                    await leaf.ref("root/probe").tell(NoteMsg(n=2 * n + 1))
                await settle(root, steady)
                assert len(root.peers._ended) <= 3
                assert list(root.peers._ended)[-1] == name
            assert list(root.peers._ended) == ["c", "d", "a"]
            heard = [message.n for message in await probe.heard(NoteMsg, 22)]
            assert sorted(heard) == list(range(22)), "all once"
            assert heard[::2] == sorted(heard[::2]), "in order"
            assert root.peers.find("steady") is link, "the live session is the one it was"

    run(main())


def test_names_that_are_remembered_are_short() -> None:
    said: dict[str, Any] = {
        "node": "a",
        "listening": "",
        "host": "",
        "root": "",
        "joins": False,
        "incarnation": b"i",
        "session": b"s",
        "attempt": 1,
        "resumes": False,
        "received": 0,
        "after": b"",
        "types": [],
    }
    for name, longest in (("node", LONGEST_NODE), ("incarnation", LONGEST_ID), ("session", LONGEST_ID)):
        unit: Any = "a" if name == "node" else b"a"
        assert Hello.unpack(Hello(**{**said, name: unit * longest}).pack())
        with pytest.raises(DecodeError, match="its names are too long"):
            Hello.unpack(msgpack.packb({**said, name: unit * (longest + 1)}))
    with pytest.raises(UsageError, match="the name of a node has 129 characters; at most 128 are allowed"):
        Node("a" * (LONGEST_NODE + 1))


# Refusals


def test_the_first_refusals_are_told_and_the_others_counted() -> None:
    with capture_logs() as lines:
        refusals = Refusals(get())
        for n in range(REFUSALS + 100):
            refusals.add(50.0 + n / 100, f"source {n}", f"reason {n}")
        assert [line["reason"] for line in lines] == [f"reason {n}" for n in range(REFUSALS)]
        del lines[:]
        refusals.sum_up(50.0 + INTERVAL_S - 0.1)
        assert lines == []
        refusals.sum_up(50.0 + INTERVAL_S)
        (line,) = lines
        assert (line["event"], line["count"], line["last"]) == (
            "more connections refused",
            100,
            f"reason {REFUSALS + 99}",
        )
        refusals.sum_up(50.0 + 5 * INTERVAL_S)
        assert len(lines) == 1, "what was told is told once"
        refusals.add(1000.0, "source 0", "another")
        assert lines[-1]["reason"] == "another"


def test_a_source_is_told_once_in_a_minute() -> None:
    with capture_logs() as lines:
        refusals = Refusals(get())
        for n in range(120):
            refusals.add(50.0 + n, f"10.0.0.{n % 2}", f"reason {n}")
    told = [line["reason"] for line in lines if line["event"] == "connection refused"]
    assert told == ["reason 0", "reason 1", "reason 60", "reason 61"]
    assert [line["count"] for line in lines if "count" in line] == [58]


def test_refusals_that_are_expected_in_a_healthy_run_are_no_warning_and_hide_none() -> None:
    with capture_logs() as lines:
        refusals = Refusals(get())
        for n in range(2 * REFUSALS):
            refusals.add(50.0 + n, f"member {n}", "it hung up", expected=True)
        assert {line["log_level"] for line in lines} == {"info"}
        refusals.add(90.0, "member 0", "it knows another secret")
        refusals.add(90.0, "member 0", "it knows another secret")
        refusals.add(90.0, "member 0", "it hung up", expected=True)
        refusals.sum_up(90.0, final=True)
    assert [(line["log_level"], line.get("reason", line.get("last")), line.get("count")) for line in lines[-3:]] == [
        ("warning", "it knows another secret", None),
        ("warning", "it knows another secret", 1),
        ("info", "it hung up", REFUSALS + 1),
    ]


def test_an_interval_of_few_refusals_has_nothing_to_sum_up() -> None:
    with capture_logs() as lines:
        refusals = Refusals(get())
        refusals.sum_up(0.0)
        for n in range(20):
            refusals.add(n * INTERVAL_S, "source", "again")
        refusals.sum_up(20 * INTERVAL_S, final=True)
    assert [line["event"] for line in lines] == ["connection refused"] * 20


def test_a_door_that_is_knocked_at_all_the_time_fills_no_log(run: Run, address_of: Any) -> None:
    async def main() -> None:
        async with Node("root", listen=address_of("memory")).running() as root:
            for _ in range(20 * REFUSALS):
                connection = await transport_for(root.listening).dial(root.listening)
                connection.send([b"GET / HTTP/1.1\r\n\r\n"])
                await asyncio.sleep(0)
            while root.peers._acceptor._handshakes:  # noqa: ASYNC110  (they end by themselves)
                await asyncio.sleep(0)

    with capture_logs() as lines:
        run(main())
    refused = [line for line in lines if "refused" in line["event"] and line["log_level"] == "warning"]
    assert [line["event"] for line in refused] == ["connection refused", "more connections refused"]
    assert refused[-1]["count"] == 20 * REFUSALS - 1


def test_the_heart_sums_up_what_nobody_asks_for(run: Run, address_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestra.nodes.failure_detection.HEARTBEAT_S", 0.01)
    monkeypatch.setattr("orchestra.wire.refusals.INTERVAL_S", 0.02)

    async def main() -> None:
        async with Node("root", listen=address_of("memory")).running() as root:
            for n in range(REFUSALS + 3):
                root.peers._acceptor._refusals.add(root.clock.monotonic(), f"source {n}", f"reason {n}")
            async with asyncio.timeout(10):
                while lines[-1]["event"] != "more connections refused":  # noqa: ASYNC110  (the heart beats)
                    await asyncio.sleep(0)

    with capture_logs() as lines:
        run(main())
    assert [line["count"] for line in lines if "count" in line] == [3]
