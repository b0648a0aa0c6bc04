"""B battles of one scenario, as an environment."""

from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import Env, EnvSpec
from components.envs.skirmish import kernel
from components.envs.skirmish.kernel.constants import FIRST_TARGET
from components.envs.skirmish.options import Features, Rewards
from components.envs.skirmish.records import BATTLE, UNIT
from components.envs.skirmish.scenarios import scenario_named
from components.envs.skirmish.tables import damage_table, kinds_table, rules_table
from components.envs.skirmish.units import Ruleset


class Skirmish(Env):
    """The StarCraft multi-agent challenge without StarCraft: B battles, played by one compiled kernel.

    Sizes, observations, states, available actions, rewards and limits are those of SMAC (Samvelyan et al., 2019); how
    units move and fight is modelled on the game's data. `docs/simulator.md` says what differs.

    A battle is determined by `seed`, its number and the actions taken in it: battle 5 of 64 is, bit for bit, the
    only battle of `Skirmish(scenario, 1, seed=seed, first=5)`. `step` and `reset` release the GIL.

    Args:
        scenario: the SMAC map, as `8m`.
        n_envs: how many battles, B.
        seed: for the random delay of each shot, the order of shots in a tick, and the jitter.
        first: the number of the first battle, so that several environments may share a seed.
        ruleset: weapon data of the SMAC maps' own mod, or of the later multiplayer game.
        start_jitter: each unit starts up to this far off, in cells per axis. SMAC starts are always the same.
        features: which columns observations and state have.
        rewards: what a step is worth.
        step_mul: ticks per step, sixteenths of a second.
        move_amount: how far a movement order points, in cells.

    Raises:
        ValueError: an unknown scenario or ruleset, or a number out of its range.
    """

    def __init__(
        self,
        scenario: str,
        n_envs: int = 1,
        *,
        seed: int = 0,
        first: int = 0,
        ruleset: Ruleset = "liberty",
        start_jitter: float = 0.0,
        features: Features | None = None,
        rewards: Rewards | None = None,
        step_mul: int = 8,
        move_amount: float = 2.0,
    ) -> None:
        self.scenario = scenario_named(scenario)
        self.features = features or Features()
        self.rewards = rewards or Rewards()
        self.n_envs = index(n_envs)
        for name, value, least in (
            ("n_envs", n_envs, 1),
            ("seed", seed, 0),
            ("first", first, 0),
            ("step_mul", step_mul, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value!r}, must be at least {least}")
        if not 0.0 <= start_jitter <= 8.0:
            raise ValueError(f"start_jitter is {start_jitter!r}, must be between 0 and 8 cells")
        if not move_amount > 0.0:
            raise ValueError(f"move_amount is {move_amount!r}, must be positive")

        agents, enemies = len(self.scenario.allies), len(self.scenario.enemies)
        self.spec = EnvSpec(
            name=scenario,
            n_agents=agents,
            n_actions=FIRST_TARGET + enemies,
            obs_size=self.features.obs_size(self.scenario),
            state_size=self.features.state_size(self.scenario),
            episode_limit=self.scenario.limit,
        )
        self.obs = np.zeros((n_envs, agents, self.spec.obs_size), dtype=np.float32)
        self.state = np.zeros((n_envs, self.spec.state_size), dtype=np.float32)
        self.available = np.zeros((n_envs, agents, self.spec.n_actions), dtype=np.bool_)
        self.reward = np.zeros(n_envs, dtype=np.float32)
        self.terminated = np.zeros(n_envs, dtype=np.bool_)
        self.truncated = np.zeros(n_envs, dtype=np.bool_)
        self.won = np.zeros(n_envs, dtype=np.bool_)

        self.units = _records(np.zeros((n_envs, agents + enemies), dtype=UNIT))
        """(B, N) of `records.UNIT`, allies first. After writing to it, call `show`."""
        self.battles = _records(np.zeros(n_envs, dtype=BATTLE))
        """(B,) of `records.BATTLE`."""
        self.battles["over"] = True
        for b in range(n_envs):
            words = np.random.SeedSequence(seed, spawn_key=(first + b,)).generate_state(4)
            self.battles["a"][b], self.battles["b"][b], self.battles["c"][b], self.battles["counter"][b] = words

        self._kinds = _records(kinds_table(self.scenario, ruleset))
        self._damage = damage_table(self.scenario, ruleset)
        self._rules = _records(
            rules_table(
                self.scenario,
                features=self.features,
                rewards=self.rewards,
                start_jitter=start_jitter,
                step_mul=step_mul,
                move_amount=move_amount,
            )
        )
        self._footing = self.scenario.terrain.footing()
        self._ways = self.scenario.terrain.ways()
        self._height = self.scenario.terrain.height()
        self._everywhere = np.ones(n_envs, dtype=np.bool_)

    def __repr__(self) -> str:
        return f"<Skirmish {self.spec.name} x {self.n_envs}>"

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the battles that `which` (B,) names; in all of them without it.

        Raises:
            ValueError: `which` is not a mask of shape (B,).
        """
        if which is None:
            which = self._everywhere
        elif which.shape != (self.n_envs,) or which.dtype != np.bool_:
            raise ValueError(f"which is {which.dtype} {which.shape}, must be bool {(self.n_envs,)}")
        kernel.reset_all(
            np.ascontiguousarray(which),
            self.units,
            self.battles,
            self._kinds,
            self._rules,
            self._footing,
            self._height,
            self.obs,
            self.state,
            self.available,
            self.reward,
            self.terminated,
            self.truncated,
            self.won,
        )

    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every battle: `actions` (B, A), of any integer type.

        Raises:
            ValueError: an action that is not available, an array of another shape or type, or a battle that is
                over; nothing has been stepped then.
        """
        self.step_unchecked(self._checked(actions))

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        actions = np.asarray(actions)
        shape = (self.n_envs, self.spec.n_agents)
        if actions.shape != shape or actions.dtype.kind not in "iu":
            raise ValueError(f"actions are {actions.dtype} {actions.shape}, must be integers {shape}")
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        refused = kernel.first_refused(actions, self.battles, self.available)
        if refused >= 0:
            b, i = divmod(refused, self.spec.n_agents)
            if self.battles["over"][b]:
                raise ValueError(f"battle {b} is over: reset it before stepping on")
            choices = np.flatnonzero(self.available[b, i]).tolist()
            raise ValueError(
                f"battle {b}, agent {i}: action {actions[b, i]} is not available, of these one is: {choices}"
            )
        return actions

    def step_unchecked(self, actions: NDArray[np.int64]) -> None:
        """Make one step with orders that no agent may give, as to attack out of reach: `actions` (B, A), contiguous.

        Actions must lie in range and battles must not be over: nothing looks.
        """
        kernel.step_all(
            actions,
            self.units,
            self.battles,
            self._kinds,
            self._damage,
            self._rules,
            self._footing,
            self._ways,
            self._height,
            self.obs,
            self.state,
            self.available,
            self.reward,
            self.terminated,
            self.truncated,
            self.won,
        )

    def show(self) -> None:
        """Write `obs`, `state` and `available` anew, after `units` was changed by hand."""
        kernel.show_all(
            self.units,
            self.battles,
            self._kinds,
            self._rules,
            self._footing,
            self._height,
            self.obs,
            self.state,
            self.available,
        )

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Copies of everything that changes, its random generators included."""
        return {name: getattr(self, name).copy() for name in _CHANGING}

    def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Go on from a snapshot of an environment with the same scenario, B and options.

        Raises:
            ValueError: it is the snapshot of something else; nothing has been changed then.
        """
        for name in _CHANGING:
            mine = getattr(self, name)
            if name not in snapshot or (snapshot[name].shape, snapshot[name].dtype) != (mine.shape, mine.dtype):
                raise ValueError(f"snapshot does not fit {self!r}: {name} must be {mine.dtype} {mine.shape}")
        for name in _CHANGING:
            getattr(self, name)[...] = snapshot[name]


_CHANGING = ("units", "battles", "obs", "state", "available", "reward", "terminated", "truncated", "won")


def _records(array: NDArray[Any]) -> NDArray[Any]:
    """The array as the kernel takes it: only a recarray knows `unit.x`, and only compiled code goes without."""
    return array if kernel.COMPILED else array.view(np.recarray)
