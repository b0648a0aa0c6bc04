"""Schemas of entries: checking entries, one or many at a time, and collecting them into chunks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from components.replay_buffers.episode_store import Episodes, EpisodeStore
from components.replay_buffers.invalid import InvalidExperience, describe
from components.replay_buffers.rows import Field, RowStore, checked
from components.replay_buffers.storage import empty
from components.replay_buffers.windows import NStep, Window

if TYPE_CHECKING:  # importing environments imports a compiler
    from components.envs.base import EnvSpec

Rows = Mapping[str, NDArray[Any]]
"""Consecutive entries by field, as a replay buffer inserts them."""
CheckPriorities = Callable[[NDArray[np.floating[Any]], int], object]
"""Raises `InvalidExperience` unless an array has that many priorities, all accepted by the replay buffer."""

BLOCK_BYTES = 1 << 20
"""Bytes of entries that are collected in one piece of memory and can be sent in one message."""
BLOCK_ROWS = 4096
"""Largest number of entries that are collected in one piece of memory."""


Span = tuple[int, int] | None
"""First row, and end, of entries in arrays; None for all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class EntryChunk:
    """Consecutive entries that are inserted together, in arrays that may hold other entries before and after them."""

    arrays: Rows
    """Read-only if they hold other entries."""
    span: Span
    priorities: NDArray[np.float64]  # (N,), or none
    n: int
    """Number of entries, N."""
    first: bool
    """True if it begins an episode and was never on its way to the server."""
    last: bool
    """True if it ends an episode."""
    number: int
    """Serial number."""

    @property
    def rows(self) -> Rows:
        """The entries, as a replay buffer inserts them."""
        return self.rows_to(self)

    def rows_to(self, last: "EntryChunk") -> Rows:
        """Return the entries from this chunk to `last`; each chunk between follows the one before."""
        if self.span is None or last.span is None:
            return self.arrays
        return {name: array[self.span[0] : last.span[1]] for name, array in self.arrays.items()}

    def follows(self, other: "EntryChunk") -> bool:
        """Return whether this chunk can be sent with `other`, in the same arrays: it begins where `other` ends.

        Both have priorities, or neither has.
        """
        if self.span is None or other.span is None or self.arrays is not other.arrays:
            return False
        return self.span[0] == other.span[1] and bool(len(self.priorities)) == bool(len(other.priorities))


class EntrySchema(ABC):
    """Checks entries of one layout, and collects them into chunks.

    Args:
        check_priorities: checks priorities as the replay buffers of the layout do.
    """

    together: bool = False
    """True if sampled items are made of consecutive entries."""
    one_at_a_time: bool = False
    """True if chunks are sent one at a time, because the rows of an array are not entries."""

    def __init__(self, check_priorities: CheckPriorities) -> None:
        self.check_priorities = check_priorities

    @abstractmethod
    def put(self, entry: Mapping[str, Any]) -> None:
        """Check an entry and copy it. The next `keep` collects it, unless `put` or `take` is called before.

        Raises:
            InvalidExperience: it is malformed; the message names the field and the expected value.
        """

    @abstractmethod
    def keep(self) -> None:
        """Collect the entry that was put last."""

    @abstractmethod
    def take(self) -> tuple[Rows, Span]:
        """Return the collected entries, as arrays and a span of these, and start a new chunk."""

    def check(self, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> int:
        """Return the number of entries.

        Raises:
            InvalidExperience: entries or priorities are malformed; the message names the field and the expected value.
        """
        n = self._check_rows(rows)
        if priorities is not None:
            self.check_priorities(priorities, n)
        return n

    @abstractmethod
    def _check_rows(self, rows: Rows) -> int: ...

    def is_end(self, entry: Mapping[str, Any]) -> bool:
        """Return whether an entry ends an episode, so that no item contains both it and the next entry."""
        return True

    @abstractmethod
    def chunks(self, rows: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Rows, Span, int, bool]]:
        """Yield up to `most` entries at a time: copies, a span of these, their number, and whether they end an episode.

        Args:
            rows: checked entries. No entry is collected.
            most: largest number of entries of a chunk; at most that of a collected chunk.
            at_ends: True if a chunk ends where an episode ends.
        """

    def split(
        self, rows: Rows, priorities: NDArray[np.float64], sizes: Sequence[int]
    ) -> Iterable[tuple[Rows, NDArray[np.float64]]]:
        """Return the rows and priorities, maybe none, of each chunk; without several `sizes` all are one chunk.

        Raises:
            InvalidExperience: `sizes` do not fit the entries; or the layout requires one chunk at a time.
        """
        if len(sizes) < 2:
            return [(rows, priorities)]
        if self.one_at_a_time:
            raise InvalidExperience(f"sizes: expected one chunk of episodes at a time, got {len(sizes)}")
        n = sum(sizes)
        if min(sizes) < 1 or len(priorities) not in (0, n):
            raise InvalidExperience(
                f"sizes: expected chunks of at least 1 entry, and {n} priorities or none, got {sizes} and "
                f"{len(priorities)}"
            )
        for name, array in rows.items():
            if array.ndim == 0 or len(array) != n:
                raise InvalidExperience(f"{name}: expected {n} rows, {len(sizes)} chunks together, got {array.shape}")
        return (
            ({name: array[stop - size : stop] for name, array in rows.items()}, priorities[stop - size : stop])
            for size, stop in zip(sizes, accumulate(sizes), strict=True)
        )


