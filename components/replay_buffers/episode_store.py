"""Episodes, and other segments: the record in which they are inserted, and how they are stored and gathered.

Shapes: E segments, N steps and F = N + E frames of all of them together, T steps of the longest.
"""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components import sparse
from components.checkpoints.array_file import ArrayReader, CheckpointError, StateArray, prefixed
from components.envs.base import EnvSpec
from components.experience import EPSILON, ExperienceSchema, SchemaMismatch
from components.replay_buffers.invalid import InvalidExperience, check_array, describe
from components.replay_buffers.ring_space import RingSpace
from components.replay_buffers.rows import Field, load_rows, picked_rows
from components.replay_buffers.segments import LENGTHS, Segment, begins, copy_segments
from components.replay_buffers.sparse_ring import SparseRing
from components.replay_buffers.storage import BatchMemory, Overwrites, allocate, announce, freeze
from orchestra import SparseArray

BITS = np.dtype(np.uint16)
"""Dtype of the bits of sparse fields."""
VALUES, ITEMS = "values/", "items/"
"""Prefixes of the names of saved values of sparse fields, and of saved shapes of their frames."""
VERSIONS = "versions"
"""Name of the array with the parameters' version of each step, which all experience has besides declared fields."""


class Episodes:
    """Whole episodes, or other segments, back to back without padding. Each has one frame more than steps.

    Args:
        lengths: (E,) int32, steps of each.
        terminated: (E,) bool, true where the last frame ends the episode.
        truncated: (E,) bool, true where the episode was cut after the last frame; by default all that are not
            `terminated`: whole episodes.
        versions: (N,) int32, version of the parameters of each step; None where they are unknown.
        fields: the fields of the experience schema by name: (F, …) of frames, (N, …) of steps, (E, …) of segments.
            Sparse fields may be sparse arrays. `epsilon` may be left out; it is then 0.
    """

    __slots__ = ("fields", "lengths", "terminated", "truncated", "versions")

    def __init__(
        self,
        *,
        lengths: NDArray[np.int32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_] | None = None,
        versions: NDArray[np.int32] | None = None,
        **fields: NDArray[Any] | SparseArray,
    ) -> None:
        self.lengths, self.terminated, self.truncated, self.versions = lengths, terminated, truncated, versions
        self.fields: dict[str, Any] = fields

    def __len__(self) -> int:
        """Return the number of segments, E."""
        return len(self.lengths)


def schema_of(spec: EnvSpec | ExperienceSchema) -> ExperienceSchema:
    """Return the schema; for an environment, its schema with policies that explore with probability ε."""
    return spec if isinstance(spec, ExperienceSchema) else spec.schema.having(EPSILON)


def _since(frames: NDArray[Any] | SparseArray, segment: int, frame: int) -> NDArray[Any] | SparseArray:
    """Return the frames of a field from a segment on, which begins with `frame`."""
    return frames.since(segment) if isinstance(frames, SparseArray) else frames[frame:]


