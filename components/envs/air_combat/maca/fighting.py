"""Rounds of MaCA's agents against each other, or against the rules of this package."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from components.envs.air_combat.battles import Rule
from components.envs.air_combat.maca.environment import Environment


class Agent(Protocol):
    """An agent that commands a side. MaCA's agents have these methods, without deriving from this class."""

    def get_obs_ind(self) -> str: ...

    def set_map_info(self, size_x: float, size_y: float, detector_num: int, fighter_num: int) -> None: ...

    def get_action(self, obs_dict: Any, step_cnt: int) -> tuple[Any, Any]: ...


class BaseAgent(ABC):
    """The base class of MaCA's agents: `agent.base_agent.BaseAgent`."""

    def __init__(self) -> None:
        self.obs_ind = "raw"

    def get_obs_ind(self) -> str:
        """Return the kind of observations that the agent gets: see `Environment`."""
        return self.obs_ind

    def set_map_info(self, size_x: float, size_y: float, detector_num: int, fighter_num: int) -> None:
        """Store the size of the map, and the numbers of units of the side."""
        self.size_x, self.size_y = size_x, size_y
        self.detector_num, self.fighter_num = detector_num, fighter_num

    @abstractmethod
    def get_action(self, obs_dict: Any, step_cnt: int) -> tuple[Any, Any]:
        """Return the actions of the detectors (n, 2) and of the fighters (n, 4), for step `step_cnt`, from 1."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended."""

    outcome: int
    """For side 1: 2 total win, 1 win, 0 draw, -1 loss, -2 total loss."""
    steps: int
    red_left: int
    """Units of side 1 that are alive."""
    blue_left: int
    rewards: tuple[float, float]
    """The rewards of both sides: the sums over steps and units, plus the reward of the round."""


def fight(map_path: str, red: Agent, blue: Agent | Rule, *, rounds: int = 1, **options: Any) -> Iterator[RoundResult]:
    """Play rounds, as MaCA's `fight.py` does, and yield how each ended.

    Args:
        map_path: as for `Environment`.
        red: the agent of side 1.
        blue: the agent of side 2, or the name of rules, such as `easy`.
        rounds: number of rounds.
        **options: the other arguments of `Environment`.

    Raises:
        ValueError: as `Environment` and its `step`.
    """
    if isinstance(blue, str):
        env = Environment(map_path, red.get_obs_ind(), "raw", opponent=blue, **options)
        agents: list[Agent] = [red]
    else:
        env = Environment(map_path, red.get_obs_ind(), blue.get_obs_ind(), **options)
        agents = [red, blue]
    sizes, numbers = env.get_map_size(), env.get_unit_num()
    for side, agent in enumerate(agents):
        agent.set_map_info(*sizes, *numbers[2 * side : 2 * side + 2])
    for number in range(rounds):
        if number:
            env.reset()
        steps, totals = 0, [0.0, 0.0]
        while not env.get_done():
            steps += 1
            shown = env.get_obs()
            actions: list[Any] = []
            for agent, observed in zip(agents, shown, strict=False):
                actions += agent.get_action(observed, steps)
            env.step(*actions)
            detectors_1, fighters_1, round_1, detectors_2, fighters_2, round_2 = env.get_reward()
            totals[0] += float(detectors_1.sum() + fighters_1.sum()) + round_1
            totals[1] += float(detectors_2.sum() + fighters_2.sum()) + round_2
        alive = env.get_alive_status()
        yield RoundResult(
            outcome=env.outcome,
            steps=steps,
            red_left=sum(alive[0]) + sum(alive[1]),
            blue_left=sum(alive[2]) + sum(alive[3]),
            rewards=(totals[0], totals[1]),
        )
