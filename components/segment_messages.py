"""Messages of the segments that have ended in a rollout.

Letters in shapes: E segments, N steps and F = N + E frames of all of them, G groups of bits of a frame, V differences.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from components.experience import ExperienceSchema
from components.growing_array import GrowingArray
from components.segments import Ended, joined
from components.sparse import Encoder
from messages import InsertTransitionMsg
from orchestra import Arrays, MessageArrays, SparseArray

_BITS, _VALUES = "/bits", "/values"
"""Endings of the names of the two arrays of a sparse field."""
_COLUMNS: Mapping[str, tuple[str, DTypeLike]] = {
    "lengths": ("segments", np.int32),
    "terminated": ("segments", np.bool_),
    "truncated": ("segments", np.bool_),
    "won": ("segments", np.bool_),
    "versions": ("steps", np.int32),
    "episode": ("segments", np.int64),
    "first": ("segments", np.int32),
    "return_before": ("segments", np.float64),
}
"""Arrays of a message besides the declared fields: the unit of their rows, and their dtype."""


class GrowingRows:
    """Rows that are appended to an array. Its memory is kept when they are removed.

    Args:
        item: shape of a row.
        dtype: of a row.
    """

    def __init__(self, item: tuple[int, ...], dtype: DTypeLike) -> None:
        self._growing = GrowingArray(item, dtype, huge=False)
        self._memory, self._n = np.empty((0, *item), dtype), 0

    def append(self, n: int) -> NDArray[Any]:
        """Return `n` more rows, to be written before the next call."""
        begin, self._n = self._n, self._n + n
        if self._n > len(self._memory):
            n_rows = max(self._n, len(self._memory) * 5 // 4)
            self._memory = self._memory[:0].copy()  # with a reference to its memory, that would be copied
            self._memory = self._growing.extended(n_rows)
        return self._memory[begin : self._n]

    def taken(self) -> NDArray[Any]:
        """Return all rows, and remove them: the next ones are written in their place."""
        n, self._n = self._n, 0
        return self._memory[:n]


class SegmentMessages:
    """Makes messages of ended segments, which lie in rows of a rollout's memories.

    Segments with sparse fields, and segments whose rows are needed before the message is made, are *staged*: copied,
    sparse fields as differences. All others are written directly into the memory of their message.

    Args:
        schema: the fields of a transition.
        memory: memories by field, (rows, frames, …), (rows, steps, …) and (rows, …), and that of the `versions`.
        sparse: whether sparse fields are sent as differences.
        lend: lends memory for messages, as `Actor.message_memory`.
    """

    def __init__(
        self,
        schema: ExperienceSchema,
        memory: Mapping[str, NDArray[Any]],
        *,
        sparse: bool,
        lend: Callable[[int], NDArray[Any] | None],
    ) -> None:
        self._schema, self._memory, self._lend = schema, memory, lend
        self._encoders = {name: Encoder(*schema.items[name]) for name in (schema.sparse if sparse else ())}
        self._arrays = {**self._declared(), **{name: (unit, (), dtype) for name, (unit, dtype) in _COLUMNS.items()}}
        self._stage = {name: GrowingRows(item, dtype) for name, (_, item, dtype) in self._arrays.items()}
        self._pieces: dict[str, list[int]] = {name: [] for name in self._encoders}
        """Differences in each staged segment, by sparse field."""
        self.segments = self.steps = 0
        """Segments that are staged, and their steps."""

    def _declared(self) -> dict[str, tuple[str, tuple[int, ...], DTypeLike]]:
        """Return the arrays of the declared fields, in a message's order: unit of their rows, shape of one, dtype.

        The unit of the differences of a sparse field is its name.
        """
        schema = self._schema
        arrays: dict[str, tuple[str, tuple[int, ...], DTypeLike]] = {}
        for names, unit in ((schema.frames, "frames"), (schema.steps, "steps"), (schema.segments, "segments")):
            for name in names:
                item, dtype = schema.items[name]
                if (encoder := self._encoders.get(name)) is not None:
                    arrays[name + _BITS] = unit, (encoder.groups,), np.uint16
                    arrays[name + _VALUES] = name, (), dtype
                else:
                    arrays[name] = unit, item, dtype
        return arrays

    def stage(self, ended: Ended) -> None:
        """Copy ended segments, so that their rows can be used again."""
        n_rows = _rows_of(ended)
        units = {name: unit for name, (unit, _, _) in self._arrays.items() if unit in n_rows}
        into = {name: self._stage[name].append(n_rows[unit]) for name, unit in units.items()}
        for name, encoder in self._encoders.items():
            memory, values = self._memory[name], self._stage[name + _VALUES]
            place = ended.rows * memory.shape[1], ended.lengths + 1
            for _, some, n_values in encoder.encode(memory, *place, into[name + _BITS]):
                values.append(len(some))[:] = some
                self._pieces[name] += n_values.tolist()
        self._write(ended, into)
        self.segments += n_rows["segments"]
        self.steps += n_rows["steps"]

    def message(self, ended: Ended | None) -> InsertTransitionMsg:
        """Return a message of the staged segments, followed by `ended`. There has to be a segment."""
        if ended is not None and not self._encoders and not self.segments:
            n_rows = _rows_of(ended)
            shapes = {name: ((n_rows[unit], *item), dtype) for name, (unit, item, dtype) in self._arrays.items()}
            made = MessageArrays(shapes, self._lend)
            self._write(ended, made.arrays)
            return self._frozen(made)
        if ended is not None:
            self.stage(ended)
        staged = {name: rows.taken() for name, rows in self._stage.items()}
        made = MessageArrays({name: (array.shape, array.dtype) for name, array in staged.items()}, self._lend)
        for name, array in staged.items():
            made.arrays[name][...] = array
        self.segments = self.steps = 0
        return self._frozen(made)

    def _write(self, ended: Ended, into: Mapping[str, NDArray[Any]]) -> None:
        """Fill the arrays of fields that are not sparse, and the other arrays, with ended segments."""
        columns = ended._asdict()
        for name, array in into.items():
            if name in columns:
                array[...] = columns[name]
            elif name in self._schema.segments:
                array[...] = self._memory[name][ended.rows]
            elif name in self._memory:
                counts = ended.lengths + 1 if name in self._schema.frames else ended.lengths
                joined(self._memory[name], ended.rows, counts, array)

    def _frozen(self, made: MessageArrays) -> InsertTransitionMsg:
        """Return the message of filled arrays."""
        arrays: dict[str, Any] = made.freeze()
        rows = tuple((arrays["lengths"] + 1).tolist())
        for name, encoder in self._encoders.items():
            bits, values = arrays.pop(name + _BITS), arrays.pop(name + _VALUES)
            arrays[name] = SparseArray(bits, values, (len(bits), *encoder.item), rows, tuple(self._pieces[name]))
            self._pieces[name].clear()
        schema = self._schema
        per_frame, per_step, per_segment = (
            Arrays({name: arrays.pop(name) for name in names})
            for names in (schema.frames, schema.steps, schema.segments)
        )
        return InsertTransitionMsg(
            per_frame=per_frame,
            per_step=per_step,
            per_segment=per_segment,
            **arrays,
            newest_version=None,
            sender="",
            source="",
        )


def _rows_of(ended: Ended) -> dict[str, int]:
    """Return the rows of ended segments by unit."""
    n_steps, n_segments = int(ended.lengths.sum()), len(ended.rows)
    return {"frames": n_steps + n_segments, "steps": n_steps, "segments": n_segments}
