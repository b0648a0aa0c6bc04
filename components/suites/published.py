"""The suites: their maps, and published win rates."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Published:
    """Win rates of an algorithm by map, from 0 to 1, and their source."""

    rates: Mapping[str, float]
    source: str


@dataclass(frozen=True, slots=True)
class Suite:
    """A benchmark: maps, each of which is played with several seeds."""

    name: str
    title: str
    maps: tuple[str, ...]
    jitters: tuple[float, ...]
    """Cells per axis by which starting positions vary when the best policies of runs are played again."""
    published: Mapping[str, Published] = field(default_factory=dict)
    """Published win rates by algorithm."""


def _percent(**rates: float) -> dict[str, float]:
    return {name.removeprefix("_"): rate / 100 for name, rate in rates.items()}


_SMAC_PAPER = (
    "Samvelyan et al. (2019), The StarCraft Multi-Agent Challenge, arXiv:1902.04043: median test win rate after 2 M "
    "steps of StarCraft II. Maps whose figures could not be held against a second source have none."
)
_SMACV2_RUNS = (
    "Ellis et al. (2023), SMACv2, arXiv:2212.07489, and the curves of its authors: mean test win rate from 9.5 to 10 M "
    "steps of StarCraft II."
)
SMAC = Suite(
    name="smac",
    title="SMAC",
    maps=(
        *("2s_vs_1sc", "2s3z", "3s5z", "1c3s5z", "10m_vs_11m"),
        *("2c_vs_64zg", "bane_vs_bane", "5m_vs_6m", "3s_vs_5z"),
        *("3s5z_vs_3s6z", "6h_vs_8z", "27m_vs_30m", "MMM2", "corridor"),
    ),
    jitters=(0.0, 0.5, 2.0),
    published={
        "qmix": Published(
            _percent(
                _2s3z=99,
                _3s5z=97,
                _1c3s5z=97,
                _10m_vs_11m=97,
                _5m_vs_6m=70,
                _6h_vs_8z=3,
                _27m_vs_30m=49,
                MMM2=69,
                corridor=1,
            ),
            _SMAC_PAPER,
        ),
        "mappo": Published(
            _percent(
                _2s_vs_1sc=100,
                _2s3z=100,
                _3s5z=96.9,
                _10m_vs_11m=96.9,
                _5m_vs_6m=89.1,
                _3s5z_vs_3s6z=84.4,
                _6h_vs_8z=88.3,
                _27m_vs_30m=93.8,
                MMM2=90.6,
                corridor=100,
            ),
            "Yu et al. (2022), The Surprising Effectiveness of PPO, arXiv:2103.01955: median of the last ten tests "
            "after up to 10 M steps of StarCraft II.",
        ),
    },
)
"""The 14 maps of the paper: five easy, four hard, five super-hard."""

SMACV2 = Suite(
    name="smacv2",
    title="SMACv2",
    maps=tuple(
        f"{race}_{size}"
        for race in ("terran", "protoss", "zerg")
        for size in ("5_vs_5", "10_vs_10", "10_vs_11", "20_vs_20", "20_vs_23")
    ),
    jitters=(0.0,),
    published={
        "qmix": Published(
            _percent(
                terran_5_vs_5=61,
                terran_10_vs_10=68,
                terran_10_vs_11=39,
                terran_20_vs_20=56,
                terran_20_vs_23=10,
                protoss_5_vs_5=71,
                protoss_10_vs_10=70,
                protoss_10_vs_11=41,
                protoss_20_vs_20=71,
                protoss_20_vs_23=17,
                zerg_5_vs_5=39,
                zerg_10_vs_10=41,
                zerg_10_vs_11=25,
                zerg_20_vs_20=30,
                zerg_20_vs_23=9,
            ),
            _SMACV2_RUNS,
        ),
        "mappo": Published(
            _percent(
                terran_5_vs_5=51,
                terran_10_vs_10=58,
                terran_10_vs_11=27,
                terran_20_vs_20=52,
                terran_20_vs_23=10,
                protoss_5_vs_5=57,
                protoss_10_vs_10=59,
                protoss_10_vs_11=19,
                protoss_20_vs_20=42,
                protoss_20_vs_23=5,
                zerg_5_vs_5=45,
                zerg_10_vs_10=40,
                zerg_10_vs_11=30,
                zerg_20_vs_20=34,
                zerg_20_vs_23=17,
            ),
            _SMACV2_RUNS,
        ),
    },
)
"""The 15 maps; teams and starting positions are drawn again in each battle."""

SUITES = {suite.name: suite for suite in (SMAC, SMACV2)}
