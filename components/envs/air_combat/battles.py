"""B air combats of one scenario, stepped together, with results in preallocated arrays."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import index
from typing import Any, Literal, TypedDict, get_args

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat import kernel
from components.envs.air_combat.kernel.constants import (
    ABOUT_ENEMY,
    ABOUT_FRIEND,
    ABOUT_UNIT,
    ATTACK,
    FIRE,
    FIRST_MISSILE,
    OPPONENTS,
    ORDERED,
    OWN,
)
from components.envs.air_combat.opposition import Opponent, Opposition
from components.envs.air_combat.records import BATTLE, MISSILE, UNIT
from components.envs.air_combat.scenario_file import scenario_named
from components.envs.air_combat.scenarios import Scenario
from components.envs.air_combat.tables import kinds_table, rules_table
from components.envs.skirmish.checks import check_integers, check_mask, not_available
from components.envs.skirmish.memory import BattleMemory
from components.envs.skirmish.records import records

Rule = Literal["ordered", "static", "straight", "easy", "hard"]
"""What commands side 2: a caller, or one of these rules."""
assert get_args(Rule) == OPPONENTS


Targets = Literal["numbered", "nearest"]
"""Whether agents have missile commands for each enemy, or a single command that fires."""
Shaping = Literal["documented", "decisive"]
"""Whether all rewards of the scenario are given, or only those of events that decide a round."""


class Options(TypedDict, total=False):
    """The options of `AirBattles`; see its arguments."""

    seed: int
    first: int
    opponent: Rule | Opponent
    frame_skip: int
    courses: int
    max_steps: int | None
    random_pos: bool | None
    reward_scale: float
    targets: Targets
    shaping: Shaping


class AirBattles(BattleMemory):
    """Air combat of fighters and detectors with radars, jammers and missiles: B battles, played by one compiled kernel.

    The rules follow MaCA's documents (CETC-TFAI, 2019); `docs/air_combat.md` lists what is not documented. The agents
    command side 1, red; an opponent commands side 2, blue.

    `seed`, the number of a battle and the actions taken in it determine the battle: battle 5 of 64 is, bit for bit, the
    only battle of `AirBattles(scenario, 1, seed=seed, first=5)`. `step` and `reset` release the GIL.

    The arrays are the simulator's own memory: `step` and `reset` overwrite them, so copy values to keep. Resets are
    explicit: a battle that has ended keeps its last observation until it is reset. With A agents, E enemies,
    N = A + E units, T courses, K = 6 + 2E commands, U = T * K actions:

    Attributes:
        obs: (B, A, O) float32, the observation of each agent.
        state: (B, S) float32, for a critic only.
        available: (B, A, U) bool, the available actions of each agent. Action `course * K + command` flies
            `course * 360 / T` degrees clockwise from the direction to the nearest enemy that the side knows or knew,
            and executes the command: 0 none, 1 radar on, at another random frequency point, 2 radar and jammer off,
            3 jam the whole band, 4 jam the point of the nearest radar that is heard, 5 jammer off, 6 + e fire a long
            missile at enemy e, 6 + E + e a medium one. Dead agents have only action 0.
        reward: (B,) float32, the team's reward for the step just made: the sum of the agents' rewards, and at the end
            that of the round.
        rewards: (B, A) float32, each agent's own.
        terminated: (B,) bool, the round is over: it is decided, or its last step is made.
        truncated: (B,) bool, always false.
        won: (B,) bool, the round ended with a win or a total win.
        units: (B, N) of `records.UNIT`, side 1 first. After writing to it, call `show`.
        missiles: (B, M) of `records.MISSILE`; the first `battles["flying"]` of a row are in flight.
        battles: (B,) of `records.BATTLE`.
        sees: (B, N, N) bool, at [b, i, j] whether the radar of unit i sees unit j.
        hears: (B, N, N) bool, at [b, i, j] whether the receiver of unit i hears the radar of unit j.
        bearing: (B, N, N, 2) float64, the direction of the heard radar, with an error: a unit vector.

    Args:
        scenario: one of `scenario_names`, or a file, such as `mine.toml`, or a `Scenario`.
        n_envs: number of battles, B.
        seed: for starts, frequency points, bearings and hits.
        first: the number of the first battle, so that several environments may share a seed.
        opponent: what commands side 2. Its units stand still (`static`), fly straight on (`straight`), follow rules
            (`easy`, `hard`), or get the orders that are written to `orders` before each step (`ordered`). Or a function
            from an `Opposition` to actions (B, E).
        frame_skip: world steps per step, with the same courses and devices. An attack is made in the first world step
            in which its target is known and within range, or else in the last, where it is invalid.
        courses: T.
        max_steps: world steps after which a round ends; replaces the scenario's value.
        random_pos: whether start positions are random; replaces the scenario's value.
        reward_scale: factor of all rewards.
        targets: with `nearest`, K = 7. Command 6 is always available. It fires once a missile reaches a target that has
            fewer than two missiles in flight at it: a medium missile if one reaches a target, else a long one. It
            chooses the target with the fewest missiles in flight at it; of several, the nearest. Enemies are observed
            in the order of their distance instead of their numbers.
        shaping: with `decisive`, sightings and attacks have no reward; hits, losses and the round's outcome have.

    Raises:
        ValueError: an unknown scenario, opponent, `targets` or `shaping`, or a number out of its range.
    """

    def __init__(
        self,
        scenario: str | Scenario,
        n_envs: int = 1,
        *,
        seed: int = 0,
        first: int = 0,
        opponent: Rule | Opponent = "easy",
        frame_skip: int = 1,
        courses: int = 16,
        max_steps: int | None = None,
        random_pos: bool | None = None,
        reward_scale: float = 0.01,
        targets: Targets = "numbered",
        shaping: Shaping = "documented",
    ) -> None:
        self.scenario = scenario_named(scenario) if isinstance(scenario, str) else scenario
        self.n_envs = index(n_envs)
        for name, value, least, most in (
            ("n_envs", n_envs, 1, None),
            ("seed", seed, 0, None),
            ("first", first, 0, None),
            ("frame_skip", frame_skip, 1, None),
            ("courses", courses, 1, 360),
            ("max_steps", max_steps or 1, 1, None),
        ):
            if value < least or (most is not None and value > most):
                allowed = f"at least {least}" if most is None else f"from {least} to {most}"
                raise ValueError(f"{name} is {value!r}, must be {allowed}")
        rule = "ordered" if callable(opponent) else opponent
        if rule not in OPPONENTS:
            raise ValueError(f"opponent is {opponent!r}, must be one of {', '.join(OPPONENTS)}, or a function")
        for name, choice, choices in (("targets", targets, get_args(Targets)), ("shaping", shaping, get_args(Shaping))):
            if choice not in choices:
                raise ValueError(f"{name} is {choice!r}, must be one of {', '.join(choices)}")
        if shaping == "decisive":
            self.scenario = replace(self.scenario, rewards=self.scenario.rewards.decisive())
        rules = self.scenario.rules
        self.max_steps = rules.max_steps if max_steps is None else max_steps
        random_pos = rules.random_pos if random_pos is None else random_pos
        self.scenario = replace(self.scenario, rules=replace(rules, max_steps=self.max_steps, random_pos=random_pos))

        agents, enemies = len(self.scenario.red), len(self.scenario.blue)
        self.n_agents, self.n_enemies = agents, enemies
        nearest = targets == "nearest"
        self.n_commands = FIRE + 1 if nearest else FIRST_MISSILE + 2 * enemies
        self.n_actions = courses * self.n_commands
        self.obs_size = OWN + ABOUT_ENEMY * enemies + ABOUT_FRIEND * (agents - 1)
        self.state_size = ABOUT_UNIT * (agents + enemies) + 1
        self.episode_limit = -(-self.max_steps // frame_skip)
        """Maximum number of steps of a round."""
        self.obs = np.zeros((n_envs, agents, self.obs_size), np.float32)
        self.state = np.zeros((n_envs, self.state_size), np.float32)
        self.available = np.zeros((n_envs, agents, self.n_actions), np.bool_)
        self.reward = np.zeros(n_envs, np.float32)
        self.rewards = np.zeros((n_envs, agents), np.float32)
        self.terminated, self.truncated, self.won = np.zeros((3, n_envs), np.bool_)
        n = agents + enemies
        self.units = records(np.zeros((n_envs, n), UNIT))
        carried = sum(unit.long_missiles + unit.medium_missiles for unit in self.scenario.units)
        self.missiles = records(np.zeros((n_envs, carried + 1), MISSILE))
        self.battles = records(np.zeros(n_envs, BATTLE))
        self.battles["over"] = True
        for b in range(n_envs):
            words = np.random.SeedSequence(seed, spawn_key=(first + b,)).generate_state(4)
            self.battles["a"][b], self.battles["b"][b], self.battles["c"][b], self.battles["counter"][b] = words
        self.sees, self.hears, self.sighted = np.zeros((3, n_envs, n, n), np.bool_)
        self.bearing = np.zeros((n_envs, n, n, 2))
        self.orders = np.zeros((n_envs, n, 4), np.int64)
        """(B, N, 4) int64: course, radar, jammer and attack of each unit, as MaCA numbers them."""

        self._everywhere = np.ones(n_envs, np.bool_)
        kinds = records(kinds_table(self.scenario))
        table = rules_table(
            self.scenario,
            frame_skip=frame_skip,
            courses=courses,
            opponent=OPPONENTS.index(rule),
            reward_scale=reward_scale,
            nearest_targets=nearest,
        )
        self._played = (self.units, self.missiles, self.battles, kinds, records(table))
        self._sensed = (self.sees, self.hears, self.bearing, self.sighted)
        self._seen = (self.obs, self.state, self.available)
        self._opponent = opponent if callable(opponent) else None
        theirs = courses * (FIRE + 1 if nearest else FIRST_MISSILE + 2 * agents)
        self._opposition = Opposition(n_envs, enemies, agents, theirs, self.state_size) if self._opponent else None
        self._outcome = (self.reward, self.rewards, self.terminated, self.truncated, self.won)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scenario.name} x {self.n_envs}>"

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new round in the battles selected by `which` (B,), or in all battles if it is None.

        Raises:
            ValueError: `which` is not a mask of shape (B,).
        """
        if which is None:
            which = self._everywhere
        check_mask(which, self.n_envs)
        self.prepare()
        kernel.reset_all(np.ascontiguousarray(which), self._played, self._sensed, self._seen, self._outcome)

    def prepare(self) -> None:
        """Compile the kernel, once per machine. The first `reset` does this too."""
        kernel.CODE.compile_once("the air combat simulator", self._calls(), beside=f"{__name__}:compile_views")

    def preload(self) -> None:
        """Load the compiled kernel."""
        self.prepare()
        for call in self._calls().values():
            call()

    def _calls(self) -> dict[str, Callable[[], object]]:
        """Return a call of each function of the kernel, on zero battles."""
        actions = np.zeros((0, self.n_agents), np.int64)
        units, missiles, battles, *others = self._played
        none = (units, missiles, battles[:0], *others)
        return {
            "due_all": lambda: kernel.due_all(actions, none, np.zeros(actions.shape, np.bool_)),
            "first_refused": lambda: kernel.first_refused(actions, self.terminated, self.available),
            "order_all": lambda: kernel.order_all(0, actions, none, self._sensed, self.orders),
            "order_by_rules_all": lambda: kernel.order_by_rules_all(0, 3, none, self._sensed, self.orders),
            "step_all": lambda: kernel.step_all(self.orders, none, self._sensed, self._seen, self._outcome),
            "reset_all": lambda: kernel.reset_all(self._everywhere, none, self._sensed, self._seen, self._outcome),
            "show_all": lambda: kernel.show_all(0, none, self._sensed, self._seen),
        }

    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every battle: `actions` (B, A), of any integer type.

        Raises:
            ValueError: an action that is not available, an array of another shape or type, or a battle that is over;
                nothing has been stepped then.
        """
        self._order(actions)
        self.step_ordered()

    def world_steps(self, actions: NDArray[Any]) -> Iterator[None]:
        """Make one step in the only battle as `step` does, and yield after each of its world steps, for a viewer.

        At each yield, `reward` and `rewards` are those of the world step.

        Raises:
            ValueError: there are several battles, or as `step`.
        """
        if self.n_envs != 1:
            raise ValueError(f"{self!r}: only one battle can be watched at a time")
        self._order(actions)
        rules = self._played[-1]
        frame_skip = int(rules["frame_skip"][0])
        ordered = slice(None) if rules["opponent"][0] == ORDERED else slice(self.n_agents)
        standing = self.orders[..., ATTACK].copy()
        due = np.zeros(standing.shape, np.bool_)
        for frame in range(frame_skip):
            kernel.due_all(standing, self._played, due)
            made = due | (frame == frame_skip - 1)
            self.orders[:, ordered, ATTACK] = np.where(made, standing, 0)[:, ordered]
            standing[made] = 0
            rules["frame_skip"] = 1
            self.step_ordered()
            rules["frame_skip"] = frame_skip
            self.show()  # the available actions depend on `frame_skip`
            yield
            if self.battles["over"][0]:
                return

    def _order(self, actions: NDArray[Any]) -> None:
        """Write to `orders` the orders of these actions, and of an opponent that is a function."""
        checked = self._checked(actions)
        if self._opponent is not None and self._opposition is not None:
            self._opposition.look(self._played, self._sensed)
            theirs = self._opposition.actions_of(self._opponent)
            kernel.order_all(self.n_agents, theirs, self._played, self._sensed, self.orders)
        kernel.order_all(0, checked, self._played, self._sensed, self.orders)

    def order_by_rules(self, side: Literal[1, 2], opponent: Rule) -> None:
        """Write to `orders` the orders that the rules of this opponent give a side, for `step_ordered`."""
        first = 0 if side == 1 else self.n_agents
        kernel.order_by_rules_all(first, OPPONENTS.index(opponent), self._played, self._sensed, self.orders)

    def step_ordered(self) -> None:
        """Make one step in every battle with `orders`; an opponent with rules overwrites those of side 2.

        Numbers must lie in their ranges and battles must not be over: neither is checked.
        """
        kernel.step_all(self.orders, self._played, self._sensed, self._seen, self._outcome)

    def _checked(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        actions = np.asarray(actions)
        check_integers(actions, (self.n_envs, self.n_agents))
        actions = np.ascontiguousarray(actions, dtype=np.int64)
        refused = kernel.first_refused(actions, self.battles["over"], self.available)
        if refused >= 0:
            b, a = divmod(refused, self.n_agents)
            if self.battles["over"][b]:
                raise ValueError(f"battle {b} is over: reset it before stepping on")
            raise not_available(f"battle {b}, agent {a}: action {actions[b, a]}", self.available[b, a])
        return actions

    def show(self) -> None:
        """Recompute `obs`, `state` and `available` after a change of `units`."""
        kernel.show_all(0, self._played, self._sensed, self._seen)

    def opposition_sizes(self) -> tuple[int, int, int]:
        """Return the numbers of units, actions and observation columns of side 2; zeros if no function commands it."""
        seen = self._opposition
        return (0, 0, 0) if seen is None else (seen.n_agents, seen.n_actions, seen.obs.shape[2])

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return the snapshot of `BattleMemory`; None if a function, which may have a memory, commands side 2."""
        return None if self._opponent is not None else super().snapshot()

    _changing: tuple[str, ...] = (
        "units",
        "missiles",
        "battles",
        "sees",
        "hears",
        "bearing",
        "sighted",
        "orders",
        "obs",
        "state",
        "available",
        "reward",
        "rewards",
        "terminated",
        "truncated",
        "won",
    )


def compile_views() -> None:
    """Compile the views, which `step_all` reaches last, and `reset_all`, beside a process that begins with orders."""
    calls = AirBattles("fighter10v10")._calls()
    calls["show_all"]()
    calls["reset_all"]()
