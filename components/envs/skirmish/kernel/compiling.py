"""Decorators that compile the simulator's functions: never with fast-math, which may round differently.

No function makes an array, so none counts references. On maps of few units the counting took a third of a step.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from ..compiling import UNCOUNTED, CompiledPackage, import_numba

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = CompiledPackage("skirmish", Path(__file__).parent, module=__name__)


def compiled(function: _F) -> _F:
    """Compile for calls from Python. The result is kept on disk."""
    return CODE.compiled(function, **UNCOUNTED)


def internal(function: _F) -> _F:
    """Compile for calls from compiled functions only, which takes less time. Python can't call it."""
    return CODE.compiled(function, internal=True, cached=False, **UNCOUNTED)


def shared(function: _F) -> _F:
    """Compile as `internal` does, and keep the result on disk, for the second process that compiles."""
    return CODE.compiled(function, internal=True, **UNCOUNTED)


def inlined(function: _F) -> _F:
    """Compile into each caller, for what is done for every unit in every tick. Python can't call it."""
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, **UNCOUNTED}
    return cast("_F", import_numba().njit(nogil=True, error_model="numpy", forceinline=True, **options)(function))


def merged(function: _F) -> _F:
    """Merge into the only caller, before types are inferred: one function compiles sooner than two."""
    return cast("_F", import_numba().njit(nogil=True, error_model="numpy", inline="always", **UNCOUNTED)(function))
