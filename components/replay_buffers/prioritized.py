"""Replay buffers that draw by priority (Schaul et al. 2016): transitions and whole episodes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import ArrayReader
from components.replay_buffers.episodes import FRAME_FIELDS, EpisodeReplay, check_rollout
from components.replay_buffers.federated import ClientSample
from components.replay_buffers.invalid import check_indices
from components.replay_buffers.priorities import Priorities, Prioritized
from components.replay_buffers.ranks import RankedPriorities
from components.replay_buffers.runs import LENGTHS, Run, begins, copy_runs
from components.replay_buffers.transitions import Field, NStep, Transitions
from components.replay_buffers.windows import Window

if TYPE_CHECKING:  # the one brings a compiler along, the other torch, and memories work without either
    from components.envs.base import EnvSpec


Variant = Literal["proportional", "rank"]
"""What the weight of an item is made of: its priority, or where that stands among all."""


def _priorities(
    capacity: int,
    variant: Variant,
    *,
    alpha: float,
    beta: float,
    epsilon: float,
    normalize: Literal["batch", "buffer"],
    decay: float,
) -> Priorities:
    if variant not in ("proportional", "rank"):
        raise ValueError(f"variant: expected proportional or rank, got {variant!r}")
    if variant == "proportional":
        return Priorities(capacity, alpha=alpha, beta=beta, epsilon=epsilon, normalize=normalize, decay=decay)
    if decay != 1.0:
        raise ValueError(f"decay: expected 1 with ranks, which a draw does not change, got {decay}")
    return RankedPriorities(capacity, alpha=alpha, beta=beta, normalize=normalize)


class PrioritizedTransitions(Prioritized, Transitions):
    """Draws row i with probability P_i = w_i / Σ w, with w = (priority + epsilon)^alpha.

    A batch is drawn in strata, one row from each of `batch_size` equal shares of the sum, so a row may come twice. New
    rows enter with the largest priority seen so far, or with one of their own, as the actors of Ape-X do it. A batch
    cannot be drawn, which is a `ValueError`, when no row that is held has weight any more.

    Args:
        fields: by name, what a row holds.
        capacity: rows held at most; the oldest go first.
        alpha: as for `Priorities`, like all that follow.
        beta: may be set between two samples.
        epsilon: keeps a row whose priority is 0 within reach.
        normalize: what importance weights are divided by.
        decay: what drawing a row does to its weight.
        variant: `proportional`, or by `rank` among all, as `RankedPriorities` says; then epsilon does not count, and
            decay is 1.
        n_step: as for `Transitions`.
        window: as for `Transitions`.
        folder: as for `Transitions`.

    Raises:
        ValueError: an argument is out of its range.
    """

    state_kind = "PrioritizedTransitions"

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        normalize: Literal["batch", "buffer"] = "batch",
        decay: float = 1.0,
        variant: Variant = "proportional",
        n_step: NStep | None = None,
        window: Window | None = None,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(fields, capacity, n_step=n_step, window=window, folder=folder)
        self.stale_updates = 0
        self.priorities = _priorities(
            capacity, variant, alpha=alpha, beta=beta, epsilon=epsilon, normalize=normalize, decay=decay
        )

    def insert(self, rows: Mapping[str, NDArray[Any]], priorities: NDArray[np.floating[Any]] | None = None) -> None:
        """Add N rows with `priorities` (N,), or with the largest so far, and drop the oldest beyond `capacity`.

        Raises:
            InvalidExperience: as for `Transitions.insert`; or priorities are not N floats, or one of them is negative
                or not finite, or so large that sums would overflow.
        """
        n = self.check_rows(rows)
        weights = None if priorities is None else self.priorities.weigh(priorities, n)
        self._write(rows, n)
        if n:
            self._took(n, weights)
        if priorities is not None:
            self.priorities.saw(priorities)

    def insert_one(self, row: Mapping[str, Any], priority: float | None = None) -> None:
        """Add one row with a `priority`, or with the largest so far; see `Transitions.insert_one`.

        Raises:
            InvalidExperience: as for `insert`.
        """
        values = self.check_row(row)
        priorities = None if priority is None else np.array([priority], np.float64)
        weights = None if priorities is None else self.priorities.weigh(priorities, 1)
        self._write_one(values)
        self._took(1, weights)
        if priorities is not None:
            self.priorities.saw(priorities)

    def _took(self, n: int, weights: NDArray[np.float64] | None) -> None:
        """Give the `n` newest rows their weights (n,), or all that of the largest priority."""
        held = min(n, self.capacity)
        start = (self.inserted - held) % self.capacity
        if weights is None:
            self.priorities.enter(start, held)
        else:
            self.priorities.set((start + np.arange(held)) % self.capacity, weights[n - held :])
        self._retire()

    def _retire(self) -> None:
        """Take the weight from rows that are not to be drawn any more."""
        if self._lead:
            oldest = self.inserted - len(self)
            self.priorities.clear(oldest % self.capacity, min(self._lead, len(self)))

    def _load_state(self, reader: ArrayReader) -> None:
        super()._load_state(reader)
        self._retire()

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        slots, importance, _ = self.priorities.draw(batch_size, rng)
        return slots, importance

    @property
    def share_fields(self) -> dict[str, Field]:
        """What the items of a share hold, as `FederatedReplay` takes it."""
        return self.batch_fields

    def _read(self, slots: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        generations = self._generations_of(slots)
        return self._gather(slots, generations), generations

    def update(
        self,
        indices: NDArray[np.int64],  # (B,)
        generations: NDArray[np.int64],  # (B,)
        priorities: NDArray[np.floating[Any]],  # (B,)
    ) -> None:
        """Set the priorities of rows that `sample` named; of one named twice the last stays.

        A row that has been overwritten since, or whose window has, is left out, and counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, an index is none, or a priority is negative or not
                finite, or so large that sums would overflow. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        weights = self.priorities.weigh(priorities, len(indices))
        current = (generations == self._generations_of(indices)) & (generations >= self._first)
        if not current.all():
            self.stale_updates += int((~current).sum())
            indices, weights, priorities = indices[current], weights[current], priorities[current]
        if len(indices):
            self.priorities.saw(priorities)
            self.priorities.set(indices, weights)

    def check_valid(self) -> list[str]:
        wrong = super().check_valid() + self.priorities.check_valid()
        weights = self.priorities[np.arange(self.capacity)]
        if weights[len(self) :].any():
            wrong.append(f"there is weight beyond the {len(self)} rows held: {weights}")
        return wrong


