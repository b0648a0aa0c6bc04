"""How many threads torch uses is a setting of the whole process; several actors of one may want different numbers."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def with_threads(threads: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` with torch using `threads` threads, whatever was set before by whoever shares this process.

    The number stays set: everybody whose computation matters goes through here.
    """
    import torch  # slow to import, and a process that only plans a run does without

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return function(*args, **kwargs)
