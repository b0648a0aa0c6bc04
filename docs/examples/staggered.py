"""QMIX with workers that load new parameters at different times, so that they do not all wait for the same message.

It has a bug, which `docs/debugging.md` finds.
"""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from components import Worker
from messages import LoadParamsMsg
from orchestra import Topology, extends, load_experiment, on

STANDARD = Path(__file__).resolve().parents[2] / "experiments" / "qmix_8m.py"


class StaggeredWorker(Worker):
    """Loads every `period`-th version of the parameters; other workers load other versions."""

    def __init__(self, *, phase: int, period: int, **options: Any) -> None:
        super().__init__(**options)
        self._phase = phase
        self._period = period

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        if self._sync.version is None or msg.version % self._period == self._phase:
            await super().load(msg)


@extends(load_experiment(STANDARD))
def experiment(
    topology: Topology, *, period: Annotated[int, Field(ge=1, description="versions from one load to the next")] = 1
) -> Topology:
    """Plan the standard run with staggered workers."""
    workers = topology.group("workers")
    workers.each(lambda index, node: node.replace("worker", StaggeredWorker, phase=index, period=period))
    return topology
