"""The battle simulator as an environment of this framework."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, Unpack

from components.envs.base import Env, EnvSpec
from components.envs.skirmish.battles import Battles, Options
from components.envs.skirmish.options import Features
from components.envs.skirmish.scenarios import Scenario


class Skirmish(Battles, Env):
    """B battles of SMAC or SMACv2 as an `Env`: `Battles`, with its sizes in `spec` as well."""

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


def options_of_flags(*, features: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the given options of `Skirmish` that differ from their defaults, as plain values.

    Args:
        features: the fields of `Features` by name.
        others: options of `Skirmish` by name.
    """
    usual = {name: parameter.default for name, parameter in signature(Battles).parameters.items()}
    options = {name: value for name, value in others.items() if value != usual[name]}
    columns = {field.name: features[field.name] for field in fields(Features)}
    changed = {name: value for name, value in columns.items() if value != getattr(Features(), name)}
    return options | ({"features": changed} if changed else {})


def flags_of_options(options: Mapping[str, Any]) -> Sequence[str]:
    """Return the command-line flags from which `options_of_flags` made these options."""
    names = [name for name in options if name != "features"] + list(options.get("features", ()))
    return [f"--{name.replace('_', '-')}" for name in names]
