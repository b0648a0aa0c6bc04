"""The embedded simulator of the StarCraft multi-agent challenge: an installable package of its own, `skirmish`.

It depends on NumPy and numba alone and knows nothing of the rest of the project. Names are imported when they are first
used: the battle itself stands on numba, which takes long to import.
"""

from .lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
