"""An overview of a run: rates from two looks, the tree or a ranking, at any width."""

import json
from typing import Any

import pytest

from orchestra.actors.statistics import (
    CellStatistics,
    LinkStatistics,
    MailboxStatistics,
    NodeStatistics,
    ProcessStatistics,
)
from orchestra.monitoring.observer import ClusterStatus
from orchestra.monitoring.view import as_json, lines, rows


def cell(address: str, handled: int = 0, busy_s: float = 0.0, depth: int = 0, **changed: Any) -> CellStatistics:
    given: dict[str, Any] = {
        "address": address,
        "kind": "Worker",
        "mailbox": MailboxStatistics(depth=depth, nbytes=depth * 1500, capacity=10, waiting=0),
        "handled": handled,
        "restarts": 0,
        "busy_s": busy_s,
        "state": "idle",
        "message": "",
        "sender": "",
        "for_s": 0.0,
        "waits_for": (),
    }
    return CellStatistics(**given | changed)


def link(peer: str, sent_bytes: int = 0, **changed: Any) -> LinkStatistics:
    given: dict[str, Any] = {
        "peer": peer,
        "state": "open",
        "unacknowledged": 0,
        "round_trip_s": 0.00031,
        "sent": 0,
        "sent_bytes": sent_bytes,
        "received": 0,
        "received_bytes": 0,
        "in_flight": 0,
        "in_flight_bytes": 0,
        "credit_used": 0.0,
        "waiting": 0,
    }
    return LinkStatistics(**given | changed)


def node(name: str, *cells: CellStatistics, at_s: float = 0.0, **changed: Any) -> NodeStatistics:
    given: dict[str, Any] = {
        "node": name,
        "cells": (cell(f"{name}/system"), *cells),
        "message_counts": (),
        "dead_letters": 0,
        "peers": (),
        "links": (),
        "pid": 7,
        "at_s": at_s,
        "cpu_s": at_s / 2,
        "rss": 412_000_000,
        "lag_s": 0.0021,
        "tasks": 9,
    }
    return NodeStatistics(**given | changed)


def look(*nodes: NodeStatistics, **silent: str) -> ClusterStatus:
    return ClusterStatus({entry.node: entry for entry in nodes} | silent)


def shown(
    before: ClusterStatus | None, after: ClusterStatus, width: int = 100, order: Any = "tree", **options: Any
) -> list[str]:
    return [line.plain.rstrip() for line in lines(rows(before, after), width, order, **options)]


def test_rates_are_the_difference_of_two_looks() -> None:
    before = look(node("a", cell("a/x", 100, 1.0), at_s=10.0, links=(link("b", 5_000),)))
    after = look(node("a", cell("a/x", 300, 1.5), at_s=12.0, links=(link("b", 9_000),)))
    (row,) = rows(before, after)
    assert row.cpu == 0.5
    assert (row.actors[1].per_s, row.actors[1].busy) == (100.0, 0.25)
    assert row.links[0].sent_per_s == 2000.0


def test_one_look_has_no_rates_and_neither_has_what_was_started_in_between() -> None:
    first = look(node("a", cell("a/x", 100, 1.0), at_s=10.0))
    again = look(node("a", cell("a/x", 5, 0.1), at_s=11.0, pid=8))
    for before in (None, first):
        (row,) = rows(before, again)
        assert (row.cpu, row.actors[1].per_s, row.actors[1].busy) == (None, None, None)


def test_a_link_is_shown_once_with_what_both_ends_hold_up() -> None:
    after = look(
        node("a", links=(link("b", credit_used=0.1, waiting=1),)),
        node("b", links=(link("a", credit_used=0.9, waiting=2),)),
    )
    (row,) = [entry for found in rows(None, after) for entry in found.links]
    assert (row.node, row.now.peer, row.credit_used, row.waiting) == ("a", "b", 0.9, 3)


def test_a_broken_link_says_so_and_what_is_kept_for_its_peer() -> None:
    text = shown(None, look(node("a", links=(link("b", state="broken", unacknowledged=12),))))
    assert text[-1].endswith("0%       0  broken, 12 kept")


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (("", 0), ("", 0), ""),
        (("offered", 0), ("", 0), ""),
        (("shared", 2_000_000), ("", 0), "  by memory, 2.0 MB held"),
        (("shared", 2_000_000), ("shared", 12_000_000), "  by memory, 14 MB held"),
        (("", 0), ("shared", 0), "  by memory, 0 B held"),
        (("switched off at b", 0), ("", 0), "  not by memory: switched off at b"),
    ],
)
def test_a_link_says_how_large_arrays_go_by_it(here: tuple[str, int], there: tuple[str, int], text: str) -> None:
    def end(peer: str, memory: str, held: int) -> LinkStatistics:
        return link(peer, memory=memory, memory_held_bytes=held)

    both = look(node("a", links=(end("b", *here),)), node("b", links=(end("a", *there),)))
    assert shown(None, both)[-1].endswith(f"0%       0{text}")


