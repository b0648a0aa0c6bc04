"""Finds actors that depend on more than their messages: compares two replays of one record with each other."""

import datetime as dt
import itertools
import os
import random  # noqa: TID251 (its state is compared; nothing is drawn)
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

import numpy as np

from orchestra.replay.replay import Options, Replay
from orchestra.replay.replica import Conditions, Replica
from orchestra.replay.report import Divergence, activation_text
from orchestra.replay.state import array_difference
from orchestra.trace.analysis.values import EXACT_TEXT, ValueDifference, shortened, value_difference

HASH_SEEDS = (1, 2, 51, 95, 102)
"""Under these, found by search, a set of two texts has both orders.

That holds for any two of the 20 words that the test has, and for other texts with a probability of 15/16.
"""
FIRST = Conditions(hash_seed=HASH_SEEDS[0], reverse=False, fill=0xAB)
OTHERS = (
    Conditions(hash_seed=HASH_SEEDS[1], reverse=True, fill=0xCD),
    *(replace(FIRST, hash_seed=seed) for seed in HASH_SEEDS[2:]),
)
_CAUSES = {
    "reverse": "the order of a set of tasks, as asyncio.wait returns it, or of other objects",
    "fill": "elements of an uninitialised numpy array",
    "hash_seed": "the order of a set of texts, or hash(): sort the items",
}
"""The causes of a difference, in words, by the field of `Conditions`.

They are tried in this order, because the addresses of objects may differ between any two processes.
"""
_SOURCES = {
    time.time: "time.time",  # noqa: TID251 (looked for, not called)
    time.time_ns: "time.time_ns", time.monotonic: "time.monotonic",
    time.monotonic_ns: "time.monotonic_ns", time.perf_counter: "time.perf_counter",
    time.perf_counter_ns: "time.perf_counter_ns", os.urandom: "os.urandom", os.getpid: "os.getpid",
}  # fmt: skip
_DATES = (dt.datetime, dt.date)
_NOW = ("now", "today", "utcnow")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first difference between two replays of one record."""

    divergence: Divergence
    suspects: tuple[str, ...]
    """Sources of indeterminism in that delivery: a clock, a global generator, the pid, a thread, the order of a set."""

    def __str__(self) -> str:
        text = str(self.divergence).replace("  recorded  ", "  once      ").replace("  replayed  ", "  again     ")
        return "\n".join([text, *(f"  suspect   {suspect}" for suspect in self.suspects)])


def first_mismatch(
    path: Path, actor: str, *, until: int | None = None, **options: Unpack[Options]
) -> tuple[int, Mismatch | None]:
    """Replay in five fresh processes; return the number of activations compared and the first difference, if any.

    Compared are the outputs of each activation and the actor's state after it, with each other and not with the record.
    The processes differ in their hash seeds and pids, the second one also in the order of sets of tasks and of objects,
    and in uninitialised numpy memory.

    Args:
        path: the run, as of `Replay`.
        actor: the actor's address.
        until: the delivery before which to stop.
        options: of `Replay`, without a factory.

    Raises:
        CannotReplay: the actor cannot be replayed.
    """
    count, found = _compare(path, actor, until, options, OTHERS)
    if found is None:
        return count, None
    n, what, difference, conditions = found
    lenient: Options = {**options, "strict": False}
    with Replay(path, actor, **lenient) as replay:
        replay.run(until=n)
        activation = replay.activation
        assert activation is not None
        during = activation_text(activation.delivery, activation.phase)
        divergence = Divergence(replay.address, n, during, what, difference)
        suspects = _suspects(replay)
    if not suspects:
        suspects = tuple(itertools.islice(_causes(path, actor, n, options, conditions), 1))
    return count, Mismatch(divergence, suspects)


def _causes(path: Path, actor: str, n: int, options: Options, conditions: Conditions) -> Iterator[str]:
    """Yield the possible causes of the difference in activation `n` that was found under `conditions`."""
    for name, text in _CAUSES.items():
        alone = replace(FIRST, **{name: getattr(conditions, name)})
        if alone == conditions or (alone != FIRST and _compare(path, actor, n + 1, options, [alone])[1] is not None):
            yield text


def _compare(
    path: Path, actor: str, until: int | None, options: Options, conditions: Sequence[Conditions]
) -> tuple[int, tuple[int, str, ValueDifference, Conditions] | None]:
    """Replay under the conditions `FIRST` and under others; return the activations compared and the first difference.

    The difference is given by the activation's number, a description, the values, and the conditions of that replay.
    """
    with ExitStack() as stack:
        replicas = [stack.enter_context(Replica(path, actor, each, options)) for each in (FIRST, *conditions)]
        for replica in replicas:
            replica.answer()
        count = 0
        while True:
            one, *others = _answers(replicas, "step", until)
            if one is None and not any(others):
                return count, None
            count += 1
            for replica, other in zip(replicas[1:], others, strict=True):
                if found := _difference((replicas[0], replica), one, other):
                    return count, ((one or other)["n"], *found, replica.conditions)


def _answers(replicas: Sequence[Replica], *request: Any) -> list[Any]:
    for replica in replicas:
        replica.ask(*request)
    return [replica.answer() for replica in replicas]


def _difference(
    pair: Sequence[Replica], one: dict[str, Any] | None, other: dict[str, Any] | None
) -> tuple[str, ValueDifference] | None:
    """Return the difference of an activation between two processes, from the report of each; None at the end."""
    if one is None and other is None:
        return None
    if one is None or other is None:
        ended, goes_on = "has ended", "goes on"
        words = (ended, goes_on) if one is None else (goes_on, ended)
        return "only one of them ends", ValueDifference("", *words)
    found = _output_difference(pair, one, other)
    if found is None and one["state"] != other["state"]:
        found = _state_difference(pair)
    return found


def _output_difference(
    pair: Sequence[Replica], one: dict[str, Any], other: dict[str, Any]
) -> tuple[str, ValueDifference] | None:
    for index, (left, right) in enumerate(zip(one["outputs"], other["outputs"], strict=False)):
        if left == right:
            continue
        (text, fields), (other_text, other_fields) = _answers(pair, "output", index)
        if left[:-1] != right[:-1]:
            return "different output", ValueDifference("", text, other_text)
        difference = value_difference(fields, other_fields)
        if difference is not None:
            return " ".join(left[:-1]), difference
    numbers = [str(len(side["outputs"])) for side in (one, other)]
    if numbers[0] != numbers[1]:
        return "different number of outputs", ValueDifference("", *numbers)
    if one["error"] != other["error"]:
        return "different failure", ValueDifference("", *(side["error"] or "none" for side in (one, other)))
    return None


def _state_difference(pair: Sequence[Replica]) -> tuple[str, ValueDifference] | None:
    """Return the first leaf of the state that differs. Elements of arrays that neither process wrote do not."""
    left, right = _answers(pair, "leaves")
    for index, ((path, *digests), (other_path, *others)) in enumerate(zip(left, right, strict=False)):
        if path == other_path and any(one == other for one, other in zip(digests, others, strict=True)):
            continue
        if path != other_path:
            difference: ValueDifference | None = ValueDifference("", path, other_path)
        else:
            one, other = _answers(pair, "leaf", index)
            if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
                difference = array_difference(one, other, (pair[0].conditions.fill, pair[1].conditions.fill))
            else:
                difference = ValueDifference("", *(shortened(str(side), EXACT_TEXT) for side in (one, other)))
        if difference is not None:
            return "its state afterwards", replace(difference, path=path + difference.path)
    return None


def _suspects(replay: Replay[Any]) -> tuple[str, ...]:
    """Run the next activation, and watch the actor in it."""
    found: list[str] = []
    with _watched(found):
        replay.step()
    return tuple(dict.fromkeys(found))


@contextmanager
def _watched(found: list[str]) -> Iterator[None]:
    """While the block runs, note the clocks that are read, the global generators that are used, the threads started."""
    own = ("asyncio", "threading", __name__)

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or frame.f_globals.get("__name__", "").startswith(own):
            return
        name = next((name for function, name in _SOURCES.items() if function is called), None)
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
