"""Arrays of one message in one piece of memory, as they travel: what is written in shared memory is not copied."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from orchestra.actors import lazy_numpy as np
from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import padded


class MessageArrays:
    """Arrays by name to fill, and then to freeze into a message.

    A message with all of them, in this order, and no others, is read by other processes of this host where it was
    written. A message that has them in another order, or only some of them, is copied where it is sent.

    Args:
        shapes: shape and dtype of each array by name.
        memory: returns memory for that many bytes, or None: `Actor.message_memory`.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[tuple[int, ...], Any]], memory: Callable[[int], AnyArray | None]
    ) -> None:
        self._places: dict[str, tuple[tuple[int, ...], Any, int]] = {}
        end = 0
        for name, (shape, dtype) in shapes.items():
            self._places[name] = shape, np.dtype(dtype), end
            end += padded(prod(shape) * np.dtype(dtype).itemsize)
        lent = memory(end)
        self._memory: AnyArray | None = np.empty(end, np.uint8) if lent is None else lent
        self.arrays = self._views(self._memory)
        """The arrays by name, with undefined contents; none once they are frozen."""

    def freeze(self) -> dict[str, AnyArray]:
        """Return the arrays by name, read-only. `arrays` must not be written to from now on.

        Raises:
            ValueError: they have been frozen before.
        """
        if self._memory is None:
            raise ValueError("these arrays have been frozen before")
        memory, self._memory, self.arrays = self._memory, None, {}
        return self._views(np.frombuffer(memory.data.toreadonly(), np.uint8))

    def _views(self, whole: AnyArray) -> dict[str, AnyArray]:
        return {name: np.ndarray(shape, dtype, whole, begin) for name, (shape, dtype, begin) in self._places.items()}
