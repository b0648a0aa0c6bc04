"""A recorded round of air combat: units, missiles and bearings after each world step, and rewards.

Shapes: A agents, N units, side 1 (red) first.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.env import AirCombat
from components.envs.air_combat.scenarios import Scenario
from components.envs.air_combat.tables import kinds_table
from components.viewer.air_combat.players import Player

OUTCOMES = {2: "total win", 1: "win", 0: "draw", -1: "loss", -2: "total loss"}
"""The outcomes for red, by their numbers in `records.BATTLE`."""


@dataclass(frozen=True, slots=True)
class AirFrame:
    """The round after one world step; step 0 is the start."""

    step: int
    units: NDArray[Any]  # (N,) of air_combat.records.UNIT
    missiles: NDArray[Any]  # (F,) of air_combat.records.MISSILE: those in flight
    hears: NDArray[np.bool_]  # (N, N): at [i, j] whether the receiver of unit i hears the radar of unit j
    bearing: NDArray[np.float32]  # (N, N, 2): the direction of that radar, a unit vector
    reward: float
    """The sum of rewards of the round so far."""
    subtasks: tuple[str, ...] = ()
    """The sub-task of each agent, if its policy names it."""
    outcome: str = ""
    """For red, in the last frame: one of `OUTCOMES`. Empty before."""

    @property
    def activity(self) -> int:
        """Missiles in flight."""
        return len(self.missiles)


@dataclass(frozen=True, slots=True)
class AirRound:
    """One round from start to end."""

    scenario: Scenario
    frames: tuple[AirFrame, ...]

    @property
    def n_agents(self) -> int:
        """Number of red units."""
        return len(self.scenario.red)

    @property
    def kinds(self) -> NDArray[Any]:
        """The properties of each unit: (N,) of `air_combat.records.KIND`."""
        table: NDArray[Any] = kinds_table(self.scenario)
        return table

    @property
    def stride(self) -> int:
        """World steps per frame of a film: with 3, a missile is seen three times in its flight."""
        return 3

    def busiest(self) -> int:
        """Return the first step with the most missiles in flight."""
        return max(self.frames, key=lambda frame: frame.activity).step

    def destroyed(self, step: int) -> dict[int, int]:
        """Return the units that are destroyed after `step` steps, and the step in which each was."""
        alive = np.stack([frame.units["alive"] for frame in self.frames[: step + 1]])
        return {int(i): int(np.argmin(alive[:, i])) for i in np.flatnonzero(~alive[-1])}

    def name(self, i: int) -> str:
        """Return a unit's letter and number; lower case for red, upper case for blue, so that no colour is needed.

        The number is the one that actions use.
        """
        letter = self.scenario.units[i].kind[0]
        return f"{letter}{i}" if i < self.n_agents else f"{letter.upper()}{i - self.n_agents}"


def record(env: AirCombat, player: Player) -> AirRound:
    """Play one round in an environment of one battle, and keep every world step.

    Raises:
        ValueError: the environment has more than one battle.
    """
    if env.n_envs != 1:
        raise ValueError(f"{env!r}: only one battle can be watched at a time")
    env.reset()
    frames = [_frame(env, 0, 0.0, ())]
    while not env.terminated[0]:
        for subtasks in player(env):
            frames.append(_frame(env, len(frames), frames[-1].reward + float(env.reward[0]), subtasks))
    return AirRound(env.scenario, tuple(frames))


def _frame(env: AirCombat, step: int, reward: float, subtasks: tuple[str, ...]) -> AirFrame:
    battle = env.battles[0]
    return AirFrame(
        step=step,
        units=env.units[0].copy(),
        missiles=env.missiles[0, : battle["flying"]].copy(),
        hears=env.hears[0].copy(),
        bearing=env.bearing[0].astype(np.float32),
        reward=reward,
        subtasks=subtasks,
        outcome=OUTCOMES[int(battle["outcome"])] if env.terminated[0] else "",
    )
