"""Plans: who is where, who holds whose ref, and what is wrong with a plan."""

from dataclasses import dataclass
from functools import partial

import pytest

from orchestra import Actor, HandlerError, Message, Ref, Topology, UsageError, on


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
