"""The state of a battle, as structured arrays that the kernel reads and writes and a snapshot holds.

Everything that changes is in `UNIT`, `MISSILE` and `BATTLE`, and in the arrays of which unit sees and hears which. All
constants are in `KIND` and `RULES`. Numbers are 64 bits wide; only arrays for a policy are float32.
"""

from dataclasses import fields

import numpy as np

from components.envs.air_combat.scenarios import Rewards

_FLOAT, _INT, _BOOL = np.float64, np.int64, np.bool_

UNIT = np.dtype(
    [
        ("x", _FLOAT),
        ("y", _FLOAT),
        ("course", _INT),  # degrees, 0 to 359, clockwise from +x
        ("alive", _BOOL),
        ("doomed", _BOOL),  # hit in this step
        ("radar", _INT),  # 0 off, or its frequency point
        ("jammer", _INT),  # 0 off, a frequency point, or the number of points + 1 for the whole band
        ("long_left", _INT),
        ("medium_left", _INT),
        ("reach", _FLOAT),  # range of its radar in this step, with jamming; 0 if it is off
        ("known", _BOOL),  # the other side knows its position in this step
        ("source", _INT),  # how it is known: 0 L detector, 1 S detector, 2 fighter, 3 passive, -1 not at all
        ("fixed", _BOOL),  # located by passive receivers in this step
        ("fix_x", _FLOAT),
        ("fix_y", _FLOAT),
        ("last_x", _FLOAT),  # the last position known to the other side
        ("last_y", _FLOAT),
        ("last_step", _INT),  # the step of that position; -1 never
        ("threats", _INT),  # missiles in flight at it
        ("reward", _FLOAT),  # of this step
        ("attack", _INT),  # its attack order of this step
    ],
    align=True,
)

MISSILE = np.dtype(
    [
        ("attacker", _INT),
        ("target", _INT),
        ("medium", _BOOL),
        ("source", _INT),  # how the target was known when it was fired
        ("x", _FLOAT),
        ("y", _FLOAT),
        ("distance", _FLOAT),  # to the target when it was fired
        ("steps", _INT),  # steps that it has flown
        ("observed", _INT),  # of these, steps in which the target was known
    ],
    align=True,
)

BATTLE = np.dtype(
    [
        ("a", _INT),  # the random generator
        ("b", _INT),
        ("c", _INT),
        ("counter", _INT),
        ("steps", _INT),
        ("flying", _INT),  # missiles in flight: the first entries of its row
        ("over", _BOOL),
        ("outcome", _INT),  # for side 1: 2 total win, 1 win, 0 draw or not over, -1 loss, -2 total loss
        ("fired_red", _INT),
        ("fired_blue", _INT),
        ("hits_red", _INT),  # by missiles of red
        ("hits_blue", _INT),
        ("jammed", _INT),  # radars whose range was cut in this step
    ],
    align=True,
)

KIND = np.dtype(
    [
        ("fighter", _BOOL),
        ("speed", _FLOAT),
        ("source", _INT),  # of units that its radar sees: as in `UNIT`
        ("radar_band", _INT),
        ("radar_range", _FLOAT),
        ("radar_points", _INT),
        ("sector_cos", _FLOAT),  # cosine of half its radar's sector; -2 if it sees in all directions
        ("jammer_band", _INT),  # -1 without a jammer
        ("jammer_points", _INT),
        ("long_missiles", _INT),
        ("medium_missiles", _INT),
        ("start_x", _FLOAT),
        ("start_y", _FLOAT),
    ],
    align=True,
)

RULES = np.dtype(
    [
        ("red", _INT),  # units of side 1; they come first
        ("blue", _INT),
        ("size_x", _FLOAT),
        ("size_y", _FLOAT),
        ("diagonal", _FLOAT),
        ("jamming_range", _FLOAT),
        ("aimed", _FLOAT),
        ("barrage", _FLOAT),
        ("receiver_range", _FLOAT),
        ("noise", _FLOAT),  # tangent of half the largest error of a bearing
        ("least_crossing", _FLOAT),  # squared sine of the least angle at which bearings must cross
        *(
            (f"{kind}_{name}", _FLOAT)
            for kind in ("long", "medium")
            for name in ("range", "speed", "hit_near", "hit_far")
        ),
        ("max_steps", _INT),
        ("attack_effect_delay", _BOOL),
        ("hit_prob_enable", _BOOL),
        ("turn_rate", _INT),
        ("random_pos", _BOOL),
        ("strip_near", _FLOAT),
        ("strip_far", _FLOAT),
        ("frame_skip", _INT),  # world steps per step of the environment
        ("courses", _INT),  # number of courses that an agent can choose
        ("opponent", _INT),  # what commands side 2: an index of `OPPONENTS`
        ("nearest_targets", _BOOL),  # one command fires, and enemies are observed by distance
        ("reward_scale", _FLOAT),
        *((each.name, type(each.default)) for each in fields(Rewards)),
    ],
    align=True,
)
