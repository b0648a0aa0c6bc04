"""The constants that the kernel's files share: columns of orders, commands, opponents, and the types of its arguments.

`units` (N,) are the records of one battle, side 1 first; `kinds` (N,) their properties. At [i, j], `sees` (N, N) tells
whether the radar of unit i sees unit j, and `hears` (N, N) whether the receiver of i hears the radar of j. `bearing`
(N, N, 2) is the direction from which i hears j, as a unit vector. `sighted` (N, N) tells whether the radar of i has
seen j in this round. B battles, A agents of a side, E enemies of it, U actions, T courses.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = Any  # one of `records`, by reference: numpy's stubs can't say which fields it has
Records = Any  # an array of them
Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

Played = tuple[Records, Records, Records, Records, Records]  # units (B, N), missiles (B, M), battles (B,), kinds, rules
Sensed = tuple[Bools, Bools, Doubles, Bools]  # sees, hears (B, N, N), bearing (B, N, N, 2), sighted (B, N, N)
Seen = tuple[Floats, Floats, Bools]  # obs (B, A, O), state (B, S), available (B, A, U), of a side
Outcome = tuple[Floats, Floats, Bools, Bools, Bools]
"""reward (B,), rewards of agents (B, A), terminated, truncated, won (B,)"""

COURSE, RADAR, JAMMER, ATTACK = 0, 1, 2, 3  # columns of orders (N, 4)
STAY = -1  # in place of a course: the unit stays where it is

HOLD, HOP, SILENT, BARRAGE, AIM, JAMMER_OFF, FIRST_MISSILE = 0, 1, 2, 3, 4, 5, 6  # commands of an agent
FIRE = FIRST_MISSILE  # with targets "nearest": fire a missile if and when one reaches a target
AUTOMATIC = -1  # in place of an attack: `choose_shot` chooses the target when the attack can be made

L_DETECTOR, S_DETECTOR, FIGHTER, PASSIVE = 0, 1, 2, 3  # how a side knows a unit

ORDERED, STATIC, STRAIGHT, RULES_EASY, RULES_HARD = 0, 1, 2, 3, 4  # what commands side 2
OPPONENTS = ("ordered", "static", "straight", "easy", "hard")

OWN, ABOUT_ENEMY, ABOUT_FRIEND = 18, 14, 7  # columns of an observation: about itself, each enemy, each friend
ABOUT_UNIT = 10  # columns of a state, about each unit
NEAR = 200.0  # the distance that is 1 in an observation
CLOSE = 50.0  # the distance beyond the range of a long missile that is 1 in an observation; larger ones are 1 too
OLD = 100.0  # steps since an enemy was known that are 1 in an observation

# Rounded, so that the sine of 30 degrees is one half exactly.
COS = np.round(np.cos(np.radians(np.arange(360))), 12)
SIN = np.round(np.sin(np.radians(np.arange(360))), 12)
