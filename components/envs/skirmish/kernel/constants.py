"""Constants and types of the kernel: orders, layers, actions, SMAC's rules, and the types of arguments.

`units` are the records (N,) of one battle, allies first; `kinds` (N,) their properties, fixed in an episode;
`damage` (T, T) the damage of one hit of the first type on the second, before armour. B battles, A agents, E enemies,
U actions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = Any  # one of `records`, by reference: numpy's stubs can't say which fields it has
Records = Any  # an array of them
Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Footing = NDArray[np.int8]  # of a cell: 0 blocked, 1 open next to a blocked one, CLEAR
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Ways = NDArray[np.int16]

Start = tuple[Records, Records, Doubles]  # a fresh unit (1,), types to draw (T,), places round a point (N, 2)
Played = tuple[Records, Records, Records, Records]  # units (B, N), battles (B,), kinds, rules (1,)
Seen = tuple[
    Footing, Doubles, Floats, Floats, Bools
]  # footing, height; obs (B, A, O), state (B, S), available (B, A, U)
Outcome = tuple[Floats, Bools, Bools, Bools]  # reward, terminated, truncated, won, all (B,)

IDLE, MOVE, ATTACK, ADVANCE = 0, 1, 2, 3

GROUND, GIANT, AIR = 0, 1, 2

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, FIRST_TARGET = 0, 1, 2, 3, 4, 5, 6

LANES = 8  # units that a vector instruction tests

CELLS = 32
CLEAR = 2
MIDDLE = 16.0

RANGE_SLOP = 1.0  # how far beyond its range an aiming unit keeps its target
KEEP_SLOP = 0.5  # how far beyond its scan range an enemy keeps a target that it chases

# A beam is two rows of points across its target, drawn in opposite directions, two points of each row in a tick.
SWEEP_POINTS = 11
SWEEP_TICKS = 6  # ticks in which they are drawn
SWEEP_DELAY = 5.0  # ticks from the shot to the damage by the points of the first tick, .25 s after they are drawn
BEAM_TICKS = 12  # ticks from the shot to the damage to the target itself

FULL_ENERGY = 200.0
FIRST_ENERGY = 50.0

SHIELD_REST = 160  # ticks without damage after which a shield recovers
SHIELD_REGEN = 0.125

TREAT_EVERY = 8  # ticks from one search of an enemy healer for a patient to the next

HUNT_EVERY = 8  # ticks between the orders that SMACv2's maps give to idle enemies: half a second

FALL_BEFORE = 2  # ticks before the end of a step in which agents below their level of health die

TYPES_GIVEN, PLACES_GIVEN = 1, 2  # flags: what the caller sets for the next episode, instead of a draw

HELP_REACH = 4.0
HELP_EVERY = 32
