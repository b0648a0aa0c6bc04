"""The words that the kernel's files share: columns of orders, commands, opponents, and the types of its arguments.

`units` are the records (N,) of one battle, side 1 first; `kinds` (N,) what each of them is. `sees` and `hears` (N, N)
say whether the radar of a unit, in a row, sees another, and whether its receiver hears the radar of another;
`bearing` (N, N, 2) where it hears it from, as a unit vector; `sighted` (N, N) whether it was ever seen by it.
B battles, A agents of a side, E enemies of it, U actions, T courses.
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
FIRE = FIRST_MISSILE  # where targets are the nearest: a missile if and when one reaches a target
AUTOMATIC = -1  # in place of an attack: at the target that `choose_shot` chooses when it can be made

L_DETECTOR, S_DETECTOR, FIGHTER, PASSIVE = 0, 1, 2, 3  # sources of what a side knows

ORDERED, STATIC, STRAIGHT, RULES_EASY, RULES_HARD = 0, 1, 2, 3, 4  # who commands side 2
OPPONENTS = ("ordered", "static", "straight", "easy", "hard")

OWN, ABOUT_ENEMY, ABOUT_FRIEND = 18, 14, 7  # columns of an observation: about itself, each enemy, each friend
ABOUT_UNIT = 10  # columns of a state, about each unit
NEAR = 200.0  # the distance that is 1 in an observation
CLOSE = 50.0  # the distance beyond the range of a long missile that is 1 in an observation, as is any larger one
OLD = 100.0  # steps since an enemy was known that are 1 in an observation

# Rounded, so that the sine of 30 degrees is one half exactly.
COS = np.round(np.cos(np.radians(np.arange(360))), 12)
SIN = np.round(np.sin(np.radians(np.arange(360))), 12)
