"""The load of `hosts.py`: an experiment without a simulator or a learner. Flags set the sizes of its messages.

Each host has a `WorkerProxy` and workers, as in `qmix_8m`. The root publishes parameters and counts the experience that
arrives. Actors write their events to the folder `--notes` of this machine, whose clock all processes share.
"""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from components import WorkerProxy
from messages import CollectMsg, InsertTransitionMsg, JoinMsg, LoadParamsMsg, WorkerCountMsg
from orchestra import Actor, Hosts, HostShape, Message, Ref, Topology, freeze, on

STEPS, AGENTS = 30, 8
LOOK_S = 0.1
"""Seconds between two checks for the file `go`."""


class NextMsg(Message):
    """Time for the next version, or for the next episode."""


class Notes:
    """Appends lines to a file in the folder of the notes."""

    def __init__(self, folder: str, name: str) -> None:
        self._file = Path(folder, f"{name}.jsonl").open("a", buffering=1)  # noqa: SIM115 (open as long as the actor)

    def write(self, **fields: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), **fields}) + "\n")


class Root(Actor[JoinMsg | WorkerCountMsg | InsertTransitionMsg | NextMsg]):
    """Stands for the Orchestrator. It publishes once the folder of the notes has a file `go`.

    Args:
        notes: the folder of the notes.
        parameters: bytes of a version.
        versions: number of versions to publish.
        publish_s: seconds between two versions.
    """

    def __init__(self, *, notes: str, parameters: int, versions: int, publish_s: float) -> None:
        self._notes, self._go = Notes(notes, "root"), Path(notes, "go")
        self._parameters, self._versions, self._publish_s = parameters, versions, publish_s
        self._proxies: dict[str, Ref[Any]] = {}
        self._workers: dict[str, int] = {}
        self._version = self._episodes = self._steps = self._nbytes = 0

    async def started(self) -> None:
        self.after(LOOK_S, NextMsg())

    @on(JoinMsg)
    def join(self, msg: JoinMsg) -> None:
        self._proxies[msg.ref.address] = msg.ref

    @on(WorkerCountMsg)
    def count(self, msg: WorkerCountMsg) -> None:
        self._workers[msg.proxy.address] = msg.workers
        self._notes.write(event="workers", workers=sum(self._workers.values()))

    @on(InsertTransitionMsg)
    def insert(self, msg: InsertTransitionMsg) -> None:
        self._episodes += msg.segments
        self._steps += msg.steps
        arrays = (*msg.fields.values(), *(getattr(msg, name) for name in msg.wire.array_fields))
        self._nbytes += sum(array.nbytes for array in arrays)
        self._notes.write(event="inserted", episodes=self._episodes, steps=self._steps, nbytes=self._nbytes)

    @on(NextMsg)
    def publish(self, msg: NextMsg) -> None:
        if not self._go.exists():
            self.after(LOOK_S, NextMsg())
            return
        self._version += 1
        params = freeze(np.full(self._parameters // 4, self._version, np.float32))
        self._notes.write(event="published", version=self._version)
        for proxy in self._proxies.values():
            proxy.tell_nowait(LoadParamsMsg(version=self._version, params=params, env_steps=0))
        if self._version < self._versions:
            self.after(self._publish_s, NextMsg())


class Player(Actor[LoadParamsMsg | CollectMsg | NextMsg]):
    """Stands for a worker. It begins to play with the first parameters.

    Args:
        to: the proxy.
        notes: the folder of the notes.
        episodes: number of episodes to play.
        episode_s: seconds between two episodes.
    """

    def __init__(self, *, to: Ref[Any], notes: str, episodes: int, episode_s: float) -> None:
        self._to, self._left, self._episode_s = to, episodes, episode_s
        self._notes = Notes(notes, self.me.address.partition("/")[0])
        self._plays = False

    async def started(self) -> None:
        await self._to.tell(JoinMsg(role="worker", ref=self.me, environments=1))

    @on(LoadParamsMsg)
    def load(self, msg: LoadParamsMsg) -> None:
        self._notes.write(event="loaded", version=msg.version, checksum=float(msg.params[::4096].sum()))
        if not self._plays:
            self._plays = True
            self.after(self._episode_s * (0.5 + self.rng.random()), NextMsg())

    @on(CollectMsg)
    def collect(self, msg: CollectMsg) -> None:
        pass

    @on(NextMsg)
    async def play(self, msg: NextMsg) -> None:
        if self._left:
            self._left -= 1
            await self._to.tell(episode(self.me.address))
            self.after(self._episode_s, NextMsg())


def episode(sender: str) -> InsertTransitionMsg:
    """Return an episode of 8m, 112 KB."""
    frames, agents = STEPS + 1, AGENTS
    return InsertTransitionMsg.of_episodes(
        per_frame={
            "obs": freeze(np.zeros((frames, agents, 80), np.float32)),
            "state": freeze(np.zeros((frames, 168), np.float32)),
            "available": freeze(np.ones((frames, agents, 14), np.bool_)),
        },
        per_step={
            "actions": freeze(np.zeros((STEPS, agents), np.int64)),
            "reward": freeze(np.zeros(STEPS, np.float32)),
        },
        per_segment={"epsilon": freeze(np.zeros(1, np.float32))},
        lengths=freeze(np.array([STEPS], np.int32)),
        terminated=freeze(np.ones(1, np.bool_)),
        won=freeze(np.zeros(1, np.bool_)),
        versions=freeze(np.zeros(STEPS, np.int32)),
        newest_version=None,
        sender=sender,
        source="",
    )


def experiment(
    *,
    hosts: Hosts,
    notes: Annotated[str, Field(description="the folder of the notes")] = ".",
    workers: Annotated[int, Field(ge=1, description="worker processes per host")] = 1,
    parameters: Annotated[int, Field(ge=4, description="bytes of a version of the parameters")] = 112_000,
    versions: Annotated[int, Field(ge=1, description="versions that are published")] = 1,
    publish_s: Annotated[float, Field(gt=0, description="seconds between two versions")] = 1.0,
    episodes: Annotated[int, Field(ge=0, description="episodes of each worker")] = 0,
    episode_s: Annotated[float, Field(gt=0, description="seconds between a worker's episodes")] = 1.0,
) -> Topology:
    """Lay out the load."""
    topology = Topology("hosts_load")
    learner = topology.node("learner")
    root: Ref[Any] = learner.spawn(
        "root", Root, notes=notes, parameters=parameters, versions=versions, publish_s=publish_s
    )
    proxies = {
        host: topology.node(f"host-{host.slot}", on=host).spawn("proxy", WorkerProxy, to=root) for host in hosts.playing
    }

    def plan(host: HostShape, number: int) -> Ref[Any]:
        node = topology.node(f"worker-{host.slot}-{number}", on=host)
        return node.spawn("player", Player, to=proxies[host], notes=notes, episodes=episodes, episode_s=episode_s)

    topology.replicas_on("workers", dict.fromkeys(hosts.playing, workers), plan)
    topology.until(root)
    return topology
