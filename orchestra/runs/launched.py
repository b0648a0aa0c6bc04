"""Builds the topology of a launched process from the plan of its run: the same one as in every other process."""

import functools
import gc
from collections.abc import Callable, Sequence

from orchestra.errors import UsageError
from orchestra.hosts.bundle import UnpackedCode
from orchestra.hosts.preloads import Preloads
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.specialised import flags_of
from orchestra.runs.topology import Topology


def topology_of(plan: RunPlan) -> Topology:
    """Import the experiment of a plan and return its topology.

    Raises:
        UsageError: the plan names no experiment, or it cannot be imported or built.
    """
    if plan.experiment is None:
        raise UsageError("--plan: it names no experiment")
    if (code := UnpackedCode.holding(plan.experiment)) is not None:
        code.append_import_paths()
    function, flags = flags_of(load_experiment(plan.experiment, plan.function), plan.flags)
    return build(function, flags.parse(plan.flags), plan.hosts or None)


def preloads_of(plan: str, node: str) -> Sequence[Callable[[], object]]:
    """Return what the actors of a node preload before its process is forked, given the plan as text."""
    actors = _built(plan).find(node).actors
    return [
        functools.partial(actor.kind.preload, *actor.factory.args, **actor.factory.keywords)
        for actor in actors
        if issubclass(actor.kind, Preloads)
    ]


@functools.cache
def _built(plan: str) -> Topology:
    topology = topology_of(RunPlan.read(plan))
    gc.collect()  # before processes that share this memory are forked
    return topology
