"""What a replay server keeps for its clients, as a checkpoint."""

import json
from copy import copy

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import (
    FORMAT,
    ArrayReader,
    Checkpointed,
    CheckpointError,
    StateArray,
    generator_array,
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

    state_kind = "KeptMemories"

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def _state_arrays(self) -> dict[str, StateArray]:
        exchange, kept = self._exchange, self._exchange.kept()
        arrays = {
            "clients": StateArray.of(np.frombuffer(json.dumps(list(kept)).encode(), np.uint8)),
            "rng": generator_array(exchange.rng),
            "paced": StateArray.of(np.array(exchange.limiter is not None)),
        }
        for name in ("admitted", "inserted_bytes", "writer", "number"):
            arrays[name] = StateArray.of(np.array([getattr(it, name) for it in kept.values()], np.int64))
        for i, it in enumerate(kept.values()):
            arrays |= prefixed(f"memories/{i}", it.memory.state_arrays())
        if exchange.limiter is not None:
            arrays |= prefixed("limiter", exchange.limiter.state_arrays())
        return arrays

    def snapshot(self) -> Snapshot:
        """Return all that a checkpoint keeps, to be written by another thread while the exchange goes on."""
        return Snapshot(self.state_arrays(), [it.memory for it in self._exchange.kept().values()])

    def restore_from(self, reader: ArrayReader) -> None:
        exchange = self._exchange
        reader.expect_value("format", FORMAT)
        reader.expect_value("kind", self.state_kind)
        names = _read_names(reader)
        counts = {name: _read_counts(reader, name, len(names)) for name in ("admitted", "inserted_bytes", "number")}
        writers = reader.read("writer", np.int64, (len(names),))
        kept = {}
        for i, name in enumerate(names):
            memory = exchange.new_memory()
            try:
                memory.restore_from(reader.part(f"memories/{i}"))
            except CheckpointError as error:
                raise CheckpointError(f"{error} (in the memory of {name!r})") from error
            own = {count: int(array[i]) for count, array in counts.items()}
            kept[name] = Kept(memory, writer=int(writers[i]), **own)
        rng = reader.read_generator("rng", exchange.rng)
        paced = bool(reader.read("paced", np.bool_, ()))
        pacing = exchange.limiter if paced else None
        if pacing is not None:
            copy(pacing).restore_from(reader.part("limiter"))
        # Nothing was wrong: from here on it is changed.
        exchange.rng.bit_generator.state = rng.bit_generator.state
        exchange.take_back(kept, counted=pacing is not None)
        if pacing is not None:
            pacing.restore_from(reader.part("limiter"))


def _read_names(reader: ArrayReader) -> list[str]:
    written = reader.read("clients", np.uint8, (reader.length("clients"),)).tobytes()
    try:
        names = json.loads(written)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise CheckpointError(f"clients: expected a list of names, each once, got {written!r}")
    return names


def _read_counts(reader: ArrayReader, name: str, n: int) -> NDArray[np.int64]:
    counts = reader.read(name, np.int64, (n,))
    if (counts < 0).any():
        raise CheckpointError(f"{name}: expected numbers of at least 0, got {counts}")
    return counts
