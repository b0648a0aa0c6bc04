"""Looking at battles: in the terminal, as pictures, as films."""

from components.watch.picture import battle_figure
from components.watch.players import PLAYERS, Player
from components.watch.recording import Battle, Frame, Strike, record

__all__ = ["PLAYERS", "Battle", "Frame", "Player", "Strike", "battle_figure", "record"]
