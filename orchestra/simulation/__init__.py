"""Deterministic simulation: nodes, their network and time in one process, all decided by a seed."""

from orchestra.simulation.loop import SimulationStuck
from orchestra.simulation.process import Process, ProcessDied
from orchestra.simulation.seeds import Scenario, each_seed, failing_seed, run_seed
from orchestra.simulation.simulation import Simulation

__all__ = [
    "Process",
    "ProcessDied",
    "Scenario",
    "Simulation",
    "SimulationStuck",
    "each_seed",
    "failing_seed",
    "run_seed",
]
