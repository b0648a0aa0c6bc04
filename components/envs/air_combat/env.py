"""The air combat simulator as an environment of this framework."""

from typing import Unpack

from components.envs.air_combat.battles import AirBattles, Options
from components.envs.air_combat.kernel.constants import (
    AIM,
    BARRAGE,
    FIRST_MISSILE,
    HOLD,
    HOP,
    JAMMER_OFF,
    SILENT,
)
from components.envs.air_combat.scenarios import Scenario
from components.envs.base import Env, EnvSpec, Subtask

_SUBTASKS: dict[str, tuple[float, float, tuple[int, ...], bool]] = {
    "search": (0.0, 180.0, (HOLD, HOP, JAMMER_OFF), False),
    "approach": (0.0, 67.5, (HOLD, SILENT), False),
    "attack": (0.0, 180.0, (), True),
    "evade": (90.0, 180.0, (HOLD, SILENT), False),
    "jam": (0.0, 90.0, (HOLD, BARRAGE, AIM), False),
}
"""For each sub-task: least and largest angle between its courses and the reference; its commands; whether it fires."""


def subtasks(courses: int, n_commands: int) -> tuple[Subtask, ...]:
    """Return the sub-tasks for these numbers of courses and commands: search, approach, attack, evade, jam."""
    angles = [min(360.0 * k / courses, 360.0 - 360.0 * k / courses) for k in range(courses)]
    tasks = []
    for name, (least, most, commands, fires) in _SUBTASKS.items():
        chosen = (*commands, *range(FIRST_MISSILE, n_commands)) if fires else commands
        actions = {k * n_commands + each for k, angle in enumerate(angles) if least <= angle <= most for each in chosen}
        tasks.append(Subtask(name, tuple(sorted(actions))))
    return tuple(tasks)


class AirCombat(AirBattles, Env):
    """B air combats as an `Env`: `AirBattles`, with its sizes in `spec` as well."""

    def __init__(self, scenario: str | Scenario, n_envs: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(scenario, n_envs, **options)
        courses = self.n_actions // self.n_commands
        self.spec = EnvSpec(
            name=self.scenario.name,
            n_agents=self.n_agents,
            n_actions=self.n_actions,
            obs_size=self.obs_size,
            state_size=self.state_size,
            episode_limit=self.episode_limit,
            subtasks=subtasks(courses, self.n_commands),
            action_grid=(courses, self.n_commands),
        )
