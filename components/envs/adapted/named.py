"""Environments by name, as `--env` takes them: gymnasium:ID, pettingzoo:MODULE, or a user's function.

A name is `skirmish` or `smac`, which the experiment makes itself, or one of these:

    air_combat:fighter10v10             a scenario of the air combat simulator, or a file: .toml, or .map of MaCA
    gymnasium:LunarLander-v3            a registered environment; gymnasium:ale_py:ALE/Pong-v5 imports ale_py first
    pettingzoo:mpe2.simple_spread_v3    a module with `parallel_env` or `env`
    MODULE:FUNCTION                     a function of a module that can be imported
    FILE.py:FUNCTION                    a function of a file

The function takes keyword arguments and returns an environment of Gymnasium or PettingZoo, with any wrappers. One with
a parameter `num_envs` returns a vector environment of that many copies. One with parameters `n_envs` and `seed` returns
an `Env`.
"""

import ast
import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from components.envs.air_combat.battles import Options, Rule
from components.envs.air_combat.env import AirCombat
from components.envs.base import Env
from orchestra import UsageError, code_file, did_you_mean, import_file

OURS = ("skirmish", "smac")
"""Names of the environments of this package."""
FORMS = "skirmish, smac, air_combat:MAP, gymnasium:ID, pettingzoo:MODULE, MODULE:FUNCTION or FILE.py:FUNCTION"
KINDS = ("air_combat", "gymnasium", "pettingzoo")
"""The prefixes before the colon of names that are not names of functions."""
OPPONENTS = tuple(rule for rule in get_args(Rule) if rule != "ordered")
"""Rules that command the other side of an air combat."""
Rewards = Literal["each", "mean", "sum"]
"""For several agents: a reward for each agent, or a team reward, which is the mean or the sum of all."""


class MakeEnv(Protocol):
    """A factory of environments, for any process."""

    def __call__(self, n_envs: int = 1, *, seed: int) -> Env: ...


def named(env: str) -> str:
    """Return the name of an environment as a run records it: with the absolute path of a file.

    Raises:
        ValueError: the name has none of the known forms.
    """
    kind, colon, rest = env.partition(":")
    if kind == "air_combat" and rest.endswith((".toml", ".map")):
        return f"{kind}:{Path(rest).absolute()}"
    if env in OURS or (kind in KINDS and rest):
        return env
    place, colon, function = env.rpartition(":")
    if not colon or not place or not function.isidentifier():
        raise ValueError(f"it must be {FORMS}{did_you_mean(kind, (*OURS, *KINDS))}")
    return f"{Path(place).absolute()}:{function}" if place.endswith(".py") else env


