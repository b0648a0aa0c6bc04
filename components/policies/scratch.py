"""Memory that gradient steps reuse."""

import torch
from torch import Tensor


class Scratch:
    """Tensors by name that are handed out again and again; each is large enough for the largest request so far.

    Fresh memory for tens of megabytes per gradient step costs more in page faults than the arithmetic done in it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.passes = 0
        """Passes that have written here."""

    def take(self, name: str, rows: int, columns: int, like: Tensor) -> Tensor:
        """Return an uninitialised (rows, columns) tensor, typed as `like`; it overwrites the last of that name."""
        kept = self._kept.get(name)
        if kept is None or kept.numel() < rows * columns:
            kept = self._kept[name] = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return kept[: rows * columns].view(rows, columns)
