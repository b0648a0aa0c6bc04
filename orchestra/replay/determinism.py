"""Finds actors that are not made by their messages alone: two replays of one record are held against each other."""

import datetime as dt
import os
import random  # noqa: TID251 (it is looked at, not drawn from)
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any

import numpy as np

from orchestra.errors import ReplayDiverged
from orchestra.replay import report
from orchestra.replay.difference import Difference, first_difference
from orchestra.replay.performance import Performance
from orchestra.replay.replay import Replay
from orchestra.replay.report import Divergence
from orchestra.replay.state import state_differences
from orchestra.trace.format.records import Activation

WHOLE_EVERY = 256
"""Deliveries after which large arrays of the state are compared as well; at the end they are in any case."""
_CLOCKS = {
    time.time: "time.time",  # noqa: TID251 (it is looked for, not read)
    time.time_ns: "time.time_ns", time.monotonic: "time.monotonic",
    time.monotonic_ns: "time.monotonic_ns", time.perf_counter: "time.perf_counter",
    time.perf_counter_ns: "time.perf_counter_ns", os.urandom: "os.urandom",
}  # fmt: skip
_UNWRITTEN = (0xAB, 0xCD)
"""What stands in memory that numpy hands out unwritten, in the one replay and in the other."""
_DATES = (dt.datetime, dt.date)
_NOW = ("now", "today", "utcnow")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first thing in which two replays of one record are not the same."""

    divergence: Divergence
    suspects: tuple[str, ...]
    """What the actor did in that delivery that no record holds: a clock, a generator, a thread of its own."""

    def __str__(self) -> str:
        text = str(self.divergence).replace("  recorded  ", "  once      ").replace("  replayed  ", "  again     ")
        said = "\n".join(f"  suspect   {suspect}" for suspect in self.suspects)
        return f"{text}\n{said}" if said else text


def first_mismatch(make: Callable[[], Replay[Any]], *, until: int | None = None) -> tuple[int, Mismatch | None]:
    """Replay twice, side by side, and return how far that went, and the first difference, if there is one.

    What is said is compared, and after each activation what the actor holds. Neither is compared with the record.
    Memory that numpy hands out unwritten holds one thing in the one replay and another in the other.

    Args:
        make: opens a replay that is not strict.
        until: the delivery before which to stop.
    """
    with ExitStack() as stack:
        with _unwritten_memory(_UNWRITTEN[0]):
            one = stack.enter_context(make())
        with _unwritten_memory(_UNWRITTEN[1]):
            other = stack.enter_context(make())
        count = 0
        while (activation := one.activation) is not None and (until is None or activation.n < until):
            with _unwritten_memory(_UNWRITTEN[0]):
                mine = one.step()
            with _unwritten_memory(_UNWRITTEN[1]):
                theirs = other.step()
            count += 1
            last = one.activation is None
            found = _difference((mine, theirs), one, other, whole=last or count % WHOLE_EVERY == 0)
            if found is not None:
                what, difference = found
                found_at = Divergence(
                    one.address, activation.n, report.named(activation.delivery, activation.phase), what, difference
                )
                return count, Mismatch(found_at, _suspects(make, activation))
    return count, None


def _difference(
    performances: tuple[Performance | None, Performance | None], one: Replay[Any], other: Replay[Any], *, whole: bool
) -> tuple[str, Difference] | None:
    mine, theirs = performances
    assert mine is not None
    if theirs is None:
        return "one comes to its end", Difference("", "it goes on", "it has ended")
    for said, again in zip(mine.said, theirs.said, strict=False):
        if (said.verb, said.recipient, said.kind) != (again.verb, again.recipient, again.kind):
            return "it does something else", Difference("", str(said), str(again))
        difference = first_difference(said.fields, again.fields)
        if difference is not None:
            return f"{said.verb} {said.recipient} {said.kind}", difference
    if len(mine.said) != len(theirs.said):
        return "it says more", Difference("", *(f"{len(each.said)} things" for each in (mine, theirs)))
    if repr(mine.error) != repr(theirs.error):
        return "it fails otherwise", Difference("", repr(mine.error), repr(theirs.error))
    if mine.error is not None:
        return None
    inside = next(state_differences(one.actor, other.actor, whole=whole, unwritten=_UNWRITTEN), None)
    if inside is None:
        return None
    path = inside.path + inside.difference.path
    return "what it holds afterwards", Difference(path, inside.difference.recorded, inside.difference.replayed)


def _suspects(make: Callable[[], Replay[Any]], activation: Activation) -> tuple[str, ...]:
    """Replay up to an activation, and watch what the actor does in it."""
    found: list[str] = []
    with make() as replay:
        replay.run(until=activation.n)
        with _watched(found):
            try:
                replay.step()
            except ReplayDiverged:
                found.append("it does not do what was recorded either")
    return tuple(dict.fromkeys(found))


@contextmanager
def _unwritten_memory(byte: int) -> Iterator[None]:
    """While the block runs, fill what numpy hands out unwritten with `byte`."""
    empty, empty_like = np.empty, np.empty_like

    def filling(make: Any) -> Any:
        @wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            array = make(*args, **kwargs)
            if array.dtype.kind in "biufc" and array.flags.c_contiguous:
                array.reshape(-1).view(np.uint8)[...] = byte
            return array

        return made

    numpy: Any = np
    numpy.empty, numpy.empty_like = filling(empty), filling(empty_like)
    try:
        yield
    finally:
        numpy.empty, numpy.empty_like = empty, empty_like


@contextmanager
def _watched(found: list[str]) -> Iterator[None]:
    """While the block runs, take note of clocks that are read, global generators drawn from, threads begun."""
    own = (__file__, threading.__file__)

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or frame.f_code.co_filename in own or "asyncio" in frame.f_code.co_filename:
            return
        name = next((name for function, name in _CLOCKS.items() if function is called), None)
        owner, named = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if named in _NOW and any(owner is date for date in _DATES):
            name = f"datetime.{named}"
        if name is not None:
            found.append(f"{name}, read at {frame.f_code.co_filename}:{frame.f_lineno}")

    python, numbers = random.getstate(), repr(np.random.get_state())  # noqa: NPY002 (it is looked at)
    begun: list[str] = []
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        begun.append(self.name)
        start(self)

    threading.Thread.start = started  # type: ignore[method-assign]  # put back below
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.Thread.start = start  # type: ignore[method-assign]  # as it was
    if random.getstate() != python:
        found.append("Python's global random numbers: `random` instead of `self.rng`")
    if repr(np.random.get_state()) != numbers:  # noqa: NPY002 (it is looked at)
        found.append("numpy's global random numbers: `numpy.random` instead of `self.rng`")
    found += [f"a thread of its own, {name}: `self.offload` instead" for name in begun]
