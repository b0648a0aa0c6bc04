"""Environments: their common interface, and the battle simulator, which needs nothing else installed.

Names are imported on first use, because the simulator uses numba, which takes long to import.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
