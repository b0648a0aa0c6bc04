"""Replay buffers for whole episodes. Shapes are those of `episode_store`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader, StateArray
from components.envs.base import EnvSpec
from components.experience import ExperienceSchema
from components.policies.base import EpisodeBatch
from components.replay_buffers.buffer import Buffer, IndexT, Prioritized, PriorityOptions, Table, make_priorities
from components.replay_buffers.episode_store import ITEMS, VALUES, Episodes, EpisodeStore
from components.replay_buffers.federated import ClientSample
from components.replay_buffers.packed_episode_store import PackedEpisodeStore
from components.replay_buffers.ring import PrioritizedRing, QueueRing, Ring
from components.replay_buffers.rows import Field
from components.replay_buffers.segments import Segment, begins
from components.replay_buffers.slots import Slots, TableOptions
from components.replay_buffers.storage import freeze

RingT = TypeVar("RingT", bound=Ring)


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled episodes, with the indices and generations that `update` needs. All arrays are read-only."""

    batch: EpisodeBatch
    indices: NDArray[np.int64]  # (E,)
    generations: NDArray[np.int64]  # (E,): distinguishes episodes held under the same index


@dataclass(frozen=True, slots=True)
class SampledRollouts:
    """Sampled parts of episodes, with the indices and generations that `update` needs. All arrays are read-only."""

    batch: EpisodeBatch
    """The parts in the form of episodes: `terminated` where a part ends with the game."""
    learn: NDArray[np.bool_]  # (E, T): the steps to learn from, without burn-in and padding
    firsts: NDArray[np.int64]  # (E,): first step of each part in its episode
    indices: NDArray[np.int64]  # (E,)
    generations: NDArray[np.int64]  # (E,)


def check_rollout(length: int, burn_in: int) -> None:
    """Raise `ValueError` unless rollouts may have this length and these first steps that are not learnt from."""
    if not 0 <= burn_in < length:
        raise ValueError(f"expected length of at least 1 and burn_in of 0 to length - 1, got {length} and {burn_in}")


