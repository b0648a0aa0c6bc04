"""Scaling: `orchestra scale` changes the number of replicas of a running run, whose root starts and stops processes."""

from typing import ClassVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.message import Message, Request
from orchestra.actors.statistics import NodeStatistics
from orchestra.errors import UsageError
from orchestra.hosts.open_files import check_open_files
from orchestra.nodes.node import Node
from orchestra.runs.processes import RunProcesses
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Replicas, Topology

LAUNCHER = "launcher"
"""Name of the actor at the root that scales the run."""


class ScaledMsg(Message):
    """Reply to `ScaleMsg`."""

    group: str = ""
    before: int = 0
    """Replicas before."""
    started: tuple[str, ...] = ()
    """Nodes whose processes are being started."""
    stopped: tuple[str, ...] = ()
    """Nodes whose processes have ended."""
    refusal: str = ""
    """The reason why nothing has changed; empty if the group has the requested number of replicas."""


class ScaleMsg(Request[ScaledMsg]):
    """Change the number of replicas of a group. Answered once removed nodes have stopped."""

    group: str
    """The name of the group; empty for the only one."""
    replicas: int


class ScalingActor(Actor[ScaleMsg]):
    """Starts and stops the processes of replicas, one request at a time, and keeps the number for a resumed run.

    Args:
        topology: of the run. It changes with each request.
        root: the node of this actor.
        launcher: of the run.
        run: its directory.
        removed: takes the final statistics of removed nodes.
    """

    recorded: ClassVar[bool] = False

    def __init__(
        self, topology: Topology, root: Node, launcher: RunProcesses, run: RunDirectory, removed: list[NodeStatistics]
    ) -> None:
        self._topology = topology
        self._root = root
        self._launcher = launcher
        self._run = run
        self._removed = removed

    @on(ScaleMsg)
    async def scale(self, msg: ScaleMsg) -> ScaledMsg:
        if self._root.stopping:
            return ScaledMsg(refusal="the run is ending")
        try:
            group = self._group(msg.group)
            before = len(group.refs)
            check_open_files(len(self._topology.nodes) - 1 + max(msg.replicas - before, 0))
            new, gone = self._topology.scale(group.name, msg.replicas)
        except UsageError as error:
            return ScaledMsg(refusal=str(error))
        requirements = self._topology.requirements
        again = [node for node in group.nodes if self._launcher.gone(node)]
        self._launcher.add([*again, *new], requirements)
        if gone:
            self._removed += await self._launcher.final_statistics(gone)
            await self._launcher.remove(gone, requirements)
        self._write()
        self.log.info("scaled", group=group.name, before=before, replicas=msg.replicas)
        return ScaledMsg(group=group.name, before=before, started=(*again, *new), stopped=tuple(gone))

    def _group(self, name: str) -> Replicas:
        groups = self._topology.groups
        if not name and len(groups) == 1:
            return next(iter(groups.values()))
        if not name and groups:
            raise UsageError(f"the run has several groups of replicas; name one of {', '.join(groups)} with --group")
        return self._topology.group(name)

    def _write(self) -> None:
        """Keep the numbers in the run's directory. Without them, a resumed run begins with those of its flags."""
        scaled = {group.name: [group.planned, len(group.refs)] for group in self._topology.groups.values()}
        try:
            self._run.write_replicas(scaled)
        except OSError as error:
            self.log.warning("cannot write the number of replicas", path=str(self._run.replicas), error=repr(error))
