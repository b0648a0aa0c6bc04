"""Array files: the state of an object as plain arrays by name, written to a file and read from it.

A file is an uncompressed npz of NumPy, readable with `np.load`. It has a checksum for each array, holds no pickles, and
appears under its name only when it is whole and on the disk. On request large arrays are packed (`packed_rows`), which
`open_checkpoint` reads as well, and `np.load` does not.
"""

import errno
import json
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from components.checkpoints.packed_rows import PackedArray, pack_rows
from orchestra import replacing

FORMAT = 4
"""Version of the names and meanings of all saved arrays; a file of another format is refused."""

PACKED = ".packed"
"""Suffix of a packed array in an archive."""

PACKED_FROM = 1 << 16
"""Smallest size in bytes of an array that is packed, if packing was requested."""

ROWS = 1024
"""Scattered rows copied at a time."""


class CheckpointError(ValueError):
    """A checkpoint is damaged or belongs to another object; the message names the field and the expected value."""


@dataclass(frozen=True, slots=True)
class StateArray:
    """An array to write, in consecutive pieces along its first axis."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]
    announced: bool = False
    """True if the owner of the memory announces each overwrite; see `Checkpointed.overwrites`."""

    @classmethod
    def of(cls, *pieces: NDArray[Any], announced: bool = False) -> Self:
        """Return the array of one piece or more; a single piece may be a scalar."""
        shape = pieces[0].shape if len(pieces) == 1 else (sum(map(len, pieces)), *pieces[0].shape[1:])
        return cls(pieces[0].dtype, shape, pieces, announced)


@dataclass(frozen=True, slots=True)
class JoinedArray:
    """Arrays of several files, one after the other along their first axis."""

    pieces: Sequence["Stored"]
    skipped: int
    """Rows left out at the beginning."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The common dtype; `object`, which no saved array has, where the pieces differ."""
        dtypes = {piece.dtype for piece in self.pieces}
        return self.pieces[0].dtype if len(dtypes) == 1 else np.dtype(object)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; the axes after the first are those of the first piece."""
        return (sum(piece.shape[0] for piece in self.pieces) - self.skipped, *self.pieces[0].shape[1:])

    def unpack(self) -> NDArray[Any]:
        """Return the array.

        Raises:
            ValueError: the pieces do not fit each other, or one is damaged.
        """
        out, at = np.empty(self.shape, self.dtype), -self.skipped
        for piece in self.pieces:
            rows = _unpacked(piece)
            if rows.shape[1:] != out.shape[1:]:
                raise ValueError(f"a piece has shape {rows.shape}")
            out[max(at, 0) : at + len(rows)] = rows[max(-at, 0) :]
            at += len(rows)
        return out


Stored: TypeAlias = NDArray[Any] | PackedArray | JoinedArray
"""An array of a file, or of several."""


class ArrayReader:
    """Arrays to read by name, each checked against the dtype and shape that the caller expects.

    Every method raises `CheckpointError` if an array is missing or does not fit. The arrays that are returned may be
    read-only views of a file.
    """

    def __init__(self, arrays: Mapping[str, Stored]) -> None:
        self.stored = arrays
        """The arrays by name, packed ones as they are."""

    def expect_names(self, names: Iterable[str], ignored: tuple[str, ...] = ()) -> None:
        """Check that these are the names of all arrays, in any order, except names that begin with one of `ignored`."""
        expected, got = set(names), self.stored.keys()
        for name in sorted(expected - got):
            raise CheckpointError(f"{name}: expected an array of this name, got {sorted(got)}")
        for name in sorted(name for name in got - expected if not name.startswith(ignored)):
            raise CheckpointError(f"{name}: expected no array of this name, but {sorted(expected)}")

    def expect(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> None:
        """Check that there is an array `name` of this dtype and shape."""
        stored = self._find(name)
        if stored.dtype != dtype or stored.shape != shape:
            raise CheckpointError(
                f"{name}: expected {np.dtype(dtype)} of shape {shape}, got {stored.dtype} of shape {stored.shape}"
            )

    def expect_value(self, name: str, value: Any) -> None:
        """Check that the scalar `name` equals `value`."""
        wanted = np.asarray(value)
        stored = self._find(name)
        if stored.shape or stored.dtype.kind != wanted.dtype.kind or not isinstance(stored, np.ndarray):
            raise CheckpointError(f"{name}: expected {value!r}, got {stored.dtype} of shape {stored.shape}")
        if (got := stored.item()) != value:
            raise CheckpointError(f"{name}: expected {value!r}, got {got!r}")

    def expect_format(self) -> None:
        """Check that the arrays have the present format."""
        if (found := self.read_count("format")) != FORMAT:
            raise CheckpointError(f"format: this version reads format {FORMAT} only, got format {found}")

    def length(self, name: str) -> int:
        """Return the length of an array's first axis."""
        shape: tuple[int, ...] = self._find(name).shape
        if not shape:
            raise CheckpointError(f"{name}: expected an array, got a scalar")
        return shape[0]

    def read(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the array `name` of this dtype and shape."""
        self.expect(name, dtype, shape)
        return _unpacked(self._find(name))

    def read_into(self, name: str, out: NDArray[Any]) -> None:
        """Fill `out` with the array `name` of its dtype and shape."""
        out[...] = self.read(name, out.dtype, out.shape)

    def read_count(self, name: str, *, most: int | None = None) -> int:
        """Return the int64 scalar `name`, from 0 to `most`."""
        n = int(self.read(name, np.int64, ()))
        if n < 0 or (most is not None and n > most):
            raise CheckpointError(f"{name}: expected 0 to {'…' if most is None else most}, got {n}")
        return n

    def read_generator(self, name: str, like: np.random.Generator) -> np.random.Generator:
        """Return a generator of the kind of `like` in the state that `generator_array` kept."""
        written = self.read(name, np.uint8, (self.length(name),)).tobytes()
        bits = type(like.bit_generator)()
        try:
            bits.state = json.loads(written)
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{name}: expected the state of a {type(bits).__name__}, got {written!r}") from error
        return np.random.Generator(bits)

    def read_all(self) -> dict[str, NDArray[Any]]:
        """Return copies of all arrays by name."""
        return {name: np.array(_unpacked(stored)) for name, stored in self.stored.items()}

    def part(self, prefix: str) -> "ArrayReader":
        """Return the arrays whose names begin with `prefix` and a slash, under the rest of their names."""
        start = f"{prefix}/"
        return ArrayReader({n.removeprefix(start): stored for n, stored in self.stored.items() if n.startswith(start)})

    def _find(self, name: str) -> Stored:
        if name not in self.stored:
            raise CheckpointError(f"{name}: expected an array of this name, got {sorted(self.stored)}")
        return self.stored[name]


def _unpacked(stored: Stored) -> NDArray[Any]:
    if not isinstance(stored, np.ndarray):
        try:
            return stored.unpack()
        except (ValueError, struct.error) as error:
            raise CheckpointError(f"expected packed rows, got damaged ones: {error}") from error
    return stored


def prefixed(prefix: str, arrays: Mapping[str, StateArray]) -> dict[str, StateArray]:
    """Return `arrays` under the names from which `ArrayReader.part` removes `prefix`."""
    return {f"{prefix}/{name}": array for name, array in arrays.items()}


def generator_array(rng: np.random.Generator) -> StateArray:
    """Return the state of a generator for `ArrayReader.read_generator`."""
    return StateArray.of(np.frombuffer(json.dumps(rng.bit_generator.state).encode(), np.uint8))


class Checkpointed:
    """An object whose state is plain arrays; another object made with the same arguments can restore it.

    `state` returns copies, which another thread may write to a file while the object is in use. `save` copies nothing
    and takes as long as the disk. A subclass adds its own arrays in `_state_arrays`, `_check_state` and `_load_state`.
    """

    state_kind: str
    """Name of the class in a saved state, a constant: the class itself may be renamed or moved."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """Name prefixes of arrays that a saved state may have and this object does not need."""
    overwrites: Callable[[NDArray[Any]], None] | None = None
    """Called with the memory of announced arrays before it is overwritten; set by `Snapshot`."""

    def _state_arrays(self) -> dict[str, StateArray]:
        """Return the arrays to save, as views where possible."""
        return {}

    def _check_state(self, reader: ArrayReader) -> None:
        """Check that the arrays, whose names are right, could come from `_state_arrays`."""

    def _load_state(self, reader: ArrayReader) -> None:
        """Load checked arrays."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `save` writes, as copies."""
        return {name: _joined(array) for name, array in self.state_arrays().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state with the `state` of an object that was made with the same arguments.

        Raises:
            CheckpointError: `state` belongs to another object. The message names the first field that differs and the
                expected value; nothing has changed.
        """
        self.restore_from(ArrayReader({name: np.asarray(array) for name, array in state.items()}))

    def save(self, path: str | Path, *, packed: bool = False) -> None:
        """Write the state to a file, which replaces the one at `path` once it is whole and on the disk.

        Args:
            path: the file.
            packed: write large arrays at about a third of their size; `np.load` cannot read them then.
        """
        write_checkpoint(path, self.state_arrays(), packed=packed)

    def load(self, path: str | Path) -> None:
        """Replace the state with one that `save`, or `write_checkpoint` with a `state`, wrote.

        Raises:
            CheckpointError: as for `restore`; or the file is damaged. Nothing has changed.
            OSError: the file is missing or cannot be read.
        """
        with open_checkpoint(path) as reader:
            self.restore_from(reader)

    def state_arrays(self) -> dict[str, StateArray]:
        """Return all arrays to save, format and kind included, as views where possible."""
        head = {"format": StateArray.of(np.array(FORMAT)), "kind": StateArray.of(np.array(self.state_kind))}
        return head | self._state_arrays()

    def restore_from(self, reader: ArrayReader) -> None:
        """Restore the state as `restore` does, from the arrays of a reader."""
        reader.expect_format()
        reader.expect_value("kind", self.state_kind)
        reader.expect_names(self.state_arrays(), self.ignored)
        self._check_state(reader)
        self._load_state(reader)


def _joined(array: StateArray) -> NDArray[Any]:
    out = np.empty(array.shape, array.dtype)
    flat, at = out.reshape(-1), 0
    for piece in array.pieces:
        flat[at : at + piece.size] = piece.reshape(-1)
        at += piece.size
    return out


# Files ----------------------------------------------------------------------------------------------------------------


def write_checkpoint(
    path: str | Path, arrays: Mapping[str, StateArray] | Mapping[str, NDArray[Any]], *, packed: bool = False
) -> None:
    """Write arrays by name to a file, which replaces the one at `path` once it is whole and on the disk.

    The file at `path` is at any time the old one or the whole new one. A writer that dies leaves a file with `.partial`
    after its name, which is never read and which the next attempt replaces.

    Args:
        path: the file.
        arrays: arrays by name.
        packed: as for `Checkpointed.save`.
    """
    with replacing(Path(path)) as file, ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            _write_array(archive, name, array if isinstance(array, StateArray) else StateArray.of(array), packed=packed)


def _write_array(archive: ZipFile, name: str, array: StateArray, *, packed: bool) -> None:
    if array.dtype.hasobject:
        raise TypeError(f"{name}: expected a dtype of plain memory, got {array.dtype}")
    packed = packed and prod(array.shape) * array.dtype.itemsize >= PACKED_FROM
    suffix = PACKED if packed else ".npy"
    member = ZipInfo(f"{name}{suffix}", (1980, 1, 1, 0, 0, 0))  # equal states make equal bytes
    with archive.open(member, "w", force_zip64=True) as out:
        descr = npy.dtype_to_descr(array.dtype)
        npy.write_array_header_2_0(out, {"descr": descr, "fortran_order": False, "shape": array.shape})
        for piece in array.pieces:
            if packed:
                out.writelines(pack_rows(piece))
            else:
                out.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)


@contextmanager
def open_checkpoint(path: str | Path) -> Iterator[ArrayReader]:
    """Verify an array file, map it into memory and yield its arrays, which are views of the file.

    Raises:
        CheckpointError: the file is damaged.
        OSError: the file is missing or cannot be read.
    """
    with open(path, "rb") as file:
        try:
            with ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise BadZipFile(f"{damaged} does not match its checksum")
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                arrays = {
                    member.filename.removesuffix(".npy").removesuffix(PACKED): _mapped(archive, member, content)
                    for member in archive.filelist
                }
        except (*_SPOILT, OSError) as error:
            # EINVAL is a seek to a position before the file: damage.
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            raise CheckpointError(f"{path}: expected a whole checkpoint, got a damaged one: {error}") from error
    yield ArrayReader(arrays)


_SPOILT = (BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, TypeError, OverflowError, struct.error)
"""Errors that reading a damaged archive raises."""


def _mapped(archive: ZipFile, member: ZipInfo, content: memoryview) -> NDArray[Any] | PackedArray:
    """Return an array of an archive as a view of the archive's content, or packed as it is."""
    with archive.open(member) as file:
        if npy.read_magic(file) != (2, 0):
            raise ValueError(f"{member.filename} is not an array")
        shape, fortran, dtype = npy.read_array_header_2_0(file)
        header_nbytes = file.tell()
    if fortran or dtype.hasobject or member.compress_type != ZIP_STORED:
        raise ValueError(f"{member.filename} is not an array of plain memory in C order")
    # A member begins with 30 bytes that end with the lengths of its name and of its extra field, which follow.
    begin = member.header_offset + 30 + sum(struct.unpack_from("<HH", content, member.header_offset + 26))
    content = content[begin + header_nbytes : begin + member.file_size]
    if member.filename.endswith(PACKED):
        return PackedArray(dtype, shape, content)
    return np.ndarray(shape, dtype, content)
