"""The state of a battle, as structured arrays that the kernel reads and writes and a snapshot holds.

What changes during an episode is in `UNIT` and `BATTLE`; the rest is in `KIND` and `RULES`. Numbers are 64 bits wide
throughout, so that compiled and uncompiled code round alike; only what is shown to a policy is float32.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from .compiling import COMPILED
from .options import Features, Rewards

_FLOAT, _INT, _BOOL = np.float64, np.int64, np.bool_

_TYPES: dict[str, type] = {"edition": _INT, "prob_obs_enemy": _FLOAT}
"""Types of the options that are not booleans; an edition is stored as its index."""

UNIT = np.dtype(
    [
        ("x", _FLOAT),
        ("y", _FLOAT),
        ("health", _FLOAT),  # dead at zero
        ("shield", _FLOAT),
        ("energy", _FLOAT),  # only healers have it
        ("before", _FLOAT),  # health + shield at the start of the step, for the reward
        ("quiet", _INT),  # ticks since it was last hurt
        ("facing_x", _FLOAT),  # a unit vector
        ("facing_y", _FLOAT),
        ("heading_x", _FLOAT),  # direction in which it intends to walk, a unit vector; zero while it stands
        ("heading_y", _FLOAT),
        ("stride", _FLOAT),  # distance that it walks in this tick
        ("pace", _FLOAT),  # present speed of a unit that accelerates
        ("steer_x", _FLOAT),  # added to the heading, to swerve round a unit in its way
        ("steer_y", _FLOAT),
        ("push_x", _FLOAT),  # displacement out of the units that it overlaps
        ("push_y", _FLOAT),
        ("order", _INT),  # IDLE, MOVE, ATTACK or ADVANCE of `kernel.constants`
        ("goal_x", _FLOAT),
        ("goal_y", _FLOAT),
        ("stop", _INT),  # the cell to pass on the way to its target or goal, -1 for none
        ("target", _INT),  # index of a unit, -1 for none
        ("attacker", _INT),  # last attacker of it, or of a friend that called for help; -1 for none
        ("help_in", _INT),  # ticks until it may call for help again
        ("bursting", _BOOL),  # dead, and its burst is still to come
        ("healing", _BOOL),  # it heals its target in this tick
        ("holding", _BOOL),  # it stands with its target in range, and is pushed less
        ("arrived", _BOOL),  # has no target, and its advance has ended or (for healers) pauses
        ("aiming", _BOOL),
        ("windup", _FLOAT),  # ticks until the shot, while aiming
        ("cooldown", _FLOAT),  # ticks until it may aim again; below zero, the part of a tick by which it is late
        ("hits_left", _INT),  # hits of its last shot that are still to come
        ("hit_in", _FLOAT),  # ticks until the next of them
        ("hit_target", _INT),  # index of the unit that was shot at, -1 before the first shot
        ("drawing", _BOOL),  # its beam is being drawn
        ("drawn", _INT),  # ticks in which its last beam was drawn
        ("hit_x", _FLOAT),  # where its beam last pointed
        ("hit_y", _FLOAT),
        ("last_action", _INT),  # -1 before the first
        ("heeds", _BOOL),  # of a commanded unit: whether it obeys this step's action
        ("finder", _INT),  # of an enemy: the agent that found it, -1 for none
        ("known_to", _INT),  # of an enemy: a bit for each agent that knows of it
        ("blind_to", _INT),  # of an agent: it sees no enemy up to this number; -1 hides none
        ("look_x", _FLOAT),  # the middle of its cone of vision, a unit vector
        ("look_y", _FLOAT),
        ("event", _INT),  # scratch: the events of a tick in order, also what `drawing` and `finding` draw
    ],
    align=True,
)

BATTLE = np.dtype(
    [
        ("a", _INT),  # `a`, `b`, `c` and `counter`: state of the random generator
        ("b", _INT),
        ("c", _INT),
        ("counter", _INT),
        ("tick", _INT),
        ("steps", _INT),
        ("offset", _INT),  # where armies are drawn: shifts the ticks in which idle enemies are ordered to attack
        ("over", _BOOL),
        ("divisor", _FLOAT),  # every reward of this episode is divided by it
        ("given", _INT),  # flags TYPES_GIVEN and PLACES_GIVEN: what is not drawn for the next episode
    ],
    align=True,
)

KIND = np.dtype(
    [
        ("type_row", _INT),  # row of its type in the table of damage
        ("weight", _FLOAT),  # probability that it is drawn, where armies are drawn
        ("never_alone", _BOOL),  # no army of such units only is drawn
        ("sight", _FLOAT),  # how far its agent sees, centre to centre
        ("shoot", _FLOAT),  # up to which distance it may be ordered to attack or heal, centre to centre
        ("health", _FLOAT),
        ("shield", _FLOAT),
        ("armour", _FLOAT),
        ("radius", _FLOAT),
        ("separation", _FLOAT),
        ("yielding", _FLOAT),  # its share of an overlap with a friend, where it fights and the friend does not
        ("speed", _FLOAT),  # cells per tick
        ("acceleration", _FLOAT),  # cells per tick²; zero for units that reach full speed at once
        ("layer", _INT),  # GROUND, GIANT or AIR: only units of the same layer collide
        ("hits_air", _BOOL),
        ("regeneration", _FLOAT),  # health per tick
        ("healing", _FLOAT),  # health that it gives per tick; zero for all but healers
        ("biological", _BOOL),  # can be healed
        ("range", _FLOAT),
        ("scan", _FLOAT),
        ("period", _FLOAT),  # in ticks, as all times here
        ("damage_point", _FLOAT),
        ("hits", _INT),
        ("hit_gap", _FLOAT),
        ("missile_speed", _FLOAT),
        ("burst", _FLOAT),  # radius in which it causes damage when it dies; zero for units that do not burst
        ("sweep", _FLOAT),  # half the length of its beam's line; zero for other weapons
        ("full_cooldown", _FLOAT),
        ("type_bit", _INT),
        ("rank", _INT),  # of its type: an episode numbers its agents by rank, then by position
        ("start_x", _FLOAT),
        ("start_y", _FLOAT),
        ("attack_chance", _FLOAT),  # of an agent: probability that it obeys an order to attack or to heal
        ("health_level", _FLOAT),  # of an agent: it dies below this share of its full health
        ("hidden_from", _INT),  # of an enemy: a bit for each agent that sees neither its health nor its type
    ],
    align=True,
)

RULES = np.dtype(
    [
        ("allies", _INT),
        ("enemies", _INT),
        ("actions", _INT),
        ("first_target", _INT),  # number of the action that attacks the first enemy
        ("ticks", _INT),  # per step
        ("limit", _INT),
        ("move_amount", _FLOAT),
        ("west", _FLOAT),  # walls
        ("east", _FLOAT),
        ("south", _FLOAT),
        ("north", _FLOAT),
        ("carved", _BOOL),  # some cells inside the walls are blocked, too
        ("march_x", _FLOAT),  # goal of the enemies' advance
        ("march_y", _FLOAT),
        ("march_dx", _FLOAT),  # from there to the other end of a line; each episode draws a point of it as the goal
        ("march_dy", _FLOAT),
        ("regenerates", _BOOL),  # some unit recovers health without a healer
        ("bursts", _BOOL),  # some unit bursts when it dies
        ("drawn", _BOOL),  # each episode draws armies and starting places
        ("surrounded", _FLOAT),  # share of episodes in which the allies start in the middle of enemies
        ("draws_chances", _BOOL),  # each agent has an `attack_chance`
        ("chance_low", _FLOAT),
        ("chance_high", _FLOAT),
        ("hides_chances", _BOOL),  # each agent sees only its own
        ("draws_levels", _BOOL),  # each agent has a `health_level`
        ("level_low", _FLOAT),
        ("level_high", _FLOAT),
        ("hides_levels", _BOOL),
        ("draws_masks", _BOOL),  # enemies are `hidden_from` some agents
        ("mask_probability", _FLOAT),  # that an agent sees an enemy's health and type
        ("looks", _INT),  # number of directions of the cone of vision; zero for agents that see all around
        ("turn_cos", _FLOAT),  # of the angle between two neighbouring directions
        ("turn_sin", _FLOAT),
        ("cone_cos", _FLOAT),  # of half the cone's angle
        ("cone_tan", _FLOAT),
        ("cone_as_published", _BOOL),
        ("commanded", _BOOL),  # an opponent commands the enemies
        ("reaction", _INT),  # ticks from one choice of the enemies' targets to the next
        ("retaliates", _BOOL),  # an enemy that sees no target attacks the unit that hurt it
        ("switches", _BOOL),  # an enemy prefers a unit in range to the one that it chases, and its attackers to others
        ("calls", _BOOL),  # a hurt enemy calls its friends for help
        ("hunts", _BOOL),  # the enemies attack the nearest ally at any distance
        ("attack_one", _BOOL),  # the enemies begin with an order to attack the same ally
        ("healers", _BOOL),  # some unit is a healer; a side that has only healers left has lost
        ("crowd", _FLOAT),  # radius round the march's goal in which all enemies find room
        ("start_jitter", _FLOAT),
        ("type_bits", _INT),
        ("ally_shield", _BOOL),
        ("enemy_shield", _BOOL),
        *((option.name, _TYPES.get(option.name, _BOOL)) for option in fields(Features)),
        ("hides_types", _BOOL),  # agents do not see each other's types
        *((f"reward_{option.name}", type(option.default)) for option in fields(Rewards)),
        ("reward_divisor", _FLOAT),  # where armies are always the same
    ],
    align=True,
)


def records(array: Any) -> Any:
    """Return the array as the kernel takes it: a recarray for `unit.x` in uncompiled code, else unchanged."""
    return array if COMPILED else array.view(np.recarray)
