"""What of an array is in the file already, so that it need not be written again.

A batch of episodes is made of episodes that were in other batches before, and of padding. So an array is looked at in
tiles: pieces of each of its rows, the entries along its first axis. A tile that the file has is referred to.
"""

from typing import NamedTuple

import xxhash

from orchestra.actors.message import AnyArray

TILE = 8 << 10
"""Bytes of a tile; the last one of a row has fewer. Of smaller ones more come again, but each takes a microsecond."""


class Run(NamedTuple):
    """Bytes of an array that stand together in the file."""

    where: int
    """Their offset in the file."""
    length: int


class Laid(NamedTuple):
    """How an array is put together."""

    runs: list[Run]
    """All of it, in order."""
    new: list[memoryview]
    """What was not in the file."""


class Tiles:
    """The tiles of one file: as many as there is room for in that, and some 30 MB at most for a gigabyte."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}

    def lay(self, array: AnyArray, begin: int) -> Laid | None:
        """Return how to put `array` together, or None if its rows are shorter than a tile.

        Args:
            array: C-contiguous.
            begin: the offset in the file at which what is new will be written, back to back.
        """
        if array.ndim < 2 or not len(array) or array.nbytes // len(array) < TILE:
            return None
        data = array.reshape(-1).view("u1").data
        row = len(data) // len(array)
        places, digest = self._places, xxhash.xxh3_128_digest
        runs: list[Run] = []
        new: list[memoryview] = []
        # The run, and the part of it or of others before it that is new, to which the next tile may belong.
        since = where = reached = 0
        fresh = -1
        for start in range(0, len(data), row):
            end = start + row
            for at in range(start, end, TILE):
                to = min(at + TILE, end)
                tile = digest(data[at:to])
                place = places.get(tile)
                if place is None:
                    place = places[tile] = begin
                    begin += to - at
                    fresh = at if fresh < 0 else fresh
                elif fresh >= 0:
                    new.append(data[fresh:at])
                    fresh = -1
                if place != reached:
                    if at:
                        runs.append(Run(where, at - since))
                    since, where, reached = at, place, place
                reached += to - at
        runs.append(Run(where, len(data) - since))
        if fresh >= 0:
            new.append(data[fresh:])
        return Laid(runs, new)

    def clear(self) -> None:
        """Forget all: it is not in the file, or there is another file."""
        self._places.clear()
