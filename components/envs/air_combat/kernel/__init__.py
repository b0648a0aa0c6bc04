"""The battle itself, as plain scalar code: one world step of one battle, and its observations.

numba compiles this package; with `NUMBA_DISABLE_JIT=1` the same lines run in the interpreter.
"""

from components.envs.skirmish.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
