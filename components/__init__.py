"""The reinforcement-learning actors, and their building blocks.

Names are loaded when they are first used: torch takes seconds to import, and not every process needs it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
