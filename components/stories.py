"""Keys of `orchestra trace story`: the stories of an episode, of a parameter version, and of a batch.

A trace does not number episodes. But every actor passes on all the experience that it receives, in the same order. So
the k-th episode of a worker can be found among the episodes that its proxy sent, and the i-th episode that reached a
replay buffer has generation i - 1 in batches.
"""

from collections.abc import Iterator

import numpy as np

from messages import BatchTrainingDataMsg, InsertTransitionMsg, ProgressMsg, UpdatePriorityMsg
from orchestra import TraceError, UsageError
from orchestra.trace import DeliveryRow, Query, RunTrace, Where, consequences_of

_INSERT = InsertTransitionMsg.__name__


def transition(trace: RunTrace, value: str) -> Iterator[DeliveryRow]:
    """WORKER:K, the K-th episode that a worker sent, from 1: through proxies into batches and priorities."""
    worker, _, number = value.rpartition(":")
    if not worker or not number.isdigit() or int(number) < 1:
        raise UsageError(f"--transition: got {value!r}; expected WORKER:K, as in worker-0-1:12 or worker-0-1/worker:12")
    sent = _sent_by(trace, worker if "/" in worker else f"{worker}/*")
    found = _episode(sent, int(number) - 1)
    if found is None:
        total = sum(map(_episodes, sent))
        raise TraceError(f"{trace.path}: episode {number} of {worker} was not recorded; {total:,} of its episodes were")
    stop, position = found
    if any(Query(type=ProgressMsg.__name__, where=Where("dropped_episodes > 0")).deliveries(trace)):
        raise TraceError(f"{trace.path}: episodes were dropped (--drop-stale), so none can be followed by its position")
    while True:
        yield stop
        holder, generation = stop.delivery.actor, stop.header.generation
        received = list(Query(actor=holder, type=_INSERT).deliveries(trace))
        earlier = [each for each in received if each.header.generation == generation and each.clock < stop.clock]
        position += sum(map(_episodes, earlier))
        passed_on = [each for each in _sent_by(trace, holder) if each.delivery.id.generation == generation]
        if not passed_on:
            break
        found = _episode(passed_on, position)
        if found is None:
            return  # it was never passed on: lost with a process, or the run ended
        stop, position = found
    for kind in (BatchTrainingDataMsg, UpdatePriorityMsg):
        for row in Query(type=kind.__name__, where=Where(f"{position} in generations")).deliveries(trace):
            if holder in (row.delivery.id.sender, row.delivery.actor):
                yield row


def params(trace: RunTrace, value: str) -> Iterator[DeliveryRow]:
    """VERSION, a version of the parameters: its publication, and where it was loaded, used, learned from and tested."""
    if not value.isdigit():
        raise UsageError(f"--params: got {value!r}; expected a whole number, as in 57")
    yield from Query(where=Where(f"version == {int(value)} or {int(value)} in versions")).deliveries(trace)


def batch(trace: RunTrace, value: str) -> Iterator[DeliveryRow]:
    """NUMBER, a batch: its request, its sampling, its training step, and the Trainer's results."""
    if not value.isdigit():
        raise UsageError(f"--batch: got {value!r}; expected a whole number, as in 412")
    for row in Query(where=Where(f"number == {int(value)}")).deliveries(trace):
        yield row
        if row.delivery.type.name == BatchTrainingDataMsg.__name__:
            yield from consequences_of(trace, row)


def _sent_by(trace: RunTrace, sender: str) -> list[DeliveryRow]:
    """Return the experience sent by `sender`, in the order of sending."""
    sent = Query(sender=sender, type=_INSERT).deliveries(trace)
    return sorted(sent, key=lambda row: row.delivery.id.number)


def _episode(rows: list[DeliveryRow], position: int) -> tuple[DeliveryRow, int] | None:
    """Return the message with the episode at `position`, and the episode's position within it."""
    for row in rows:
        episodes = _episodes(row)
        if position < episodes:
            return row, position
        position -= episodes
    return None


def _episodes(row: DeliveryRow) -> int:
    lengths = (row.delivery.fields or {}).get("lengths")
    return 0 if lengths is None else int(np.prod(lengths.shape))
