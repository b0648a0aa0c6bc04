"""Replay buffers for transitions, rows of named fields. N rows are inserted and B are sampled at a time.

The code does not wait and has no locks: only one thread at a time may use a buffer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.buffer import Buffer, IndexT, Prioritized, PriorityOptions, Table, make_priorities
from components.replay_buffers.ring import PrioritizedRing, Ring
from components.replay_buffers.rows import Field, RowOptions, RowStore
from components.replay_buffers.slots import Slots, TableOptions
from components.replay_buffers.windows import NStep, Window


@dataclass(frozen=True, slots=True)
class SampledTransitions:
    """Sampled rows, with the indices and generations that `update` needs. The arrays of the batch are read-only."""

    batch: dict[str, NDArray[Any]]  # by field, (B, *shape)
    indices: NDArray[np.int64]  # (B,)
    generations: NDArray[np.int64]  # (B,): distinguishes rows held under the same index
    weights: NDArray[np.float32]  # (B,): importance weights; 1 where draws are uniform


class TransitionBuffer(Buffer[RowStore, IndexT]):
    """A buffer of rows: every field is one array, so a batch is one gather per field.

    Args:
        index: selects the slots to fill, to draw and to empty.
        store: memory of the rows.
    """

    def __init__(self, index: IndexT, store: RowStore) -> None:
        super().__init__(index, store)
        self.fields, self.n_step, self.window = store.fields, store.n_step, store.window

    @property
    def batch_fields(self) -> dict[str, Field]:
        """Fields of the rows of a batch, by name."""
        return self._store.batch_fields

    def insert(self, rows: Mapping[str, NDArray[Any]], priorities: NDArray[np.floating[Any]] | None = None) -> None:
        """Insert N rows, which replace older ones if there is no room.

        Args:
            rows: by field, (N, *shape) of its dtype.
            priorities: (N,); by default the largest so far, or 1 in a table. Uniform draws ignore them.

        Raises:
            InvalidExperience: a field is missing or unknown, a shape or dtype is wrong, a number is not finite where it
                has to be; or priorities are not N floats that are finite and at least 0; or a table gets more than
                `capacity` rows. The message names the field and the expected value; nothing has changed then.
        """
        n = self._store.check(rows)
        self._store.write(self._index.put(n, priorities), rows, self.overwrites)

    def insert_one(self, row: Mapping[str, Any], priority: float | None = None) -> None:
        """Insert one row, whose fields are arrays or NumPy scalars of their dtype, or Python numbers that fit it.

        Raises:
            InvalidExperience: as for `insert`.
        """
        values = self._store.check_row(row)
        self._store.write_row(self._index.put_one(priority), values, self.overwrites)

    def sample(self, batch_size: int, rng: np.random.Generator) -> SampledTransitions:
        """Draw `batch_size` rows, B.

        Raises:
            ValueError: nothing can be drawn, `batch_size` is below 1, or above the number of rows in a table.
        """
        index = self._index
        slots, weights = index.draw(batch_size, rng)
        generations = index.generations_of(slots)
        batch = self._store.gather(slots, generations, index.oldest, index.inserted)
        index.drew(slots)
        return SampledTransitions(batch, slots, generations, weights)

    @property
    def _slots(self) -> slice | NDArray[np.int64]:
        return self._index.used


class Transitions(TransitionBuffer[Ring]):
    """The last `capacity` rows, drawn uniformly and independently.

    Args:
        fields: fields of a row, by name.
        capacity: rows held at most; the oldest are overwritten.
        options: as for `RowStore`. A row is not drawn if its window may need overwritten rows.

    Raises:
        ValueError: `capacity` is below 1, or as for `RowStore`.
        OSError: as for `RowStore`.
    """

    state_kind = "Transitions"

    def __init__(self, fields: Mapping[str, Field], capacity: int, **options: Unpack[RowOptions]) -> None:
        super().__init__(Ring(capacity, window=options.get("window")), RowStore(fields, capacity, **options))


class PrioritizedTransitions(Prioritized, TransitionBuffer[PrioritizedRing]):
    """The last `capacity` rows: row i is drawn with probability P_i = w_i / Σ w, with w = (priority + epsilon)^alpha.

    A batch is drawn in strata, one row from each of `batch_size` equal shares of the sum, so a row may be drawn twice.
    New rows enter with the largest priority so far, or with a given one, as in Ape-X. `sample` raises `ValueError` if
    no row has weight.

    Args:
        fields: fields of a row, by name.
        capacity: rows held at most; the oldest are overwritten.
        n_step: as for `RowStore`, like `window` and `folder`.
        window: rows that are sampled together. A row is not drawn if its window may need overwritten rows.
        folder: where rows are stored.
        options: `alpha`, `beta`, `epsilon`, `normalize` and `decay` as for `Priorities`; `variant` is `proportional`,
            or `rank` for `RankedPriorities`, where `epsilon` does not count and `decay` is 1.

    Raises:
        ValueError: an argument is out of its range, or as for `RowStore`.
        OSError: as for `RowStore`.
    """

    state_kind = "PrioritizedTransitions"

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        n_step: NStep | None = None,
        window: Window | None = None,
        folder: str | Path | None = None,
        **options: Unpack[PriorityOptions],
    ) -> None:
        index = PrioritizedRing(make_priorities(capacity, **options), window=window)
        super().__init__(index, RowStore(fields, capacity, n_step=n_step, window=window, folder=folder))

    @property
    def share_fields(self) -> dict[str, Field]:
        """Fields of the items of `share`, as `FederatedReplay` takes them."""
        return self.batch_fields

    def _read(self, slots: NDArray[np.int64], generations: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return self._store.gather(slots, generations, self._index.oldest, self._index.inserted)


class TransitionTable(Table, TransitionBuffer[Slots]):
    """Up to `capacity` rows, of which any may be removed at any time.

    With two `FifoSelector` objects and `max_times_sampled` of 1 this is a queue, with two `LifoSelector` objects a
    stack; with a `UniformSelector` and a `FifoSelector` it is a slower `Transitions`. All importance weights are 1.

    Args:
        fields: fields of a row, by name.
        capacity: rows held at most.
        folder: as for `RowStore`.
        options: as for `Slots`.

    Raises:
        ValueError: as for `RowStore` and `Slots`.
        OSError: as for `RowStore`.
    """

    state_kind = "TransitionTable"

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        folder: str | Path | None = None,
        **options: Unpack[TableOptions],
    ) -> None:
        super().__init__(Slots(capacity, **options), RowStore(fields, capacity, folder=folder))
