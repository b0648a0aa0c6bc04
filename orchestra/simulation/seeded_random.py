"""The random numbers of a simulation: one sequence, decided by the seed."""

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")

BATCH = 1024
"""Numbers drawn at once: a numpy call for each would cost more than the decision that needs it."""


class SeededRandom:
    """Random numbers of one seed; the same calls return the same numbers on every machine."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.Generator(np.random.PCG64DXSM(seed))
        self._numbers = self._batches()
        self._bytes = b""

    def _batches(self) -> Iterator[float]:
        while True:
            yield from self._rng.random(BATCH).tolist()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * next(self._numbers)

    def exponential(self, mean: float) -> float:
        """Return an exponentially distributed number, such as the time between independent events."""
        return -mean * math.log1p(-next(self._numbers))

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return next(self._numbers) < probability

    def below(self, n: int) -> int:
        """Return an integer in [0, n)."""
        return int(next(self._numbers) * n)

    def choice(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.below(len(options))]

    def bytes(self, n: int) -> bytes:
        """Return `n` bytes: the secrets and nonces of simulated nodes."""
        if len(self._bytes) < n:
            self._bytes = self._rng.bytes(max(BATCH, n))
        drawn, self._bytes = self._bytes[:n], self._bytes[n:]
        return drawn
