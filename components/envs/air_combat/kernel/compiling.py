"""Decorators that compile the kernel's functions: never with fast-math, which may round differently."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from components.envs.skirmish.compiling import UNCOUNTED, CompiledPackage

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = CompiledPackage("air_combat", Path(__file__).parent, module=__name__)


def compiled(function: _F) -> _F:
    """Compile a function that makes no arrays."""
    return CODE.compiled(function, **UNCOUNTED)


def allocating(function: _F) -> _F:
    """Compile a function that makes arrays."""
    return CODE.compiled(function, _nrt=True)  # without the option, numba takes it over from the function's caller
