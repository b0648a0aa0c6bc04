"""Part files: a replay buffer saved in parts, so that a checkpoint writes only what is new since the one before.

The items of a buffer are numbered in the order of their insertion, and a part has a fixed range of these numbers. A
part that is full never changes: the next checkpoint gets a hard link to its file, or a new file where that is
impossible. The last part still grows and is written again at each save. A checkpoint is complete by itself: its folder
may be copied, and the others removed.

The file at the buffer's own path holds everything else, and names the parts; it is written last. A part's name ends
with a digest of its content, so a file of that name has the right content.
"""

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import xxhash

from components.checkpoints.array_file import (
    ArrayReader,
    CheckpointError,
    JoinedArray,
    StateArray,
    Stored,
    open_checkpoint,
    write_checkpoint,
)

PARTS = 32
"""Parts of a full buffer. At most one holds items that have left the buffer, and one is rewritten at each save."""
NAMES, FIRST, WIDTH = "parts/names", "parts/first", "parts/width"
"""Arrays that name the parts: their names (text as bytes, one per line), the first item held, and the number of items
of a full part."""
_PART_FIRST = "first"
"""Number of the first item in a part file."""


@runtime_checkable
class Parted(Protocol):
    """A buffer whose items leave in the order of their insertion."""

    capacity: int

    @property
    def held(self) -> range:
        """Numbers of the items held."""

    def rest_arrays(self) -> dict[str, StateArray]:
        """Return the arrays of the state that do not have rows for each item."""

    def part_arrays(self, items: range) -> dict[str, StateArray]:
        """Return the other arrays, of the items with these numbers."""

    def rows_of(self, name: str, part: ArrayReader, items: int) -> int:
        """Return how many rows of the array `name` of a part belong to its first `items` items."""

    def restore_from(self, reader: ArrayReader) -> None: ...


