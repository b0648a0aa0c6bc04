"""The table of the hosts of a run: what each does, and those that are wrong first."""

from typing import Any

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


def root(*hosts: HostStatistics) -> NodeStatistics:
    links = tuple(link(each.agent, 0.0021) for each in hosts if each.agent)
    return node("root", 1.0, 1.0, hosts=hosts, links=links)


def test_a_run_on_one_machine_has_no_table() -> None:
    assert host_rows(root()) == []
    assert host_lines([]) == []


def test_each_host_has_its_state_its_cores_its_nodes_and_what_it_plays() -> None:
    hosts = (
        host(0, plays=False, name="head", running=2, cores_used=1.04),
        host(1, agent="agent-1-ab", clock_offset_s=-3600.04, where="cpu1 by ssh", cores_used=2.0, tunnel=True),
        host(2, "gone", running=0, since_s=7.3, reason="Connection refused, 4 tries", env_steps=9, policy_lag=31),
        host(3, "joined", cores=0, since_s=2.0, running=0),
        host(4, "silent", agent="agent-4-ab", since_s=90.0, silent_s=6.4, env_steps_per_s=1234.5, policy_lag=3),
    )
    rows = host_rows(root(*hosts))
    assert [line.plain for line in host_lines(rows)] == [
        "slot host       cores   nodes  steps/s   lag round trip    clock  state",
        "   0 head   1.0 of 16     2/2        -     -          -        -  playing (no workers)",
        "   1 cpu1   2.0 of 16     2/2        0     -     2.1 ms -3600.0 s  playing  cpu1 by ssh, through the tunnel",
        "   2 cpu2     - of 16     0/2        0    31          -        -  gone 7 s (Connection refused, 4 tries)",
        "   3 cpu3      - of ?     0/2        0     -          -        -  compiling 2 s",
        "   4 cpu4     - of 16     2/2    1,234     3     2.1 ms        -  silent 6 s",
    ]
    second = hosts_as_json(rows)[1]
    assert (second["slot"], second["cores_used"], second["round_trip_s"]) == (1, 2.0, 0.0021)


def test_of_many_hosts_the_wrong_ones_are_shown_and_the_sum_of_all() -> None:
    hosts = [host(slot, cores_used=1.0, env_steps_per_s=100.0) for slot in range(20)]
    hosts[9], hosts[14] = host(9, "silent"), host(14, running=1)
    hosts[17] = host(17, "queued", reason="PENDING (Resources)")
    hosts[5] = host(5, cores_used=4.5)
    rows = host_rows(root(*hosts))
    lines = [line.plain for line in host_lines(rows, most=4)]
    assert [int(line.split()[0]) for line in lines[1:-1]] == [9, 17, 14, 5]
    assert lines[2].endswith("queued 0 s (PENDING (Resources))")
    assert lines[-1] == "     and 16 more; all 20: 20.5 of 320 cores, 39/40 nodes, 1,600 steps/s, 18 playing"
    by_slot = [int(line.plain.split()[0]) for line in host_lines(rows)[1:]]
    assert by_slot == list(range(20))
    assert int(host_lines(rows, worst_first=True)[1].plain.split()[0]) == 9
