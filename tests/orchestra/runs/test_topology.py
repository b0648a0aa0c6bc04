"""Plans: who is where, who holds whose ref, and what is wrong with a plan."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from orchestra import Actor, HandlerError, Hosts, HostShape, Message, Ref, Topology, UsageError, on
from orchestra.runs.topology import MOST_REPLICAS


class GoMsg(Message):
    """Go."""


@dataclass
class Team:
    captain: Ref[GoMsg]
    others: list[Ref[GoMsg]]


class Player(Actor[GoMsg]):
    def __init__(self, *held: object, **named: object) -> None:
        self.held = held

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


def test_a_plan_describes_nodes_actors_and_refs() -> None:
    topology = Topology("match")
    field = topology.node("field")
    ball = field.spawn("ball", Player)
    bench = topology.node("bench")
    coach = bench.spawn("coach", Player, to=ball)
    bench.spawn("team", Player, Team(ball, [coach]), again=ball, nested={"x": (coach, partial(Player, ball))})
    topology.until(ball)
    assert topology.describe() == "\n".join(
        [
            "topology 'match'",
            "  field",
            "    ball: Player   (the run ends with it)",
            "  bench",
            "    coach: Player -> field/ball",
            "    team: Player -> field/ball, bench/coach",
        ]
    )


def test_refs_within_a_dataclass_belong_to_a_plan() -> None:
    topology = Topology("match")
    field = topology.node("field")
    ball, coach = field.spawn("ball", Player), field.spawn("coach", Player)
    field.spawn("team", Player, Team(ball, [coach]), Team)
    topology.until(ball)
    assert "team: Player -> field/ball, field/coach" in topology.describe()


def test_the_first_node_is_the_root() -> None:
    topology = Topology("match")
    topology.node("field")
    topology.node("bench")
    assert topology.root.name == "field"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä ö"])
def test_names_are_what_an_address_can_hold(name: str) -> None:
    with pytest.raises(UsageError, match="cannot name a node: use letters, digits"):
        Topology("match").node(name)


def test_a_node_and_an_actor_are_named_once() -> None:
    topology = Topology("match")
    node = topology.node("field")
    node.spawn("ball", Player)
    with pytest.raises(UsageError, match="topology 'match' has a node 'field' already"):
        topology.node("field")
    with pytest.raises(UsageError, match="node 'field' has an actor 'ball' already"):
        node.spawn("ball", Player)


def test_only_actors_are_spawned() -> None:
    with pytest.raises(HandlerError, match="spawn takes an actor class"):
        Topology("match").node("field").spawn("ball", dict)  # type: ignore[arg-type, var-annotated]  # the point


def test_a_plan_without_nodes_or_end_is_refused() -> None:
    topology = Topology("match")
    with pytest.raises(UsageError, match="topology 'match' has no node"):
        topology.main_actor()
    topology.node("field")
    with pytest.raises(UsageError, match=r"does not say when the run ends: call until\(ref\)"):
        topology.main_actor()


def test_a_run_ends_with_an_actor_of_the_root() -> None:
    topology = Topology("match")
    topology.node("field").spawn("ball", Player)
    topology.until(topology.node("bench").spawn("coach", Player))
    with pytest.raises(UsageError, match="ends with bench/coach, which is no actor of its first node; these are "):
        topology.main_actor()
    topology.until(Ref("field/ball"))
    assert topology.main_actor() == "field/ball"


# What a run requires --------------------------------------------------------------------------------------------------


def test_required_actors_are_named_with_the_number_below_which_the_run_fails() -> None:
    topology = Topology("plan")
    node = topology.node("one")
    refs = [node.spawn(name, Player) for name in "abc"]
    topology.require(refs[0], refs[1])
    topology.require(*refs, at_least=2)
    alone, other, group = topology.requirements
    assert (alone.actors, alone.at_least, other.actors) == (("one/a",), 1, ("one/b",))
    assert (group.actors, group.at_least) == (("one/a", "one/b", "one/c"), 2)
    assert alone.missing({"one/b"}.__contains__) == ""
    assert alone.missing({"one/a"}.__contains__) == "one/a is required and lost"
    assert group.missing({"one/a"}.__contains__) == ""
    assert group.missing({"one/a", "one/c"}.__contains__) == (
        "1 of 3 actors are left (one/a, one/b, one/c), and at least 2 required"
    )


def test_a_requirement_that_no_run_can_meet_is_refused() -> None:
    topology = Topology("plan")
    sink = topology.node("one").spawn("a", Player)
    with pytest.raises(UsageError, match=r"^topology 'plan' requires 2 of 1 actors; 1 to 1 are allowed$"):
        topology.require(sink, at_least=2)
    with pytest.raises(UsageError, match=r"^topology 'plan' requires two/b, which is not planned$"):
        topology.require(Ref("two/b"))


# Replicas -------------------------------------------------------------------------------------------------------------


def farm(count: int = 2, **options: Any) -> Topology:
    """Players on two hosts in turn."""
    topology = Topology("farm")
    field = topology.node("field").spawn("ball", Player)

    def plan(index: int) -> Ref[Any]:
        return topology.node(f"player-{index % 2}-{index // 2}").spawn("player", Player, index, to=field)

    topology.replicas("players", count, plan, **options)
    topology.until(field)
    return topology


def test_replicas_are_planned_by_index_and_scaled_from_the_last() -> None:
    topology = farm(3)
    first = ["field", "player-0-0", "player-1-0", "player-0-1"]
    assert list(topology.nodes) == first
    assert topology.scale("players", 5) == (["player-1-1", "player-0-2"], [])
    assert list(topology.nodes) == [*first, "player-1-1", "player-0-2"]
    assert topology.nodes["player-0-2"].actors[0].factory.args == (4,)
    assert topology.scale("players", 1) == ([], ["player-1-0", "player-0-1", "player-1-1", "player-0-2"])
    assert list(topology.nodes) == first[:2]
    assert topology.scale("players", 1) == ([], [])
    assert topology.group("players").planned == 3


def test_a_run_requires_of_the_replicas_that_it_has() -> None:
    topology = farm(3, at_least=2)
    (requirement,) = topology.requirements
    assert requirement.missing({"player-1-0/player"}.__contains__) == ""
    topology.scale("players", 2)
    (requirement,) = topology.requirements
    assert requirement.actors == ("player-0-0/player", "player-1-0/player")
    assert requirement.missing({"player-1-0/player"}.__contains__).startswith("1 of 2 actors are left")


def test_a_process_finds_the_node_of_a_replica_that_the_flags_do_not_plan() -> None:
    """Its run was scaled; what an extending experiment changed of each replica holds for this one too."""
    topology = farm(1)
    changed = []
    topology.group("players").each(lambda index, node: changed.append((index, node.name)))
    assert changed == [(0, "player-0-0")]
    assert topology.find("player-0-1").actors[0].factory.args == (2,)
    assert changed == [(0, "player-0-0"), (1, "player-1-0"), (2, "player-0-1")]
    assert topology.find("field") is topology.root
    with pytest.raises(UsageError, match=r"^topology 'farm' has no node 'bench'; its nodes are field, player-0-0, "):
        topology.find("bench")
    assert len(topology.nodes) == 4


@pytest.mark.parametrize("count", [0, 1, MOST_REPLICAS + 1])
def test_a_number_of_replicas_out_of_range_is_refused_and_nothing_changes(count: int) -> None:
    topology = farm(3, at_least=2)
    with pytest.raises(UsageError, match=rf"^players: {count} is not allowed; 2 to {MOST_REPLICAS} are$"):
        topology.scale("players", count)
    assert len(topology.nodes) == 4


def test_a_group_that_is_unknown_twice_planned_or_no_node_for_each_index_is_refused() -> None:
    topology = farm()
    with pytest.raises(UsageError, match="has no group of replicas 'workers'; its groups are players"):
        topology.scale("workers", 2)
    with pytest.raises(UsageError, match="has no group of replicas 'workers', so it cannot be scaled"):
        Topology("bare").scale("workers", 2)
    with pytest.raises(UsageError, match="topology 'farm' has a group 'players' already"):
        topology.replicas("players", 1, lambda _: Ref("field/ball"))
    with pytest.raises(UsageError, match="the plan of 'others' must add one node and return the ref of its actor"):
        topology.replicas("others", 1, lambda _: Ref("field/ball"))
    with pytest.raises(UsageError, match="topology 'farm' requires 0 idlers; at least 1 is allowed"):
        topology.replicas("idlers", 1, lambda _: Ref("field/ball"), at_least=0)


# Hosts ----------------------------------------------------------------------------------------------------------------


def shapes(*cores: int) -> Hosts:
    return Hosts([HostShape(slot, f"host-{slot}", n, plays=n > 0) for slot, n in enumerate(cores)])


def spread(hosts: Hosts, *, at_least: int = 1) -> Topology:
    """One player for each core, and a bench on each host."""
    topology = Topology("farm")
    ball = topology.node("field", cores=1).spawn("ball", Player)
    benches = {host.slot: topology.node(f"bench-{host.slot}", on=host).spawn("bench", Player) for host in hosts.playing}

    def plan(host: HostShape, number: int) -> Ref[Any]:
        node = topology.node(f"player-{host.slot}-{number}", on=host)
        return node.spawn("player", Player, host.slot, number, to=benches[host.slot])

    topology.replicas_on("players", {host: host.cores for host in hosts.playing}, plan, at_least=at_least)
    topology.until(ball)
    return topology


def players(topology: Topology) -> list[str]:
    return [name.removeprefix("player-") for name in topology.group("players").nodes]


def test_replicas_are_spread_over_the_hosts_in_turn_and_further_ones_too() -> None:
    topology = spread(shapes(0, 3, 1))
    assert players(topology) == ["1-0", "2-0", "1-1", "1-2"]
    assert {name: node.slot for name, node in topology.nodes.items()} == {
        "field": 0,
        "bench-1": 1,
        "bench-2": 2,
        "player-1-0": 1,
        "player-2-0": 2,
        "player-1-1": 1,
        "player-1-2": 1,
    }
    topology.scale("players", 7)
    assert players(topology)[4:] == ["1-3", "2-1", "1-4"]
    topology.scale("players", 2)
    assert players(topology) == ["1-0", "2-0"]
    topology.scale("players", 4)
    assert players(topology) == ["1-0", "2-0", "1-1", "1-2"]
    assert topology.find("player-2-6").slot == 2


def test_a_plan_grows_with_its_hosts_and_keeps_what_it_has() -> None:
    """The nodes that there are keep their names, also those of a group that was scaled, and no other plan changes."""
    topology = spread(shapes(0, 2, 1), at_least=2)
    changed: list[str] = []
    topology.scale("players", 5)
    before = players(topology)
    assert before == ["1-0", "2-0", "1-1", "1-2", "2-1"]
    grown = spread(shapes(0, 2, 1, 2), at_least=2)
    assert topology.grow(grown) == ["bench-3", "player-3-0", "player-3-1"]
    assert players(topology) == [*before, "3-0", "3-1"]
    assert topology.group("players").planned == 5
    (requirement,) = topology.requirements
    assert len(requirement.actors) == 7
    assert topology.main_actor() == "field/ball"
    topology.group("players").each(lambda index, node: changed.append(f"{index} {node.name}"))
    topology.scale("players", 9)  # the others have one more than planned
    assert players(topology)[7:] == ["3-2", "1-3"]
    assert changed[7:] == ["7 player-3-2", "8 player-1-3"]
    assert set(topology.nodes) == {"field", *(f"bench-{n}" for n in (1, 2, 3)), *topology.group("players").nodes}
    topology.scale("players", 2)
    assert players(topology) == before[:2]


def test_a_plan_grows_that_was_scaled_down() -> None:
    topology = spread(shapes(0, 2, 2))
    topology.scale("players", 1)
    assert topology.grow(spread(shapes(0, 2, 2, 1))) == ["bench-3", "player-3-0"]
    assert players(topology) == ["1-0", "3-0"]
    assert [name for name in topology.nodes if name.startswith("player")] == ["player-1-0", "player-3-0"]


def test_a_node_on_the_wrong_host_is_refused() -> None:
    topology = Topology("farm")
    (head, other) = shapes(1, 1)
    with pytest.raises(UsageError, match=r"^node 'field' is the root, which runs on the head; it cannot be on host 1 "):
        topology.node("field", on=other)
    topology.node("field")

    def plan(host: HostShape, number: int) -> Ref[Any]:
        return topology.node(f"player-{host.slot}-{number}", on=head).spawn("player", Player)

    with pytest.raises(UsageError, match=r"the plan of 'players' put 'player-1-0' on host 0 in place of 1; write "):
        topology.replicas_on("players", {other: 1}, plan)
    with pytest.raises(UsageError, match="topology 'farm' has no host for its others; at least one host must play"):
        topology.replicas_on("others", {}, plan)
    with pytest.raises(UsageError, match="node 'bench' needs -1 gpus; 0 or more are allowed"):
        topology.node("bench", gpus=-1)
    with pytest.raises(UsageError, match="names that begin with 'agent-' are reserved for the agents of hosts"):
        topology.node("agent-1")
