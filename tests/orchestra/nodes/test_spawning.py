"""Actors started on another node: what they may be given, with whom they end, and who hears of their failures."""

import asyncio
import enum
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from orchestra import (
    Actor,
    ActorFailed,
    Axes,
    Escalate,
    Message,
    Node,
    OrchestraError,
    Ref,
    Request,
    Restart,
    StatisticsMsg,
    Stop,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    on,
)
from orchestra.actors.actor import ACTORS
from orchestra.errors import SpawnRefused
from orchestra.testing import Probe

if TYPE_CHECKING:
    from fractions import Fraction

Run = Callable[..., Any]
_numbers = itertools.count()


class Colour(enum.Enum):
    RED = "red"


class NoteMsg(Message):
    n: int


class GivenMsg(Request[str]):
    """What were you given?"""


class BreakMsg(Message):
    """Fail."""


class Shard(Actor[GivenMsg | BreakMsg | NoteMsg]):
    supervision: ClassVar[Supervision] = Escalate()

    def __init__(
        self,
        number: int,
        to: Ref[NoteMsg] | None = None,
        *rest: Path,
        weights: Annotated[NDArray[np.float32], Axes("float32", "n")] | None = None,
        raw: NDArray[np.float64] | None = None,
        colour: Colour = Colour.RED,
        note: NoteMsg | None = None,
        names: tuple[str, ...] = (),
        free=None,
        **more: set[int],
    ) -> None:
        self.given = (number, to, rest, weights, raw, colour, note, names, free, more)

    @on(GivenMsg)
    def tell_given(self, msg: GivenMsg) -> str:
        return repr(self.given)

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise ValueError("shard broke")

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        """Nothing is needed."""


class Calm(Shard):
    supervision: ClassVar[Supervision] = Stop()


class Hidden(Actor[NoteMsg]):
    def __init__(self, half: "Fraction") -> None:
        self.half = half

    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        """Nothing is needed."""


class Bare(Actor[NoteMsg]):
    @on(NoteMsg)
    def note(self, msg: NoteMsg) -> None:
        """Nothing is needed."""


class SpawnedMsg(Request[str]):
    """Answered once the shard is there."""

    name: str


class Parent(Actor[SpawnedMsg | BreakMsg]):
    supervision: ClassVar[Supervision] = Restart(limit=1, within=60, backoff=0.0, backoff_max=0.0)

    def __init__(self, kind: type[Shard], log: list[str]) -> None:
        self.kind = kind
        self.log_ = log

    async def started(self) -> None:
        self.log_.append("up")

    @on(SpawnedMsg)
    async def spawn_shard(self, msg: SpawnedMsg) -> str:
        return (await self.spawn_on("leaf", msg.name, self.kind, 7)).address

    @on(BreakMsg)
    def fail(self, msg: BreakMsg) -> None:
        raise ValueError("parent broke")


class Trapping(Parent):
    """Wants to know of a lost child, instead of failing with it."""

    @on(TerminatedMsg)
    def mourn(self, msg: TerminatedMsg) -> None:
        self.log_.append(f"{msg.address} {'lost' if msg.lost else 'ended'}")


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Node, Node]]:
    number = next(_numbers)
    root_at, leaf_at = f"memory://spawn-root-{number}", f"memory://spawn-leaf-{number}"
    async with (
        Node("root", listen=root_at, secret=b"s" * 16).running() as root,
        Node("leaf", listen=leaf_at, join=root_at, secret=b"s" * 16).running() as leaf,
    ):
        root.directory.expect(["root", "leaf"])
        yield root, leaf


async def turns_until(done: Callable[[], bool]) -> None:
    for _ in range(2000):
        if done():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came about")


