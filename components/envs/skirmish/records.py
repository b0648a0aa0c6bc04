"""The state of a battle, as structured arrays that the kernel reads and writes and a snapshot holds.

Everything that changes is in `UNIT` and `BATTLE`; everything that stays is in `KIND` and `RULES`. Numbers are 64 bits
wide throughout, so that compiled and uncompiled code round alike; only what is shown to a policy is float32.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from .compiling import COMPILED
from .options import Features, Rewards

_FLOAT, _INT, _BOOL = np.float64, np.int64, np.bool_

_TYPES: dict[str, type] = {"edition": _INT, "prob_obs_enemy": _FLOAT}
"""Of the options that are no booleans; an edition is its index."""

UNIT = np.dtype(
    [
        ("x", _FLOAT),
        ("y", _FLOAT),
        ("health", _FLOAT),  # dead at zero
        ("shield", _FLOAT),
        ("energy", _FLOAT),  # of healers
        ("before", _FLOAT),  # health + shield when the step began: the reward compares with it
        ("quiet", _INT),  # ticks since it was last hurt
        ("facing_x", _FLOAT),  # a unit vector
        ("facing_y", _FLOAT),
        ("heading_x", _FLOAT),  # the unit vector towards where it walks, zero while it stands
        ("heading_y", _FLOAT),
        ("stride", _FLOAT),  # how far it walks this tick
        ("pace", _FLOAT),  # wanted speed, of units that accelerate
        ("steer_x", _FLOAT),  # sideways, round a unit in its way
        ("steer_y", _FLOAT),
        ("push_x", _FLOAT),  # out of those it overlaps
        ("push_y", _FLOAT),
        ("order", _INT),  # IDLE, MOVE, ATTACK or ADVANCE of the kernel
        ("goal_x", _FLOAT),
        ("goal_y", _FLOAT),
        ("stop", _INT),  # the cell to pass on the way to its target or goal, -1 for none
        ("target", _INT),  # index of a unit, -1 for none
        ("attacker", _INT),  # the attacker of itself or of a friend that called for help, -1 for none
        ("help_in", _INT),  # ticks until it may call for help again
        ("bursting", _BOOL),  # dead, and about to take others along
        ("healing", _BOOL),  # its target, in this tick
        ("holding", _BOOL),  # stands and fights: is pushed less
        ("arrived", _BOOL),  # has advanced as far as it can, and found no enemy
        ("aiming", _BOOL),
        ("windup", _FLOAT),  # ticks until the shot, while aiming
        ("cooldown", _FLOAT),  # ticks until it may aim again; below zero, the part of a tick it is late
        ("hits_left", _INT),  # target of the shot in flight
        ("hit_in", _FLOAT),
        ("hit_target", _INT),
        ("hit_x", _FLOAT),  # where a beam was last pointed
        ("hit_y", _FLOAT),
        ("last_action", _INT),  # -1 before the first
        ("heeds", _BOOL),  # of who is ordered about: whether this step's action changes anything
        ("finder", _INT),  # of an enemy: the agent that found it, -1 for none
        ("known_to", _INT),  # of an enemy: a bit for each agent that has heard of it
        ("blind_to", _INT),  # of an agent: it sees no enemy up to this number
        ("look_x", _FLOAT),  # the middle of its cone of vision, a unit vector
        ("look_y", _FLOAT),
        ("event", _INT),  # scratch: the events of a tick, in the order in which they happen
    ],
    align=True,
)

BATTLE = np.dtype(
    [
        ("a", _INT),  # the random generator
        ("b", _INT),
        ("c", _INT),
        ("counter", _INT),
        ("tick", _INT),
        ("steps", _INT),
        ("offset", _INT),  # of the ticks in which idle enemies are sent after the nearest ally, where armies are drawn
        ("over", _BOOL),
        ("divisor", _FLOAT),  # of this episode's rewards
        ("given", _INT),  # TYPES_GIVEN and PLACES_GIVEN of the kernel: what is not drawn for the next episode
    ],
    align=True,
)

KIND = np.dtype(
    [
        ("type_row", _INT),  # of its type in the table of damage
        ("weight", _FLOAT),  # how likely it is drawn, where armies are
        ("never_alone", _BOOL),  # no army is drawn of such alone
        ("sight", _FLOAT),  # what its agent sees, centre to centre
        ("shoot", _FLOAT),  # how far its agent may order an attack, or healing
        ("health", _FLOAT),
        ("shield", _FLOAT),
        ("armour", _FLOAT),
        ("radius", _FLOAT),
        ("separation", _FLOAT),
        ("yielding", _FLOAT),  # the share it takes, while it fights, of an overlap with a friend who walks
        ("speed", _FLOAT),  # cells per tick
        ("acceleration", _FLOAT),  # cells per tick and tick; zero for those at full speed at once
        ("layer", _INT),  # GROUND, GIANT or AIR of the kernel: units of one layer are in each other's way
        ("hits_air", _BOOL),
        ("regeneration", _FLOAT),  # health per tick
        ("healing", _FLOAT),  # health given per tick; zero for all but healers
        ("biological", _BOOL),  # can be healed
        ("range", _FLOAT),
        ("scan", _FLOAT),
        ("period", _FLOAT),  # ticks, as all times here
        ("damage_point", _FLOAT),
        ("hits", _INT),
        ("hit_gap", _FLOAT),
        ("missile_speed", _FLOAT),
        ("burst", _FLOAT),  # how far round itself it hurts when it dies, zero for all but those who do
        ("sweep", _FLOAT),  # half the length of the line that its beam draws, zero for other weapons
        ("full_cooldown", _FLOAT),
        ("type_bit", _INT),
        ("rank", _INT),  # of its type: agents are numbered by rank, then by position, when an episode begins
        ("start_x", _FLOAT),
        ("start_y", _FLOAT),
        ("attack_chance", _FLOAT),  # of an agent: how often an order to attack or to heal is carried out
        ("health_level", _FLOAT),  # of an agent: it dies at this share of its health
        ("hidden_from", _INT),  # of an enemy: a bit for each agent that sees neither its health nor its type
    ],
    align=True,
)

RULES = np.dtype(
    [
        ("allies", _INT),
        ("enemies", _INT),
        ("actions", _INT),
        ("first_target", _INT),  # the action that attacks the first enemy
        ("ticks", _INT),  # per step
        ("limit", _INT),
        ("move_amount", _FLOAT),
        ("west", _FLOAT),  # walls
        ("east", _FLOAT),
        ("south", _FLOAT),
        ("north", _FLOAT),
        ("carved", _BOOL),  # there are blocked cells inside the walls, too
        ("march_x", _FLOAT),  # where the enemies advance to
        ("march_y", _FLOAT),
        ("march_dx", _FLOAT),  # to the other end, where they advance to some point of a line
        ("march_dy", _FLOAT),
        ("regenerates", _BOOL),  # some unit recovers health without a healer
        ("bursts", _BOOL),  # somebody does
        ("drawn", _BOOL),  # each episode draws armies and starting places
        ("surrounded", _FLOAT),  # the share of episodes that begin with the allies in the middle of enemies
        ("draws_chances", _BOOL),  # each agent has an `attack_chance`
        ("chance_low", _FLOAT),
        ("chance_high", _FLOAT),
        ("hides_chances", _BOOL),  # from other agents
        ("draws_levels", _BOOL),  # each agent has a `health_level`
        ("level_low", _FLOAT),
        ("level_high", _FLOAT),
        ("hides_levels", _BOOL),
        ("draws_masks", _BOOL),  # enemies are `hidden_from` some agents
        ("mask_probability", _FLOAT),  # with which an agent sees an enemy's health and type
        ("looks", _INT),  # directions of the cone of vision, zero for agents that see all around
        ("turn_cos", _FLOAT),  # of the angle from one direction to the next
        ("turn_sin", _FLOAT),
        ("cone_cos", _FLOAT),  # of half the cone's angle
        ("cone_tan", _FLOAT),
        ("cone_as_published", _BOOL),
        ("commanded", _BOOL),  # an opponent commands the enemies
        ("reaction", _INT),  # the enemies look round every so many ticks
        ("retaliates", _BOOL),  # an enemy goes for who hurts it from out of its sight
        ("switches", _BOOL),  # an enemy shoots at whoever is in reach, not at whom it chases, and at who attacks it
        ("calls", _BOOL),  # a hurt enemy calls its friends
        ("hunts", _BOOL),  # the enemies know where the allies are
        ("healers", _BOOL),  # a side with no other unit left has lost
        ("crowd", _FLOAT),  # how far from there the last of them may find room
        ("start_jitter", _FLOAT),
        ("type_bits", _INT),
        ("ally_shield", _BOOL),
        ("enemy_shield", _BOOL),
        *((option.name, _TYPES.get(option.name, _BOOL)) for option in fields(Features)),
        ("hides_types", _BOOL),  # of allies from each other
        *((f"reward_{option.name}", type(option.default)) for option in fields(Rewards)),
        ("reward_divisor", _FLOAT),  # of battles whose armies are always the same
    ],
    align=True,
)


def records(array: Any) -> Any:
    """The array as the kernel takes it: only a recarray knows `unit.x`, and only compiled code goes without."""
    return array if COMPILED else array.view(np.recarray)
