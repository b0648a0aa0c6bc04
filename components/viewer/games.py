"""The games that can be shown: how each is opened, played and recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from components.envs import Skirmish
from components.envs.adapted.named import OPPONENTS, factory_of, named
from components.envs.air_combat.env import AirCombat
from components.envs.base import Env
from components.envs.game_speed import GameSpeed
from components.envs.skirmish.scenarios import SCENARIOS
from components.policies.acting import ActingPolicy
from components.viewer import players, recording
from components.viewer.air_combat import players as air_players
from components.viewer.air_combat import recording as air_recording
from components.viewer.recorded import Recorded
from orchestra import UsageError, did_you_mean

Take = Callable[[np.random.Generator], Recorded]
"""Plays an episode and returns its recording."""

E = TypeVar("E", bound=Env)
P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Game(Generic[E, P]):
    """A kind of environment, and the functions that make it and that play and record episodes of one copy."""

    kind: type[E]
    prefix: str
    """The prefix of its scenarios' names on the command line."""
    opened: Callable[[str, str | None, int], E]
    """Makes the environment from a scenario, the opponent on the other side (None for the default), and a seed."""
    players: Mapping[str, Callable[[E, np.random.Generator], P]]
    usual: str
    """The default player."""
    policy_player: Callable[[ActingPolicy], Callable[[E, np.random.Generator], P]]
    record: Callable[[E, P], Recorded]

    def script(self, scenario: str, policy: str | None, opponent: str | None, seed: int) -> Take:
        """Return a function that plays a scenario by a script.

        Raises:
            UsageError: there is no such scenario, script or opponent.
        """
        if policy is not None and policy not in self.players:
            raise UsageError(f"--policy: there is no {policy!r}; there are {', '.join(self.players)}")
        try:
            env = self.opened(scenario, opponent, seed)
        except ValueError as error:
            raise UsageError(str(error)) from error
        return self._take(env, self.players[policy or self.usual])

    def learnt(self, env: Env, policy: ActingPolicy) -> Take | None:
        """Return a function that plays an environment by a policy; None if it is another kind of environment."""
        return self._take(env, self.policy_player(policy)) if isinstance(env, self.kind) else None

    def _take(self, env: E, make: Callable[[E, np.random.Generator], P]) -> Take:
        return lambda rng: self.record(env, make(env, rng))


def _skirmish(scenario: str, opponent: str | None, seed: int) -> Skirmish:
    if opponent is not None:
        raise UsageError("--opponent is for air_combat:SCENARIO: the enemies of other battles have their own script")
    try:
        return Skirmish(scenario, 1, seed=seed)
    except ValueError as error:
        if scenario.endswith(".toml"):
            raise
        hint = f"{did_you_mean(scenario, SCENARIOS)}; those of air combat are air_combat:NAME"
        raise UsageError(f"{error}{hint}") from error


def _air_combat(scenario: str, opponent: str | None, seed: int) -> AirCombat:
    if opponent is not None and opponent not in OPPONENTS:
        raise UsageError(f"--opponent: there is no {opponent!r}; there are {', '.join(OPPONENTS)}")
    env = factory_of(named(f"air_combat:{scenario}"), {"opponent": opponent or "easy"})(1, seed=seed)
    assert isinstance(env, AirCombat)
    return env


SKIRMISH = Game(Skirmish, "", _skirmish, players.PLAYERS, "nearest", players.policy_player, recording.record)
AIR_COMBAT = Game(
    AirCombat,
    "air_combat:",
    _air_combat,
    air_players.PLAYERS,
    "hard",
    air_players.policy_player,
    air_recording.record,
)
GAMES: tuple[Game[Any, Any], ...] = (AIR_COMBAT, SKIRMISH)


def game_of(name: str) -> tuple[Game[Any, Any], str]:
    """Return the game of a name on the command line, and the name of its scenario."""
    game = next(game for game in GAMES if name.startswith(game.prefix))
    return game, name.removeprefix(game.prefix)


def learnt(env: Env, policy: ActingPolicy) -> Take | None:
    """Return a function that plays an environment of a run by its policy; None if it cannot be shown."""
    inner = env.at_full_speed if isinstance(env, GameSpeed) else env
    takes = (game.learnt(inner, policy) for game in GAMES)
    return next((take for take in takes if take is not None), None)