def arguments_of(given: tuple[str, ...]) -> dict[str, Any]:
    """Return the arguments of an environment, each given as NAME=VALUE. A value is a Python literal, or else text.

    Raises:
        UsageError: an argument does not have this form.
    """
    arguments = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env-arg: {each!r} must be NAME=VALUE")
        try:
            arguments[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            arguments[name] = {"true": True, "false": False}.get(text, text)
    return arguments


def factory_of(
    env: str, arguments: Mapping[str, Any], *, episode_limit: int | None = None, rewards: Rewards = "each"
) -> MakeEnv:
    """Return the factory of an environment that is not one of `OURS`, as plain values that any process can use.

    Args:
        env: the name.
        arguments: of the environment.
        episode_limit: steps after which an episode is cut; by default the limit that the environment declares.
        rewards: of several agents.

    Raises:
        UsageError: Gymnasium is needed and not installed, `rewards` is set for a single agent, or air combat has no
            such argument or opponent.
    """
    kind, _, name = env.partition(":")
    if kind == "air_combat":
        return _air_combat(name, arguments, limit=episode_limit, rewards=rewards)
    if kind == "gymnasium":
        _refuse_rewards(rewards, env)
        _installed("gymnasium")
        from components.envs.adapted.registered import gymnasium_env

        return partial(gymnasium_env, name, dict(arguments), episode_limit)
    if kind == "pettingzoo":
        return partial(_pettingzoo, name, dict(arguments), episode_limit, rewards)
    return partial(_own, env, dict(arguments), episode_limit, rewards)


def _air_combat(name: str, arguments: Mapping[str, Any], *, limit: int | None, rewards: Rewards) -> MakeEnv:
    if limit is not None or rewards != "each":
        raise UsageError(
            "--episode-limit and --rewards are not for air combat: --env-arg max_steps=N ends its rounds, and its "
            "reward is the team's"
        )
    allowed = sorted(Options.__annotations__.keys() - {"seed", "first"})
    for argument in arguments:
        if argument not in allowed:
            raise UsageError(f"--env-arg: air combat has no {argument!r}; there are {', '.join(allowed)}")
    opponent = arguments.get("opponent", "easy")
    if opponent not in OPPONENTS:
        if not isinstance(opponent, str) or not Path(opponent).is_dir():
            raise UsageError(
                f"--env-arg: opponent={opponent} is neither {', '.join(OPPONENTS)} nor the directory of a run"
            )
        from components.envs.air_combat.frozen_policy import against_run

        others = {argument: value for argument, value in arguments.items() if argument != "opponent"}
        return partial(against_run, name, str(Path(opponent).absolute()), **others)
    return partial(AirCombat, name, **arguments)


def _pettingzoo(
    name: str, arguments: dict[str, Any], limit: int | None, rewards: Rewards, n_envs: int = 1, *, seed: int
) -> Env:
    _installed("pettingzoo")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # many environments import pygame, which prints a greeting
    module = _imported(name, f"--env pettingzoo:{name}")
    make = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make is None:
        raise UsageError(f"--env: {name} has neither parallel_env() nor env(), so that it is none of PettingZoo")
    return _adapted(make, arguments, limit, rewards, f"pettingzoo:{name}", n_envs, seed)


def _own(
    env: str, arguments: dict[str, Any], limit: int | None, rewards: Rewards, n_envs: int = 1, *, seed: int
) -> Env:
    place, _, name = env.rpartition(":")
    if place.endswith(".py"):
        path = Path(place)
        if not code_file(path).exists():
            raise UsageError(f"--env: there is no file {place!r}")
        module: Any = import_file(path, "environment")
    else:
        module = _imported(place, f"--env {env}", did_you_mean(place, KINDS))
    make = getattr(module, name, None)
    if not callable(make):
        raise UsageError(f"--env: {place} has no function {name!r}")
    parameters = inspect.signature(make).parameters
    if "n_envs" in parameters:
        if rewards != "each":
            raise UsageError(f"--rewards {rewards}: {env} returns an Env, which says itself whose its rewards are")
        if limit is not None:
            raise UsageError(f"--episode-limit: {env} returns an Env, which has a limit of its own")
        made = make(n_envs=n_envs, seed=seed, **arguments)
        if not isinstance(made, Env):
            raise UsageError(f"--env: {env} takes n_envs and returned {made!r}; it must return an Env")
        return made
    if "num_envs" in parameters:
        _refuse_rewards(rewards, env)
        from components.envs.adapted.gymnasium_vector import vector_copies

        return vector_copies(make(num_envs=n_envs, **arguments), seed=seed, episode_limit=limit)
    return _adapted(make, arguments, limit, rewards, env, n_envs, seed)


def _adapted(
    make: Callable[..., Any],
    arguments: dict[str, Any],
    limit: int | None,
    rewards: Rewards,
    whose: str,
    n_envs: int,
    seed: int,
) -> Env:
    """Return an `Env` of copies of the Gymnasium or PettingZoo environment that `make` makes."""
    try:
        first = make(**arguments)
    except TypeError as error:
        raise UsageError(f"--env: {whose} cannot be made: {error}") from error
    made = [first]

    def one() -> Any:
        return made.pop() if made else make(**arguments)

    if hasattr(first, "possible_agents"):
        from components.envs.adapted.pettingzoo_copies import PettingZooCopies

        return PettingZooCopies(one, n_envs, seed=seed, episode_limit=limit, rewards=rewards, name=whose)
    if hasattr(first, "observation_space") and hasattr(first, "action_space"):
        _refuse_rewards(rewards, whose)
        from components.envs.adapted.gymnasium_copies import GymnasiumCopies

        return GymnasiumCopies(one, n_envs, seed=seed, episode_limit=limit)
    raise UsageError(
        f"--env: {whose} returned {first!r}; it must return an environment of Gymnasium or of PettingZoo, a vector "
        "environment if it takes num_envs, or an Env if it takes n_envs and seed"
    )


def _refuse_rewards(rewards: Rewards, whose: str) -> None:
    if rewards != "each":
        raise UsageError(f"--rewards {rewards}: {whose} is one agent, whose reward is the team's")


def _imported(module: str, whose: str, hint: str = "") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = str(getattr(error, "name", None) or module).partition(".")[0]
        raise UsageError(f"{whose}: {error}{hint}; is it installed? pip install {missing}") from error


def _installed(package: str) -> None:
    """Raise `UsageError` if a package is not installed; the extra with the same name installs it."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"--env: {package} is not installed ({error}): pip install 'orchestra-rl[{package}]'"
        ) from error