def test_an_actor_is_started_on_another_node_with_what_its_constructor_says(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            to: Ref[NoteMsg] = root.ref("root/probe")
            shard = await root.spawn_on(
                "leaf",
                "shard",
                Shard,
                3,
                to,
                Path("a/b"),
                weights=np.arange(2, dtype=np.float32),
                raw=np.zeros(1),
                colour=Colour.RED,
                note=NoteMsg(n=1),
                names=("x", "y"),
                free=[1, {"a": None}],
                more={1, 2},
            )
            assert shard.address == "leaf/shard"
            assert "leaf/shard" in leaf.cells
            assert await shard.ask(GivenMsg()) == repr(
                (
                    3,
                    to,
                    (Path("a/b"),),
                    np.arange(2, dtype=np.float32),
                    np.zeros(1),
                    Colour.RED,
                    NoteMsg(n=1),
                    ("x", "y"),
                    [1, {"a": None}],
                    {"more": {1, 2}},
                )
            )

    run(main())


def test_on_its_own_node_it_is_an_ordinary_child(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            assert (await root.spawn_on("root", "shard", Shard, 1)).address == "root/shard"
            parent = leaf.spawn("parent", Parent, Shard, [])
            assert await parent.ask(SpawnedMsg(name="a")) == "leaf/parent:a"

    run(main())


def test_a_class_without_a_constructor_takes_nothing(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            assert (await root.spawn_on("leaf", "bare", Bare)).address == "leaf/bare"
            with pytest.raises(SpawnRefused, match=r"Bare\(\) does not accept the arguments: too many"):
                await root.spawn_on("leaf", "bare", Bare, 1)  # type: ignore[call-arg]  # the point of the test

    run(main())


@pytest.mark.parametrize(
    ("kind", "args", "kwargs", "text"),
    [
        (Shard, (), {}, "does not accept the arguments: missing a required argument: 'number'"),
        (Shard, ("many",), {}, "argument 'number' of Shard: Input should be a valid integer"),
        (Shard, (1, None, 5), {}, "argument 'rest' of Shard: Input is not a valid path"),
        (Shard, (1,), {"weights": np.zeros(2)}, r"argument 'weights' of Shard: expected an array float32\[n\]"),
        (Shard, (1,), {"raw": [1.0]}, "argument 'raw' of Shard: Input should be an instance of ndarray"),
        (Shard, (1,), {"colour": "blue"}, "argument 'colour' of Shard: Input should be 'red'"),
        (Shard, (1,), {"free": Path("x")}, "argument 'free' of Shard is a PosixPath, which would arrive as something"),
        (Shard, (1,), {"free": [NoteMsg(n=1)]}, "argument 'free' of Shard is a list, which would arrive as something"),
        (Shard, (1,), {"names": (object(),)}, "argument 'names' of Shard cannot travel: a object cannot travel"),
        (Shard, (1,), {"other": {"x"}}, "argument 'more' of Shard: Input should be a valid integer"),
    ],
)
def test_arguments_that_do_not_fit_or_travel_are_refused_by_name(
    run: Run, kind: Any, args: Any, kwargs: Any, text: str
) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            with pytest.raises(SpawnRefused, match=text):
                await root.spawn_on("leaf", "shard", kind, *args, **kwargs)
            assert "leaf/shard" not in leaf.cells

    run(main())


def test_an_annotation_that_only_a_type_checker_sees_is_not_checked(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            hidden: Any = Hidden
            await root.spawn_on("leaf", "hidden", hidden, 0.5)
            await turns_until(lambda: leaf.cell("leaf/hidden").actor is not None)
            assert leaf.cell("leaf/hidden").actor.half == 0.5  # type: ignore[union-attr]  # it is there by now

    run(main())


def test_a_class_that_the_other_process_has_not_defined_is_refused_and_nothing_is_imported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            monkeypatch.delitem(ACTORS, f"{Bare.__module__}:Bare")
            with pytest.raises(
                SpawnRefused, match=r"node 'leaf' does not start 'bare': .* not defined the actor class \S+:Bare;"
            ):
                await root.spawn_on("leaf", "bare", Bare)

    run(main())


def test_a_name_that_is_taken_or_is_none_is_refused(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, _):
            await root.spawn_on("leaf", "bare", Bare)
            with pytest.raises(SpawnRefused, match="there is an actor at leaf/bare already"):
                await root.spawn_on("leaf", "bare", Bare)
            with pytest.raises(UsageError, match="'a/b' cannot name an actor"):
                await root.spawn_on("leaf", "a/b", Bare)

    run(main())


def test_a_node_that_does_not_exist_is_named(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            for node, error in ((root, Unreachable), (leaf, OrchestraError)):
                with pytest.raises(error, match="there is no node 'moon'; the nodes of this run are leaf, root"):
                    await node.spawn_on("moon", "bare", Bare)

    run(main())


def cut(root: Node) -> None:
    """Have the two nodes lose each other for good."""
    link = root.peers.find("leaf")
    assert link is not None
    link.end(Unreachable("pulled"))


# With whom it ends ---------------------------------------------------------------------------------------------------


async def with_shard(root: Node, kind: type[Parent] = Parent, child: type[Shard] = Shard) -> tuple[str, list[str]]:
    log: list[str] = []
    parent = root.spawn("parent", kind, child, log)
    return await parent.ask(SpawnedMsg(name="shard")), log


@pytest.mark.parametrize("graceful", [True, False])
def test_it_ends_with_its_parent(run: Run, graceful: bool) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, _ = await with_shard(root)
            assert address == "leaf/root.parent:shard"
            child = leaf.cell(address)
            root.cell("root/parent").request_stop(graceful=graceful)
            assert await child.terminated == "stopped"

    run(main())


def test_a_parent_has_not_stopped_before_its_child_on_another_node_has(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, _ = await with_shard(root)
            child = leaf.cell(address)
            await root.cell("root/parent").stop()
            assert child.terminated.done()

    run(main())


def test_it_ends_when_the_node_of_its_parent_is_lost(run: Run) -> None:
    async def main() -> None:
        number = next(_numbers)
        at = f"memory://spawn-lost-{number}"
        async with (
            Node("leaf", listen=at, secret=b"s" * 16).running() as leaf,
            Node("root", listen=f"{at}-root", join=at, secret=b"s" * 16).running() as root,
        ):
            root.spawn("parent", Parent, Shard, [])
            address = await root.ref("root/parent").ask(SpawnedMsg(name="shard"))
            of_node = await root.spawn_on("leaf", "bare", Bare)
            ends = [leaf.cell(one).terminated for one in (address, of_node.address)]
            cut(root)
            assert await asyncio.gather(*ends) == ["stopped", "stopped"]

    run(main())


def test_a_parent_that_starts_anew_ends_it_and_may_start_it_again(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, log = await with_shard(root)
            first = leaf.cell(address)
            await root.ref("root/parent").tell(BreakMsg())
            assert await first.terminated == "stopped"
            assert await root.ref("root/parent").ask(SpawnedMsg(name="shard")) == address
            assert leaf.cell(address) is not first
            assert log == ["up", "up"]

    run(main())


def test_who_gives_up_starting_it_leaves_nobody_behind(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            parent = root.spawn("parent", Parent, Shard, [])
            await root.ref("leaf/system").ask(StatisticsMsg())
            asking = asyncio.create_task(parent.ask(SpawnedMsg(name="shard")))
            await turns_until(lambda: "leaf/root.parent:shard" in leaf.cells)
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await turns_until(lambda: "leaf/root.parent:shard" not in leaf.cells or asking.done())
            if asking.cancelled():
                await turns_until(lambda: "leaf/root.parent:shard" not in leaf.cells)

    run(main())


# Failures ------------------------------------------------------------------------------------------------------------


def test_a_failure_that_escalates_there_fails_the_parent_here(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, log = await with_shard(root)
            await root.ref(address).tell(BreakMsg())
            await turns_until(lambda: log == ["up", "up"])
            assert address not in leaf.cells
            assert root.cell("root/parent").statistics().restarts == 1

    run(main())


def test_a_parent_that_failed_with_its_child_is_not_told_of_its_end_too(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, log = await with_shard(root, Trapping)
            await root.ref(address).tell(BreakMsg())
            await turns_until(lambda: log == ["up", "up"])
            assert address not in leaf.cells
            await root.ref("leaf/system").ask(StatisticsMsg())  # what the child's node has sent before is here
            await root.ref("root/parent").ask(SpawnedMsg(name="other"))
            assert log == ["up", "up"]

    run(main())


def test_its_story_reaches_the_top(run: Run) -> None:
    class Proud(Parent):
        supervision: ClassVar[Supervision] = Escalate()

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            async with pair() as (root, _):
                address, _ = await with_shard(root, Proud)
                await root.ref(address).tell(BreakMsg())
                await asyncio.Event().wait()
        (parent,) = caught.value.exceptions
        assert isinstance(parent, ActorFailed)
        assert str(parent.__cause__) == (
            "leaf/root.parent:shard (Shard) failed; last deliveries, newest last: "
            "WatchMsg from root/parent; BreakMsg from root/outside"
        )

    run(main())


def test_a_failure_that_its_class_bears_is_not_the_parents(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, log = await with_shard(root, child=Calm)
            child = leaf.cell(address)
            await root.ref(address).tell(BreakMsg())
            await child.terminated
            assert await root.ref("root/parent").ask(SpawnedMsg(name="other")) == "leaf/root.parent:other"
            assert log == ["up"]

    run(main())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Parent, ["up", "up"]), (Trapping, ["up", "leaf/root.parent:shard lost"])],
    ids=["fails", "is told"],
)
def test_a_parent_whose_child_is_lost_fails_unless_it_handles_that(
    run: Run, kind: type[Parent], expected: list[str]
) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            _, log = await with_shard(root, kind)
            cut(root)
            await turns_until(lambda: log == expected)
            assert leaf.name == "leaf"

    run(main())


def test_a_parent_hears_of_the_end_of_a_child_as_if_it_had_watched_it(run: Run) -> None:
    async def main() -> None:
        async with pair() as (root, leaf):
            address, log = await with_shard(root, Trapping)
            leaf.cell(address).request_stop()
            await turns_until(lambda: log == ["up", f"{address} ended"])

    run(main())


def test_a_child_may_be_told_and_may_tell(run: Run) -> None:
    class Echo(Actor[NoteMsg]):
        def __init__(self, to: Ref[NoteMsg]) -> None:
            self.to = to

        @on(NoteMsg)
        async def note(self, msg: NoteMsg) -> None:
            await self.to.tell(NoteMsg(n=msg.n + 1))

    async def main() -> None:
        async with pair() as (root, _):
            probe = Probe(NoteMsg)
            echo = await root.spawn_on("leaf", "echo", Echo, probe.start(root, "probe"))
            await echo.tell(NoteMsg(n=1))
            assert await probe.heard(NoteMsg) == [NoteMsg(n=2)]

    run(main())


# Processes -----------------------------------------------------------------------------------------------------------

EXPERIMENT = '''
import os

import numpy as np
from numpy.typing import NDArray

from orchestra import Actor, Escalate, Message, Ref, Request, Topology, on


class SumMsg(Request[float]):
    """What is the sum of your shard?"""


class ProcessMsg(Request[int]):
    """Which process are you in?"""


class GoMsg(Message):
    """Begin."""


class Shard(Actor[SumMsg | ProcessMsg]):
    def __init__(self, part: NDArray[np.float64]) -> None:
        self.part = part

    @on(SumMsg)
    def sum(self, msg: SumMsg) -> float:
        return float(self.part.sum())

    @on(ProcessMsg)
    def process(self, msg: ProcessMsg) -> int:
        return os.getpid()


class Boss(Actor[GoMsg]):
    supervision = Escalate()

    async def started(self) -> None:
        await self.me.tell(GoMsg())

    @on(GoMsg)
    async def go(self, msg: GoMsg) -> None:
        shards = [await self.spawn_on(f"host-{n}", "shard", Shard, np.arange(3.0) * (n + 1)) for n in range(2)]
        sums = [await shard.ask(SumMsg()) for shard in shards]
        homes = {await shard.ask(ProcessMsg()) for shard in shards} | {os.getpid()}
        (self.run_directory / "said").write_text(f"{sums} in {len(homes)} processes")
        self.stop()


def experiment() -> Topology:
    topology = Topology("shards")
    topology.until(topology.node("root").spawn("boss", Boss))
    for n in range(2):
        topology.node(f"host-{n}")
    return topology
'''


@pytest.mark.parametrize(("words", "processes"), [((), 3), (("--single-process",), 1)], ids=["three", "one"])
def test_nodes_of_a_topology_take_actors_in_real_processes_too(
    tmp_path: Path, words: tuple[str, ...], processes: int
) -> None:
    file = tmp_path / "shards.py"
    file.write_text(EXPERIMENT)
    command = [sys.executable, "-m", "orchestra", "run", str(file), "--runs-dir", str(tmp_path / "runs"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (said,) = (tmp_path / "runs").rglob("said")
    assert said.read_text() == f"[3.0, 6.0] in {processes} processes"