class TransitionSchema(EntrySchema):
    """Schema of entries that are transitions.

    Transitions are collected in blocks of memory, so that consecutive chunks can be sent together without another
    copy. A row is written once, and returned chunks are read-only.

    Args:
        fields: fields of a transition.
        chunk: largest number of entries of a chunk.
        check_priorities: as for `EntrySchema`.
        multi_row: the n-step or window settings that make items of consecutive transitions.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        chunk: int,
        check_priorities: CheckPriorities,
        multi_row: Sequence[NStep | Window] = (),
    ) -> None:
        super().__init__(check_priorities)
        self.together = bool(multi_row)
        self._ends = sorted({it.end for it in multi_row})
        self._fields, self._chunk = fields, chunk
        self._checker = RowStore(fields, 1)
        row_bytes = sum(np.dtype(f.dtype).itemsize * prod(f.shape) for f in fields.values())
        self._n_rows = max(min(BLOCK_BYTES // max(row_bytes, 1), BLOCK_ROWS) // chunk, 1) * chunk
        self._begin_block()

    def _begin_block(self) -> None:
        self._block = {name: empty((self._n_rows, *f.shape), f.dtype) for name, f in self._fields.items()}
        self._handed_out = {name: _read_only(array) for name, array in self._block.items()}
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
                # Fast path for scalars and arrays of the field's own dtype; `checked` handles all other values.
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

    def take(self) -> tuple[Rows, Span]:
        arrays, span = self._handed_out, (self._start, self._next)
        self._begin_chunk()
        return arrays, span

    def _begin_chunk(self) -> None:
        """Begin a chunk, in new memory unless there is room for a whole one."""
        self._start = self._next
        if self._n_rows - self._next < self._chunk:
            self._begin_block()

    def _check_rows(self, rows: Rows) -> int:
        return self._checker.check(rows)

    def is_end(self, entry: Mapping[str, Any]) -> bool:
        return all(bool(entry[name]) for name in self._ends)

    def chunks(self, rows: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Rows, Span, int, bool]]:
        spans = self._spans(rows, most, at_ends=at_ends)
        while spans:
            begin, row, arrays = spans[0][0], self._next, self._handed_out
            fitting = [span for span in spans if span[1] - begin <= self._n_rows - row]
            end = fitting[-1][1]
            for name, array in self._block.items():
                array[row : row + end - begin] = rows[name][begin:end]
            self._next = row + end - begin
            self._begin_chunk()
            spans = spans[len(fitting) :]
            for first, stop, last in fitting:
                yield arrays, (row + first - begin, row + stop - begin), stop - first, last

    def _spans(self, rows: Rows, most: int, *, at_ends: bool) -> list[tuple[int, int, bool]]:
        """Return first row and end of each chunk, and whether it ends an episode."""
        n = len(next(iter(rows.values())))
        ends = np.ones(n, np.bool_)
        for name in self._ends:
            ends &= rows[name]
        cuts = np.flatnonzero(ends) + 1 if at_ends else np.zeros(0, np.int64)
        spans = []
        start = 0
        for stop in sorted({*cuts.tolist(), n}):
            for first in range(start, stop, most):
                end = min(first + most, stop)
                spans.append((first, end, end == stop and bool(ends[stop - 1])))
            start = stop
        return spans


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only array on the same memory, for messages: rows are not written after they were taken."""
    memory = array.reshape(-1).view(np.uint8).data.toreadonly()
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


class EpisodeSchema(EntrySchema):
    """Schema of entries that are whole episodes.

    Args:
        spec: sizes of the environment.
        check_priorities: as for `EntrySchema`.
    """

    one_at_a_time = True

    def __init__(self, spec: "EnvSpec", check_priorities: CheckPriorities) -> None:
        super().__init__(check_priorities)
        self._checker = EpisodeStore(spec, 1)
        self._names = [*self._checker.items, "terminated"]
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
        self._checker.check(Episodes(**values))
        self._put = values

    def keep(self) -> None:
        self._episodes.append({name: array.copy() for name, array in self._put.items()})
        self._put = {}

    def take(self) -> tuple[Rows, Span]:
        episodes, self._episodes = self._episodes, []
        if len(episodes) == 1:
            return episodes[0], None
        return {name: np.concatenate([it[name] for it in episodes]) for name in episodes[0]}, None

    def _check_rows(self, rows: Rows) -> int:
        if rows.keys() != {*self._names, "lengths"}:
            raise InvalidExperience(f"expected the fields {[*self._names, 'lengths']}, got {list(rows)}")
        return self._checker.check(Episodes(**rows))

    def chunks(self, rows: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[Rows, Span, int, bool]]:
        lengths = rows["lengths"]
        steps = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        for start in range(0, len(lengths), most):
            stop = min(start + most, len(lengths))
            spans = dict.fromkeys(self._checker.schema.frames, (steps[start] + start, steps[stop] + stop))
            spans |= dict.fromkeys(self._checker.schema.steps, (steps[start], steps[stop]))
            chunk = {name: array[slice(*spans.get(name, (start, stop)))].copy() for name, array in rows.items()}
            yield chunk, None, stop - start, True
