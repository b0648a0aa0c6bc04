"""Thread counts of NumPy's matrix products and of torch: settings of a process, set by each actor that computes."""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
T = TypeVar("T")


def with_threads(threads: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` with NumPy, and torch if it is imported, using `threads` threads.

    The number stays set afterwards, so every actor that computes calls this function first.
    """
    for pool in _pools():
        if pool.num_threads != threads:
            pool.set_num_threads(threads)
    if "torch" in sys.modules:  # a worker that acts by NumPy does not import it
        import torch

        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
    return function(*args, **kwargs)


def with_torch_threads(threads: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Import torch and call `function` as `with_threads` does: for a function that may be the first to import it."""
    import torch  # noqa: F401  # slow to import, and a process that only plans a run does without

    return with_threads(threads, function, *args, **kwargs)


@cache
def _pools() -> list[Any]:
    """Return the thread pools of the libraries that multiply matrices for NumPy."""
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
