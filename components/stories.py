"""The words of `orchestra trace story`: where an episode, a version of the parameters, or a batch was seen.

A trace does not number episodes, and needs not: whoever passes experience on passes all of it on, in the order in which
it came. The k-th episode that a worker told is so found again in what its proxy told, and the i-th that reached a
replay buffer is the one that batches name by generation i - 1.
"""

from collections.abc import Iterator

import numpy as np

from messages import BatchTrainingDataMsg, InsertTransitionMsg, UpdatePriorityMsg
from orchestra.trace.analysis.story import consequences_of, nothing_found, refused_word
from orchestra.trace.reading.query import Query, Seen
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where

_INSERT = InsertTransitionMsg.__name__


def transition(trace: RunTrace, value: str) -> Iterator[Seen]:
    """WORKER:K, the K-th episode that a worker told, from 1: through proxies into batches and priorities."""
    worker, _, number = value.rpartition(":")
    if not worker or not number.isdigit() or int(number) < 1:
        raise refused_word(value, "WORKER:K, as in worker-0-1:12 or worker-0-1/worker:12")
    told = _told_by(trace, worker if "/" in worker else f"{worker}/*")
    found = _nth(told, int(number) - 1)
    if found is None:
        raise nothing_found(trace, f"episode {number} of {worker}; it told {sum(map(_episodes, told)):,}")
    stop, place = found
    while True:
        yield stop
        holder, generation = stop.delivery.actor, stop.header.generation
        came = [each for each in _received_by(trace, holder) if each.header.generation == generation]
        place += sum(_episodes(each) for each in came if each.clock < stop.clock)
        passed_on = [each for each in _told_by(trace, holder) if each.delivery.id.generation == generation]
        if not passed_on:
            break
        found = _nth(passed_on, place)
        if found is None:
            return  # it was never passed on: lost with its holder, or the run ended
        stop, place = found
    for kind in (BatchTrainingDataMsg, UpdatePriorityMsg):
        for seen in Query(type=kind.__name__, where=Where(f"{place} in generations")).deliveries(trace):
            if holder in (seen.delivery.id.sender, seen.delivery.actor):
                yield seen


def params(trace: RunTrace, value: str) -> Iterator[Seen]:
    """VERSION, a version of the parameters: where it was published, loaded, acted with and tested."""
    if not value.isdigit():
        raise refused_word(value, "as a whole number, as in 57")
    yield from Query(where=Where(f"version == {int(value)} or {int(value)} in versions")).deliveries(trace)


def batch(trace: RunTrace, value: str) -> Iterator[Seen]:
    """NUMBER, a batch: where it was asked for, drawn, learned from, and what the Trainer told of it."""
    if not value.isdigit():
        raise refused_word(value, "as a whole number, as in 412")
    where = Where(f"number == {int(value)}")
    for seen in Query(where=where).deliveries(trace):
        yield seen
        if seen.delivery.type.name == BatchTrainingDataMsg.__name__:
            yield from consequences_of(trace, seen)


def _told_by(trace: RunTrace, sender: str) -> list[Seen]:
    """Experience told by `sender`, in the order in which it was told."""
    told = list(Query(sender=sender, type=_INSERT).deliveries(trace))
    return sorted(told, key=lambda seen: seen.delivery.id.number)


def _received_by(trace: RunTrace, actor: str) -> list[Seen]:
    return list(Query(actor=actor, type=_INSERT).deliveries(trace))


def _nth(told: list[Seen], place: int) -> tuple[Seen, int] | None:
    """The message that holds the episode at `place`, and where in it."""
    for seen in told:
        episodes = _episodes(seen)
        if place < episodes:
            return seen, place
        place -= episodes
    return None


def _episodes(seen: Seen) -> int:
    lengths = (seen.delivery.fields or {}).get("lengths")
    return 0 if lengths is None else int(np.prod(lengths.shape))
