"""numpy, imported with the first use of one of its names: `from orchestra.actors import lazy_numpy as np`.

The agent of a host has no arrays. Without numpy it starts sooner and takes less memory. A name costs what it costs in
numpy once it was used.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # the import system and pydoc ask for them, and need no numpy
        raise AttributeError(name)
    value = globals()[name] = getattr(import_module("numpy"), name)
    return value
