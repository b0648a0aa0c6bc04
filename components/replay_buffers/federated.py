"""Two-phase sampling: clients draw from their buffers and push the items, and a server draws from these again.

It is the distributed prioritised replay of memoire, made exact for clients of any size and rate. Item i of client k has
weight w_i; the sum over the client's items is S_k. The client draws i with probability w_i / S_k. If the server draws k
with probability S_k / ΣS and takes the items that k drew in turn, i has the probability w_i / ΣS, however often k
pushes. This file does not use the network: shares are values, which other code transports.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers.invalid import (
    InvalidExperience,
    NameTaken,
    UnknownClient,
    check_array,
    check_priorities,
)
from components.replay_buffers.segments import (
    LENGTHS,
    Fields,
    Segment,
    begins,
    check_batch,
    copy_segments,
    corners_of,
    counts_of,
    padded,
)


@dataclass(frozen=True, slots=True, eq=False)
class ClientSample:
    """A client's push: M items drawn in proportion to their weights, in random order, and the size of its buffer.

    M may be 0; the sample then only reports how much the client holds now.
    """

    batch: Mapping[str, NDArray[Any]]
    """By field (M, *shape), or runs of rows back to back. Fields may be missing if there are no items."""
    indices: NDArray[np.int64]  # (M,)
    generations: NDArray[np.int64]  # (M,)
    weights: NDArray[np.float64]  # (M,): weight w of each, above 0
    total: float
    """Sum S of the weights of all items that the client held at the draw."""
    held: int
    """Number of items that the client held at the draw."""
    inserted: int
    """Items inserted into the client's buffer until then."""

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays: the size on the network, without names and headers."""
        numbers = self.indices.nbytes + self.generations.nbytes + self.weights.nbytes
        return numbers + sum(array.nbytes for array in self.batch.values())


@dataclass(frozen=True, slots=True)
class SampledUnion:
    """Items drawn from the union of all clients' buffers, with the client of each, for `route`."""

    batch: dict[str, NDArray[Any]]
    """By field (B, *shape). Runs are (B, longest, *shape), padded with zeros; `draw` returns them back to back."""
    weights: NDArray[np.float32]  # (B,): importance weights
    names: tuple[str, ...]
    """Names of the clients, each once."""
    whose: NDArray[np.int64]
    """Index in `names` of each item's client, (B,)."""
    indices: NDArray[np.int64]  # (B,)
    generations: NDArray[np.int64]  # (B,)

    @property
    def clients(self) -> tuple[str, ...]:
        """Name of each item's client, (B,)."""
        return tuple([self.names[i] for i in self.whose.tolist()])

    def padded(self, fields: Fields) -> "SampledUnion":
        """Return the result of `FederatedReplay.draw` in the padded form of its `sample`."""
        return replace(self, batch=padded(fields, self.batch)) if LENGTHS in self.batch else self


Route = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.floating[Any]]]
"""Arguments for the `update` of a client's buffer: indices, generations and priorities, (n,) each."""


@dataclass(frozen=True, slots=True)
class UnionStatistics:
    """Numbers of items pushed and drawn so far, including those of clients that have left."""

    inserted: int
    """Items inserted into the clients' buffers, as far as they have reported."""
    pushed: int
    """Items that clients drew and pushed."""
    drawn: int
    """Items that the server drew from the pushed ones."""
    dropped: int
    """Items that were never drawn, because newer ones replaced them or their client left."""
    pushed_bytes: int
    inserted_bytes: int
    """Bytes on the network if every inserted item had been sent; an item counts as a mean pushed item."""

    @property
    def saved(self) -> float:
        """Share of the bandwidth saved by sending drawn items instead of inserted items; it may be negative."""
        return 1.0 - self.pushed_bytes / self.inserted_bytes if self.inserted_bytes else 0.0


class NotPushed(LookupError):
    """A batch cannot be drawn yet: some picked clients have not pushed enough items. Nothing is lost by waiting.

    Attributes:
        missing: number of further items that each client has to push. The picks stay valid until then.
    """

    def __init__(self, missing: Mapping[str, int]) -> None:
        self.missing = dict(missing)
        lacking = ", ".join(f"{n} of {client!r}" for client, n in self.missing.items())
        super().__init__(f"expected items to draw that were pushed, lacking {lacking or 'any client with weight'}")


