"""The battlefields: who meets whom, where, and for how long. The names are those of the SMAC maps, and of SMACv2's."""

from dataclasses import dataclass

from components.envs.skirmish.terrain import (
    CORRIDOR,
    DOME,
    HOLLOW,
    OCTAGON,
    OPEN,
    STRIP,
    TERRACES,
    VALLEY,
    Terrain,
)
from components.envs.skirmish.units import (
    BANELING,
    COLOSSUS,
    HYDRALISK,
    MARAUDER,
    MARINE,
    MEDIVAC,
    SPINE_CRAWLER,
    STALKER,
    ZEALOT,
    ZERGLING,
    UnitType,
)

Point = tuple[float, float]

Group = tuple[Point, int | None]
"""Where the next so many units of a side start, next to each other; None for all the rest."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Armies and starting places drawn for each episode, as in SMACv2 (Ellis et al. 2023)."""

    types: tuple[UnitType, ...]
    """In the order in which units are numbered, and of the one-hot columns."""
    weights: tuple[float, ...]
    """How likely each type is; they sum to 1."""
    never_alone: tuple[UnitType, ...] = ()
    """No army consists of these alone."""
    surrounded: float = 0.5
    """The share of episodes in which the allies start in the middle of enemies; else the sides mirror each other."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One battle. Units stand in the order in which observations list them."""

    name: str
    allies: tuple[UnitType, ...]
    enemies: tuple[UnitType, ...]
    limit: int
    """Steps after which the episode is truncated without a winner."""
    map_type: str
    """SMAC's word for the family of unit types."""
    ally_types: tuple[UnitType, ...] = ()
    """Unit types of an ally's one-hot, in order; empty where there is one type only."""
    enemy_types: tuple[UnitType, ...] = ()
    terrain: Terrain = STRIP
    ally_groups: tuple[Group, ...] = (((9.0, 16.0), None),)
    enemy_groups: tuple[Group, ...] = (((23.0, 16.0), None),)
    hunts: bool = False
    """Whether the enemies hunt the nearest ally at any distance, instead of marching."""
    march: tuple[Point, ...] = ()
    """Where the enemies march to: a point, or the ends of a line to a point of which; else to the allies' start."""
    draw: Draw | None = None
    """Where armies are drawn: then `allies` and `enemies` tell no more than how many there are, and of which race."""
    unit_ranges: bool = False
    """An agent sees and shoots as far as its unit can, instead of 9 and 6 cells: SMACv2's rule."""


def _marines(name: str, allies: int, enemies: int, limit: int) -> Scenario:
    return Scenario(name, (MARINE,) * allies, (MARINE,) * enemies, limit, "marines")


def _stalkers_and_zealots(name: str, allies: tuple[int, int], enemies: tuple[int, int], limit: int) -> Scenario:
    return Scenario(
        name,
        (STALKER,) * allies[0] + (ZEALOT,) * allies[1],
        (STALKER,) * enemies[0] + (ZEALOT,) * enemies[1],
        limit,
        "stalkers_and_zealots",
        ally_types=(STALKER, ZEALOT),
        # Reversed on purpose: SMAC subtracts from the game's ids, in which the zealot comes before the stalker.
        enemy_types=(ZEALOT, STALKER),
    )


def _stalkers(name: str, zealots: int, limit: int) -> Scenario:
    return Scenario(name, (STALKER,) * 3, (ZEALOT,) * zealots, limit, "stalkers", terrain=OPEN)


def _marines_and_medivacs(name: str, enemies: tuple[int, int, int], limit: int) -> Scenario:
    marines, marauders, medivacs = enemies
    types = (MARAUDER, MARINE, MEDIVAC)
    return Scenario(
        name,
        (MARAUDER,) * 2 + (MARINE,) * 7 + (MEDIVAC,),
        (MARINE,) * marines + (MARAUDER,) * marauders + (MEDIVAC,) * medivacs,
        limit,
        "MMM",
        ally_types=types,
        enemy_types=types,
    )


def _drawn(race: str, allies: int, enemies: int) -> Scenario:
    types, weights, never_alone = _RACES[race]
    return Scenario(
        f"{race}_{allies}_vs_{enemies}",
        types[:1] * allies,
        types[:1] * enemies,
        200,
        f"{race}_gen",
        ally_types=types,
        enemy_types=types,
        terrain=OPEN,
        draw=Draw(types, weights, never_alone),
        unit_ranges=True,
    )


