"""How the simulator's functions are compiled: never with fast-math, which may round differently."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from ..compiling import CompiledPackage, import_numba

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = CompiledPackage("skirmish", Path(__file__).parent, module=__name__)

compiled = CODE.compiled


def inlined(function: _F) -> _F:
    """Compile as part of each caller: for what is done for every unit in every tick."""
    return cast("_F", import_numba().njit(nogil=True, error_model="numpy", forceinline=True)(function))