class EpisodeBuffer(Buffer[EpisodeStore, IndexT]):
    """A buffer of whole episodes. When it loads a state with further fields, it ignores these.

    Args:
        index: selects the slots to fill, to draw and to empty.
        store: memory of the episodes.
    """

    ignored: ClassVar[tuple[str, ...]] = ("frames/", "segments/", VALUES, ITEMS)

    def __init__(self, index: IndexT, store: EpisodeStore) -> None:
        super().__init__(index, store)
        self.schema = store.schema
        """The fields of a transition."""

    def insert(self, episodes: Episodes, priorities: NDArray[np.floating[Any]] | None = None) -> None:
        """Insert episodes, which replace older ones if there is no room.

        Args:
            episodes: at least one.
            priorities: (E,); by default the largest so far, or 1 in a table. Uniform draws ignore them.

        Raises:
            InvalidExperience: a field is missing or unknown, a shape or dtype is wrong, a length is not in 1 to the
                limit, or a value is not one that the schema allows; or priorities are not E floats that are finite and
                at least 0; or a table gets more than `capacity` episodes. The message names the field and the expected
                value; nothing has changed then.
        """
        placed = self._index.put(self._store.check(episodes), priorities)
        parts = [np.arange(to.start or 0, to.stop) if isinstance(to, slice) else to for to, _ in placed]
        slots = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self._store.write(slots, episodes, self.overwrites)

    def sample(self, batch_size: int, rng: np.random.Generator, *, sparse: bool = False) -> Sampled:
        """Draw `batch_size` episodes.

        Args:
            batch_size: number of episodes.
            rng: generator for the draw.
            sparse: True for sparse arrays of the fields that are held as differences, to send them. They become dense
                when they are read, which takes longer in all than dense ones at once.

        Raises:
            ValueError: fewer episodes can be drawn, or `batch_size` is below 1.
        """
        slots, weights = self._index.draw(batch_size, rng)
        generations = self._index.generations_of(slots)
        whole = np.zeros(len(slots), np.int64), self._store.lengths[slots]
        batch = self._gather(slots, weights, *whole, sparse=sparse)
        self._index.drew(slots)
        return Sampled(batch, freeze(slots), freeze(generations))

    def sample_rollouts(
        self, batch_size: int, length: int, rng: np.random.Generator, *, burn_in: int = 0
    ) -> SampledRollouts:
        """Draw `batch_size` episodes as `sample` does, and from each a rollout of up to `length` steps.

        A rollout has `length - burn_in` consecutive steps to learn from, at a uniformly random place, or all steps of a
        shorter episode. Before them come `burn_in` steps that warm up a recurrent network (Kapturowski et al. 2019), or
        as many as there are: a rollout from the episode's first step on starts from the initial state.

        Args:
            batch_size: rollouts, B.
            length: largest number of steps of each, including burn-in.
            rng: generator for the draws.
            burn_in: steps that are not learnt from, 0 to `length` - 1.

        Raises:
            ValueError: an argument is out of its range, or fewer episodes can be drawn.
        """
        check_rollout(length, burn_in)
        slots, weights = self._index.draw(batch_size, rng)
        generations = self._index.generations_of(slots)
        firsts, burnt, lengths = self._cut_rollouts(slots, length, burn_in, rng)
        steps = np.arange(lengths.max())
        learn = (steps >= burnt[:, None]) & (steps < lengths[:, None])
        batch = self._gather(slots, weights, firsts, lengths)
        self._index.drew(slots)
        return SampledRollouts(batch, freeze(learn), freeze(firsts), freeze(slots), freeze(generations))

    def _cut_rollouts(
        self, slots: NDArray[np.int64], length: int, burn_in: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Return the first steps, burn-in steps and lengths (E,) of rollouts of the episodes in `slots` (E,)."""
        whole = self._store.lengths[slots]
        n_learnt = np.minimum(length - burn_in, whole)
        begin = rng.integers(0, whole - n_learnt, endpoint=True)
        firsts = np.maximum(begin - burn_in, 0)
        return firsts, begin - firsts, (begin - firsts + n_learnt).astype(np.int32)

    def _gather(
        self,
        slots: NDArray[np.int64],
        weights: NDArray[np.float32],
        firsts: NDArray[np.int64],
        lengths: NDArray[np.int32],
        *,
        sparse: bool = False,
    ) -> EpisodeBatch:
        """Return `lengths` (E,) steps of the episodes in `slots` (E,), from step `firsts` (E,) on."""
        return EpisodeBatch.of_rows(
            weights=freeze(weights), **self._store.gather(slots, firsts, lengths, sparse=sparse)
        )

    @property
    def _slots(self) -> NDArray[np.int64]:
        return self._index.order

    def _state_arrays(self) -> dict[str, StateArray]:
        return super()._state_arrays() | self._store.item_arrays()

    def _check_state(self, reader: ArrayReader) -> None:
        self._store.check_items(reader)
        super()._check_state(reader)

    def check_valid(self) -> list[str]:
        return super().check_valid() + self._store.check_valid(self._slots)


class EpisodeRing(EpisodeBuffer[RingT]):
    """A buffer of episodes that leave in the order of insertion, so that it can be saved in parts."""

    @property
    def held(self) -> range:
        """Numbers of the episodes held, counted from the first that was inserted."""
        return range(self._index.oldest, self._index.inserted)

    def rest_arrays(self) -> dict[str, StateArray]:
        """Return the arrays of the state that are not data of episodes."""
        parts = self._store.state_arrays(self._slots)
        return {name: array for name, array in self.state_arrays().items() if name not in parts}

    def part_arrays(self, items: range) -> dict[str, StateArray]:
        """Return the arrays of the episodes with these numbers, which are held."""
        return self._store.state_arrays(np.arange(items.start, items.stop) % self.capacity)

    def rows_of(self, name: str, part: ArrayReader, items: int) -> int:
        """Return how many rows of an array of a part belong to its first `items` episodes."""
        n_frames = items + int(part.read("lengths", np.int32, (part.length("lengths"),))[:items].sum())
        if name.startswith(VALUES):
            return self._store.n_values(part, name.removeprefix(VALUES), n_frames)
        return n_frames if name.startswith("frames/") else items


class EpisodeReplay(EpisodeRing[Ring]):
    """The last `capacity` episodes, drawn uniformly and without repetition within a batch, as in PyMARL.

    Memory follows the real lengths: an episode needs memory for its own frames, at most twice, and no padding. Sparse
    fields, such as the observations and states of a team, need memory for the numbers that differ from those of the
    frame before, and a bit for each number.

    Args:
        spec: the experience schema, or an environment, whose policies then explore with probability ε.
        capacity: episodes held at most; the oldest are overwritten.
        folder: where frames are stored, in unnamed files that are mapped into memory; by default in memory. On a disk,
            space for `capacity` full-length episodes is allocated at once.

    Raises:
        ValueError: `capacity` is below 1.
        OSError: there is no such folder, or too little space in it.
    """

    state_kind = "EpisodeReplay"

    def __init__(self, spec: EnvSpec | ExperienceSchema, capacity: int, *, folder: str | Path | None = None) -> None:
        super().__init__(Ring(capacity, distinct=True), PackedEpisodeStore(spec, capacity, folder=folder))


class PrioritizedEpisodeReplay(Prioritized, EpisodeRing[PrioritizedRing]):
    """The last `capacity` episodes, drawn with P_i = w_i / Σ w, where w = (priority + epsilon)^alpha.

    A batch is drawn in strata, one episode from each of `batch_size` equal shares of the sum, so an episode may be
    drawn twice. New episodes enter with the largest priority so far, so each is likely to be learnt from before its
    error is known.

    Args:
        spec: the experience schema, or an environment, whose policies then explore with probability ε.
        capacity: episodes held at most; the oldest are overwritten.
        folder: as for `EpisodeReplay`.
        options: as for `PrioritizedTransitions`.

    Raises:
        ValueError: an argument is out of its range.
        OSError: as for `EpisodeReplay`.
    """

    state_kind = "PrioritizedEpisodeReplay"

    def __init__(
        self,
        spec: EnvSpec | ExperienceSchema,
        capacity: int,
        *,
        folder: str | Path | None = None,
        **options: Unpack[PriorityOptions],
    ) -> None:
        index = PrioritizedRing(make_priorities(capacity, **options), distinct=True)
        super().__init__(index, PackedEpisodeStore(spec, capacity, folder=folder))

    @property
    def share_fields(self) -> dict[str, Field | Segment]:
        """Fields of the items of `share`, as `FederatedReplay` takes them."""
        return self._store.share_fields

    def _read(self, slots: NDArray[np.int64], generations: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return self._store.pack(slots, np.zeros(len(slots), np.int64), self._store.lengths[slots])

    def share_rollouts(self, size: int, length: int, rng: np.random.Generator, *, burn_in: int = 0) -> ClientSample:
        """Draw `size` rollouts as `sample_rollouts` does, to be pushed like a `share`.

        The batch has two more fields: `learn` (N,), the steps to learn from, and `firsts` (M,), the first step of each
        rollout in its episode. The weight is that of the whole episode, wherever its rollout begins.

        Raises:
            ValueError: `size` is negative, `length` below 1, or `burn_in` not 0 to `length` - 1.
        """
        check_rollout(length, burn_in)

        def read(slots: NDArray[np.int64], generations: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
            firsts, burnt, lengths = self._cut_rollouts(slots, length, burn_in, rng)
            steps = np.arange(lengths.sum()) - np.repeat(begins(lengths.astype(np.int64)), lengths)
            learn = steps >= np.repeat(burnt, lengths)
            return self._store.pack(slots, firsts, lengths) | {"learn": learn, "firsts": firsts}

        return self._share(size, rng, read)

    @property
    def rollout_fields(self) -> dict[str, Field | Segment]:
        """Fields of the items of `share_rollouts`, as `FederatedReplay` takes them."""
        return self.share_fields | {"learn": Segment(np.bool_, (), self.schema.limit), "firsts": Field(np.int64)}


class FreshEpisodes(EpisodeRing[QueueRing]):
    """A queue for algorithms that learn from their present policy: each episode is drawn once, the oldest first.

    An episode that has been drawn makes room for another. No episode is dropped before that: `insert` raises
    `BufferFull`. The Orchestrator's limiter keeps workers waiting while the queue is full; there is room for episodes
    that are already on their way.

    Args:
        spec: the experience schema, or an environment, whose policies then explore with probability ε.
        capacity: episodes held at most, drawn or not.
        folder: as for `EpisodeReplay`.

    Raises:
        ValueError, OSError: as for `EpisodeReplay`.
    """

    state_kind = "FreshEpisodes"

    def __init__(self, spec: EnvSpec | ExperienceSchema, capacity: int, *, folder: str | Path | None = None) -> None:
        super().__init__(QueueRing(capacity), PackedEpisodeStore(spec, capacity, folder=folder))

    @property
    def fresh(self) -> int:
        """Episodes that have not been drawn yet."""
        return self._index.fresh

    @property
    def drawn(self) -> int:
        """Episodes that have been drawn, each once."""
        return self._index.drawn


class EpisodeTable(Table, EpisodeBuffer[Slots]):
    """Up to `capacity` episodes, of which any may be removed at any time.

    Every slot has room for a full-length episode; the system provides only the memory that has been written. So it
    needs more memory than `EpisodeReplay`, but episodes may leave in any order. All importance weights are 1.

    Args:
        spec: the experience schema, or an environment, whose policies then explore with probability ε.
        capacity: episodes held at most.
        folder: as for `EpisodeReplay`.
        options: as for `Slots`.

    Raises:
        ValueError: as for `Slots`.
        OSError: as for `EpisodeReplay`.
    """

    state_kind = "EpisodeTable"

    def __init__(
        self,
        spec: EnvSpec | ExperienceSchema,
        capacity: int,
        *,
        folder: str | Path | None = None,
        **options: Unpack[TableOptions],
    ) -> None:
        super().__init__(Slots(capacity, **options), EpisodeStore(spec, capacity, folder=folder))
