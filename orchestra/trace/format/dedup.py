"""Deduplication: the parts of an array that a trace file already holds.

A batch of episodes repeats episodes of earlier batches, and padding. Each row of an array, one entry along its first
axis, is cut into tiles. A tile that the file holds is referenced instead of written.
"""

from typing import NamedTuple

import xxhash

from orchestra.actors.axes import AnyArray

TILE = 8 << 10
"""Bytes of a tile; the last one of a row is shorter. Smaller tiles repeat more often, but each costs a microsecond."""


class Extent(NamedTuple):
    """Consecutive bytes of the file that hold part of an array."""

    offset: int
    """First byte in the file."""
    length: int


class DedupPlan(NamedTuple):
    """How an array is stored: references to extents, and the bytes to write."""

    extents: list[Extent]
    """The whole array, in order."""
    new: list[memoryview]
    """The parts that the file does not hold yet."""


class DedupIndex:
    """Offsets of the tiles in one trace file, by digest; at most 30 MB of memory for a file of 1 GiB."""

    def __init__(self) -> None:
        self._offsets: dict[bytes, int] = {}

    def plan(self, array: AnyArray, begin: int) -> DedupPlan | None:
        """Return how to store `array` and index its new tiles; None where its rows are shorter than a tile.

        Args:
            array: C-contiguous.
            begin: offset in the file at which the new parts will be written, back to back.
        """
        if array.ndim < 2 or not len(array) or array.nbytes // len(array) < TILE:
            return None
        data = array.reshape(-1).view("u1").data
        row = len(data) // len(array)
        offsets, digest = self._offsets, xxhash.xxh3_128_digest
        extents: list[Extent] = []
        new: list[memoryview] = []
        # The current extent holds the array from byte `since` on; in the file it begins at `stored` and ends at
        # `reached`. The current new part begins at byte `fresh` of the array, -1 for none.
        since = stored = reached = 0
        fresh = -1
        for start in range(0, len(data), row):
            end = start + row
            for at in range(start, end, TILE):
                to = min(at + TILE, end)
                tile = digest(data[at:to])
                offset = offsets.get(tile)
                if offset is None:
                    offset = offsets[tile] = begin
                    begin += to - at
                    fresh = at if fresh < 0 else fresh
                elif fresh >= 0:
                    new.append(data[fresh:at])
                    fresh = -1
                if offset != reached:
                    if at:
                        extents.append(Extent(stored, at - since))
                    since, stored, reached = at, offset, offset
                reached += to - at
        extents.append(Extent(stored, len(data) - since))
        if fresh >= 0:
            new.append(data[fresh:])
        return DedupPlan(extents, new)

    def clear(self) -> None:
        """Forget all tiles: a write failed, or the next file begins."""
        self._offsets.clear()
