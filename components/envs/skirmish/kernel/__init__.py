"""The battle itself, as plain scalar code: one tick of one battle, then everything that SMAC makes of it.

numba compiles this package; with `NUMBA_DISABLE_JIT=1` the very same lines run in the interpreter and give the same
bits. That holds because only `+ - * /` and `sqrt` are used, which IEEE 754 defines exactly: directions are unit
vectors, never angles, and the random numbers are integers.
"""

from components.compiling import COMPILED
from components.envs.skirmish.kernel.batch import first_refused, reset_all, show_all, step_all
from components.envs.skirmish.kernel.chance import draw
from components.envs.skirmish.kernel.compiling import CODE, records

__all__ = [
    "CODE",
    "COMPILED",
    "draw",
    "first_refused",
    "records",
    "reset_all",
    "show_all",
    "step_all",
]
