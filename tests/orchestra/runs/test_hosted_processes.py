"""The processes of a run over hosts: one that comes late gets its nodes, unless the run cannot be laid out over it."""

import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra import Hosts, HostShape, Node, RunDirectory, recorded_hosts
from orchestra.clock import RealClock
from orchestra.runs.hosted_processes import HostedProcesses
from orchestra.runs.plan import plan

EXPERIMENT = '''
from orchestra import Actor, Hosts, Message, Ref, Topology, on


class GoMsg(Message):
    """Go."""


class Player(Actor[GoMsg]):
    def __init__(self, to: Ref[GoMsg] | None = None) -> None: ...

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


def experiment(*, hosts: Hosts) -> Topology:
    topology = Topology("growing")
    boss = topology.node("root").spawn("boss", Player)
    topology.until(boss)
    above = {host.slot // 4: topology.node(f"above-{host.slot // 4}") for host in hosts.playing if host.slot % 4 == 1}
    for number, node in above.items():
        node.spawn("player", Player, boss)
    for host in hosts.playing:
        to = above[host.slot // 4].spawn(f"player-{host.slot}", Player, boss)
        topology.node(f"player-{host.slot}", on=host, cores=4).spawn("player", Player, to)
    return topology
'''


@pytest.fixture
def grown(tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]) -> Callable[[Any], None]:
    """Call a test with the processes of a run over two hosts of four cores each, none of which has been started."""

    def test_with(test: Callable[[HostedProcesses, RunDirectory], None]) -> None:
        file = tmp_path / "growing.py"
        file.write_text(EXPERIMENT)
        directory = RunDirectory.create(tmp_path / "runs", "growing", 0, clock=RealClock())
        directory.write_config(experiment=file, flags={}, seed=0, argv=[], clock=RealClock())
        asked = plan(file, hosts="2", launch="local", min_hosts=1)
        shapes = [asked.shapes[0], HostShape(1, "local-1", 4), HostShape(2, "local-2", 4)]
        planned = asked.over(Hosts(shapes))
        launch = replace(planned.launch, run_directory=directory.path)

        async def main() -> None:
            async with Node("root", run_directory=directory.path).running() as root:
                code: Any = SimpleNamespace(experiment=file, environment=dict)
                head: Any = SimpleNamespace(slots={})
                processes = HostedProcesses(root, planned, launch, head, code)
                started: list[str] = []
                processes.keeper.add = lambda nodes, *, again: started.extend(nodes)  # type: ignore[method-assign]
                processes.started = started  # type: ignore[attr-defined]
                test(processes, directory)

        run(main())

    return test_with


def test_a_late_host_gets_its_nodes_and_is_recorded_and_those_of_the_head_are_started(grown: Any) -> None:
    def test(processes: Any, directory: RunDirectory) -> None:
        assert processes.host_joined(HostShape(5, "late", 8)) == ""
        assert [node.name for node in processes.nodes_on(5)] == ["player-5"]
        assert [node.name for node in processes.nodes_on(1)] == ["player-1"]
        assert processes.started == ["above-1"]
        assert [host.name for host in recorded_hosts(directory)][1:] == ["local-1", "local-2", "late"]
        placement = json.loads(directory.config_path.read_bytes())["placement"]
        assert (placement["player-5"], placement["above-1"]) == (5, 0)
        assert processes.slot_of("player-5") == 5
        assert processes.slot_of("player-9") is None

    grown(test)


def test_a_late_host_that_is_too_small_changes_nothing(grown: Any) -> None:
    def test(processes: Any, directory: RunDirectory) -> None:
        before, plan_before = directory.config_path.read_bytes(), processes.plan_for(1)
        said = processes.host_joined(HostShape(3, "small", 2))
        assert said.startswith("the nodes of the run need more than their hosts have:\n")
        assert "3 (small)" in said
        assert processes.slot_of("player-3") is None
        assert (directory.config_path.read_bytes(), processes.plan_for(1)) == (before, plan_before)
        assert processes.host_joined(HostShape(3, "large", 4)) == ""
        assert [node.name for node in processes.nodes_on(3)] == ["player-3"]

    grown(test)


def test_the_nodes_that_other_hosts_dial_listen_for_them(grown: Any) -> None:
    def test(processes: Any, directory: RunDirectory) -> None:
        assert processes._beyond("above-0") == "tls://127.0.0.1:0"
        assert [node.beyond for node in processes.nodes_on(1)] == [""]
        assert processes._beyond("above-1") == ""
        assert processes.host_joined(HostShape(5, "late", 8)) == ""
        assert processes._beyond("above-1") == "tls://127.0.0.1:0"

    grown(test)