def test_the_tree_is_by_node_with_children_below_their_parent() -> None:
    text = shown(
        None,
        look(
            node("a", cell("a/x", depth=3), cell("a/x:kid"), links=(link("b"),)),
            node("b", cell("b/y", message="StepMsg", state="waiting", for_s=2.5, waits_for=("asks a/x",))),
        ),
    )
    assert text == [
        "actor          queue   bytes  msg/s busy  state",
        "a   pid 7   cpu -   412 MB   loop lag 2.1 ms   9 tasks",
        "  x Worker         3  4.5 kB      -    -  idle",
        "    kid Worker     0     0 B      -    -  idle",
        "b   pid 7   cpu -   412 MB   loop lag 2.1 ms   9 tasks",
        "  y Worker         0     0 B      -    -  asks a/x (StepMsg) 2.5 s",
        "",
        "link  round trip   sent/s    got/s  credit waiting",
        "a - b     0.3 ms        -        -      0%       0",
    ]
    assert "  system Worker" in shown(None, look(node("a")), own=True)[2]


def test_a_ranking_is_of_all_actors_and_names_their_nodes() -> None:
    before = look(node("a", cell("a/slow"), at_s=0.0), node("b", cell("b/fast"), at_s=0.0))
    after = look(node("a", cell("a/slow", 10, 9.0, 2), at_s=10.0), node("b", cell("b/fast", 900, 1.0), at_s=10.0))
    firsts = {
        order: [line.split()[0] for line in shown(before, after, order=order)[1:]]
        for order in ("depth", "busy", "rate")
    }
    assert firsts == {
        "depth": ["a/slow", "b/fast"],
        "busy": ["a/slow", "b/fast"],
        "rate": ["b/fast", "a/slow"],
    }


def test_a_node_that_does_not_answer_is_shown_with_the_reason() -> None:
    dead = ProcessStatistics(node="w", pid=3, running=False, restarts=4, given_up=True)
    after = look(node("a", processes=(dead, dead.model_copy(update={"node": "v", "given_up": False}))), w="x", v="slow")
    text = shown(None, after)
    assert text[-2:] == ["w   given up, it died too often   restarted 4 times", "v   slow   restarted 4 times"]
    assert shown(None, after, order="busy")[1:3] == text[-2:]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("order", ["tree", "busy"])
def test_no_line_is_wider_than_the_window(width: int, order: str) -> None:
    busy = {"message": "BatchTrainingDataMsg", "state": "waiting", "waits_for": ("in a thread: Qmix.learn",)}
    after = look(
        node("learner", *(cell(f"learner/{'trajectories' * n}", **busy) for n in (1, 4)), links=(link("worker-0-0"),)),
        gone="a reason that is rather long, as the reasons of the system for refusing something tend to be",
    )
    assert max(map(len, shown(None, after, width, order))) <= width
    if width >= 80 and order == "tree":
        assert any("in a thread: Qm" in line for line in shown(None, after, width))


def test_as_json_all_of_it_is_there() -> None:
    before = look(node("a", cell("a/x", 100, 1.0), at_s=10.0))
    after = look(node("a", cell("a/x", 300, 1.5), at_s=12.0), b="no answer within 2 s")
    found = json.loads(json.dumps(as_json("runs/1", rows(before, after))))
    a, b = found["nodes"]
    assert found["run"] == "runs/1"
    assert (a["node"], a["answered"], a["cpu_share"], a["rss"]) == ("a", True, 0.5, 412_000_000)
    (x,) = [row for row in a["actors"] if row["address"] == "a/x"]
    assert (x["messages_per_s"], x["busy_share"], x["mailbox"]["capacity"]) == (100.0, 0.25, 10)
    assert (b["answered"], b["reason"], b["actors"]) == (False, "no answer within 2 s", [])


def test_a_node_that_is_unencrypted_says_so() -> None:
    assert any("unencrypted" in line for line in shown(None, look(node("a", unencrypted=True))))
    assert not any("unencrypted" in line for line in shown(None, look(node("a"))))
