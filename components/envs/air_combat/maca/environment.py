"""One air combat behind the interface of MaCA's own `Environment` class."""

from importlib import import_module
from importlib.util import find_spec
from math import atan2, degrees, hypot
from pathlib import Path
from secrets import randbits
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.envs.air_combat.battles import AirBattles, Rule
from components.envs.air_combat.maca.orders import orders_of
from components.envs.air_combat.maca.raw import Raw, raw_observation
from components.envs.air_combat.maca.simple import ObsConstruct
from components.envs.air_combat.map_file import SUFFIX
from components.envs.air_combat.scenario_file import scenario_named
from components.envs.air_combat.scenarios import BANDS, KINDS, Scenario, Unit

SHIPPED = {"1000_1000_fighter10v10": "fighter10v10", "1000_1000_2_10_vs_2_10": "detector2_fighter10"}
"""MaCA's maps, and the scenarios of this package that are the same."""
NO_LIMIT = 1_000_000_000
"""Steps of a round with `max_step=0`."""

Rewards = NDArray[np.float64]


class Construct(Protocol):
    """Makes an observation from a raw one."""

    def obs_construct(self, obs_raw_dict: Raw) -> Any: ...


class Environment:
    """MaCA's `interface.Environment`, played by `AirBattles`, with the same names, arguments and results.

    The first round is ready once the environment is made; `reset` begins another. Arguments about the window, the log
    and names are accepted and have no effect.

    Args:
        map_path: a map of MaCA, such as `maps/1000_1000_fighter10v10.map`, a scenario file, which ends in `.toml`, or a
            scenario of this package by name. The files of MaCA's two maps need not exist.
        side1_obs_ind: `raw`, `simple`, or a folder NAME: then `obs_construct.NAME.construct` is imported, and its
            `ObsConstruct` makes the observations of side 1, red. A user's `obs_construct.simple` takes precedence.
        side2_obs_ind: the same for side 2, blue.
        max_step: steps after which a round ends, 0 for no limit.
        render: without effect.
        render_interval: without effect.
        random_pos: whether units start at random places in their side's strip.
        log: without effect.
        random_seed: for all random numbers; -1 draws a seed, which the attribute `random_seed` then holds.
        external_render: without effect.
        side1_name: without effect.
        side2_name: without effect.
        opponent: rules, such as `easy` or `hard`, that command side 2 instead of `step`'s arguments.

    Raises:
        ValueError: there is no such map or observation, or a number is out of its range.
    """

    def __init__(
        self,
        map_path: str,
        side1_obs_ind: str,
        side2_obs_ind: str,
        max_step: int = 5000,
        render: bool = False,
        render_interval: int = 1,
        random_pos: bool = False,
        log: bool | str = False,
        random_seed: int = -1,
        external_render: bool = False,
        side1_name: str = "unknown",
        side2_name: str = "unknown",
        *,
        opponent: Rule = "ordered",
    ) -> None:
        if random_seed < -1 or max_step < 0:
            raise ValueError(f"random_seed is {random_seed}, max_step {max_step}; must be at least -1 and 0")
        self.random_seed = randbits(32) if random_seed == -1 else random_seed
        self._ordered = opponent == "ordered"
        self._battles = AirBattles(
            _scenario_of(map_path),
            seed=self.random_seed,
            opponent=opponent,
            max_steps=max_step or NO_LIMIT,
            random_pos=True if random_pos else None,
        )
        self._constructs = [self._construct(ind, side) for side, ind in enumerate((side1_obs_ind, side2_obs_ind))]
        self.reset()

    @property
    def scenario(self) -> Scenario:
        """The scenario that is played."""
        return self._battles.scenario

    def reset(self) -> None:
        """Begin a new round."""
        self._battles.reset()
        self._battles.orders[:] = 0

    def step(
        self,
        side1_detector_action: Any,
        side1_fighter_action: Any,
        side2_detector_action: Any = None,
        side2_fighter_action: Any = None,
    ) -> bool:
        """Play a step; return whether it was played: False if the round is over.

        Args:
            side1_detector_action: (n, 2): course in degrees, radar 0 for off or its frequency point.
            side1_fighter_action: (n, 4): course; radar; jammer 0 for off, a frequency point, or the number of points
                + 1 for the whole band; attack 0 for none, e for a long missile at enemy e of E, E + e for a medium one.
            side2_detector_action: the same for side 2; ignored if rules command it.
            side2_fighter_action: the same for side 2; ignored if rules command it.

        Raises:
            ValueError: an array of another shape or type, or a number out of its range; nothing has been played then.
        """
        if self.get_done():
            return False
        given = [(side1_detector_action, side1_fighter_action)]
        if self._ordered:
            given.append((side2_detector_action, side2_fighter_action))
        parts = [
            orders_of(
                action, self._units(side, kind), self._alive(side, kind), self.scenario, f"side{side + 1}_{kind}_action"
            )
            for side, of_side in enumerate(given)
            for kind, action in zip(KINDS, of_side, strict=True)
        ]
        orders = np.concatenate(parts)
        self._battles.orders[0, : len(orders)] = orders
        self._battles.step_ordered()
        return True

    # Observations ---------------------------------------------------------------------------------------------------

    def get_obs(self) -> tuple[Any, Any]:
        """Return the observations of both sides, of the kinds that `side1_obs_ind` and `side2_obs_ind` name."""
        raw = self.get_obs_raw()
        first, second = (
            each if construct is None else construct.obs_construct(each)
            for each, construct in zip(raw, self._constructs, strict=True)
        )
        return first, second

    def get_obs_raw(self) -> tuple[Raw, Raw]:
        """Return the raw observations of both sides."""
        return raw_observation(self._battles, 0), raw_observation(self._battles, self._battles.n_agents)

    # The round ------------------------------------------------------------------------------------------------------

    def get_done(self) -> bool:
        """Return whether the round is over."""
        return bool(self._battles.battles["over"][0])

    def get_reward(self) -> tuple[Rewards, Rewards, float, Rewards, Rewards, float]:
        """Return the rewards of the last step, for each side: of detectors (n,), of fighters (n,), of the round.

        The reward of the round is 0 until it is over.
        """
        reward, rounds = self._battles.units["reward"][0], [0.0, 0.0]
        if self.get_done():
            rounds = [self._round_reward(self.outcome), self._round_reward(-self.outcome)]
        of = [reward[self._places(side, kind)].astype(np.float64) for side in (0, 1) for kind in KINDS]
        return of[0], of[1], rounds[0], of[2], of[3], rounds[1]

    @property
    def outcome(self) -> int:
        """For side 1: 2 total win, 1 win, 0 draw or not over, -1 loss, -2 total loss."""
        return int(self._battles.battles["outcome"][0])

    def get_alive_status(self, *observed: Any) -> tuple[list[bool], list[bool], list[bool], list[bool]]:
        """Return which units are alive: detectors and fighters of side 1, then of side 2.

        Args:
            *observed: raw observations, which MaCA's own method requires; ignored.
        """
        of = [self._alive(side, kind).tolist() for side in (0, 1) for kind in KINDS]
        return of[0], of[1], of[2], of[3]

    def set_surrender(self, side: int) -> None:
        """End the round by surrender of side 1 (0), side 2 (1) or both (2): a total loss of one side, or a draw.

        Raises:
            ValueError: another number.
        """
        if side not in (0, 1, 2):
            raise ValueError(f"side is {side}, must be 0 for side 1, 1 for side 2 or 2 for both")
        if not self.get_done():
            self._battles.battles["over"] = True
            self._battles.battles["outcome"] = (-2, 2, 0)[side]
            self._battles.units["reward"] = 0.0

    # The map --------------------------------------------------------------------------------------------------------

    def get_map_size(self) -> tuple[float, float]:
        """Return the size of the map, x and y."""
        return self.scenario.size

    def get_unit_num(self) -> tuple[int, int, int, int]:
        """Return the numbers of detectors and fighters of side 1, then of side 2."""
        of = [len(self._units(side, kind)) for side in (0, 1) for kind in KINDS]
        return of[0], of[1], of[2], of[3]

    def get_unit_property_list(self) -> tuple[list[dict[str, Any]], ...]:
        """Return the properties of units, with the keys of a map: detectors and fighters of side 1, then of side 2."""
        return tuple([_properties(unit) for unit in self._units(side, kind)] for side in (0, 1) for kind in KINDS)

    def _units(self, side: int, kind: str) -> list[Unit]:
        return [unit for unit in (self.scenario.red, self.scenario.blue)[side] if unit.kind == kind]

    def _places(self, side: int, kind: str) -> slice:
        """Return the indices of a side's units of one kind; detectors come first."""
        first, detectors = (0, self._battles.n_agents)[side], len(self._units(side, "detector"))
        if kind == "detector":
            return slice(first, first + detectors)
        return slice(first + detectors, first + detectors + len(self._units(side, "fighter")))

    def _alive(self, side: int, kind: str) -> NDArray[np.bool_]:
        alive: NDArray[np.bool_] = np.array(self._battles.units["alive"][0][self._places(side, kind)])
        return alive

    def _round_reward(self, outcome: int) -> float:
        rewards = self.scenario.rewards
        return (rewards.draw, rewards.win, rewards.total_win, rewards.total_loss, rewards.loss)[outcome]

    def _construct(self, ind: str, side: int) -> Construct | None:
        if ind == "raw":
            return None
        sizes = (*self.get_map_size(), len(self._units(side, "detector")), len(self._units(side, "fighter")))
        module = f"obs_construct.{ind}.construct"
        if _is_there(module):
            construct: Construct = import_module(module).ObsConstruct(*sizes)
            return construct
        if ind == "simple":
            return ObsConstruct(*sizes)
        raise ValueError(f"side{side + 1}_obs_ind is {ind!r}, must be raw, simple or a folder with {module}")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _scenario_of(map_path: str) -> Scenario:
    path = Path(map_path)
    if path.suffix == SUFFIX and path.stem in SHIPPED and not path.exists():
        return scenario_named(SHIPPED[path.stem])
    return scenario_named(map_path)


def _properties(unit: Unit) -> dict[str, Any]:
    told: dict[str, Any] = {"speed": unit.speed, "r_band": BANDS.index(unit.radar)}
    if unit.kind == "fighter":
        told |= {
            "j_band": -1 if unit.jammer is None else BANDS.index(unit.jammer),
            "l_missile_num": unit.long_missiles,
            "s_missile_num": unit.medium_missiles,
        }
    return told


def get_distance(a_x: float, a_y: float, b_x: float, b_y: float) -> float:
    """Return the distance between two points."""
    return hypot(b_x - a_x, b_y - a_y)


def angle_cal(o_x: float, o_y: float, e_x: float, e_y: float) -> float:
    """Return the direction from the point o to the point e: degrees clockwise from +x, from 0 to below 360."""
    return degrees(atan2(e_y - o_y, e_x - o_x)) % 360.0
