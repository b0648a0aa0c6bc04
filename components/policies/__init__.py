"""Learning algorithms, one file per paper; each is loaded when it is first used, and torch with it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