class EpisodeStore:
    """Memory for the episodes of a buffer, with room for a full-length episode in every slot.

    Args:
        spec: the experience schema, or an environment, whose policies then explore with probability ε.
        capacity: slots.
        folder: as for `allocate`.
        n_frames: frames of allocated memory; by default enough for all slots.

    Raises:
        OSError: there is no such folder, or too little space in it.
    """

    def __init__(
        self,
        spec: EnvSpec | ExperienceSchema,
        capacity: int,
        *,
        folder: str | Path | None = None,
        n_frames: int | None = None,
    ) -> None:
        self.schema, self.capacity = schema_of(spec), capacity
        self.limit = self.schema.limit
        self._by_frame, self._by_step = self.schema.frames, (*self.schema.steps, VERSIONS)
        self.items = {name: self.schema.items[name] for name in (*self.schema.frames, *self.schema.steps)}
        self._layout = {**self.items, VERSIONS: ((), np.dtype(np.int32))}
        self._folder = folder
        self._sparse = self._sparse_rings()
        self._stored = self._layout | {name: ((ring.groups,), BITS) for name, ring in self._sparse.items()}
        n_frames = capacity * (self.limit + 1) if n_frames is None else n_frames
        self._space = RingSpace(capacity, n_frames)
        self._space.starts[:] = np.arange(capacity) * (self.limit + 1)
        self.arrays = self._allocate(n_frames)
        self.lengths = np.zeros(capacity, np.int32)
        """Steps of the episode in each slot, (capacity,)."""
        self._terminated, self._truncated = np.zeros((2, capacity), np.bool_)
        self._per_segment = {
            name: np.zeros((capacity, *self.schema.items[name][0]), self.schema.items[name][1])
            for name in self.schema.segments
        }
        self._batches = BatchMemory()

    def _sparse_rings(self) -> dict[str, SparseRing]:
        """Return the memory of the fields of which only bits and differences are held; here of none."""
        return {}

    def _allocate(self, n_frames: int) -> dict[str, NDArray[Any]]:
        return {name: allocate((n_frames, *item), dtype, self._folder) for name, (item, dtype) in self._stored.items()}

    def release(self) -> None:
        """Release all memory; batches stay valid."""
        self.arrays, self._sparse = {}, {}
        self._batches = BatchMemory()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory for items."""
        values = sum(ring.values.nbytes for ring in self._sparse.values())
        return values + sum(array.nbytes for array in self.arrays.values())

    @property
    def share_fields(self) -> dict[str, Field | Segment]:
        """Fields of the items of a `ClientSample`, as `FederatedReplay` takes them."""
        segments = {
            name: Segment(
                dtype, item, self.limit, more=int(name in self._by_frame), finite=self.schema.by_name[name].finite
            )
            for name, (item, dtype) in self.items.items()
        }
        return {**segments, LENGTHS: Field(np.int32), "terminated": Field(np.bool_)}

    # Writing --------------------------------------------------------------------------------------------------------

    def check(self, episodes: Episodes) -> int:
        """Return the number of episodes, E.

        Raises:
            InvalidExperience: a field is missing or unknown, a shape or dtype is wrong, a length is not in 1 to the
                limit, or a value is not one that the schema allows. The message names the field and the expected value.
        """
        lengths, limit = episodes.lengths, self.limit
        if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype != np.int32:
            raise InvalidExperience(f"lengths: expected int32 of shape (E,), got {describe(lengths)}")
        n = len(lengths)
        check_array("terminated", episodes.terminated, (n,), np.bool_)
        if episodes.truncated is not None:
            check_array("truncated", episodes.truncated, (n,), np.bool_)
        listed = lengths.tolist()  # for few episodes faster than NumPy
        if not listed or min(listed) < 1 or max(listed) > limit:
            raise InvalidExperience(f"lengths: expected at least one episode of 1 to {limit} steps each, got {lengths}")
        if episodes.versions is not None:
            check_array(VERSIONS, episodes.versions, (sum(listed),), np.int32)
        try:
            self.schema.check(self._fields(episodes), lengths)
        except SchemaMismatch as error:
            raise InvalidExperience(str(error)) from error
        return n

    def _fields(self, episodes: Episodes) -> dict[str, Any]:
        """Return the arrays by field, with zeros for ε if it was left out."""
        fields = episodes.fields
        if "epsilon" in self._per_segment and "epsilon" not in fields:
            return {**fields, "epsilon": np.zeros(len(episodes), np.float32)}
        return fields

    def write(self, slots: NDArray[np.int64], episodes: Episodes, overwrites: Overwrites) -> None:
        """Write the last E of checked episodes to `slots` (E,); overwritten frames are announced first."""
        skipped, fields, versions = len(episodes) - len(slots), self._fields(episodes), episodes.versions
        if versions is None:
            versions = np.full(int(episodes.lengths.sum()), -1, np.int32)
        step = int(episodes.lengths[:skipped].sum()) if skipped else 0
        sources: dict[str, Any] = {name: _since(fields[name], skipped, step + skipped) for name in self._by_frame}
        sources |= {name: fields[name][step:] for name in self.schema.steps} | {VERSIONS: versions[step:]}
        n_steps = episodes.lengths[skipped:].tolist()
        n_frames = [n + 1 for n in n_steps]
        places = slots.tolist()
        starts = self._place(places, n_frames)
        frames, steps = self._space.runs(starts, n_frames), self._space.runs(starts, n_steps)
        if overwrites is not None:
            announce(overwrites, self.arrays.values(), *(slice(to, to + n) for to, _, n in frames))
        for name, ring in self._sparse.items():
            sources[name] = ring.write(places, sources[name], n_frames, overwrites)
        for name in self._by_frame:
            if isinstance(sources[name], SparseArray):  # the field is not held so here
                sources[name] = sparse.dense(sources[name])
        last = [(start + n) % self._space.size for start, n in zip(starts, n_steps, strict=True)]
        for names, runs, empty in ((self._by_frame, frames, []), (self._by_step, steps, last)):
            for name in names:
                into, of = self.arrays[name], sources[name]
                for to, first, n in runs:
                    into[to : to + n] = of[first : first + n]
                for row in empty:  # no action is taken in an episode's last frame
                    into[row] = 0
        self.lengths[slots], self._terminated[slots] = n_steps, episodes.terminated[skipped:]
        truncated = ~episodes.terminated if episodes.truncated is None else episodes.truncated
        self._truncated[slots] = truncated[skipped:]
        for name, array in self._per_segment.items():
            array[slots] = fields[name][skipped:]

    def _place(self, slots: Sequence[int], n_frames: Sequence[int]) -> list[int]:
        """Return the first frames of new episodes of `n_frames`; here every slot has room for any episode."""
        return [slot * (self.limit + 1) for slot in slots]

    # Gathering ------------------------------------------------------------------------------------------------------

    def gather(
        self,
        slots: NDArray[np.int64],
        firsts: NDArray[np.int64],
        lengths: NDArray[np.int32],
        *,
        sparse: bool = False,
    ) -> dict[str, Any]:
        """Return `lengths` (E,) steps of the episodes in `slots` (E,), from step `firsts` (E,) on.

        The result has the arguments of `EpisodeBatch.of_rows` but for the weights. Its arrays are read-only, and
        without padding. Fields of segments are those of the whole segment, even if the part begins later. With `sparse`
        fields that are held as differences are sparse arrays; all parts have to begin with the first step then.
        """
        most, rings = len(slots) * (self.limit + 1), self._sparse if sparse else {}
        rows: dict[int, dict[str, Any]] = {}
        for names, more in ((self._by_frame, 1), (self._by_step, 0)):
            counts = lengths.astype(np.int64) + more
            read, n, rows[more] = self._reader(slots, firsts, counts, begins(counts)), int(counts.sum()), {}
            for name in names:
                if (ring := rings.get(name)) is not None:
                    rows[more][name] = self._sparse_rows(name, ring, slots, counts)
                    continue
                item, dtype = self._layout[name]
                out = self._batches.empty(name, (n, *item), dtype, most * prod(item) * dtype.itemsize)
                read(name, out)
                rows[more][name] = freeze(out)
        versions, ends = rows[0].pop(VERSIONS), firsts + lengths == self.lengths[slots]
        return {
            "lengths": freeze(lengths),
            "terminated": freeze(self._terminated[slots] & ends),
            "truncated": freeze(self._truncated[slots] & ends),
            VERSIONS: versions,
            "per_frame": rows[1],
            "per_step": rows[0],
            "per_segment": {name: freeze(array[slots]) for name, array in self._per_segment.items()},
            "empty": self._batches.empty,
        }

    def _sparse_rows(
        self, name: str, ring: SparseRing, slots: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> SparseArray:
        """Return the first `counts` (E,) frames of a field of the episodes in `slots` (E,), as they are held."""
        first, n_frames = begins(counts), int(counts.sum())
        bits = self._batches.empty(f"{name}/bits", (n_frames, ring.groups), BITS)
        copy_segments(self.arrays[name], bits, self._space.corners(self._space.starts[slots], counts, first))
        n_values = sparse.counts(bits, counts)
        n = int(n_values.sum())
        values = self._batches.empty(f"{VALUES}{name}", (n,), ring.dtype, 2 * n * ring.dtype.itemsize)
        ring.copy(slots, n_values, values)
        sizes = tuple(counts.tolist()), tuple(n_values.tolist())
        return SparseArray(freeze(bits), freeze(values), (n_frames, *ring.item), *sizes)

    def _reader(
        self, slots: NDArray[np.int64], firsts: NDArray[np.int64], counts: NDArray[np.int64], to: NDArray[np.int64]
    ) -> Callable[[str, NDArray[Any]], None]:
        """Return a function that reads a field: `counts` (E,) rows of episodes, from row `firsts` (E,) on.

        Its arguments are the field's name, and the array that it fills from rows `to` (E,) on.
        """
        starts = self._space.starts[slots]
        corners = self._space.corners((starts + firsts) % self._space.size, counts, to)

        def read(name: str, out: NDArray[Any]) -> None:
            ring = self._sparse.get(name)
            if ring is None:
                copy_segments(self.arrays[name], out, corners)
            else:
                ring.read(self.arrays[name], starts, slots, firsts, counts, to, out)

        return read

    def pack(
        self, slots: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Return the same steps as `gather`, without padding and back to back, for a `ClientSample`."""
        packed: dict[str, NDArray[Any]] = {}
        for names, more in ((self.schema.frames, 1), (self.schema.steps, 0)):
            counts = lengths.astype(np.int64) + more
            read = self._reader(slots, firsts, counts, begins(counts))
            for name in names:
                item, dtype = self._layout[name]
                packed[name] = np.empty((int(counts.sum()), *item), dtype)
                read(name, packed[name])
        packed[LENGTHS] = lengths
        packed["terminated"] = self._terminated[slots] & (firsts + lengths == self.lengths[slots])
        return packed

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        """Return the episodes in `slots` (n,), in this order."""
        return {
            "lengths": StateArray.of(self.lengths[slots]),
            "terminated": StateArray.of(self._terminated[slots]),
            "truncated": StateArray.of(self._truncated[slots]),
            **{f"segments/{name}": StateArray.of(array[slots]) for name, array in self._per_segment.items()},
            **{f"{VALUES}{name}": ring.state_array(slots) for name, ring in self._sparse.items()},
        } | prefixed("frames", self._frame_arrays(slots))

    def _frame_arrays(self, slots: NDArray[np.int64]) -> dict[str, StateArray]:
        rows = self._rows(slots)
        return {name: picked_rows(array, rows) for name, array in self.arrays.items()}

    def _rows(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of all frames of the episodes in `slots` (n,)."""
        n_frames = self.lengths[slots].astype(np.int64) + 1
        return np.arange(n_frames.sum()) + np.repeat(self._space.starts[slots] - begins(n_frames), n_frames)

    def check_state(self, reader: ArrayReader, held: int) -> None:
        """Raise `CheckpointError` unless the arrays could come from `state_arrays` for `held` slots."""
        lengths, limit = reader.read("lengths", np.int32, (held,)), self.limit
        if held and (lengths.min() < 1 or lengths.max() > limit):
            raise CheckpointError(f"lengths: expected 1 to {limit} steps each, got {lengths}")
        reader.expect("terminated", np.bool_, (held,))
        reader.expect("truncated", np.bool_, (held,))
        for name, array in self._per_segment.items():
            reader.expect(f"segments/{name}", array.dtype, (held, *array.shape[1:]))
        for name, (item, dtype) in self._stored.items():
            reader.expect(f"frames/{name}", dtype, (int(lengths.sum()) + held, *item))
        for name, ring in self._sparse.items():
            ring.check_state(reader, f"{VALUES}{name}", self._saved_bits(reader, name))

    def item_arrays(self) -> dict[str, StateArray]:
        """Return the shape of a frame of each sparse field, which its bits and values do not tell."""
        return {f"{ITEMS}{name}": StateArray.of(np.array(ring.item)) for name, ring in self._sparse.items()}

    def check_items(self, reader: ArrayReader) -> None:
        """Raise `CheckpointError` unless the frames of sparse fields have the shapes of those here."""
        for name, ring in self._sparse.items():
            item = reader.read(f"{ITEMS}{name}", np.int64, (len(ring.item),))
            if tuple(item.tolist()) != ring.item:
                raise CheckpointError(f"{ITEMS}{name}: expected {ring.item}, got {tuple(item.tolist())}")

    def _saved_bits(self, reader: ArrayReader, name: str) -> NDArray[np.uint16]:
        frames = f"frames/{name}"
        return reader.read(frames, BITS, (reader.length(frames), self._sparse[name].groups))

    def n_values(self, reader: ArrayReader, name: str, n_frames: int) -> int:
        """Return how many values of a saved sparse field belong to its first `n_frames` frames.

        Raises:
            CheckpointError: the field is not sparse here, or the bits do not fit.
        """
        if name not in self._sparse:
            raise CheckpointError(
                f"{VALUES}{name}: expected no array of this name, but those of {sorted(self._sparse)}"
            )
        return int(np.bitwise_count(self._saved_bits(reader, name)[:n_frames]).sum(dtype=np.int64))

    def load_state(self, reader: ArrayReader, slots: NDArray[np.int64], overwrites: Overwrites) -> None:
        """Load checked arrays into `slots` (n,); all other episodes are gone."""
        n = len(slots)
        self.lengths[:] = 0
        lengths = reader.read("lengths", np.int32, (n,))
        self._place(slots.tolist(), (lengths + 1).tolist())
        self.lengths[slots], self._terminated[slots] = lengths, reader.read("terminated", np.bool_, (n,))
        self._truncated[slots] = reader.read("truncated", np.bool_, (n,))
        for name, array in self._per_segment.items():
            array[slots] = reader.read(f"segments/{name}", array.dtype, (n, *array.shape[1:]))
        rows = self._loaded_rows(slots)
        for name, array in self.arrays.items():
            load_rows(reader, f"frames/{name}", array, rows, overwrites)
        for name, ring in self._sparse.items():
            ring.load_state(reader, f"{VALUES}{name}", slots, self._values_of(name, slots), overwrites)

    def _values_of(self, name: str, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of values (n,) of the episodes in `slots` (n,), according to their bits."""
        if not len(slots):
            return np.zeros(0, np.int64)
        bits = self.arrays[name][self._rows(slots) % self._space.size]
        return sparse.counts(bits, self.lengths[slots].astype(np.int64) + 1)

    def _loaded_rows(self, slots: NDArray[np.int64]) -> slice | NDArray[np.int64]:
        """Return the rows of all frames of the episodes in `slots` (n,), which were just placed."""
        return self._rows(slots)

    def check_valid(self, slots: NDArray[np.int64]) -> list[str]:
        """Return one sentence for each inconsistency of the episodes in `slots` (n,); none if all is well."""
        lengths, limit = self.lengths[slots], self.limit
        wrong = [f"a length is not in 1 … {limit}: {lengths}"] if ((lengths < 1) | (lengths > limit)).any() else []
        for name, ring in self._sparse.items():
            wrong += [f"{name}: {sentence}" for sentence in ring.check_valid(slots, self._values_of(name, slots))]
        return wrong
