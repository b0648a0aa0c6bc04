"""Deduplication: the parts of an array that a trace file already holds.

A batch of episodes repeats episodes of earlier batches. A message says where an array is cut into pieces; each piece is
a tile (`Message.array_pieces`). Each row of another array, one entry along its first axis, is cut into tiles of a fixed
size. A tile that the file holds is referenced instead of written.
"""

from itertools import accumulate, islice
from typing import NamedTuple

import xxhash

from orchestra.actors.axes import AnyArray

TILE = 8 << 10
"""Bytes of a tile; the last one of a row is shorter. Smaller tiles repeat more often, but each costs a microsecond."""
LEAST = 512
"""Least mean size in bytes of the pieces of an array; smaller ones cost more than they save."""
MOST_TILES = 1 << 18
"""Tiles that are remembered, in about 40 MB of memory. Beyond, the older half is forgotten, and written again."""
_SHIFT = 32
"""Bits of a tile's address for its offset. The higher bits are the number of its part, or of the record with it."""
_MASK = (1 << _SHIFT) - 1


class Extent(NamedTuple):
    """Consecutive bytes of an array record that hold part of another array."""

    record: int
    """Offset of the array record in the file."""
    begin: int
    """First byte in the array of that record."""
    length: int


class DedupPlan(NamedTuple):
    """The storage of an array: references to extents, and the parts to write as records of their own.

    Until `DedupIndex.settle`, the record of an extent in a new part is the number of this part, -1 for the first.
    """

    extents: list[Extent]
    """The whole array, in order."""
    new: list[memoryview]
    """The parts that the file does not hold yet."""


class DedupIndex:
    """Places of the tiles in one trace file, by digest."""

    def __init__(self) -> None:
        self._addresses: dict[bytes, int] = {}
        self._fresh: list[bytes] = []

    def plan(self, array: AnyArray, pieces: AnyArray | None = None) -> DedupPlan | None:
        """Return how to store `array`; None where pieces are small or, without pieces, rows are shorter than a tile.

        The caller writes the new parts and calls `settle` before the next plan.

        Args:
            array: C-contiguous, of less than 4 GiB.
            pieces: the number of rows of each piece, (pieces,).
        """
        spans = _row_tiles(array) if pieces is None else _pieces(array, pieces)
        if not spans:
            return None
        self._make_room()
        data = array.reshape(-1).view("u1").data
        addresses, fresh, digest = self._addresses, self._fresh, xxhash.xxh3_128_digest
        extents: list[Extent] = []
        new: list[memoryview] = []
        # The current extent holds the array from byte `since` on; it begins at the address `stored` and ends at
        # `reached`. The current new part begins at byte `part` of the array, -1 for none.
        since = stored = reached = 0
        part = -1
        for at, to in spans:
            tile = digest(data[at:to])
            address = addresses.get(tile)
            if address is None:
                part = at if part < 0 else part
                address = addresses[tile] = (-1 - len(new) << _SHIFT) + at - part
                fresh.append(tile)
            elif part >= 0:
                new.append(data[part:at])
                part = -1
            if address != reached:
                if at:
                    extents.append(Extent(stored >> _SHIFT, stored & _MASK, at - since))
                since, stored, reached = at, address, address
            reached += to - at
        extents.append(Extent(stored >> _SHIFT, stored & _MASK, len(data) - since))
        if part >= 0:
            new.append(data[part:])
        return DedupPlan(extents, new)

    def settle(self, plan: DedupPlan, records: list[int]) -> list[Extent]:
        """Note where the new parts of a plan are written, and return its extents.

        Args:
            plan: the last plan.
            records: the offset of the record of each new part.
        """
        for tile in self._fresh:
            address = self._addresses[tile]
            self._addresses[tile] = (records[-1 - (address >> _SHIFT)] << _SHIFT) + (address & _MASK)
        self._fresh.clear()
        return [each if each.record >= 0 else each._replace(record=records[-1 - each.record]) for each in plan.extents]

    def note(self, array: AnyArray, pieces: AnyArray, record: int) -> None:
        """Note that the pieces of `array` lie in the record at this offset, which may refer to another file."""
        self._make_room()
        data = array.reshape(-1).view("u1").data
        for at, to in _pieces(array, pieces):
            self._addresses.setdefault(xxhash.xxh3_128_digest(data[at:to]), (record << _SHIFT) + at)

    def _make_room(self) -> None:
        if len(self._addresses) > MOST_TILES:
            for tile in list(islice(self._addresses, MOST_TILES // 2)):
                del self._addresses[tile]

    def clear(self) -> None:
        """Forget all tiles: a write failed, or the next file begins."""
        self._addresses.clear()
        self._fresh.clear()


def _row_tiles(array: AnyArray) -> list[tuple[int, int]]:
    """Return the first byte of each tile of each row of `array`, and its end; none where rows are shorter."""
    if array.ndim < 2 or not len(array) or array.nbytes // len(array) < TILE:
        return []
    row = array.nbytes // len(array)
    starts = range(0, array.nbytes, row)
    return [(at, min(at + TILE, start + row)) for start in starts for at in range(start, start + row, TILE)]


def _pieces(array: AnyArray, pieces: AnyArray) -> list[tuple[int, int]]:
    """Return the first byte of each piece of `array` and its end; none where they are small, or are not the array."""
    rows = pieces.tolist()
    if not array.ndim or sum(rows) != len(array) or min(rows, default=0) < 1 or array.nbytes < LEAST * len(rows):
        return []
    ends = [n * (array.nbytes // len(array)) for n in accumulate(rows)]
    return list(zip([0, *ends], ends, strict=False))
