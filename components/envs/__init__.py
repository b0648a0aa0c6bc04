"""Environments: the interface that all of them have, and the battle simulator that needs nothing installed.

Names are imported when they are first used: the simulator stands on numba, which takes long to import.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
