"""What entries have to be like, one or many at a time, and how chunks are made of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from components.replay_buffers.episodes import FRAME_FIELDS, STEP_FIELDS, EpisodeReplay
from components.replay_buffers.invalid import InvalidExperience, describe
from components.replay_buffers.storage import empty
from components.replay_buffers.transitions import Field, NStep, Transitions, checked
from components.replay_buffers.windows import Window

if TYPE_CHECKING:  # it brings a compiler along
    from components.envs.base import EnvSpec

Rows = Mapping[str, NDArray[Any]]
"""Entries that follow each other, by field: what a memory inserts."""


BLOCK_BYTES = 1 << 20
"""Bytes of entries that are collected into one piece of memory, and so may travel together."""
BLOCK_ROWS = 4096
"""And as many entries at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Entries that follow each other, in arrays which may hold others before and after them."""

    arrays: Rows
    """Read-only, where there may be others."""
    span: tuple[int, int] | None = None
    """From which of their rows on, and before which. None: they hold these entries only."""

    @property
    def rows(self) -> Rows:
        """The entries, as a memory inserts them."""
        if self.span is None:
            return self.arrays
        start, stop = self.span
        return {name: array[start:stop] for name, array in self.arrays.items()}

    def goes_on(self, other: "Part") -> bool:
        """Whether it begins in the same arrays where `other` ends."""
        if self.span is None or other.span is None:
            return False
        return self.arrays is other.arrays and self.span[0] == other.span[1]

    def up_to(self, other: "Part") -> "Part":
        """Return the entries from these to `other`, which goes on from them."""
        assert self.span is not None
        assert other.span is not None
        return Part(self.arrays, (self.span[0], other.span[1]))


class Form(Protocol):
    """Checks entries, and collects them."""

    together: bool
    """Whether what is drawn is made of entries that follow each other."""

    def put(self, entry: Mapping[str, Any]) -> None:
        """Check an entry and copy it. It is the next of those that were collected if `keep` is called at once.

        Raises:
            InvalidExperience: it is malformed; the message names the field and what was expected.
        """

    def keep(self) -> None:
        """Count the entry that was put last among those that were collected."""

    def check_many(self, entries: Rows) -> int:
        """Return how many entries these are.

        Raises:
            InvalidExperience: they are malformed; the message names the field and what was expected.
        """

    def take(self) -> Part:
        """Return those that were collected, and begin anew. What was put and not kept is to be put again."""

    def is_end(self, entry: Mapping[str, Any]) -> bool:
        """Whether an episode ends with an entry, so that nothing is made of it and the next."""

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Part, int, bool]]:
        """Yield copies of up to `most` entries at a time, how many, and whether an episode ends with them.

        Args:
            entries: many that were checked. None is collected.
            most: entries of a part.
            at_ends: whether a part ends where an episode does.
        """

    def split(self, entries: Rows, sizes: Sequence[int]) -> list[Rows]:
        """Return entries so many at a time. They need not have been checked.

        Raises:
            InvalidExperience: they are not as many together; or such entries come by themselves only.
        """


class RowForm:
    """Of entries that are transitions.

    They are collected in blocks of memory: what follows each other there can travel together without another copy. A
    row is written once, and what was taken is handed out read-only.

    Args:
        fields: what they hold.
        chunk: entries that are collected at most.
        together: what makes items of entries that follow each other.
    """

    def __init__(self, fields: Mapping[str, Field], chunk: int, together: Sequence[NStep | Window] = ()) -> None:
        self.together = bool(together)
        self._ends = sorted({it.end for it in together})
        self._fields, self._chunk = fields, chunk
        self._checker = Transitions(fields, 1)
        row_bytes = sum(np.dtype(f.dtype).itemsize * prod(f.shape) for f in fields.values())
        self._n_rows = max(min(BLOCK_BYTES // max(row_bytes, 1), BLOCK_ROWS) // chunk, 1) * chunk
        self._begin_block()

    def _begin_block(self) -> None:
        self._block: dict[str, NDArray[Any]] = {}
        self._given: dict[str, NDArray[Any]] = {}
        for name, field in self._fields.items():
            array = empty((self._n_rows, *field.shape), field.dtype)
            self._block[name] = array
            self._given[name] = read_only(array)
        self._columns = [
            (name, None if shape else dtype.type, shape, dtype, finite, self._block[name])
            for name, shape, dtype, finite in self._checker.checks
        ]
        self._start = self._next = 0

    def put(self, entry: Mapping[str, Any]) -> None:
        if len(entry) != len(self._columns):
            self._checker.check_row(entry)
        row = self._next
        try:
            for name, scalar, shape, dtype, finite, array in self._columns:
                value = entry[name]
                kind = type(value)
                # The two that are common are told by little. All else is looked at by who knows all there may be.
                if (
                    kind is not scalar and (kind is not ndarray or value.dtype is not dtype or value.shape != shape)
                ) or (finite and not (isfinite(value) if kind is scalar else np.isfinite(value).all())):
                    value = checked(value, name, shape, dtype, finite)
                array[row] = value
        except KeyError:
            self._checker.check_row(entry)
            raise

    def keep(self) -> None:
        self._next += 1

    def check_many(self, entries: Rows) -> int:
        return self._checker.check_rows(entries)

    def take(self) -> Part:
        part = Part(self._given, (self._start, self._next))
        self._start = self._next
        if self._n_rows - self._next < self._chunk:
            self._begin_block()
        return part

    def is_end(self, entry: Mapping[str, Any]) -> bool:
        return all(bool(entry[name]) for name in self._ends)

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Part, int, bool]]:
        pieces = self._pieces(entries, most, at_ends=at_ends)
        while pieces:
            begin, room = pieces[0][0], self._n_rows - self._next
            fitting = [piece for piece in pieces if piece[1] - begin <= room]
            if not fitting:
                self._begin_block()
                continue
            row, end, given = self._next, fitting[-1][1], self._given
            for name, array in self._block.items():
                array[row : row + end - begin] = entries[name][begin:end]
            self._start = self._next = row + end - begin
            pieces = pieces[len(fitting) :]
            for first, stop, last in fitting:
                yield Part(given, (row + first - begin, row + stop - begin)), stop - first, last
        if self._n_rows - self._next < self._chunk:
            self._begin_block()

    def _pieces(self, entries: Rows, most: int, *, at_ends: bool) -> list[tuple[int, int, bool]]:
        """Return where each part begins and ends, and whether an episode ends with it."""
        n = len(next(iter(entries.values())))
        ends = np.ones(n, np.bool_)
        for name in self._ends:
            ends &= entries[name]
        cuts = np.flatnonzero(ends) + 1 if at_ends else np.zeros(0, np.int64)
        pieces = []
        start = 0
        for stop in sorted({*cuts.tolist(), n}):
            for first in range(start, stop, most):
                end = min(first + most, stop)
                pieces.append((first, end, end == stop and bool(ends[stop - 1])))
            start = stop
        return pieces

    def split(self, entries: Rows, sizes: Sequence[int]) -> list[Rows]:
        n = sum(sizes)
        for name, array in entries.items():
            if array.ndim == 0 or len(array) != n:
                raise InvalidExperience(f"{name}: expected {n} rows, {len(sizes)} chunks together, got {array.shape}")
        stops = list(accumulate(sizes))
        return [
            {name: array[stop - size : stop] for name, array in entries.items()}
            for size, stop in zip(sizes, stops, strict=True)
        ]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array's memory as one that messages may refer to: who has this, never writes what was handed out."""
    memory = array.reshape(-1).view(np.uint8).data.toreadonly()
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


