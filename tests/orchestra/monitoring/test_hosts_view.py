"""The table of the hosts of a run: what each does, and those that are wrong first."""

from typing import Any

import pytest

from orchestra.actors.statistics import HostStatistics, LinkStatistics, NodeStatistics
from orchestra.monitoring.hosts_view import host_lines, host_rows, hosts_as_json


def node(name: str, at_s: float, cpu_s: float, *, pid: int = 7, **more: Any) -> NodeStatistics:
    empty = {"cells": (), "message_counts": (), "dead_letters": 0, "peers": (), "rss": 0, "lag_s": 0.0, "tasks": 1}
    return NodeStatistics(node=name, pid=pid, at_s=at_s, cpu_s=cpu_s, **{**empty, "links": (), **more})


def link(peer: str, round_trip_s: float | None) -> LinkStatistics:
    names = ["unacknowledged", "sent", "sent_bytes", "received", "received_bytes", "in_flight", "in_flight_bytes"]
    zeros = dict.fromkeys([*names, "waiting"], 0)
    return LinkStatistics(peer=peer, state="open", round_trip_s=round_trip_s, credit_used=0.0, **zeros)


def host(slot: int, state: Any = "playing", **more: Any) -> HostStatistics:
    nodes = (f"host-{slot}", f"worker-{slot}-0")
    return HostStatistics(
        **{"slot": slot, "name": f"cpu{slot}", "state": state, "cores": 16, "nodes": nodes, "running": 2, **more}
    )


def status(at_s: float, *hosts: HostStatistics, cpu_s: float, **workers: float) -> dict[str, NodeStatistics]:
    links = tuple(link(each.agent, 0.0021) for each in hosts if each.agent)
    found = {"root": node("root", at_s, 1.0, hosts=hosts, links=links)}
    for each in hosts:
        for name in each.nodes:
            found[name] = node(name, at_s, workers.get(name.replace("-", "_"), cpu_s))
    return found


def test_a_run_on_one_machine_has_no_table() -> None:
    alone = {"root": node("root", 1.0, 1.0)}
    assert host_rows({}, alone) == []
    assert host_lines([]) == []


def test_each_host_has_its_state_its_cores_and_its_nodes() -> None:
    hosts = (
        host(0, plays=False, name="head", running=2),
        host(1, agent="agent-1-ab", clock_offset_s=-3600.04, where="cpu1 by ssh"),
        host(2, "gone", running=0, since_s=7.3, reason="Connection refused, 4 tries"),
        host(3, "joined", cores=0, since_s=2.0, running=0),
    )
    before = status(10.0, *hosts, cpu_s=5.0)
    after = status(12.0, *hosts, cpu_s=6.0, worker_1_0=8.0)
    assert [line.plain for line in host_lines(host_rows(before, after))] == [
        "slot host       cores   nodes round trip    clock  state",
        "   0 head   1.0 of 16     2/2          -        -  playing (no workers)",
        "   1 cpu1   2.0 of 16     2/2     2.1 ms -3600.0 s  playing  cpu1 by ssh",
        "   2 cpu2   1.0 of 16     0/2          -        -  gone 7 s (Connection refused, 4 tries)",
        "   3 cpu3    1.0 of ?     0/2          -        -  compiling 2 s",
    ]
    first = hosts_as_json(host_rows(before, after))[1]
    assert (first["slot"], first["cores_used"], first["round_trip_s"]) == (1, 2.0, 0.0021)


@pytest.mark.parametrize("which", ["before", "after"])
def test_cores_in_use_are_unknown_unless_every_node_has_answered_twice(which: str) -> None:
    both = {"before": status(10.0, host(1), cpu_s=5.0), "after": status(12.0, host(1), cpu_s=6.0)}
    del both[which]["worker-1-0"]
    (row,) = host_rows(**both)
    assert row.cores_used is None
    assert "- of 16" in host_lines([row])[1].plain


def test_a_process_that_was_restarted_counts_from_its_start() -> None:
    before, after = status(10.0, host(1), cpu_s=5.0), status(12.0, host(1), cpu_s=6.0)
    after["worker-1-0"] = node("worker-1-0", 12.0, 0.5, pid=8)
    assert host_rows(before, after)[0].cores_used == 0.5  # the proxy's


def test_of_many_hosts_the_wrong_ones_are_shown_and_the_sum_of_all() -> None:
    hosts = [host(slot) for slot in range(20)]
    hosts[9], hosts[14] = host(9, "silent"), host(14, running=1)
    hosts[17] = host(17, "queued", reason="PENDING (Resources)")
    before, after = status(10.0, *hosts, cpu_s=5.0), status(12.0, *hosts, cpu_s=6.0, worker_5_0=9.0)
    rows = host_rows(before, after)
    lines = [line.plain for line in host_lines(rows, most=4)]
    assert [int(line.split()[0]) for line in lines[1:-1]] == [9, 17, 14, 5]
    assert lines[2].endswith("queued 0 s (PENDING (Resources))")
    assert lines[-1] == "     and 16 more; all 20: 21.5 of 320 cores, 39/40 nodes, 18 playing"
    by_slot = [int(line.plain.split()[0]) for line in host_lines(rows)[1:]]
    assert by_slot == list(range(20))
    assert int(host_lines(rows, worst_first=True)[1].plain.split()[0]) == 9
