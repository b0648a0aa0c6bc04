"""Learning algorithms, one file per paper; each is loaded, with torch, when it is first used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
