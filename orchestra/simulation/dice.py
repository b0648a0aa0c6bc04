"""Dice: what the seed decides, drawn one number after the other."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

BATCH = 1024
"""Numbers drawn at once: a call of numpy for each would cost more than what is decided by it."""


class Dice:
    """Random numbers of one seed; the same calls get the same numbers on every machine."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64DXSM(seed))
        self._numbers = self._batches()
        self._bytes = b""

    def _batches(self) -> Iterator[float]:
        while True:
            yield from self._rng.random(BATCH).tolist()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number from `low` up to, and without, `high`."""
        return low + (high - low) * next(self._numbers)

    def exponential(self, mean: float) -> float:
        """Return a waiting time of this mean, as between events that know nothing of each other."""
        return -mean * math.log1p(-next(self._numbers))

    def chance(self, probability: float) -> bool:
        """Return true this often."""
        return next(self._numbers) < probability

    def below(self, n: int) -> int:
        """Return a whole number from 0 to n - 1."""
        return int(next(self._numbers) * n)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.below(len(options))]

    def bytes(self, n: int) -> bytes:
        """Return `n` bytes: what a simulated node takes for secret."""
        if len(self._bytes) < n:
            self._bytes = self._rng.bytes(max(BATCH, n))
        drawn, self._bytes = self._bytes[:n], self._bytes[n:]
        return drawn
