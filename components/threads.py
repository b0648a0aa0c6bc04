"""Thread count of torch, a setting of the whole process that its actors may want to differ."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def with_threads(threads: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` with torch using `threads` threads.

    The number stays set afterwards: every actor that computes with torch calls this first.
    """
    import torch  # slow to import, and a process that only plans a run does without

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return function(*args, **kwargs)
