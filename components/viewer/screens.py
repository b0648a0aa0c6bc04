"""One step of any game that was recorded, for the terminal."""

from functools import singledispatch

from rich.console import RenderableType

from components.viewer import terminal
from components.viewer.air_combat import terminal as air_combat
from components.viewer.air_combat.recording import AirRound
from components.viewer.recorded import Recorded, Shown
from components.viewer.recording import Battle


@singledispatch
def screen_of(recorded: Recorded, frame: Shown) -> RenderableType:
    """Return the text of a frame for the terminal.

    Raises:
        TypeError: no function shows this game.
    """
    raise TypeError(f"nothing shows a {type(recorded).__name__}")


screen_of.register(Battle, terminal.show)
screen_of.register(AirRound, air_combat.show)
