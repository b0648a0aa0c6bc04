"""The decorator that compiles the loops of sparse fields."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from components.envs.skirmish.compiling import UNCOUNTED, CompiledPackage

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = CompiledPackage("sparse", Path(__file__).parent, module=__name__)


def compiled(function: _F) -> _F:
    """Compile a function that makes no arrays."""
    return CODE.compiled(function, **UNCOUNTED)
