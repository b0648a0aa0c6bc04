"""Battles shown in the terminal, as pictures and as films. Each part is loaded on first use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
