"""Finds actors that depend on more than their messages: compares two replays of one record with each other."""

import datetime as dt
import os
import random  # noqa: TID251 (its state is compared; nothing is drawn)
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from types import FrameType
from typing import Any

import numpy as np

from orchestra.errors import ReplayDiverged
from orchestra.replay.effects import ReplayedActivation
from orchestra.replay.replay import Replay
from orchestra.replay.report import Divergence, activation_text
from orchestra.replay.state import state_differences
from orchestra.trace.analysis.values import ValueDifference, value_difference
from orchestra.trace.format.records import Activation

LARGE_ARRAYS_EVERY = 256
"""Deliveries between two comparisons of the large arrays of the state. The last delivery compares them as well."""
_CLOCKS = {
    time.time: "time.time",  # noqa: TID251 (looked for, not called)
    time.time_ns: "time.time_ns", time.monotonic: "time.monotonic",
    time.monotonic_ns: "time.monotonic_ns", time.perf_counter: "time.perf_counter",
    time.perf_counter_ns: "time.perf_counter_ns", os.urandom: "os.urandom",
}  # fmt: skip
_FILL = (0xAB, 0xCD)
"""The bytes of uninitialised numpy arrays in the first and in the second replay."""
_DATES = (dt.datetime, dt.date)
_NOW = ("now", "today", "utcnow")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two replays of one record."""

    divergence: Divergence
    suspects: tuple[str, ...]
    """Sources of indeterminism in that delivery: a clock, a global generator, a thread."""

    def __str__(self) -> str:
        text = str(self.divergence).replace("  recorded  ", "  once      ").replace("  replayed  ", "  again     ")
        return "\n".join([text, *(f"  suspect   {suspect}" for suspect in self.suspects)])


def first_mismatch(make: Callable[[], Replay[Any]], *, until: int | None = None) -> tuple[int, Mismatch | None]:
    """Replay twice, side by side; return the number of activations compared and the first difference, if any.

    Compared are the outputs of each activation and the actor's state after it, with each other and not with the record.
    Uninitialised numpy memory holds different bytes in the two replays.

    Args:
        make: opens a replay that is not strict.
        until: the delivery before which to stop.
    """
    with ExitStack() as stack:
        replays = []
        for byte in _FILL:
            with _filled_memory(byte):
                replays.append(stack.enter_context(make()))
        one, other = replays
        count = 0
        while (activation := one.activation) is not None and (until is None or activation.n < until):
            with _filled_memory(_FILL[0]):
                first = one.step()
            with _filled_memory(_FILL[1]):
                second = other.step()
            assert first is not None
            count += 1
            large = one.activation is None or count % LARGE_ARRAYS_EVERY == 0
            found = _output_difference(first, second)
            if found is None and first.error is None:
                inside = next(state_differences(one.actor, other.actor, large=large, unwritten=_FILL), None)
                if inside is not None:
                    path, difference = inside.path + inside.difference.path, inside.difference
                    found = "its state afterwards", replace(difference, path=path)
            if found is not None:
                during = activation_text(activation.delivery, activation.phase)
                divergence = Divergence(one.address, activation.n, during, *found)
                return count, Mismatch(divergence, _suspects(make, activation))
    return count, None


def _output_difference(one: ReplayedActivation, other: ReplayedActivation | None) -> tuple[str, ValueDifference] | None:
    if other is None:
        return "only one of them ends", ValueDifference("", "goes on", "has ended")
    for left, right in zip(one.outputs, other.outputs, strict=False):
        if left.key != right.key:
            return "different output", ValueDifference("", str(left), str(right))
        difference = value_difference(left.fields, right.fields)
        if difference is not None:
            return " ".join(left.key), difference
    if len(one.outputs) != len(other.outputs):
        return "different number of outputs", ValueDifference("", str(len(one.outputs)), str(len(other.outputs)))
    if repr(one.error) != repr(other.error):
        return "different failure", ValueDifference("", repr(one.error), repr(other.error))
    return None


def _suspects(make: Callable[[], Replay[Any]], activation: Activation) -> tuple[str, ...]:
    """Replay up to an activation, and watch the actor in it."""
    found: list[str] = []
    with make() as replay:
        replay.run(until=activation.n)
        with _watched(found):
            try:
                replay.step()
            except ReplayDiverged:
                found.append("it differs from the record as well")
    return tuple(dict.fromkeys(found))


@contextmanager
def _filled_memory(byte: int) -> Iterator[None]:
    """While the block runs, fill new uninitialised numpy arrays with `byte`."""
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
    """While the block runs, note the clocks that are read, the global generators that are used, the threads started."""
    own = ("asyncio", "threading", __name__)

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or frame.f_globals.get("__name__", "").startswith(own):
            return
        name = next((name for function, name in _CLOCKS.items() if function is called), None)
        owner, method = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if method in _NOW and any(owner is date for date in _DATES):
            name = f"datetime.{method}"
        if name is not None:
            found.append(f"{name}, read at {frame.f_code.co_filename}:{frame.f_lineno}")

    python, numbers = random.getstate(), repr(np.random.get_state())  # noqa: NPY002 (compared only)
    begun: list[str] = []
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        begun.append(self.name)
        start(self)

    threading.Thread.start = started  # type: ignore[method-assign]  # restored below
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.Thread.start = start  # type: ignore[method-assign]  # the original
    if random.getstate() != python:
        found.append("Python's global random numbers: use `self.rng` instead of `random`")
    if repr(np.random.get_state()) != numbers:  # noqa: NPY002 (compared only)
        found.append("numpy's global random numbers: use `self.rng` instead of `numpy.random`")
    found += [f"a thread of its own, {name}: use `self.offload` instead" for name in begun]
