"""What entries have to be like, one or many at a time, and how chunks are made of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from components.replay.episodes import FRAME_FIELDS, STEP_FIELDS, EpisodeReplay
from components.replay.invalid import InvalidExperience, describe
from components.replay.transitions import Field, NStep, Transitions
from components.replay.windows import Window

if TYPE_CHECKING:  # it brings a compiler along
    from components.envs.base import EnvSpec

Rows = Mapping[str, NDArray[Any]]
"""Entries that follow each other, by field: what a memory inserts."""


class Form(Protocol):
    """Checks entries, and collects them."""

    together: bool
    """Whether what is drawn is made of entries that follow each other."""

    def check_one(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return an entry as `put` takes it.

        Raises:
            InvalidExperience: it is malformed; the message names the field and what was expected.
        """

    def check_many(self, entries: Rows) -> int:
        """Return how many entries these are.

        Raises:
            InvalidExperience: they are malformed; the message names the field and what was expected.
        """

    def put(self, values: Mapping[str, Any]) -> None:
        """Add one to those that were collected; it is copied."""

    def take(self) -> dict[str, NDArray[Any]]:
        """Return those that were collected, and begin anew."""

    def is_end(self, values: Mapping[str, Any]) -> bool:
        """Whether an episode ends with an entry, so that nothing is made of it and the next."""

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[dict[str, NDArray[Any]], int, bool]]:
        """Yield copies of up to `most` entries at a time, how many, and whether an episode ends with them.

        Args:
            entries: many that were checked.
            most: entries of a part.
            at_ends: whether a part ends where an episode does.
        """


class RowForm:
    """Of entries that are transitions.

    Args:
        fields: what they hold.
        chunk: entries that are collected at most.
        together: what makes items of entries that follow each other.
    """

    def __init__(self, fields: Mapping[str, Field], chunk: int, together: Sequence[NStep | Window] = ()) -> None:
        self.together = bool(together)
        self._ends = sorted({it.end for it in together})
        self._fields, self._chunk = fields, chunk
        self._checker = Transitions(fields, 1, slabs=1)
        self._rows: dict[str, NDArray[Any]] = {}
        self._n = 0

    def check_one(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._checker.check_row(entry)

    def check_many(self, entries: Rows) -> int:
        return self._checker.check_rows(entries)

    def put(self, values: Mapping[str, Any]) -> None:
        if not self._n:
            fields = self._fields.items()
            self._rows = {name: np.empty((self._chunk, *f.shape), f.dtype) for name, f in fields}
        for name, array in self._rows.items():
            array[self._n] = values[name]
        self._n += 1

    def take(self) -> dict[str, NDArray[Any]]:
        rows, n = self._rows, self._n
        self._rows, self._n = {}, 0
        return {name: array[:n] for name, array in rows.items()}

    def is_end(self, values: Mapping[str, Any]) -> bool:
        return all(bool(values[name]) for name in self._ends)

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[dict[str, NDArray[Any]], int, bool]]:
        n = len(next(iter(entries.values())))
        ends = np.ones(n, np.bool_)
        for name in self._ends:
            ends &= entries[name]
        cuts = np.flatnonzero(ends) + 1 if at_ends else np.zeros(0, np.int64)
        start = 0
        for stop in sorted({*cuts.tolist(), n}):
            for first in range(start, stop, most):
                part = slice(first, min(first + most, stop))
                last = part.stop == stop and bool(ends[stop - 1])
                yield {name: array[part].copy() for name, array in entries.items()}, part.stop - first, last
            start = stop


class EpisodeForm:
    """Of entries that are whole episodes.

    Args:
        spec: sizes of the environment.
    """

    together = False

    def __init__(self, spec: "EnvSpec") -> None:
        self._checker = EpisodeReplay(spec, 1, slabs=1)
        self._names = [*FRAME_FIELDS, *STEP_FIELDS, "terminated"]
        self._episodes: list[dict[str, NDArray[Any]]] = []

    def check_one(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
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
        return values

    def check_many(self, entries: Rows) -> int:
        return self._checker.check_episodes(entries)

    def put(self, values: Mapping[str, Any]) -> None:
        self._episodes.append({name: array.copy() for name, array in values.items()})

    def take(self) -> dict[str, NDArray[Any]]:
        episodes, self._episodes = self._episodes, []
        if len(episodes) == 1:
            return episodes[0]
        return {name: np.concatenate([it[name] for it in episodes]) for name in episodes[0]}

    def is_end(self, values: Mapping[str, Any]) -> bool:
        return True

    def parts(self, entries: Rows, most: int, *, at_ends: bool) -> Iterator[tuple[dict[str, NDArray[Any]], int, bool]]:
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
            yield part, stop - start, True
