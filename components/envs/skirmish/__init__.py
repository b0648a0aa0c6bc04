"""The embedded simulator of the StarCraft multi-agent challenge: an installable package of its own, `skirmish`.

It depends only on NumPy and numba, not on the rest of the project. Names are imported at their first use, because the
simulation needs numba, which takes long to import.
"""

from .lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