# Types are in the order of their names, by which SMAC numbers agents.
_RACES: dict[str, tuple[tuple[UnitType, ...], tuple[float, ...], tuple[UnitType, ...]]] = {
    "protoss": ((COLOSSUS, STALKER, ZEALOT), (0.1, 0.45, 0.45), ()),
    "terran": ((MARAUDER, MARINE, MEDIVAC), (0.45, 0.45, 0.1), (MEDIVAC,)),
    "zerg": ((BANELING, HYDRALISK, ZERGLING), (0.1, 0.45, 0.45), (BANELING,)),
}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _marines("3m", 3, 3, limit=60),
        _marines("8m", 8, 8, limit=120),
        _marines("25m", 25, 25, limit=150),
        _marines("5m_vs_6m", 5, 6, limit=70),
        _marines("8m_vs_9m", 8, 9, limit=120),
        _marines("10m_vs_11m", 10, 11, limit=150),
        _marines("27m_vs_30m", 27, 30, limit=180),
        _stalkers_and_zealots("2s3z", (2, 3), (2, 3), limit=120),
        _stalkers_and_zealots("3s5z", (3, 5), (3, 5), limit=150),
        _stalkers_and_zealots("3s5z_vs_3s6z", (3, 5), (3, 6), limit=170),
        _stalkers("3s_vs_3z", 3, limit=150),
        _stalkers("3s_vs_4z", 4, limit=200),
        _stalkers("3s_vs_5z", 5, limit=250),
        Scenario(
            "2m_vs_1z",
            (MARINE,) * 2,
            (ZEALOT,),
            150,
            "marines",
            terrain=OCTAGON,
            ally_groups=(((13.0, 12.0), 1), ((19.0, 12.0), 1)),
            enemy_groups=(((16.0, 19.0), None),),
            march=((13.0, 12.0), (19.0, 12.0)),
        ),
        Scenario(
            "6h_vs_8z",
            (HYDRALISK,) * 6,
            (ZEALOT,) * 8,
            150,
            "hydralisks",
            terrain=HOLLOW,
            ally_groups=(((14.6, 9.49), None),),
            enemy_groups=(((14.41, 16.76), None),),
        ),
        _marines_and_medivacs("MMM", (7, 2, 1), limit=150),
        _marines_and_medivacs("MMM2", (8, 3, 1), limit=180),
        Scenario(
            "1c3s5z",
            (COLOSSUS,) + (STALKER,) * 3 + (ZEALOT,) * 5,
            (COLOSSUS,) + (STALKER,) * 3 + (ZEALOT,) * 5,
            180,
            "colossi_stalkers_zealots",
            ally_types=(COLOSSUS, STALKER, ZEALOT),
            enemy_types=(COLOSSUS, STALKER, ZEALOT),
        ),
        Scenario(
            "bane_vs_bane",
            (BANELING,) * 4 + (ZERGLING,) * 20,
            (ZERGLING,) * 20 + (BANELING,) * 4,
            200,
            "bane",
            ally_types=(BANELING, ZERGLING),
            enemy_types=(BANELING, ZERGLING),
            terrain=OCTAGON,
            ally_groups=(((16.0, 8.0), 4), ((16.0, 11.0), None)),
            enemy_groups=(((16.0, 21.0), 20), ((16.0, 24.0), None)),
        ),
        Scenario(
            "so_many_baneling",
            (ZEALOT,) * 7,
            (BANELING,) * 32,
            100,
            "zealots",
            terrain=VALLEY,
            ally_groups=(((11.47, 12.02), None),),
            enemy_groups=(((27.91, 28.24), None),),
            march=((4.47, 4.33),),
        ),
        Scenario(
            "corridor",
            (ZEALOT,) * 6,
            (ZERGLING,) * 24,
            400,
            "zealots",
            terrain=CORRIDOR,
            ally_groups=(((19.04, 19.12), None),),
            enemy_groups=(((27.91, 28.24), None),),
            march=((4.47, 4.33),),
        ),
        Scenario(
            "2s_vs_1sc",
            (STALKER,) * 2,
            (SPINE_CRAWLER,),
            300,
            "stalkers",
            terrain=DOME,
            ally_groups=(((11.12, 10.34), 1), ((16.98, 10.37), 1)),
            enemy_groups=(((13.92, 20.04), None),),
        ),
        Scenario(
            "2c_vs_64zg",
            (COLOSSUS,) * 2,
            (ZERGLING,) * 64,
            400,
            "colossus",
            terrain=TERRACES,
            ally_groups=(((16.0, 16.0), None),),
            enemy_groups=(((16.0, 9.0), None),),
            hunts=True,
        ),
        *(
            _drawn(race, allies, enemies)
            for race in _RACES
            for allies, enemies in ((5, 5), (10, 10), (10, 11), (20, 20), (20, 23))
        ),
    )
}
