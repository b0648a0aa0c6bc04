"""Plans the WorkerProxies of a run: one for each host that plays, and with a fan-out further ones above these."""

from collections.abc import Callable
from typing import Any

from components.replay_buffers import PrioritizedEpisodeReplay
from components.replay_shard import ReplayShard
from components.worker_proxy import WorkerProxy
from orchestra import Hosts, HostShape, Ref, Topology


def plan_proxies(
    topology: Topology,
    hosts: Hosts,
    *,
    to: Ref[Any],
    fan_out: int | None = None,
    shards: tuple[Callable[[], PrioritizedEpisodeReplay], Ref[Any]] | None = None,
) -> dict[HostShape, Ref[Any]]:
    """Plan a WorkerProxy on each host that plays, and return them: the upstreams of the workers.

    With a fan-out each `fan_out` hosts, by their slots, have a further proxy, which is a process on the host of the
    root. The Orchestrator then talks to these alone. A host that comes later changes the plan of no other node.

    Args:
        topology: to which the nodes `host-<slot>` and `proxies-<number>` are added.
        hosts: of the run.
        to: the Orchestrator.
        fan_out: hosts behind a further proxy, 2 or more; None to have all hosts talk to the Orchestrator.
        shards: makes the buffer of a host, in which its experience stays, and the `FederatedTrajectories` that has it
            sampled; None to pass experience on.
    """
    above: dict[int, Ref[Any]] = {}
    if fan_out is not None:
        for number in dict.fromkeys(host.slot // fan_out for host in hosts.playing):
            above[number] = topology.node(f"proxies-{number}").spawn("proxy", WorkerProxy, to=to)
    proxies = {}
    for host in hosts.playing:
        node = topology.node(f"host-{host.slot}", on=host)
        shard = None
        if shards is not None:
            new_buffer, trajectories = shards
            shard = node.spawn("shard", ReplayShard, replay=new_buffer(), to=trajectories)
        upstream = to if fan_out is None else above[host.slot // fan_out]
        proxies[host] = node.spawn("proxy", WorkerProxy, to=upstream, shard=shard)
    return proxies
