"""An experiment whose processes tell the head how many threads their libraries have and which GPUs they see."""

import os

import numpy as np  # noqa: F401  # the template loads these before it knows what a node may use
import torch
from threadpoolctl import threadpool_info

from orchestra import Actor, Hosts, Message, Ref, Topology, on


class AllowedMsg(Message):
    """What a process may use."""

    node: str
    torch: int
    """Threads of torch."""
    pools: tuple[int, ...]
    """The different numbers of threads of all pools, NumPy's among them."""
    gpus: str


class TellMsg(Message):
    """What a teller tells itself."""


def allowed(node: str) -> AllowedMsg:
    pools = tuple(sorted({pool["num_threads"] for pool in threadpool_info()}))
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
    return AllowedMsg(node=node, torch=torch.get_num_threads(), pools=pools, gpus=gpus)


class Teller(Actor[TellMsg]):
    def __init__(self, to: Ref[AllowedMsg]) -> None:
        self._to = to

    async def started(self) -> None:
        await self.me.tell(TellMsg())

    @on(TellMsg)
    async def tell(self, msg: TellMsg) -> None:
        await self._to.tell(allowed(self.me.address))


class Listener(Actor[AllowedMsg]):
    def __init__(self, tellers: int) -> None:
        self._left = tellers

    async def started(self) -> None:
        self._show(allowed(self.me.address))

    @on(AllowedMsg)
    def hear(self, msg: AllowedMsg) -> None:
        self._show(msg)
        self._left -= 1
        if not self._left:
            self.stop()

    def _show(self, msg: AllowedMsg) -> None:
        print(f"{msg.node}: torch {msg.torch}, pools {msg.pools}, GPUs {msg.gpus!r}", flush=True)


def experiment(*, hosts: Hosts, gpus: int = 0) -> Topology:
    """Plan two nodes on each host with an agent: one with all its cores and some GPUs, and one that shares them."""
    topology = Topology("telling")
    agents = [host for host in hosts if host.slot]
    listener = topology.node("head").spawn("listener", Listener, 2 * len(agents))
    for host in agents:
        topology.node(f"own-{host.slot}", on=host, cores=host.cores, gpus=gpus).spawn("teller", Teller, to=listener)
        topology.node(f"shared-{host.slot}", on=host).spawn("teller", Teller, to=listener)
    topology.until(listener)
    return topology