class PrioritizedEpisodeReplay(Prioritized, EpisodeReplay):
    """Draws episode i with probability P_i = w_i / Σ w, with w = (priority + epsilon)^alpha.

    A batch is drawn in strata, one episode from each of `batch_size` equal shares of the sum, so an episode may come
    twice. New episodes enter with the largest priority seen so far, so each is likely to be learnt from before its
    error is known.

    Args:
        spec: sizes of the environment.
        capacity: episodes held at most; the oldest go first.
        alpha: as for `Priorities`, like all that follow.
        beta: may be set between two samples.
        epsilon: keeps an episode whose priority is 0 within reach.
        normalize: what importance weights are divided by.
        decay: what drawing an episode does to its weight.
        variant: `proportional`, or by `rank` among all, as `RankedPriorities` says; then epsilon does not count, and
            decay is 1.
        folder: as for `EpisodeReplay`.

    Raises:
        ValueError: an argument is out of its range.
    """

    state_kind = "PrioritizedEpisodeReplay"

    def __init__(
        self,
        spec: "EnvSpec",
        capacity: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 1e-6,
        normalize: Literal["batch", "buffer"] = "batch",
        decay: float = 1.0,
        variant: Variant = "proportional",
        folder: str | Path | None = None,
    ) -> None:
        super().__init__(spec, capacity, folder=folder)
        self.stale_updates = 0
        self.priorities = _priorities(
            capacity, variant, alpha=alpha, beta=beta, epsilon=epsilon, normalize=normalize, decay=decay
        )

    def insert(
        self,
        obs: NDArray[np.float32],  # (F, A, O)
        state: NDArray[np.float32],  # (F, S)
        available: NDArray[np.bool_],  # (F, A, U)
        actions: NDArray[np.int64],  # (N, A)
        reward: NDArray[np.float32],  # (N,)
        terminated: NDArray[np.bool_],  # (E,)
        lengths: NDArray[np.int32],  # (E,)
        priorities: NDArray[np.floating[Any]] | None = None,  # (E,)
        *,
        epsilon: NDArray[np.float32] | None = None,  # (E,)
    ) -> None:
        """Add episodes that lie back to back, with priorities or the largest so far, and drop the oldest.

        Raises:
            InvalidExperience: as for `EpisodeReplay.insert`; or priorities are not E floats, or one of them is negative
                or not finite, or so large that sums would overflow.
        """
        weights = None if priorities is None else self.priorities.weigh(priorities, np.size(lengths))
        super().insert(obs, state, available, actions, reward, terminated, lengths, epsilon=epsilon)
        if priorities is not None and weights is not None:
            held = min(len(weights), self.capacity)
            serials = self.inserted - held + np.arange(held)
            self.priorities.set(serials % self.capacity, weights[len(weights) - held :])
            self.priorities.saw(priorities)

    def _took(self, first: int, n: int) -> None:
        self.priorities.enter(first, n)

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        slots, importance, _ = self.priorities.draw(batch_size, rng)
        return slots, importance

    @property
    def share_fields(self) -> dict[str, Field | Run]:
        """What the items of a share hold, as `FederatedReplay` takes it."""
        limit = self.spec.episode_limit
        runs = {
            name: Run(dtype, item, limit, more=int(name in FRAME_FIELDS), finite=name == "reward")
            for name, (item, dtype) in self._items.items()
        }
        return {**runs, LENGTHS: Field(np.int32), "terminated": Field(np.bool_)}

    def _read(self, slots: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
        return self._pack(slots, np.zeros(len(slots), np.int64), self._lengths[slots]), self._generations[slots]

    def _pack(
        self, slots: NDArray[np.int64], firsts: NDArray[np.int64], lengths: NDArray[np.int32]
    ) -> dict[str, NDArray[Any]]:
        """Return `lengths` (E,) steps of the episodes in `slots` (E,), from their steps `firsts` (E,) on; packed."""
        packed: dict[str, NDArray[Any]] = {}
        starts = (self._starts[slots] + firsts) % self._n_frames
        for name, source in self._ring.items():
            counts = lengths.astype(np.int64) + (name in FRAME_FIELDS)
            until_end, begin = np.minimum(counts, self._n_frames - starts), begins(counts)
            out = packed[name] = np.empty((int(counts.sum()), *source.shape[1:]), source.dtype)
            copy_runs(source, starts, out, begin, until_end)
            around = np.flatnonzero(until_end < counts)  # the rest of these is at the ring's beginning
            copy_runs(source, 0 * around, out, (begin + until_end)[around], (counts - until_end)[around])
        packed[LENGTHS] = lengths
        packed["terminated"] = self._terminated[slots] & (firsts + lengths == self._lengths[slots])
        return packed

    def share_rollouts(self, size: int, length: int, rng: np.random.Generator, *, burn_in: int = 0) -> ClientSample:
        """Draw `size` rollouts as `sample_rollouts` does, to be pushed as by `share`.

        The share's batch has two fields more: `learn` (N,) says which steps to learn from, `firsts` (M,) with which
        step of its episode each begins. Episodes are weighed whole, wherever their rollouts begin.

        Raises:
            ValueError: `size` is negative, `length` below 1, or `burn_in` not 0 to `length` - 1.
        """
        check_rollout(length, burn_in)

        def read(slots: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64]]:
            firsts, burnt, lengths = self._cut_rollouts(slots, length, burn_in, rng)
            steps = np.arange(lengths.sum()) - np.repeat(begins(lengths.astype(np.int64)), lengths)
            learn = steps >= np.repeat(burnt, lengths)
            return self._pack(slots, firsts, lengths) | {"learn": learn, "firsts": firsts}, self._generations[slots]

        return self._share(size, rng, read)

    @property
    def rollout_fields(self) -> dict[str, Field | Run]:
        """What the items of `share_rollouts` hold, as `FederatedReplay` takes it."""
        return self.share_fields | {"learn": Run(np.bool_, (), self.spec.episode_limit), "firsts": Field(np.int64)}

    def update(
        self,
        indices: NDArray[np.int64],  # (E,)
        generations: NDArray[np.int64],  # (E,)
        priorities: NDArray[np.floating[Any]],  # (E,)
    ) -> None:
        """Set the priorities of episodes that `sample` named; of one named twice the last stays.

        An episode that has been overwritten since is left out, and counted in `stale_updates`.

        Raises:
            InvalidExperience: an array's shape or dtype is another, an index is none, or a priority is negative or not
                finite, or so large that sums would overflow. Nothing is changed then.
        """
        check_indices(indices, generations, self.capacity)
        weights = self.priorities.weigh(priorities, len(indices))
        current = (self._generations[indices] == generations) & (generations >= 0)
        self.stale_updates += int((~current).sum())
        if current.any():
            self.priorities.saw(priorities[current])
            self.priorities.set(indices[current], weights[current])

    def check_valid(self) -> list[str]:
        wrong = super().check_valid() + self.priorities.check_valid()
        weights = self.priorities[np.arange(self.capacity)]
        if weights[len(self) :].any():
            wrong.append(f"there is weight beyond the {len(self)} episodes held: {weights}")
        return wrong
