"""The embedded simulator of the StarCraft multi-agent challenge.

Names are imported when they are first used: the battle itself stands on numba, which takes long to import.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
