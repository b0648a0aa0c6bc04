"""Libraries have as many threads in a node of a host as the node has cores of its own, whatever its agent was given."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra.hosts.shape import this_machine

EXPERIMENT = '''
"""Nodes of a host tell how many threads their libraries have."""

import numpy  # noqa: F401  # these are loaded by the template, before it knows what a node may use
import torch
from threadpoolctl import threadpool_info

from orchestra import Actor, Hosts, Message, Ref, Topology, on


class ThreadsMsg(Message):
    """Threads of torch, and of each pool of NumPy."""

    node: str
    torch: int
    pools: tuple[int, ...]


class StartMsg(Message):
    """Tell."""


class Teller(Actor[StartMsg]):
    def __init__(self, node: str, to: Ref[ThreadsMsg]) -> None:
        self._node, self._to = node, to

    async def started(self) -> None:
        await self.me.tell(StartMsg())

    @on(StartMsg)
    async def tell(self, msg: StartMsg) -> None:
        pools = tuple(sorted({pool["num_threads"] for pool in threadpool_info()}))
        await self._to.tell(ThreadsMsg(node=self._node, torch=torch.get_num_threads(), pools=pools))


class Listener(Actor[ThreadsMsg]):
    def __init__(self, nodes: int) -> None:
        self._left = nodes

    @on(ThreadsMsg)
    def hear(self, msg: ThreadsMsg) -> None:
        print(f"{msg.node}: torch {msg.torch}, pools {msg.pools}", flush=True)
        self._left -= 1
        if not self._left:
            self.stop()


def experiment(*, hosts: Hosts) -> Topology:
    topology = Topology("threads")
    listener = topology.node("head").spawn("listener", Listener, 2)
    (host,) = [host for host in hosts if host.slot]
    for name, cores in (("own", host.cores), ("shared", 0)):
        topology.node(name, on=host, cores=cores).spawn("teller", Teller, name, to=listener)
    topology.until(listener)
    return topology
'''


@pytest.mark.parametrize("given", ["1", "5"])
def test_libraries_have_a_thread_for_each_core_of_the_node_and_one_if_it_has_none(tmp_path: Path, given: str) -> None:
    (tmp_path / "told.py").write_text(EXPERIMENT)
    cores = this_machine().cores
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-m", "orchestra", "run", "told.py", "--launch", "local", "--hosts", "1"],
        cwd=tmp_path,
        env={**variables, "OMP_NUM_THREADS": given},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = dict(re.findall(r"^.*?(\w+): (torch \d+, pools .*)$", done.stdout, re.MULTILINE))
    assert told == {"own": f"torch {cores}, pools ({cores},)", "shared": "torch 1, pools (1,)"}
