"""The battle itself, as plain scalar code: one tick of one battle, then everything that SMAC makes of it.

numba compiles this package; with `NUMBA_DISABLE_JIT=1` the very same lines run in the interpreter and give the same
bits. That holds because only `+ - * /` and `sqrt` are used, which IEEE 754 defines exactly: directions are unit
vectors, never angles, and the random numbers are integers.

Names are imported when they are first used, and numba with them: a process that only plans a run does without.
"""

from ..lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
