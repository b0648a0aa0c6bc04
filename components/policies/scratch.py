"""Memory that gradient steps reuse."""

import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_LINE = 16
"""Sizes of arrays in one memory are rounded up to multiples of this: each begins with a line of the cache."""


class Lease:
    """Reserves a `Scratch` for one pass, as long as anything refers to this object."""


class Scratch:
    """Reused tensors by name; each is as large as its largest request so far.

    New memory of tens of megabytes per gradient step would cost more in page faults than the arithmetic of the step.

    Args:
        pinned: True if a GPU may copy from the tensors asynchronously.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._kept: dict[str, Tensor] = {}
        self.passes = 0
        """Number of passes that have written to this memory."""
        self._lease: weakref.ref[Lease] | None = None

    def leased(self) -> "tuple[Scratch, Lease]":
        """Return memory for a pass with a backward pass, and its lease; new memory if a lease on this one is alive."""
        scratch = Scratch(pinned=self._pinned) if self.taken else self
        lease = Lease()
        scratch._lease = weakref.ref(lease)
        return scratch, lease

    @property
    def taken(self) -> bool:
        """True while a pass still needs this memory for its backward pass."""
        return self._lease is not None and self._lease() is not None

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor on the CPU, in the memory of the last one of that name."""
        kept, size = self._kept.get(name), prod(shape)
        if kept is None or kept.numel() < size:
            kept = self._kept[name] = torch.empty(size, dtype=dtype, pin_memory=self._pinned)
        return kept[:size].view(shape)

    def take_arrays(self, name: str, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> tuple[NDArray[Any], ...]:
        """Return uninitialised arrays, one after the other in the memory of that name."""
        sizes = [-(-prod(shape) // _LINE) * _LINE for shape in shapes]
        return cut(self.take(name, (sum(sizes),), dtype).numpy(), shapes, sizes)


def cut(flat: NDArray[Any], shapes: Sequence[tuple[int, ...]], sizes: Sequence[int]) -> tuple[NDArray[Any], ...]:
    """Return arrays of these shapes from a one-dimensional one; each begins `sizes` numbers after the one before."""
    arrays, begin = [], 0
    for shape, size in zip(shapes, sizes, strict=True):
        arrays.append(flat[begin : begin + prod(shape)].reshape(shape))
        begin += size
    return tuple(arrays)
