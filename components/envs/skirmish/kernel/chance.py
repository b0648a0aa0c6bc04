"""Random numbers: each battle has its own generator."""

from .compiling import inlined
from .constants import Record

LOW_32 = 0xFFFFFFFF


@inlined
def draw(battle: Record) -> float:
    """Return a number from [0, 1), of the generator sfc32: its 32-bit sums fit 64-bit integers without overflow."""
    mixed: int = (battle.a + battle.b + battle.counter) & LOW_32
    battle.counter = (battle.counter + 1) & LOW_32
    battle.a = battle.b ^ (battle.b >> 9)
    battle.b = (battle.c + (battle.c << 3)) & LOW_32
    battle.c = (((battle.c << 21) | (battle.c >> 11)) + mixed) & LOW_32
    return mixed / 4294967296.0
