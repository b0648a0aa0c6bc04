"""Selectors: choose the items of a table to draw, or to remove.

Items are slots, 0 to `capacity` - 1, each with a priority, for example an error or the number of draws. A selector
receives every change. Names and the order among equals are those of Reverb (Cassirer et al. 2021).
"""

from heapq import heapify, heappop, heappush
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray
from components.replay_buffers.segment_tree import LARGEST_SUM, SumTree


def _check_items(reader: ArrayReader, there: NDArray[np.int64]) -> None:
    items = reader.read("items", np.int64, (len(there),))
    if not np.array_equal(np.sort(items), there):
        raise CheckpointError(f"items: expected those that are there, {there}, got {items}")


class Selector(Protocol):
    """Interface of selectors. The table checks arguments: items are distinct, priorities finite and at least 0."""

    limit: float
    """Upper bound of priorities, exclusive."""

    def insert(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Add new `items` (n,), in the order of insertion, with their `priorities` (n,)."""

    def update(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Set the `priorities` (n,) of `items` (n,) that are held."""

    def delete(self, items: NDArray[np.int64]) -> None:
        """Remove `items` (n,) that are held."""

    def select(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return `n` items; at least as many are held."""

    def state_arrays(self) -> dict[str, StateArray]:
        """Return the arrays of a checkpoint."""

    def check_state(self, reader: ArrayReader, there: NDArray[np.int64]) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays` for the sorted items `there`."""

    def load_state(self, reader: ArrayReader, n: int) -> None:
        """Load checked arrays of `n` items; earlier items are forgotten."""


class UniformSelector:
    """Draws all items with equal probability, and with repetition."""

    limit = np.inf

    def __init__(self, capacity: int) -> None:
        self._items = np.zeros(capacity, np.int64)  # the first `_n` are held, in any order
        self._places = np.zeros(capacity, np.int64)  # place of each item in `_items`
        self._n = 0

    @property
    def items(self) -> NDArray[np.int64]:
        """Items that are held, in any order."""
        return self._items[: self._n]

    def insert(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        self._items[self._n : self._n + len(items)] = items
        self._places[items] = np.arange(self._n, self._n + len(items))
        self._n += len(items)

    def update(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        pass  # priorities do not matter

    def delete(self, items: NDArray[np.int64]) -> None:
        places, left = self._places[items], self._n - len(items)
        stays = np.ones(len(items), np.bool_)  # for each of the last places, which are freed
        stays[places[places >= left] - left] = False
        moved, holes = self._items[left : self._n][stays], places[places < left]
        self._items[holes], self._places[moved] = moved, holes
        self._n = left

    def select(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        return self._items[rng.integers(0, self._n, n)]

    def state_arrays(self) -> dict[str, StateArray]:
        return {"items": StateArray.of(self.items)}

    def check_state(self, reader: ArrayReader, there: NDArray[np.int64]) -> None:
        _check_items(reader, there)

    def load_state(self, reader: ArrayReader, n: int) -> None:
        self._n = 0
        items = reader.read("items", np.int64, (n,))
        self.insert(items, np.ones(n))


class PrioritizedSelector:
    """Draws in proportion to priority^exponent, and with repetition; a priority of 0 is not drawn unless all are 0.

    Args:
        capacity: number of items.
        exponent: at least 0.

    Raises:
        ValueError: `exponent` is negative or not finite.
    """

    def __init__(self, capacity: int, exponent: float = 1.0) -> None:
        if not (np.isfinite(exponent) and exponent >= 0):
            raise ValueError(f"exponent: expected a finite number of at least 0, got {exponent}")
        self.exponent = exponent
        with np.errstate(over="ignore", divide="ignore"):  # on overflow any finite priority is allowed
            self.limit = float(np.float64(LARGEST_SUM / capacity) ** (1.0 / np.float64(exponent)))
        self._sums = SumTree(capacity)
        self._all = UniformSelector(capacity)

    def insert(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        self._all.insert(items, priorities)
        self.update(items, priorities)

    def update(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        # 0^0 is 0 here: an item of priority 0 is not drawn, for any exponent.
        self._sums[items] = np.where(priorities > 0, priorities**self.exponent, 0.0)

    def delete(self, items: NDArray[np.int64]) -> None:
        self._all.delete(items)
        self._sums[items] = 0.0

    def select(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        if not self._sums.folded > 0:
            return self._all.select(n, rng)
        return self._sums.find(rng.random(n))

    def state_arrays(self) -> dict[str, StateArray]:
        weights = self._sums[self._all.items]
        return {
            **self._all.state_arrays(),
            "weights": StateArray.of(weights),
            "exponent": StateArray.of(np.array(float(self.exponent))),
        }

    def check_state(self, reader: ArrayReader, there: NDArray[np.int64]) -> None:
        self._all.check_state(reader, there)
        reader.expect_value("exponent", float(self.exponent))  # the weights depend on it
        weights = reader.read("weights", np.float64, (len(there),))
        if not (np.isfinite(weights) & (weights >= 0)).all():
            raise CheckpointError(f"weights: expected finite numbers of at least 0, got {weights}")

    def load_state(self, reader: ArrayReader, n: int) -> None:
        self._all.load_state(reader, n)
        self._sums.fill(0, self._sums.size, 0.0)
        self._sums[reader.read("items", np.int64, (n,))] = reader.read("weights", np.float64, (n,))


class _OrderedSelector:
    """Returns the first items, distinct and in order, from a heap whose outdated entries are skipped."""

    limit = np.inf
    _by_age: ClassVar[bool]
    """True if items are ordered by age, False if by priority."""
    _sign: ClassVar[int]
    """1 if the oldest or lowest come first, -1 if the newest or highest do."""

    def __init__(self, capacity: int) -> None:
        self._heap: list[tuple[float, int, int]] = []  # key, tick, item
        self._ticks = np.full(capacity, -1, np.int64)  # tick of the current entry of an item; -1 if it is not held
        self._n = self._tick = 0

    def _put(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        if len(self._heap) + len(items) > 2 * (self._n + len(items)) + 64:
            self._heap = [entry for entry in self._heap if self._ticks[entry[2]] == entry[1]]
            heapify(self._heap)
        for item, priority in zip(items.tolist(), priorities.tolist(), strict=True):
            self._ticks[item] = self._tick
            heappush(self._heap, (self._sign * (self._tick if self._by_age else priority), self._tick, item))
            self._tick += 1

    def insert(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        self._put(items, priorities)
        self._n += len(items)

    def update(self, items: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        if not self._by_age:
            self._put(items, priorities)

    def delete(self, items: NDArray[np.int64]) -> None:
        self._ticks[items] = -1
        self._n -= len(items)

    def select(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        first: list[tuple[float, int, int]] = []
        while len(first) < n:
            entry = heappop(self._heap)
            if self._ticks[entry[2]] == entry[1]:
                first.append(entry)
        for entry in first:
            heappush(self._heap, entry)
        return np.array([item for _, _, item in first], np.int64)

    def state_arrays(self) -> dict[str, StateArray]:
        entries = sorted(entry for entry in self._heap if self._ticks[entry[2]] == entry[1])
        keys, ticks, items = zip(*entries, strict=True) if entries else ((), (), ())
        return {
            "keys": StateArray.of(np.array(keys, np.float64)),
            "ticks": StateArray.of(np.array(ticks, np.int64)),
            "items": StateArray.of(np.array(items, np.int64)),
            "tick": StateArray.of(np.array(self._tick)),
        }

    def check_state(self, reader: ArrayReader, there: NDArray[np.int64]) -> None:
        _check_items(reader, there)
        tick = reader.read_count("tick")
        keys = reader.read("keys", np.float64, (len(there),))
        ticks = reader.read("ticks", np.int64, (len(there),))
        if np.isnan(keys).any():
            raise CheckpointError(f"keys: expected numbers, got {keys}")
        if len(np.unique(ticks)) != len(ticks) or ticks.min(initial=0) < 0 or ticks.max(initial=-1) >= tick:
            raise CheckpointError(f"ticks: expected numbers of 0 to {tick - 1}, each once, got {ticks}")

    def load_state(self, reader: ArrayReader, n: int) -> None:
        keys, ticks = reader.read("keys", np.float64, (n,)), reader.read("ticks", np.int64, (n,))
        items = reader.read("items", np.int64, (n,))
        self._ticks[:] = -1
        self._ticks[items] = ticks
        self._heap = sorted(zip(keys.tolist(), ticks.tolist(), items.tolist(), strict=True))
        self._n, self._tick = n, reader.read_count("tick")


class FifoSelector(_OrderedSelector):
    """Returns the oldest items, for any priorities."""

    _by_age, _sign = True, 1


class LifoSelector(_OrderedSelector):
    """Returns the newest items, for any priorities."""

    _by_age, _sign = True, -1


class LowestSelector(_OrderedSelector):
    """Returns the items of lowest priority, and among equals the ones inserted or updated least recently."""

    _by_age, _sign = False, 1


class HighestSelector(_OrderedSelector):
    """Returns the items of highest priority, and among equals the ones inserted or updated least recently."""

    _by_age, _sign = False, -1
