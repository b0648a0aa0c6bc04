"""A figure of one step of any game that was recorded."""

from functools import singledispatch

from matplotlib.figure import Figure

from components.viewer.air_combat.picture import round_figure
from components.viewer.air_combat.recording import AirRound
from components.viewer.picture import battle_figure
from components.viewer.recorded import Recorded
from components.viewer.recording import Battle


@singledispatch
def figure_of(recorded: Recorded, step: int, *, dpi: float) -> Figure:
    """Return a figure of the recording after `step` steps.

    Raises:
        IndexError: there was no such step.
        TypeError: no function draws this game.
    """
    raise TypeError(f"nothing draws a {type(recorded).__name__}")


figure_of.register(Battle, battle_figure)
figure_of.register(AirRound, round_figure)
