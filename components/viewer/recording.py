"""A recorded battle: positions after each step, attacks, and rewards.

Shapes: A agents, N units, agents first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs import Scenario, Skirmish
from components.envs.skirmish.units import TICKS_PER_SECOND, UnitType
from components.viewer.players import Player


@dataclass(frozen=True, slots=True)
class Strike:
    """One unit attacked or healed another during a step."""

    by: int
    to: int
    heals: bool = False
    """True if it healed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The battle after one step; step 0 is the start."""

    step: int
    units: NDArray[Any]  # (N,) of skirmish.records.UNIT
    strikes: tuple[Strike, ...]
    """The strikes of the step that has just been made."""
    reward: float
    """The sum of rewards of the episode so far."""
    outcome: str = ""
    """`won`, `lost`, or `time is up`, in the last frame; empty before."""

    @property
    def activity(self) -> int:
        """Number of attacks and healings in the step."""
        return len(self.strikes)


@dataclass(frozen=True, slots=True)
class Battle:
    """One episode from start to end."""

    scenario: Scenario
    types: tuple[UnitType, ...]  # (N,)
    sight: NDArray[np.float64]  # (A,): how far each agent sees, in cells
    limit: int
    seconds_per_step: float
    frames: tuple[Frame, ...]

    @property
    def n_agents(self) -> int:
        """Number of units that are agents."""
        return len(self.sight)

    @property
    def stride(self) -> int:
        """Steps per frame of a film: 1, so that every step is shown."""
        return 1

    def busiest(self) -> int:
        """Return the first step with the most strikes: the step that a single picture shows."""
        return max(self.frames, key=lambda frame: frame.activity).step


def record(env: Skirmish, player: Player) -> Battle:
    """Play one episode in an environment of one battle, and keep every step.

    Raises:
        ValueError: the environment has more than one battle.
    """
    if env.n_envs != 1:
        raise ValueError(f"{env!r}: only one battle can be watched at a time")
    env.reset()
    frames = [Frame(0, env.units[0].copy(), (), 0.0)]
    total, ticks = 0.0, 0
    while not frames[-1].outcome:
        begun = int(env.battles["tick"][0])
        env.step(player(env))
        ticks = max(ticks, int(env.battles["tick"][0]) - begun)
        total += float(env.reward[0])
        before, units = frames[-1].units, env.units[0].copy()
        strikes = _strikes(before, units, env.kinds[0], ticks)
        frames.append(Frame(len(frames), units, strikes, total, _outcome(env)))
    return Battle(
        scenario=env.scenario,
        types=env.types_in(0),
        sight=env.kinds["sight"][0, : env.spec.n_agents].copy(),
        limit=env.spec.episode_limit,
        seconds_per_step=ticks / TICKS_PER_SECOND,
        frames=tuple(frames),
    )


def _outcome(env: Skirmish) -> str:
    if env.terminated[0]:
        return "won" if env.won[0] else "lost"
    return "time is up" if env.truncated[0] else ""


def _strikes(before: NDArray[Any], after: NDArray[Any], kinds: NDArray[Any], ticks: int) -> tuple[Strike, ...]:
    """Return the attacks and healings in the ticks between two frames.

    A cooldown falls by one per tick until it is zero or its unit dies; only an attack raises it.
    """
    fallen = np.where(after["health"] > 0.0, np.maximum(before["cooldown"] - ticks, 0.0), before["cooldown"])
    shot = after["cooldown"] > fallen + 1e-6
    strikes = [Strike(int(i), int(after["hit_target"][i])) for i in np.flatnonzero(shot & (before["health"] > 0.0))]
    healing = after["healing"] & (after["target"] >= 0) & (kinds["healing"] > 0.0)
    strikes += [Strike(int(i), int(after["target"][i]), heals=True) for i in np.flatnonzero(healing)]
    return tuple(strikes)
