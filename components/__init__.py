"""What reinforcement-learning actors are, and what they are made of.

Names are loaded when they are first used: torch takes seconds to import, and not every process needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.monitor import Monitor
    from components.orchestrator import Orchestrator
    from components.rollout import EnvFactory, PolicyFactory
    from components.schedule import LinearSchedule
    from components.trainer import Trainer
    from components.trajectory_manager import TrajectoryManager
    from components.worker import Worker
    from components.worker_proxy import WorkerProxy

_HOMES = {
    "EnvFactory": "components.rollout",
    "LinearSchedule": "components.schedule",
    "Monitor": "components.monitor",
    "Orchestrator": "components.orchestrator",
    "PolicyFactory": "components.rollout",
    "Trainer": "components.trainer",
    "TrajectoryManager": "components.trajectory_manager",
    "Worker": "components.worker",
    "WorkerProxy": "components.worker_proxy",
}

__all__ = [
    "EnvFactory",
    "LinearSchedule",
    "Monitor",
    "Orchestrator",
    "PolicyFactory",
    "Trainer",
    "TrajectoryManager",
    "Worker",
    "WorkerProxy",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'components' has no attribute {name!r}")
    return getattr(import_module(home), name)
