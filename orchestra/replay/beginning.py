"""Where a replay begins: at the actor's birth, or with the newest state of it that a flight recorder kept."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestra.actors.actor import Actor, making
from orchestra.errors import CannotReplay
from orchestra.replay.context import Stage
from orchestra.replay.rebuild import Rebuilt
from orchestra.trace.format.records import Activation, ActorSnapshot, Incarnation
from orchestra.trace.reading.run_trace import RunTrace


def first_of(
    trace: RunTrace, life: Incarnation, kind: type[Actor[Any]]
) -> tuple[ActorSnapshot | None, Iterator[Activation]]:
    """Return the state to begin with, None for birth, and what came to the actor from there on.

    Raises:
        CannotReplay: the record reaches back neither to its birth nor to a state of it.
    """
    activations = trace.activations(life)
    first = next(activations, None)
    if first is not None and first.n == 0:
        return None, _chained(first, activations)
    snapshot = trace.snapshot(life)
    while first is not None and snapshot is not None and first.n < snapshot.n:
        first = next(activations, None)
    if first is not None and snapshot is not None and first.n == snapshot.n:
        return snapshot, _chained(first, activations)
    if first is not None:
        begins = f"the record begins at {first.n:,}"
    else:
        begins = "nothing is left of what came to it" if snapshot is None else "nothing came to it after its last state"
    raise CannotReplay(
        f"{life.birth.actor} cannot be replayed from its birth: {begins}, and what state it was in then is not "
        f"known{_why(life, kind)}"
    )


async def reborn(stage: Stage, rebuilt: Rebuilt, snapshot: ActorSnapshot, state: dict[str, Any]) -> Actor[Any]:
    """Return the actor as it was when its state was kept: constructed, not started, and restored."""
    token = making.set(stage)
    try:
        made = rebuilt.factory()
    finally:
        making.reset(token)
    stage.rng.bit_generator.state = json.loads(snapshot.random)
    made.restore(state)
    return made


def scratch_for(recorded: Path) -> Path:
    """Make a folder that stands for the run's: its config, and room for what an actor writes."""
    scratch = Path(tempfile.mkdtemp(prefix="replay-"))
    for name in ("checkpoints", "logs", "tensorboard", "traces"):
        (scratch / name).mkdir()
    config = recorded / "config.json"
    (scratch / "config.json").write_bytes(config.read_bytes() if config.exists() else b"{}")
    return scratch


def _chained(first: Activation, rest: Iterator[Activation]) -> Iterator[Activation]:
    yield first
    yield from rest


def _why(life: Incarnation, kind: type[Actor[Any]]) -> str:
    if life.header.mode != "flight":
        return ""
    keeps = "a flight record keeps the last of a run: record with --trace full, or keep more of it"
    if kind.snapshot is Actor.snapshot:
        return f"; {keeps}, or have {kind.__name__} say its state (Actor.snapshot)"
    return f"; {keeps}"
