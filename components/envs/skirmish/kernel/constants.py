"""The words that the kernel's files share: orders, layers, actions, SMAC's rules, and the types of its arguments.

`units` are the records (N,) of one battle, allies first; `kinds` (N,) what each of them is; `damage` (T, T) what one
hit of the first type does to the second, before armour. B battles, A agents, E enemies, U actions.
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

Start = tuple[Records, Records, Doubles]  # a fresh unit (1,), what armies are drawn from (T,), where they stand (N, 2)
Played = tuple[Records, Records, Records, Records]  # units (B, N), battles (B,), kinds, rules (1,)
Seen = tuple[
    Footing, Doubles, Floats, Floats, Bools
]  # footing, height; obs (B, A, O), state (B, S), available (B, A, U)
Outcome = tuple[Floats, Bools, Bools, Bools]  # reward, terminated, truncated, won, all (B,)

IDLE, MOVE, ATTACK, ADVANCE = 0, 1, 2, 3

GROUND, GIANT, AIR = 0, 1, 2

NO_OP, STOP, NORTH, SOUTH, EAST, WEST, FIRST_TARGET = 0, 1, 2, 3, 4, 5, 6

CELLS = 32
CLEAR = 2
MIDDLE = 16.0

RANGE_SLOP = 1.0  # how far a target may slip away from one who is already aiming
KEEP_SLOP = 0.5  # likewise out of sight of one who has merely chosen it

# A beam is two rows of points across its target, drawn in opposite directions, two points of each in a tick.
SWEEP_POINTS = 11
SWEEP_TICKS = 6  # in which they are drawn
SWEEP_DELAY = 5.0  # ticks from the shot to the harm that the points of the first tick do, .25 s after them
BEAM_TICKS = 12  # from the shot to the harm to the target itself

FULL_ENERGY = 200.0
FIRST_ENERGY = 50.0

SHIELD_REST = 160  # ticks without harm after which a shield recovers
SHIELD_REGEN = 0.125

TREAT_EVERY = 8  # ticks from one look of an enemy healer for a patient to the next

HUNT_EVERY = 8  # ticks from one order of SMACv2's maps to idle enemies to the next: half a second

FALL_BEFORE = 2  # ticks before the end of a step in which agents below their level of health die

TYPES_GIVEN, PLACES_GIVEN = 1, 2  # what a caller has decided of the next episode, in place of lots

HELP_REACH = 4.0
HELP_EVERY = 32
