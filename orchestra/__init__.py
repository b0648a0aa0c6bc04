"""Actors that send each other typed messages, on one machine or many.

A public name is imported when it is first used; `__init__.pyi` lists them. So `import orchestra` costs nothing, and the
command line answers at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