@dataclass(slots=True, eq=False)
class _Pile:
    """A share, and the order of its remaining items."""

    share: ClientSample
    order: NDArray[np.int64]
    left: int  # remaining items, at the end of `order`
    uses: int  # number of rounds through it, including the current one


@dataclass(slots=True)
class _Client:
    number: int
    total: float = 0.0
    held: int = 0
    inserted: int = 0
    piles: deque[_Pile] = field(default_factory=deque)  # the newest first


class FederatedReplay:
    """The server's side: holds the items that clients pushed, and draws from the union of their buffers.

    For every item it first picks a client, in proportion to the newest known S, and then takes an item that this client
    drew. A pick stays valid until its item can be taken: another pick instead would favour clients that push often. So
    a batch waits only for slow clients.

    Args:
        fields: fields of an item by name, each a row or a run of rows; with runs there is a field `lengths` too. See
            `share_fields` of the clients' buffers.
        beta: strength of the correction by importance weights (n P_i)^-beta over their maximum in the batch.
        max_items: largest number of held items of a client, and of items of a batch. Beyond that the oldest shares are
            dropped, drawn or not. The newest share is drawn first, and is kept for any size.
        max_uses: number of times that a pushed item may be drawn; each round has another order. More than 1 saves
            bandwidth and does not change an item's probability, but items are repeated.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, fields: Fields, *, beta: float = 0.4, max_items: int = 4096, max_uses: int = 1) -> None:
        if not fields:
            raise ValueError("fields: expected at least one")
        if LENGTHS not in fields and any(isinstance(kind, Segment) for kind in fields.values()):
            raise ValueError(f"fields: expected {LENGTHS} beside runs, got {list(fields)}")
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta: expected a number in [0, 1], got {beta}")
        if max_items < 1 or max_uses < 1:
            raise ValueError(f"max_items and max_uses must be at least 1, got {max_items} and {max_uses}")
        self.fields = {
            name: kind._replace(dtype=np.dtype(kind.dtype), shape=tuple(kind.shape)) for name, kind in fields.items()
        }
        self.beta, self.max_items, self.max_uses = beta, max_items, max_uses
        self._clients: dict[str, _Client] = {}
        self._names: dict[int, str] = {}  # names of clients by number
        self._joined = 0
        self._picks = np.zeros(0, np.int64)  # numbers of picked clients, in order, whose items are not taken yet
        self._counts: dict[int, dict[str, int]] = {}  # picks of each client among the first n, by n
        self._gone = 0  # items inserted by clients that have left
        self._pushed = self._drawn = self._dropped = self._pushed_bytes = 0

    def __len__(self) -> int:
        """Return the number of items that all clients hold, as last reported."""
        return sum(client.held for client in self._clients.values())

    @property
    def clients(self) -> dict[str, float]:
        """The clients that have joined, and the weight S of each."""
        return {name: client.total for name, client in self._clients.items()}

    @property
    def held(self) -> dict[str, int]:
        """The clients that have joined, and the number of items of each, as last reported."""
        return {name: client.held for name, client in self._clients.items()}

    def join(self, client: str) -> None:
        """Add a client, which has not reported anything yet.

        Raises:
            NameTaken: a client of this name has joined.
        """
        if client in self._clients:
            raise NameTaken(f"client: expected a name that is free, got {client!r}, which has joined")
        self._clients[client] = _Client(self._joined)
        self._names[self._joined] = client
        self._joined += 1

    def leave(self, client: str) -> None:
        """Remove a client and the items that it pushed.

        Raises:
            UnknownClient: no client of this name has joined.
        """
        gone = self._known(client)
        self._dropped += sum(pile.left for pile in gone.piles if pile.uses == 1)
        self._gone += gone.inserted
        del self._clients[client], self._names[gone.number]
        self._give_up(gone.number)

    def add(self, client: str, share: ClientSample, *, trusted: bool = False) -> None:
        """Add a client's push: its items, and how much it holds now.

        Args:
            client: the client.
            share: the push.
            trusted: True if it comes from a buffer of this process; it is not checked then.

        Raises:
            UnknownClient: the client has not joined.
            InvalidExperience: an array is missing, is not an array, or has a wrong shape or dtype; or a length, a
                weight or a count is not finite, is out of its range, or contradicts another. The message names the
                field and the expected value; nothing is added then.
        """
        known = self._known(client)
        if not trusted:
            self._check(share, known.inserted)
        known.total, known.held, known.inserted = float(share.total), share.held, share.inserted
        if not known.total > 0:
            self._give_up(known.number)
        if not len(share.indices):
            return
        n = len(share.indices)
        known.piles.appendleft(_Pile(share, np.arange(n)[::-1], n, 1))
        surplus = sum(len(pile.order) for pile in known.piles) - self.max_items
        while surplus > 0 and len(known.piles) > 1:
            oldest = known.piles.pop()
            surplus -= len(oldest.order)
            self._dropped += oldest.left if oldest.uses == 1 else 0
        self._pushed += n
        self._pushed_bytes += share.n_bytes

    def _known(self, client: str) -> _Client:
        if client not in self._clients:
            raise UnknownClient(f"client: expected one that has joined, {list(self._clients)}, got {client!r}")
        return self._clients[client]

    def _give_up(self, number: int) -> None:
        """Drop the picks of a client."""
        self._picks, self._counts = self._picks[self._picks != number], {}

    def _check(self, share: ClientSample, inserted: int) -> None:
        n = len(share.indices) if np.ndim(share.indices) else 0
        for name, array in (("indices", share.indices), ("generations", share.generations)):
            check_array(name, array, (n,), np.int64)
        check_array("weights", share.weights, (n,), np.float64)
        if n or share.batch:
            check_batch(self.fields, share.batch, n)
        if not (isfinite(share.total) and share.total >= 0):
            raise InvalidExperience(f"total: expected a finite number of at least 0, got {share.total}")
        if not ((share.weights > 0) & (share.weights <= share.total * (1 + 1e-9))).all():
            raise InvalidExperience(f"weights: expected numbers above 0 and at most {share.total}, got {share.weights}")
        if share.held < (n > 0):
            raise InvalidExperience(f"held: expected at least {int(n > 0)}, got {share.held}")
        if share.inserted < max(inserted, share.held):
            raise InvalidExperience(f"inserted: expected at least {max(inserted, share.held)}, got {share.inserted}")

    # Sampling -------------------------------------------------------------------------------------------------------

    def missing(self, batch_size: int, rng: np.random.Generator) -> dict[str, int]:
        """Pick the clients of the next `batch_size` items, and return how many items each of them still has to push.

        If the result is empty, `sample` can draw the batch.

        Raises:
            ValueError: `batch_size` is below 1, or above `max_items`: one client might have to push all of them.
            NotPushed: no client has weight.
        """
        if not 1 <= batch_size <= self.max_items:
            raise ValueError(f"batch_size: expected 1 to {self.max_items}, which is max_items, got {batch_size}")
        wanted = batch_size - len(self._picks)
        if wanted > 0:
            totals = np.array([client.total for client in self._clients.values()])
            if not totals.sum() > 0:
                raise NotPushed({})
            numbers = np.array([client.number for client in self._clients.values()])
            # As `rng.choice`, but without its checks, which take longer.
            ends = (totals / totals.sum()).cumsum()
            picked = (ends / ends[-1]).searchsorted(rng.random(wanted), side="right")
            self._picks = np.concatenate([self._picks, numbers[picked]])
            self._counts = {}
        if batch_size not in self._counts:
            names, whose = self._grouped(self._picks[:batch_size])
            counts = np.bincount(whose, minlength=len(names)).tolist()
            self._counts[batch_size] = dict(zip(names, counts, strict=True))
        lacking = {name: n - self._available(self._clients[name]) for name, n in self._counts[batch_size].items()}
        return {name: n for name, n in lacking.items() if n > 0}

    def _grouped(self, picks: NDArray[np.int64]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
        """Return the clients among `picks` (B,), each once, and the index of each pick's client (B,)."""
        first = int(picks[0])
        if (picks == first).all():  # a common case, and faster than the rest
            return (self._names[first],), np.zeros(len(picks), np.int64)
        numbers, whose = np.unique(picks, return_inverse=True)
        return tuple([self._names[number] for number in numbers.tolist()]), whose

    def _available(self, client: _Client) -> int:
        return sum(pile.left + (self.max_uses - pile.uses) * len(pile.order) for pile in client.piles)

    def sample(self, batch_size: int, rng: np.random.Generator) -> SampledUnion:
        """Draw `batch_size` items, B, in proportion to their weights, from all that clients hold.

        Raises:
            ValueError, NotPushed: as for `draw`.
        """
        return self.draw(batch_size, rng).padded(self.fields)

    def draw(self, batch_size: int, rng: np.random.Generator) -> SampledUnion:
        """Draw a batch as `sample` does, but with runs back to back, for sending; see `SampledUnion.padded`.

        Raises:
            ValueError: `batch_size` is below 1, or above `max_items`: one client might have to push all of them.
            NotPushed: clients have to push more first; its `missing` has their numbers of items.
        """
        if lacking := self.missing(batch_size, rng):
            raise NotPushed(lacking)
        picks, self._picks, self._counts = self._picks[:batch_size], self._picks[batch_size:], {}
        names, whose = self._grouped(picks)
        parts = []  # shares, places of their items in the batch, and the items
        for i, name in enumerate(names):
            places, at = np.flatnonzero(whose == i), 0
            for share, items in self._take(self._clients[name], len(places), rng):
                parts.append((share, places[at : at + len(items)], items))
                at += len(items)
        self._drawn += batch_size

        weights = np.empty(batch_size)
        indices, generations = np.empty(batch_size, np.int64), np.empty(batch_size, np.int64)
        for share, to, of in parts:
            weights[to], indices[to], generations[to] = share.weights[of], share.indices[of], share.generations[of]
        lengths = self._gather(LENGTHS, batch_size, parts) if LENGTHS in self.fields else None
        batch = {name: self._gather(name, batch_size, parts, lengths) for name in self.fields}
        # (n P)^-beta over its maximum: n and the sum of all weights cancel.
        importance = ((weights.min() / weights) ** self.beta).astype(np.float32)
        return SampledUnion(batch, importance, names, whose, indices, generations)

    def _gather(
        self,
        name: str,
        batch_size: int,
        parts: list[tuple[ClientSample, NDArray[np.int64], NDArray[np.int64]]],
        lengths: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Return a field of a batch from parts of shares; for runs, `lengths` (B,) are those of the items."""
        kind = self.fields[name]
        if not isinstance(kind, Segment) or lengths is None:
            if len(parts) == 1:  # it has all places, in order
                share, _, of = parts[0]
                return share.batch[name].take(of, axis=0)
            array = np.empty((batch_size, *kind.shape), kind.dtype)
            for share, to, of in parts:
                array[to] = share.batch[name].take(of, axis=0)
            return array
        counts = counts_of(kind, lengths)
        begin = begins(counts)
        array = np.empty((int(counts.sum()), *kind.shape), kind.dtype)
        for share, to, of in parts:
            first = begins(counts_of(kind, share.batch[LENGTHS]))[of]
            copy_segments(share.batch[name], array, corners_of(begin[to], first, counts[to]))
        return array

    def _take(self, client: _Client, n: int, rng: np.random.Generator) -> list[tuple[ClientSample, NDArray[np.int64]]]:
        """Take the next `n` items of a client, which has that many, from its newest shares first."""
        taken = []
        while n:
            pile = client.piles[0]
            if not pile.left:
                pile.order, pile.left = rng.permutation(len(pile.order)), len(pile.order)
                pile.uses += 1
            k = min(n, pile.left)
            taken.append((pile.share, pile.order[pile.left - k : pile.left][::-1]))
            pile.left -= k
            n -= k
            if not pile.left and pile.uses == self.max_uses:
                client.piles.popleft()
        return taken

    def route(self, sampled: SampledUnion, priorities: NDArray[np.floating[Any]]) -> dict[str, Route]:
        """Return the arguments for the `update` of each client's buffer, without clients that have left.

        Raises:
            InvalidExperience: `priorities` are not B floats that are finite and at least 0.
        """
        check_priorities(priorities, len(sampled.whose))
        routes = {}
        for number, name in enumerate(sampled.names):
            if name in self._clients:
                of = np.flatnonzero(sampled.whose == number)
                routes[name] = (sampled.indices[of], sampled.generations[of], priorities[of])
        return routes

    def statistics(self) -> UnionStatistics:
        """Return the numbers of items pushed and drawn so far, and the saved bandwidth."""
        inserted = self._gone + sum(client.inserted for client in self._clients.values())
        each = self._pushed_bytes / self._pushed if self._pushed else 0.0
        return UnionStatistics(
            inserted, self._pushed, self._drawn, self._dropped, self._pushed_bytes, round(inserted * each)
        )

    def __repr__(self) -> str:
        return f"<FederatedReplay {len(self._clients)} clients with {len(self)} items>"
