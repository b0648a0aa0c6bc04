from .picture import battle_figure as battle_figure
from .players import PLAYERS as PLAYERS
from .players import Player as Player
from .recording import Battle as Battle
from .recording import Frame as Frame
from .recording import Strike as Strike
from .recording import record as record