class EpisodeForm:
    """Of entries that are whole episodes.

    Args:
        spec: sizes of the environment.
    """

    together = False

    def __init__(self, spec: "EnvSpec") -> None:
        self._checker = EpisodeReplay(spec, 1)
        self._names = [*FRAME_FIELDS, *STEP_FIELDS, "terminated"]
        self._episodes: list[dict[str, NDArray[Any]]] = []
        self._put: dict[str, NDArray[Any]] = {}

    def put(self, entry: Mapping[str, Any]) -> None:
        if entry.keys() != set(self._names):
            raise InvalidExperience(f"expected the fields {self._names}, got {list(entry)}")
        terminated, reward = entry["terminated"], entry["reward"]
        if not isinstance(terminated, (bool, np.bool_)):
            raise InvalidExperience(f"terminated: expected a bool, got {describe(terminated)}")
        if not isinstance(reward, np.ndarray) or reward.ndim != 1:
            raise InvalidExperience(f"reward: expected float32 of shape (T,), got {describe(reward)}")
        values = dict(entry) | {
            "terminated": np.array([terminated], np.bool_),
            "lengths": np.array([len(reward)], np.int32),
        }
        self._checker.check_episodes(values)
        self._put = values

    def keep(self) -> None:
        self._episodes.append({name: array.copy() for name, array in self._put.items()})
        self._put = {}

    def check_many(self, entries: Rows) -> int:
        return self._checker.check_episodes(entries)

    def take(self) -> Part:
        episodes, self._episodes = self._episodes, []
        if len(episodes) == 1:
            return Part(episodes[0])
        return Part({name: np.concatenate([it[name] for it in episodes]) for name in episodes[0]})

    def is_end(self, entry: Mapping[str, Any]) -> bool:
        return True

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Part, int, bool]]:
        lengths = entries["lengths"]
        steps = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        for start in range(0, len(lengths), most):
            stop = min(start + most, len(lengths))
            part = {}
            for name, array in entries.items():
                if name in FRAME_FIELDS:
                    part[name] = array[steps[start] + start : steps[stop] + stop].copy()
                elif name in STEP_FIELDS:
                    part[name] = array[steps[start] : steps[stop]].copy()
                else:
                    part[name] = array[start:stop].copy()
            yield Part(part), stop - start, True

    def split(self, entries: Rows, sizes: Sequence[int]) -> list[Rows]:
        if len(sizes) != 1:
            raise InvalidExperience(f"sizes: expected one chunk of episodes at a time, got {len(sizes)}")
        return [entries]
