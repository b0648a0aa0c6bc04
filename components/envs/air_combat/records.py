"""The state of a battle, as structured arrays that the kernel reads and writes and a snapshot holds.

Everything that changes is in `UNIT`, `MISSILE` and `BATTLE`, and in the arrays of who sees and hears whom; everything
that stays is in `KIND` and `RULES`. Numbers are 64 bits wide; only what is shown to a policy is float32.
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
        ("jammer", _INT),  # 0 off, a frequency point, or one more than there are for the whole band
        ("long_left", _INT),
        ("medium_left", _INT),
        ("reach", _FLOAT),  # of its radar in this step, jammed or not; 0 if it is off
        ("known", _BOOL),  # where it is, to the other side, in this step
        ("source", _INT),  # by what: 0 L detector, 1 S detector, 2 fighter, 3 passive, -1 not at all
        ("fixed", _BOOL),  # by passive receivers, in this step
        ("fix_x", _FLOAT),
        ("fix_y", _FLOAT),
        ("last_x", _FLOAT),  # where the other side knew it last
        ("last_y", _FLOAT),
        ("last_step", _INT),  # when; -1 never
        ("threats", _INT),  # missiles that fly at it
        ("reward", _FLOAT),  # of this step
        ("attack", _INT),  # its order of this step, for `last_action`
    ],
    align=True,
)

MISSILE = np.dtype(
    [
        ("attacker", _INT),
        ("target", _INT),
        ("medium", _BOOL),
        ("source", _INT),  # by what the target was known when it was fired
        ("x", _FLOAT),
        ("y", _FLOAT),
        ("distance", _FLOAT),  # to the target when it was fired
        ("steps", _INT),  # that it has flown
        ("observed", _INT),  # of these, how many with the target known
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
        ("flying", _INT),  # missiles in flight: the first of its row
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
        ("source", _INT),  # that its radar is
        ("radar_band", _INT),
        ("radar_range", _FLOAT),
        ("radar_points", _INT),
        ("sector_cos", _FLOAT),  # of half its sector; -2 if it sees all round
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
        ("least_crossing", _FLOAT),  # square of the sine of it
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
        ("frame_skip", _INT),  # world steps of a step of the environment
        ("courses", _INT),  # that an agent chooses among
        ("opponent", _INT),  # who commands side 2
        ("nearest_targets", _BOOL),  # one command fires, and enemies are seen by distance
        ("reward_scale", _FLOAT),
        *((each.name, type(each.default)) for each in fields(Rewards)),
    ],
    align=True,
)
