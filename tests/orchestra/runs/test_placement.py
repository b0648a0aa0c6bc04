"""Every node of a run is placed once, where the experiment says, and a host that lacks what they need is named."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra import Actor, Hosts, HostShape, Message, Ref, Topology, UsageError, on
from orchestra.hosts.shape import memory_text, visible_gpus
from orchestra.runs.placement import Edge, by_host, check_edges, edges_between_hosts, environments, place

GIB = 1 << 30


class GoMsg(Message):
    """Go."""


class Player(Actor[GoMsg]):
    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


Need = tuple[int, int, int]
"""Cores, GPUs and bytes of memory."""


def shapes(*hosts: Need | None, plays: tuple[int, ...] = ()) -> Hosts:
    """Return hosts with what each has, None for one that is not known yet."""
    return Hosts(
        [HostShape(slot, f"h{slot}", *(has or (0, 0, 0)), plays=slot in plays) for slot, has in enumerate(hosts)]
    )


def planned(hosts: Hosts, *needs: tuple[int, Need]) -> Topology:
    """Plan a root without needs, and the nodes n0, n1 and so on, on a slot and with needs each."""
    topology = Topology("placed")
    topology.until(topology.node("root").spawn("boss", Player))
    for number, (slot, (cores, gpus, memory)) in enumerate(needs):
        on_host = hosts.at(slot) or HostShape(slot)
        topology.node(f"n{number}", on=on_host, cores=cores, gpus=gpus, memory=memory)
    return topology


BIG, GPU, SMALL = (64, 0, 256 * GIB), (16, 2, 64 * GIB), (2, 0, 4 * GIB)
NOTHING = (0, 0, 0)
FITTING: list[tuple[tuple[Need | None, ...], tuple[tuple[int, Need], ...]]] = [
    ((SMALL,), ()),
    ((SMALL,), ((0, NOTHING),)),
    ((SMALL,), ((0, NOTHING),) * 9),
    ((SMALL,), ((0, (2, 0, 0)),)),
    ((SMALL,), ((0, (1, 0, 0)), (0, (1, 0, 0)))),
    ((SMALL,), ((0, (2, 0, 4 * GIB)), (0, NOTHING))),
    ((SMALL, SMALL), ((1, (2, 0, 0)), (0, (2, 0, 0)))),
    ((SMALL, BIG), ((1, (64, 0, 256 * GIB)),)),
    ((SMALL, BIG), ((1, (1, 0, GIB)),) * 64),
    ((GPU,), ((0, (0, 2, 0)),)),
    ((GPU,), ((0, (0, 1, 0)), (0, (0, 1, 0)))),
    ((GPU, SMALL), ((0, (16, 2, 64 * GIB)), (1, (2, 0, 4 * GIB)))),
    ((SMALL, GPU), ((1, (0, 2, 0)),)),
    ((SMALL, SMALL, GPU), ((2, (0, 1, 0)), (1, (1, 0, 0)), (2, (15, 1, 0)))),
    ((SMALL, None), ((1, (999, 9, 999 * GIB)),)),
    ((None,), ((0, (1, 1, 1)),)),
]
LACKING: list[tuple[tuple[Need | None, ...], tuple[tuple[int, Need], ...], list[str]]] = [
    ((SMALL,), ((0, (3, 0, 0)),), ["0 (h0)  cores  3      2      n0"]),
    ((SMALL,), ((0, (1, 0, 0)), (0, (2, 0, 0))), ["0 (h0)  cores  3      2      n0, n1"]),
    ((SMALL,), ((0, (1, 0, 0)), (0, NOTHING), (0, (2, 0, 0))), ["0 (h0)  cores  3      2      n0, n2"]),
    ((SMALL,), ((0, (0, 0, 4 * GIB + 1)),), ["0 (h0)  memory  4.0 GiB  4.0 GiB  n0"]),
    ((SMALL,), ((0, (0, 0, 3 * GIB)),) * 2, ["0 (h0)  memory  6.0 GiB  4.0 GiB  n0, n1"]),
    ((SMALL,), ((0, (0, 1, 0)),), ["0 (h0)  GPUs  1      0      n0", "no host has a GPU"]),
    (
        (SMALL, GPU),
        ((0, (0, 1, 0)),),
        [
            "0 (h0)  GPUs  1      0      n0",
            "the hosts with GPUs are 1 (h1, 2); --head NAME runs the head, with the learner, on one of them",
        ],
    ),
    (
        (SMALL, SMALL, GPU, GPU),
        ((1, (0, 1, 0)),),
        ["1 (h1)  GPUs  1      0      n0", "the hosts with GPUs are 2 (h2, 2), 3 (h3, 2)"],
    ),
    (
        (GPU,),
        ((0, (0, 2, 0)), (0, (0, 1, 0))),
        ["0 (h0)  GPUs  3      2      n0, n1", "the hosts with GPUs are 0 (h0, 2)"],
    ),
    ((SMALL, SMALL), ((1, (3, 0, 0)),), ["1 (h1)  cores  3      2      n0"]),
    (
        (SMALL, SMALL),
        ((1, (3, 0, 0)), (0, (5, 0, 5 * GIB))),
        [
            "0 (h0)  cores   5        2        n1",
            "0 (h0)  memory  5.0 GiB  4.0 GiB  n1",
            "1 (h1)  cores   3        2        n0",
        ],
    ),
    ((BIG, SMALL), ((0, (65, 0, 0)),), ["0 (h0)  cores  65     64     n0"]),
    ((SMALL, BIG), ((1, (1, 0, 0)),) * 65, ["1 (h1)  cores  65     64     " + ", ".join(f"n{n}" for n in range(65))]),
    ((None, SMALL), ((0, (9, 9, 9)), (1, (3, 0, 0))), ["1 (h1)  cores  3      2      n1"]),
]


def test_the_table_has_thirty_cases() -> None:
    assert len(FITTING) + len(LACKING) == 30


@pytest.mark.parametrize(("hosts", "needs"), FITTING)
def test_nodes_that_fit_are_where_they_were_put(
    hosts: tuple[Need | None, ...], needs: tuple[tuple[int, Need], ...]
) -> None:
    there = shapes(*hosts)
    assert place(planned(there, *needs), there) == {"root": 0, **{f"n{n}": slot for n, (slot, _) in enumerate(needs)}}


@pytest.mark.parametrize(("hosts", "needs", "rows"), LACKING)
def test_nodes_that_do_not_fit_are_refused_with_what_was_asked_and_what_is_there(
    hosts: tuple[Need | None, ...], needs: tuple[tuple[int, Need], ...], rows: list[str]
) -> None:
    there = shapes(*hosts)
    with pytest.raises(UsageError) as caught:
        place(planned(there, *needs), there)
    first, head, *found = str(caught.value).splitlines()
    assert first == "the nodes of the run need more than their hosts have:"
    assert head.split() == ["host", "what", "asked", "there", "by"]
    assert [line.strip() for line in found] == rows


def test_a_node_on_a_host_that_the_run_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^node 'n0' is on host 7, but the hosts of the run are 0, 1$"):
        place(planned(shapes(SMALL, SMALL), (7, NOTHING)), shapes(SMALL, SMALL))


def test_a_resource_that_is_ignored_may_lack() -> None:
    there = shapes(SMALL)
    topology = planned(there, (0, (0, 1, 0)))
    assert place(topology, there, ignored=("GPUs",)) == {"root": 0, "n0": 0}


def test_a_process_has_the_threads_and_the_gpus_of_its_node_alone() -> None:
    there = shapes(BIG, (16, 4, 64 * GIB))
    topology = planned(there, (1, (4, 1, 0)), (0, (2, 0, 0)), (1, (0, 2, 0)), (1, NOTHING))
    assert {name: tuple(each.values()) for name, each in environments(by_host(topology)[1]).items()} == {
        "n0": ("4", "4", "0"),
        "n2": ("1", "1", "1,2"),
        "n3": ("1", "1", ""),
    }
    assert list(environments(by_host(topology)[1])["n0"]) == [
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
    ]
    assert list(environments(by_host(topology)[0])) == ["root", "n1"]


@pytest.mark.parametrize(
    ("indexes", "variables", "visible"),
    [
        ("0,1", {}, "0,1"),
        ("", {"CUDA_VISIBLE_DEVICES": "2,3"}, ""),
        ("1", {"CUDA_VISIBLE_DEVICES": "2,3"}, "3"),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "GPU-1, GPU-2"}, "GPU-1,GPU-2"),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "5"}, "5"),
    ],
)
def test_indexes_of_gpus_are_those_that_the_host_s_process_sees(
    indexes: str, variables: dict[str, str], visible: str
) -> None:
    assert visible_gpus(indexes, variables) == visible


def spread(hosts: Hosts, workers: int | None) -> Topology:
    """Lay out a learner on the head, and a proxy and workers on each host that plays, as QMIX does."""
    topology = Topology("spread")
    boss = topology.node("learner", cores=1).spawn("boss", Player)
    topology.until(boss)
    for host in hosts.playing:
        topology.node(f"host-{host.slot}", on=host, memory=GIB).spawn("proxy", Player)

    def plan(host: HostShape, number: int) -> Ref[Any]:
        return topology.node(f"worker-{host.slot}-{number}", on=host).spawn("worker", Player)

    counts = {host: workers or host.room_for(1, reserved=2 if host.slot == 0 else 0) for host in hosts.playing}
    topology.replicas_on("workers", counts, plan)
    return topology


def test_hosts_have_as_many_workers_as_cores_that_are_left() -> None:
    hosts = shapes((64, 0, GIB), (64, 0, GIB), (8, 0, GIB), plays=(0, 1, 2))
    topology = spread(hosts, None)
    places = list(place(topology, hosts).items())
    assert [sum(slot == host and name.startswith("worker") for name, slot in places) for host in range(3)] == [
        62,
        64,
        8,
    ]


@st.composite
def hosts_in_some_order(draw: st.DrawFn) -> list[HostShape]:
    slots = draw(st.lists(st.integers(1, 40), unique=True, max_size=6))
    found = [
        HostShape(slot, f"h{slot}", draw(st.integers(1, 12)), draw(st.integers(0, 4)), draw(st.integers(0, 3)) * GIB)
        for slot in slots
    ]
    head = HostShape(0, "head", draw(st.integers(1, 12)), plays=draw(st.booleans()) or not slots, memory=GIB)
    return draw(st.permutations([head, *found]))


@given(hosts_in_some_order(), st.none() | st.integers(1, 5))
def test_every_node_is_placed_once_on_the_host_that_it_names_whatever_the_order_of_joining(
    joined: list[HostShape], workers: int | None
) -> None:
    hosts = Hosts(joined)
    topology = spread(hosts, workers)
    lacks = [host for host in hosts.playing if host.memory < GIB]
    if lacks:
        with pytest.raises(UsageError) as caught:
            place(topology, hosts)
        for host in hosts:
            assert (f"  {host.slot} ({host.name})  " in str(caught.value)) is (host in lacks)
        return
    placed = place(topology, hosts)
    assert list(placed) == list(topology.nodes)
    assert placed == place(spread(Hosts(reversed(joined)), workers), Hosts(sorted(joined, key=lambda one: one.name)))
    for name, slot in placed.items():
        assert slot == (int(name.split("-")[1]) if "-" in name else 0)
    for host in hosts:
        asked = sum(topology.nodes[name].memory for name, slot in placed.items() if slot == host.slot)
        assert asked <= host.memory, memory_text(asked)
        count = sum(name.startswith(f"worker-{host.slot}-") for name in placed)
        assert (count >= 1) is host.plays


class Talker(Actor[GoMsg]):
    def __init__(self, *to: Ref[Any]) -> None: ...

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


def test_only_refs_between_nodes_of_different_hosts_have_one_be_dialled_and_none_through_a_tunnel() -> None:
    hosts = shapes(BIG, BIG, BIG, plays=(1, 2))
    topology = Topology("talking")
    boss = topology.node("root").spawn("boss", Talker, Ref("c/talker"))
    beside = topology.node("a").spawn("talker", Talker, boss)
    there = topology.node("b", on=hosts[1]).spawn("talker", Talker, boss, beside)
    topology.node("c", on=hosts[2]).spawn("talker", Talker, boss)
    topology.node("d", on=hosts[1]).spawn("talker", Talker, there, boss)
    topology.node("e", on=hosts[2]).spawn("talker", Talker, there)
    topology.until(boss)
    assert edges_between_hosts(topology) == [Edge("b/talker", 1, "a/talker", 0), Edge("e/talker", 2, "b/talker", 1)]
    check_edges(topology, hosts, tunnel=False)
    with pytest.raises(UsageError) as caught:
        check_edges(topology, hosts, tunnel=True)
    assert str(caught.value) == (
        "b/talker on host 1 (h1) cannot reach a/talker on host 0 (h0): with --tunnel the hosts reach the node 'root' "
        "alone; leave out --tunnel"
    )
    with pytest.raises(UsageError) as caught:
        check_edges(topology, hosts, tunnel=False, advertise=["head.example", "[fd00::1]:443"])
    assert str(caught.value) == (
        "b/talker on host 1 (h1) cannot reach a/talker on host 0 (h0): with --advertise [fd00::1]:443 the hosts reach "
        "the node 'root' alone; write --advertise HOST, without a port"
    )
    check_edges(topology, hosts, tunnel=False, advertise=["head.example", "fd00::1"])


def test_a_port_of_the_head_says_nothing_of_nodes_of_other_hosts() -> None:
    hosts = shapes(BIG, BIG, BIG, plays=(1, 2))
    topology = Topology("beside")
    boss = topology.node("root").spawn("boss", Talker)
    there = topology.node("b", on=hosts[1]).spawn("talker", Talker, boss)
    topology.node("e", on=hosts[2]).spawn("talker", Talker, there)
    topology.until(boss)
    check_edges(topology, hosts, tunnel=False, advertise=["head.example:443"])


def test_of_two_hosts_that_dial_the_other_way_the_other_node_listens() -> None:
    to_head, between = Edge("b/talker", 1, "a/talker", 0), Edge("e/talker", 2, "b/talker", 1)
    from_head = Edge("a/talker", 0, "b/talker", 1)
    assert [edge.listener() for edge in (to_head, from_head, between)] == ["a", "a", "b"]
    assert [edge.slots() for edge in (to_head, from_head, between)] == [(0, 1), (0, 1), (1, 2)]
    assert [edge.listener({(0, 1), (1, 2)}) for edge in (to_head, from_head, between)] == ["b", "b", "e"]
