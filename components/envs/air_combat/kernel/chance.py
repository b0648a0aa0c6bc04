"""Random numbers: each battle has its own generator."""

from components.envs.air_combat.kernel.compiling import compiled
from components.envs.air_combat.kernel.constants import Record

LOW_32 = 0xFFFFFFFF


@compiled
def draw(battle: Record) -> float:
    """Return a number from [0, 1): the generator sfc32, whose 32-bit sums fit 64-bit integers without overflow."""
    mixed: int = (battle.a + battle.b + battle.counter) & LOW_32
    battle.counter = (battle.counter + 1) & LOW_32
    battle.a = battle.b ^ (battle.b >> 9)
    battle.b = (battle.c + (battle.c << 3)) & LOW_32
    battle.c = (((battle.c << 21) | (battle.c >> 11)) + mixed) & LOW_32
    return mixed / 4294967296.0
