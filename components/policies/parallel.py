"""Threads that share the work of a gradient step.

A batch is cut into parts. Each part is a call of compiled code that lets other threads run, and the sums of the parts
are added in their order. So results depend neither on the assignment of parts to threads nor on the number of threads.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial

import torch
from torch import Tensor

MOST_PARTS = 4
"""Largest number of parts of a batch, and so of threads that share a gradient step."""
ROWS_OF_A_PART = 1024
"""Least rows of a part that torch computes. With fewer, threads mostly wait for the interpreter."""
_threads = ContextVar("threads", default=1)


@contextmanager
def own_threads() -> Iterator[None]:
    """Give the parts of a gradient step as many threads as torch may use, and torch one.

    The arrays are too small for torch's own threads, which would only wait busily on the other cores.
    """
    allowed = torch.get_num_threads()
    token = _threads.set(allowed)
    if allowed > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        _threads.reset(token)
        if allowed > 1:
            torch.set_num_threads(allowed)


def parts_of(n_items: int, n_rows: int, device: torch.device) -> list[slice]:
    """Return slices of `n_items` items with about `n_rows` rows in all: the parts that torch computes; one on a GPU.

    They depend only on these sizes, so sums of the parts are always rounded alike.
    """
    most = 1 if device.type == "cuda" else min(MOST_PARTS, n_items, n_rows // ROWS_OF_A_PART)
    n_parts = max(1, most)
    return [slice(n_items * part // n_parts, n_items * (part + 1) // n_parts) for part in range(n_parts)]


def run_parts(parts: Sequence[Callable[[], object]]) -> None:
    """Call each of `parts`, in the threads of `own_threads` or else in this one.

    Raises:
        Exception: the error of the first part that failed, in their order; all parts have ended then.
    """
    n_helpers = min(_threads.get(), len(parts)) - 1
    if n_helpers < 1:
        for part in parts:
            part()
        return
    waiting = list(enumerate(parts))[::-1]
    errors: dict[int, Exception] = {}

    def work() -> None:
        while waiting:
            try:
                number, part = waiting.pop()
            except IndexError:
                return
            try:
                part()
            except Exception as error:
                errors[number] = error

    helping = [_helpers(os.getpid(), n_helpers).submit(work) for _ in range(n_helpers)]
    work()
    for helper in helping:
        # A helper that has not begun is cancelled: no part is left for it.
        if not helper.cancel():
            helper.result()
    if errors:
        raise errors[min(errors)]


def summed_parts(parts: Sequence[slice], share_of: Callable[[slice], list[Tensor]]) -> list[Tensor]:
    """Return the sums of the tensors that `share_of` returns for each part; threads share the parts as in `run_parts`.

    Raises:
        Exception: as `run_parts`.
    """
    shares: list[list[Tensor]] = [[] for _ in parts]

    def compute(number: int) -> None:
        shares[number] = share_of(parts[number])

    run_parts([partial(compute, number) for number in range(len(parts))])
    return summed(shares)


def summed(shares: Iterable[Iterable[Tensor]]) -> list[Tensor]:
    """Return the sums of the first, second, … tensors of all parts, added in order to those of the first part."""
    totals, *others = (list(share) for share in shares)
    for share in others:
        for total, more in zip(totals, share, strict=True):
            total.add_(more)
    return totals


@cache
def _helpers(process: int, n_helpers: int) -> ThreadPoolExecutor:
    """Return a pool of threads for this process: a forked process does not have the threads of its parent."""
    return ThreadPoolExecutor(n_helpers, thread_name_prefix="gradient")
