"""Planning of the WorkerProxies of a run: one for each host that plays, and with a fan-out further ones above them."""

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

    With a fan-out, each group of `fan_out` hosts, by their slots, has a further proxy, a process on the host of the
    root. The Orchestrator then communicates only with these. A host that joins later does not change the plan of other
    nodes.

    Args:
        topology: receives the nodes `host-<slot>` and `proxies-<number>`.
        hosts: hosts of the run.
        to: the Orchestrator.
        fan_out: hosts below a further proxy, 2 or more; None if all hosts communicate with the Orchestrator.
        shards: factory of a host's buffer, in which its experience stays, and the `FederatedTrajectories` that samples
            from it; None to pass experience on.
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
