"""A vectorised environment: B battles of one scenario, stepped together, with arrays that are allocated once."""

from collections.abc import Callable, Mapping, Sequence
from operator import index
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .checks import check_integers, check_mask, not_available
from .kernel.constants import CELLS, FALL_BEFORE, PLACES_GIVEN, TYPES_GIVEN
from .memory import BattleMemory
from .opposition import Opponent, Opposition
from .options import Features, Rewards
from .records import BATTLE, UNIT, records
from .scenario_file import scenario_named
from .scenarios import Scenario
from .tables import (
    catalogue_table,
    damage_table,
    fresh_table,
    kinds_table,
    places_table,
    rules_table,
    spiral_table,
)
from .units import Ruleset, UnitType

HARDEST = 10
MOST_FINDERS = 62
"""The most agents where a 64-bit integer has a bit for each, as in `known_to` and `hidden_from`."""


class Options(TypedDict, total=False):
    """The options of `Battles`, which describes them."""

    seed: int
    first: int
    ruleset: Ruleset
    start_jitter: float
    features: Features | Mapping[str, Any] | None
    rewards: Rewards | None
    step_mul: int
    move_amount: float
    difficulty: int
    opponent: Opponent | None


class Battles(BattleMemory):
    """The StarCraft multi-agent challenge without StarCraft: B battles, played by one compiled kernel.

    Sizes, observations, states, available actions, rewards and limits are those of SMAC (Samvelyan et al., 2019); how
    units move and fight is modelled on the game's data. `docs/simulator.md` lists the differences.

    A battle is determined by `seed`, its number and the actions taken in it: battle 5 of 64 is, bit for bit, the
    only battle of `Battles(scenario, 1, seed=seed, first=5)`. `step` and `reset` release the GIL.

    The arrays are the simulator's own memory: `step` and `reset` overwrite them, so copy what must last. Reset is
    explicit: a battle that has ended keeps its last observation until it is reset. With A agents of O columns and
    U actions, and a state of S columns:

    Attributes:
        obs: (B, A, O) float32, the observation of each agent.
        state: (B, S) float32, what only a critic sees.
        available: (B, A, U) bool, what each may do: 0 nothing, for the dead; 1 stop; 2 to 5 move north, south, east,
            west; 6 + k attack enemy k, or heal friend k. With a cone of vision, these follow the
            actions that turn it.
        reward: (B,) float32, the team's reward for the last step.
        terminated: (B,) bool, the battle was decided.
        truncated: (B,) bool, the battle was cut at `episode_limit`.
        won: (B,) bool, the battle ended with a win.

    Args:
        scenario: the map of SMAC or SMACv2, as `8m` or `terran_5_vs_5`; or a scenario file, as `mine.toml`
            (`scenario_file`); or a scenario itself.
        n_envs: how many battles, B.
        seed: for all random numbers: what an episode draws, delay and order of shots, and the jitter.
        first: the number of the first battle, so that several environments may share a seed.
        ruleset: weapon data of the later multiplayer game (`lotv`), which fit the game's battles better, or of the mod
            that SMAC's maps name (`liberty`).
        start_jitter: largest random offset of each unit's start, in cells per axis. SMAC's starts are always the same.
        features: which columns observations and state have; a mapping gives the fields of `Features` by name.
        rewards: terms of the reward.
        step_mul: ticks per step, sixteenths of a second.
        move_amount: distance of a move action's goal, in cells.
        difficulty: how well the enemies fight, 1 to 10; from 7 on as well as they can (`docs/simulator.md`).
        opponent: commands the enemies instead of the game's rules, whatever the difficulty: a plain function from an
            `Opposition` to actions (B, E).

    Raises:
        ValueError: an unknown scenario or ruleset, or a number out of its range.
    """

    def __init__(
        self,
        scenario: str | Scenario,
        n_envs: int = 1,
        *,
        seed: int = 0,
        first: int = 0,
        ruleset: Ruleset = "lotv",
        start_jitter: float = 0.0,
        features: Features | Mapping[str, Any] | None = None,
        rewards: Rewards | None = None,
        step_mul: int = 8,
        move_amount: float = 2.0,
        difficulty: int = 7,
        opponent: Opponent | None = None,
    ) -> None:
        self.scenario = scenario_named(scenario) if isinstance(scenario, str) else scenario
        self.features = Features(**features) if isinstance(features, Mapping) else features or Features()
        self.rewards = rewards or Rewards()
        self.n_envs = index(n_envs)
        for name, value, least in (
            ("n_envs", n_envs, 1),
            ("seed", seed, 0),
            ("first", first, 0),
            ("step_mul", step_mul, 1),
            ("difficulty", difficulty, 1),
        ):
            if value < least:
                raise ValueError(f"{name} is {value!r}, must be at least {least}")
        if difficulty > HARDEST:
            raise ValueError(f"difficulty is {difficulty!r}, must be at most {HARDEST}")
        if not 0.0 <= start_jitter <= 8.0:
            raise ValueError(f"start_jitter is {start_jitter!r}, must be between 0 and 8 cells")
        if not move_amount > 0.0:
            raise ValueError(f"move_amount is {move_amount!r}, must be positive")

        agents, enemies = len(self.scenario.allies), len(self.scenario.enemies)
        if self.features.edition != "2022" and agents > MOST_FINDERS:
            raise ValueError(
                f"edition {self.features.edition!r} is for {MOST_FINDERS} agents at most, not for {agents}"
            )
        self._check_capabilities(step_mul, opponent)
        self.n_agents = agents
        self.n_actions = self.scenario.n_actions
        self.obs_size = self.features.obs_size(self.scenario)
        self.state_size = self.features.state_size(self.scenario)
        self.episode_limit = self.scenario.limit
        """Steps after which an episode is cut."""
        self.obs = np.zeros((self.n_envs, agents, self.obs_size), np.float32)
        self.state = np.zeros((self.n_envs, self.state_size), np.float32)
        self.available = np.zeros((self.n_envs, agents, self.n_actions), np.bool_)
        self.reward = np.zeros(self.n_envs, np.float32)
        self.terminated, self.truncated, self.won = np.zeros((3, self.n_envs), np.bool_)
        self.units = records(np.zeros((n_envs, agents + enemies), dtype=UNIT))
        """(B, N) of `records.UNIT`, allies first. After writing to it, call `show`."""
        self.battles = records(np.zeros(n_envs, dtype=BATTLE))
        """(B,) of `records.BATTLE`."""
        self.battles["over"] = True
        for b in range(n_envs):
            words = np.random.SeedSequence(seed, spawn_key=(first + b,)).generate_state(4)
            self.battles["a"][b], self.battles["b"][b], self.battles["c"][b], self.battles["counter"][b] = words

        drawn = self.scenario.draw is not None
        kinds = kinds_table(self.scenario, ruleset)
        self.kinds = records(np.repeat(kinds[None], n_envs if drawn else 1, axis=0))
        """(1, N) of `records.KIND`, allies first: the type of each unit; (B, N) where armies are drawn."""
        self._changing = (*_CHANGING, "kinds") if drawn else _CHANGING
        self._opponent = opponent
        self._opposition = Opposition(self.scenario, self.features, n_envs) if opponent else None
        self._enemy_actions = np.zeros((1, enemies), np.int64)
        self._rules = records(
            rules_table(
                self.scenario,
                features=self.features,
                rewards=self.rewards,
                start_jitter=start_jitter,
                step_mul=step_mul,
                move_amount=move_amount,
                difficulty=difficulty,
                commanded=opponent is not None,
            )
        )
        self._everywhere = np.ones(n_envs, dtype=np.bool_)

        # Gathered once: with one battle, doing it in every step would take as long as a tick.
        terrain = self.scenario.terrain
        self._played = (self.units, self.battles, self.kinds, self._rules)
        self._seen = (terrain.footing(), terrain.height(), self.obs, self.state, self.available)
        self._outcome = (self.reward, self.terminated, self.truncated, self.won)
        catalogue = records(catalogue_table(self.scenario, ruleset))
        self._start = (records(fresh_table()), catalogue, spiral_table(self.scenario))
        self._ground = (damage_table(self.scenario, ruleset), terrain.ways(), places_table(self.scenario))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scenario.name} x {self.n_envs}>"

    def _check_capabilities(self, step_mul: int, opponent: Opponent | None) -> None:
        """Raise `ValueError` where agents have capabilities that do not go with the other options."""
        draw, agents = self.scenario.draw, len(self.scenario.allies)
        unlike = draw is not None and (bool(self.scenario.capabilities) or draw.mask_probability is not None)
        if opponent is not None and (unlike or self.scenario.looks):
            raise ValueError("an opponent cannot command enemies of agents that have a cone of vision or capabilities")
        if draw is None:
            return
        if draw.mask_probability is not None and agents > MOST_FINDERS:
            raise ValueError(f"a mask of enemies is for {MOST_FINDERS} agents at most, not for {agents}")
        if draw.health is not None and not self.rewards.only_positive:
            raise ValueError("levels of health go with rewards that are only positive")
        if draw.health is not None and step_mul <= FALL_BEFORE:
            raise ValueError(f"step_mul is {step_mul}, must be above {FALL_BEFORE} where agents have levels of health")

    def assign(
        self,
        b: int,
        *,
        types: Sequence[UnitType] | None = None,
        places: NDArray[np.float64] | None = None,
    ) -> None:
        """Set the types or places of the units in the next episode of battle `b`, instead of drawing them.

        Agents are still numbered by the names of their types, then by place.

        Args:
            b: the number of the battle.
            types: N types, allies first.
            places: (N, 2), where these units start, in cells.

        Raises:
            ValueError: armies are not drawn, the number of units is wrong, or a type or place is not possible.
        """
        draw, units = self.scenario.draw, self.units[b]
        if draw is None:
            raise ValueError(f"the armies of {self.scenario.name} are not drawn, so none can be given")
        if types is not None:
            if len(types) != len(units) or not set(types) <= set(draw.types):
                names = ", ".join(unit.name for unit in draw.types)
                raise ValueError(f"types are {[unit.name for unit in types]}, must be {len(units)} of {names}")
            units["event"] = [draw.types.index(unit) for unit in types]
            self.battles["given"][b] |= TYPES_GIVEN
        if places is not None:
            if places.shape != (len(units), 2) or not ((places >= 0.0) & (places <= CELLS)).all():
                raise ValueError(f"places must be {len(units)} points from 0 to {CELLS}")
            units["goal_x"], units["goal_y"] = places.T
            self.battles["given"][b] |= PLACES_GIVEN

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the battles where `which` (B,) is true, by default in all of them.

        Raises:
            ValueError: `which` is not a mask of shape (B,).
        """
        if which is None:
            which = self._everywhere
        check_mask(which, self.n_envs)
        self.prepare()
        kernel.reset_all(np.ascontiguousarray(which), self._start, self._played, self._seen, self._outcome)

    def prepare(self) -> None:
        """Compile the kernel, which takes some ten seconds once on a machine. The first `reset` does it too."""
        kernel.CODE.compile_once("the battle simulator", self._calls(), beside=f"{__name__}:compile_views")

    def preload(self) -> None:
        """Load the compiled kernel."""
        self.prepare()
        for call in self._calls().values():
            call()

    def _calls(self) -> dict[str, Callable[[], object]]:
        """Return, by name, a call of each function of the kernel on zero battles."""
        actions = np.zeros((0, self.n_agents), np.int64)
        units, battles, *others = self._played
        none = (units, battles[:0], *others)
        return {
            "step_all": lambda: kernel.step_all(
                actions, self._enemy_actions, *self._ground, none, self._seen, self._outcome
            ),
            "reset_all": lambda: kernel.reset_all(self._everywhere, self._start, none, self._seen, self._outcome),
            "show_all": lambda: kernel.show_all(none, self._seen),
            "first_refused": lambda: kernel.first_refused(actions, battles[:0], self.available),
        }

    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every battle: `actions` (B, A), of any integer type.

        Raises:
            ValueError: an action that is not available, an array of another shape or type, or a battle that is
                over; nothing has been stepped then.
        """
        self.step_unchecked(self._checked(actions))

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        actions = np.asarray(actions)
        check_integers(actions, (self.n_envs, self.n_agents))
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        refused = kernel.first_refused(actions, self.battles, self.available)
        if refused >= 0:
            b, i = divmod(refused, self.n_agents)
            if self.battles["over"][b]:
                raise ValueError(f"battle {b} is over: reset it before stepping on")
            raise not_available(f"battle {b}, agent {i}: action {actions[b, i]}", self.available[b, i])
        return actions

    def step_unchecked(self, actions: NDArray[np.int64]) -> None:
        """Make one step without checks: `actions` (B, A), contiguous.

        Unavailable actions are possible, as an attack out of reach. The caller must see to it that actions are in range
        and no battle is over.
        """
        if self._opponent is not None and self._opposition is not None:
            self._opposition.look(self._played, self._seen)
            self._enemy_actions = self._opposition.orders_of(self._opponent)
        kernel.step_all(actions, self._enemy_actions, *self._ground, self._played, self._seen, self._outcome)

    def types_in(self, b: int) -> tuple[UnitType, ...]:
        """Return the types of the units of battle `b` in this episode, allies first."""
        if self.scenario.draw is None:
            return self.scenario.allies + self.scenario.enemies
        return tuple(self.scenario.draw.types[row] for row in self.kinds["type_row"][b])

    def show(self) -> None:
        """Recompute `obs`, `state` and `available` after a change of `units`."""
        kernel.show_all(self._played, self._seen)


_CHANGING = ("units", "battles", "obs", "state", "available", "reward", "terminated", "truncated", "won")


def compile_views() -> None:
    """Compile what `step_all` compiles last, and `reset_all`: beside a process that begins with `step_all`."""
    calls = Battles("8m")._calls()
    for name in ("show_all", "reset_all", "first_refused"):
        calls[name]()