class PartFiles:
    """Saves and loads one buffer.

    Args:
        buffer: nothing else may change items that it already holds.
    """

    def __init__(self, buffer: Parted) -> None:
        self._buffer = buffer
        self._full: dict[range, str] = {}
        """Names of the full parts that were saved or loaded, by their items."""
        self._folders: list[Path] = []
        """Folders in which they may be, besides the folders next to the checkpoint that is written."""

    def save(self, path: Path) -> None:
        """Write the buffer's state to `path` and files beside it.

        Raises:
            OSError: a file cannot be written. There is no file at `path` then, if there was none before.
        """
        held = self._buffer.held
        width = max(self._buffer.capacity // PARTS, 1)
        names, full = [], dict[range, str]()
        for number in range(held.start // width, -(-held.stop // width)):
            whole = range(number * width, (number + 1) * width)
            items = range(max(whole.start, held.start), min(whole.stop, held.stop))
            name = self._full.get(whole, "")
            if not (name and self._link(name, path)):
                name = self._write(path, number, items)
            names.append(name)
            if items.stop == whole.stop:
                full[whole] = name
        text = np.frombuffer("\n".join(names).encode(), np.uint8)
        own = {NAMES: text, FIRST: np.array(held.start), WIDTH: np.array(width)}
        write_checkpoint(path, self._buffer.rest_arrays() | {n: StateArray.of(a) for n, a in own.items()}, packed=True)
        self._full, self._folders = full, [path.parent]

    def load(self, path: Path) -> None:
        """Replace the buffer's state with one that `save` wrote, or that the buffer wrote into one file.

        Raises:
            CheckpointError: a file is missing, damaged, or belongs to another buffer. Nothing has changed.
            OSError: there is no file at `path`, or it cannot be read.
        """
        with opened(path, self._buffer) as (reader, full):
            self._buffer.restore_from(reader)
        self._full, self._folders = full, [path.parent]

    def _link(self, name: str, path: Path) -> bool:
        """Link the part of this name into the folder of `path`; return False if no checkpoint has it."""
        target = path.with_name(name)
        for folder in (*self._folders, *path.parent.parent.iterdir()):
            with contextlib.suppress(OSError):  # missing, or on another file system
                os.link(folder / name, target)
                return True
            if target.exists():
                return True  # left by an earlier, interrupted attempt
        return False

    def _write(self, path: Path, number: int, items: range) -> str:
        """Write the items of a part to a file beside `path`; return its name."""
        arrays = self._buffer.part_arrays(items) | {_PART_FIRST: StateArray.of(np.array(items.start))}
        digest = xxhash.xxh3_64()
        for name, array in arrays.items():
            digest.update(name.encode())
            for piece in array.pieces:
                digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        name = f"{path.stem}.{number:06d}-{digest.hexdigest()}.part"
        write_checkpoint(path.with_name(name), arrays, packed=True)
        return name


@contextmanager
def opened(path: Path, buffer: Parted) -> Iterator[tuple[ArrayReader, dict[range, str]]]:
    """Yield the state at `path` with its parts joined, and the names of the full parts by their items.

    Raises:
        CheckpointError, OSError: as for `PartFiles.load`.
    """
    with ExitStack() as stack:
        reader = stack.enter_context(open_checkpoint(path))
        if NAMES not in reader.stored:
            yield reader, {}  # everything is in one file
            return
        first, width = reader.read_count(FIRST), reader.read_count(WIDTH)
        text = reader.read(NAMES, np.uint8, (reader.length(NAMES),)).tobytes().decode()
        names = text.split("\n") if text else []
        parts: list[ArrayReader] = []
        for name in names:
            if Path(name).name != name:
                raise CheckpointError(f"{NAMES}: expected names of files in {path.parent}, got {name!r}")
            try:
                parts.append(stack.enter_context(open_checkpoint(path.with_name(name))))
            except FileNotFoundError as error:
                raise CheckpointError(f"{name}: expected this file beside {path.name}, but it is missing") from error
        rest = {name: stored for name, stored in reader.stored.items() if name not in (NAMES, FIRST, WIDTH)}
        numbers = range(first // width, first // width + len(names)) if width else range(0)
        wholes = [range(number * width, (number + 1) * width) for number in numbers]
        full = dict(zip(wholes, names, strict=True))
        if names and parts[-1].read_count(_PART_FIRST) + parts[-1].length("lengths") < wholes[-1].stop:
            del full[wholes[-1]]  # it still grows
        yield ArrayReader(rest | _joined(parts, first, buffer)), full


def _joined(parts: list[ArrayReader], first: int, buffer: Parted) -> dict[str, Stored]:
    """Return the arrays of all parts by name, without the items before `first`."""
    if not parts:
        return {name: np.empty(array.shape, array.dtype) for name, array in buffer.part_arrays(range(0)).items()}
    gone = first - parts[0].read_count(_PART_FIRST)
    n_items = parts[0].length("lengths")
    if not 0 <= gone <= n_items:
        raise CheckpointError(f"{_PART_FIRST}: expected {first - n_items} to {first}, got {first - gone}")
    joined: dict[str, Stored] = {}
    for name in parts[0].stored:
        if name != _PART_FIRST:
            for part in parts:
                part.length(name)  # refuses a scalar and a missing array
            joined[name] = JoinedArray([part.stored[name] for part in parts], buffer.rows_of(name, parts[0], gone))
    return joined


class WholeFile:
    """Saves and loads a buffer that is not a `Parted`, in one file."""

    def __init__(self, buffer: "Whole") -> None:
        self._buffer = buffer

    def save(self, path: Path) -> None:
        """Write the buffer's state to `path`."""
        self._buffer.save(path, packed=True)

    def load(self, path: Path) -> None:
        """Replace the buffer's state."""
        self._buffer.load(path)


class Whole(Protocol):
    """A buffer that is saved in one file."""

    def save(self, path: Path, *, packed: bool = False) -> None: ...

    def load(self, path: Path) -> None: ...


def files_of(buffer: Whole) -> PartFiles | WholeFile:
    """Return the way to save a buffer: in parts if it supports that."""
    return PartFiles(buffer) if isinstance(buffer, Parted) else WholeFile(buffer)
