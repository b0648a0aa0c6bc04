"""The battle simulator as plain scalar code: a tick of one battle, and SMAC's actions, observations and rewards.

numba compiles this package; with `NUMBA_DISABLE_JIT=1` the same lines run in the interpreter and give the same bits.
That holds because only `+ - * /` and `sqrt` are used, which IEEE 754 defines exactly: directions are unit vectors,
never angles, and the random numbers are integers.

Names, and numba with them, are imported when they are first used: a process that only plans a run needs no numba.
"""

from ..lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
