"""A world step of one battle, and how a round ends."""

from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import Bools, Doubles, Ints, Record, Records
from components.envs.air_combat.kernel.moving import obey
from components.envs.air_combat.kernel.sensing import hear_all, jam_all, look_all, share_all
from components.envs.air_combat.kernel.striking import attack_all, fall_all, fly_all


@compiled
def sense(
    units: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    sees: Bools,
    hears: Bools,
    bearing: Doubles,
    sighted: Bools,
) -> None:
    """Compute which units are seen, heard and known, and by which."""
    jam_all(units, battle, kinds, rules)
    look_all(units, kinds, rules, sees, sighted)
    hear_all(units, battle, kinds, rules, hears, bearing)
    share_all(units, battle, kinds, rules, sees, hears, bearing)


@compiled
def judge(units: Records, battle: Record, rules: Record) -> None:
    """Decide whether the round is over, and which side has won.

    A side without units has lost totally. A round also ends when no missile is left on a living unit or in the air, or
    after the last step: then the side with more units has won.
    """
    red = blue = missiles = 0
    for i in range(len(units)):
        unit = units[i]
        if unit.alive:
            missiles += unit.long_left + unit.medium_left
            if i < rules.red:
                red += 1
            else:
                blue += 1
    if red > 0 and blue > 0 and missiles + battle.flying > 0 and battle.steps < rules.max_steps:
        return
    battle.over = True
    if red == blue:
        battle.outcome = 0
    elif red == 0 or blue == 0:
        battle.outcome = 2 if blue == 0 else -2
    else:
        battle.outcome = 1 if red > blue else -1


@compiled
def round_reward(outcome: int, rules: Record) -> float:
    """Return the reward of a round for a side with this outcome."""
    if outcome == 0:
        return float(rules.draw)
    if outcome > 0:
        return float(rules.total_win if outcome == 2 else rules.win)
    return float(rules.total_loss if outcome == -2 else rules.loss)


@compiled
def play_step(
    units: Records,
    missiles: Records,
    battle: Record,
    kinds: Records,
    rules: Record,
    sees: Bools,
    hears: Bools,
    bearing: Doubles,
    sighted: Bools,
    orders: Ints,
) -> None:
    """Play a world step: units move, sensors are updated, missiles are fired, fly and hit."""
    battle.steps += 1
    for i in range(len(units)):
        units[i].reward = rules.alive if units[i].alive else 0.0
    obey(units, kinds, rules, orders)
    sense(units, battle, kinds, rules, sees, hears, bearing, sighted)
    before = attack_all(units, missiles, battle, kinds, rules)
    fly_all(before, units, missiles, battle, kinds, rules)
    fall_all(units, missiles, battle)
    judge(units, battle, rules)
