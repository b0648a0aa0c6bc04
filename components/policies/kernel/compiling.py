"""Compilation of the loops of learning and of acting: no fast-math except fused multiply-adds, so NaN stays NaN."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from components.envs.skirmish.compiling import CompiledPackage

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = CompiledPackage("policies", Path(__file__).parent, module=__name__)
ACTING = CompiledPackage("acting", Path(__file__).parent, module=__name__)
"""The code of processes that only act: they compile no more than they use."""
ARITHMETIC: Any = {"fastmath": {"contract"}}


def compiled(function: _F) -> _F:
    """Compile a function that sums in the written order."""
    return CODE.compiled(function, **ARITHMETIC)


def compiled_for_acting(function: _F) -> _F:
    """Compile a function as `compiled`, for processes that only act."""
    return ACTING.compiled(function, **ARITHMETIC)


def compiled_sums(function: _F) -> _F:
    """Compile a function that may sum in any order, several terms at once."""
    return CODE.compiled(function, fastmath={"contract", "reassoc"})
