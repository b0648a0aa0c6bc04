"""The battle simulator as an environment of this framework."""

from typing import Unpack

from components.envs.base import Env, EnvSpec
from components.envs.skirmish.battles import Battles, Options
from components.envs.skirmish.scenarios import Scenario


class Skirmish(Battles, Env):
    """B battles of SMAC or SMACv2 as an `Env`: what `Battles` is, with its sizes in `spec` as well."""

    def __init__(self, scenario: str | Scenario, n_envs: int = 1, **options: Unpack[Options]) -> None:
        super().__init__(scenario, n_envs, **options)
        self.spec = EnvSpec(
            name=self.scenario.name,
            n_agents=self.n_agents,
            n_actions=self.n_actions,
            obs_size=self.obs_size,
            state_size=self.state_size,
            episode_limit=self.episode_limit,
        )
