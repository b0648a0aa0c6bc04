"""Plans the WorkerProxies of a run: one for each host that plays, and with a fan-out further ones above these."""

from typing import Any

from components.worker_proxy import WorkerProxy
from orchestra import Hosts, HostShape, Ref, Topology


def plan_proxies(
    topology: Topology, hosts: Hosts, *, to: Ref[Any], fan_out: int | None = None
) -> dict[HostShape, Ref[Any]]:
    """Plan a WorkerProxy on each host that plays, and return them: the upstreams of the workers.

    With a fan-out each `fan_out` hosts, by their slots, have a further proxy, which is a process on the host of the
    root. The Orchestrator then talks to these alone. A host that comes later changes the plan of no other node.

    Args:
        topology: to which the nodes `host-<slot>` and `proxies-<number>` are added.
        hosts: of the run.
        to: the Orchestrator.
        fan_out: hosts behind a further proxy, 2 or more; None to have all hosts talk to the Orchestrator.
    """
    above: dict[int, Ref[Any]] = {}
    if fan_out is not None:
        for number in dict.fromkeys(host.slot // fan_out for host in hosts.playing):
            above[number] = topology.node(f"proxies-{number}").spawn("proxy", WorkerProxy, to=to)
    return {
        host: topology.node(f"host-{host.slot}", on=host).spawn(
            "proxy", WorkerProxy, to=to if fan_out is None else above[host.slot // fan_out]
        )
        for host in hosts.playing
    }
