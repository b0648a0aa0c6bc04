"""The tree of WorkerProxies: one on each host, and with a fan-out further ones between these and the Orchestrator."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from components.proxies import plan_proxies
from orchestra import Hosts, HostShape, Ref, Topology

BOSS: Ref[Any] = Ref("learner/orchestrator")


def shapes(slots: set[int]) -> Hosts:
    return Hosts([HostShape(0, "head", 4, plays=0 in slots), *(HostShape(slot, f"h{slot}", 4) for slot in slots - {0})])


def edges(hosts: Hosts, fan_out: int | None) -> dict[str, tuple[int, str]]:
    """Plan the proxies of some hosts; return the slot of each node, and to whom its proxy talks."""
    topology = Topology("tree")
    topology.node("learner")
    ups = plan_proxies(topology, hosts, to=BOSS, fan_out=fan_out)
    assert {host: ref.address for host, ref in ups.items()} == {
        host: f"host-{host.slot}/proxy" for host in hosts.playing
    }
    return {
        node.name: (node.slot, ref.address)
        for node in topology.nodes.values()
        for actor in node.actors
        for ref in actor.refs()
    }


def test_without_a_fan_out_every_host_talks_to_the_orchestrator() -> None:
    assert edges(shapes({0, 1, 5}), None) == {
        "host-0": (0, BOSS.address),
        "host-1": (1, BOSS.address),
        "host-5": (5, BOSS.address),
    }


slots = st.sets(st.integers(0, 300), min_size=1, max_size=60)


@given(slots, st.integers(2, 40))
def test_the_orchestrator_talks_to_one_proxy_for_as_many_hosts_as_the_fan_out_at_most(
    chosen: set[int], fan_out: int
) -> None:
    planned = edges(shapes(chosen), fan_out)
    above = {name for name, (_, to) in planned.items() if to == BOSS.address}
    assert all(name.startswith("proxies-") and planned[name][0] == 0 for name in above)
    below = {name: to for name, (_, to) in planned.items() if name not in above}
    assert set(below) == {f"host-{slot}" for slot in chosen}
    for name in above:
        assert 1 <= list(below.values()).count(f"{name}/proxy") <= fan_out
    assert len(above) <= max(chosen) // fan_out + 1


@given(slots, slots, st.integers(2, 40))
def test_a_host_that_comes_later_changes_the_plan_of_no_other_node(
    first: set[int], later: set[int], fan_out: int
) -> None:
    before, after = (edges(shapes(chosen | {0}), fan_out) for chosen in (first, first | later))
    assert {name: after[name] for name in before} == before
