"""What a replay server keeps for its clients, as a checkpoint."""

import json
from copy import copy

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import (
    FORMAT,
    Checkpointed,
    CheckpointError,
    Column,
    Stock,
    generator_column,
    prefixed,
)
from components.checkpoints.snapshot import Snapshot
from components.replay_server.coordinator import Exchange
from components.replay_server.members import Kept


class KeptMemories(Checkpointed):
    """The memories that an exchange keeps, how far its pacing is, and what it draws with.

    All is as of one moment. What was drawn ahead is not kept, and drawn anew.

    Args:
        exchange: whose memories they are.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _columns(self) -> dict[str, Column]:
        exchange, kept = self._exchange, self._exchange.kept()
        columns = {
            "clients": Column.of(np.frombuffer(json.dumps(list(kept)).encode(), np.uint8)),
            "rng": generator_column(exchange.rng),
            "paced": Column.of(np.array(exchange.limiter is not None)),
        }
        for name in ("admitted", "inserted_bytes", "writer", "number"):
            columns[name] = Column.of(np.array([getattr(it, name) for it in kept.values()], np.int64))
        for i, it in enumerate(kept.values()):
            columns |= prefixed(f"memories/{i}", it.memory.columns())
        if exchange.limiter is not None:
            columns |= prefixed("limiter", exchange.limiter.columns())
        return columns

    def snapshot(self) -> Snapshot:
        """Return all that a checkpoint keeps, to be written by another thread while the exchange goes on."""
        return Snapshot(self.columns(), [it.memory for it in self._exchange.kept().values()])

    def restore_from(self, stock: Stock) -> None:
        exchange = self._exchange
        stock.expect_value("format", FORMAT)
        stock.expect_value("kind", type(self).__name__)
        names = _read_names(stock)
        counts = {name: _read_counts(stock, name, len(names)) for name in ("admitted", "inserted_bytes", "number")}
        writers = stock.read("writer", np.int64, (len(names),))
        kept = {}
        for i, name in enumerate(names):
            memory = exchange.new_memory()
            try:
                memory.restore_from(stock.part(f"memories/{i}"))
            except CheckpointError as error:
                raise CheckpointError(f"{error} (in the memory of {name!r})") from error
            own = {count: int(array[i]) for count, array in counts.items()}
            kept[name] = Kept(memory, writer=int(writers[i]), **own)
        rng = stock.read_generator("rng", exchange.rng)
        paced = bool(stock.read("paced", np.bool_, ()))
        pacing = exchange.limiter if paced else None
        if pacing is not None:
            copy(pacing).restore_from(stock.part("limiter"))
        # Nothing was wrong: from here on it is changed.
        exchange.rng.bit_generator.state = rng.bit_generator.state
        exchange.take_back(kept, counted=pacing is not None)
        if pacing is not None:
            pacing.restore_from(stock.part("limiter"))


def _read_names(stock: Stock) -> list[str]:
    written = stock.read("clients", np.uint8, (stock.length("clients"),)).tobytes()
    try:
        names = json.loads(written)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise CheckpointError(f"clients: expected a list of names, each once, got {written!r}")
    return names


def _read_counts(stock: Stock, name: str, n: int) -> NDArray[np.int64]:
    counts = stock.read(name, np.int64, (n,))
    if (counts < 0).any():
        raise CheckpointError(f"{name}: expected numbers of at least 0, got {counts}")
    return counts
