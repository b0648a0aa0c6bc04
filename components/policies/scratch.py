"""Memory that gradient steps reuse."""

import weakref
from math import prod

import torch
from torch import Tensor


class Lease:
    """Keeps a `Scratch` for one pass, for as long as anything refers to this."""


class Scratch:
    """Tensors by name that are handed out again and again; each is large enough for the largest request so far.

    Fresh memory for tens of megabytes per gradient step costs more in page faults than the arithmetic done in it.

    Args:
        pinned: whether a GPU may copy from the tensors while the program goes on.
    """

    def __init__(self, *, pinned: bool = False) -> None:
        self._pinned = pinned
        self._kept: dict[str, Tensor] = {}
        self.passes = 0
        """Passes that have written here."""
        self._lease: weakref.ref[Lease] | None = None

    def leased(self) -> "tuple[Scratch, Lease]":
        """Return memory for a pass that will go back, and its lease: this memory, or another if a lease is alive."""
        scratch = Scratch(pinned=self._pinned) if self.taken else self
        lease = Lease()
        scratch._lease = weakref.ref(lease)
        return scratch, lease

    @property
    def taken(self) -> bool:
        """True while a pass that will go back needs what it has written here."""
        return self._lease is not None and self._lease() is not None

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor on the CPU, which overwrites the last of that name."""
        kept, size = self._kept.get(name), prod(shape)
        if kept is None or kept.numel() < size:
            kept = self._kept[name] = torch.empty(size, dtype=dtype, pin_memory=self._pinned)
        return kept[:size].view(shape)
