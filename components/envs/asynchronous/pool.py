"""A pool of environments in processes: it sends commands to ready environments and receives finished results.

It has `send` and `recv` of EnvPool (Weng et al., 2022), but uses processes, for environments that wait, crash and hang.
K copies.
"""

import os
import select
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import structlog
from numpy.typing import NDArray

from components.envs.asynchronous import frames
from components.envs.asynchronous.arrays import anonymous_file, nbytes_of, shared_arrays
from components.envs.asynchronous.process import MOST_COPIES
from components.envs.asynchronous.processes import EnvProcess, Template, Trouble
from orchestra import UsageError

_TRIES = 3
_CLOSING_S = 5.0
_LITTLE, _MUCH = 64, 1 << 16
"""Bytes to read of a reply: most replies are one byte, and a large buffer has to be allocated first."""
_NO_INFOS: dict[str, Any] = {}

log = structlog.get_logger("envs")


class EnvFailed(RuntimeError):
    """An environment could not be started or restarted after several tries."""


class Outcome(IntEnum):
    """What happened to a copy that is ready."""

    STEPPED = 0
    RESET = 1
    LOST = 2
    """Its process and its episode are gone; it must be reset."""
    RENEWED = 3
    """Its episode is lost, and it is at the start of another."""


class Result(NamedTuple):
    """A copy that is ready."""

    copy: int
    outcome: Outcome
    infos: dict[str, Any]


class _Task(IntEnum):
    """What a copy is doing."""

    IDLE = 0  # between episodes, or not started
    READY = 1  # within an episode, waiting for an action
    STEPPING = 2
    RESETTING = 3


class Pool:
    """K copies of an environment, in processes that are replaced when they fail.

    Args:
        kind: "env" for an `Env`, "gymnasium" for a Gymnasium environment.
        make: the factory of the environments: a function or class that can be imported, or a partial of one.
        copies: K.
        seeds: returns the seed of a copy's environment, from its number and how often it was started before.
        envs_per_process: copies in a process, each in its own thread unless it is a `TimedEnv`. They crash together.
        step_timeout_s: an environment whose step takes longer counts as hanging.
        start_timeout_s: the same for starting a process, making an environment, and beginning an episode.

    Raises:
        ValueError: a number out of its range.
        UsageError: the factory cannot be used in another process, or there is no such environment on this system.
        EnvFailed: no environment could be made.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[..., Any],
        copies: int,
        *,
        seeds: Callable[[int, int], int],
        envs_per_process: int,
        step_timeout_s: float,
        start_timeout_s: float,
    ) -> None:
        for name, value in (
            ("n_envs", copies),
            ("envs_per_process", envs_per_process),
            ("step_timeout_s", step_timeout_s),
            ("start_timeout_s", start_timeout_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} is {value!r}, must be positive")
        if envs_per_process > MOST_COPIES:
            raise ValueError(f"envs_per_process is {envs_per_process!r}, must be at most {MOST_COPIES}")
        self.restarts = 0
        """Environments started in place of one that failed."""
        self.episodes_lost = 0
        """Episodes that a failing environment cut short."""
        self.pending = np.zeros(copies, np.bool_)
        """(K,): the copies that are stepping or being reset."""
        self._seeds, self._per_process = seeds, envs_per_process
        self._step_s, self._start_s = step_timeout_s, start_timeout_s
        self._template = Template(kind, make, timeout_s=start_timeout_s)
        said = self._first_description()
        self._fields = {name: (tuple(shape), str(dtype)) for name, (shape, dtype) in said["fields"].items()}
        self.about: dict[str, Any] = said["about"]
        """Further information about the environment: `Hosted.about`."""
        self._memory = anonymous_file(nbytes_of(self._fields, copies))
        self.arrays: Mapping[str, NDArray[Any]] = shared_arrays(self._memory, self._fields, copies)
        """The environments' own memory by name, (K, …). A pending copy may write its rows at any time."""
        self._processes: list[EnvProcess | None] = [None] * copies
        self._tasks = [_Task.IDLE] * copies
        self._options: list[dict[str, Any]] = [{}] * copies
        self._data = [bytearray() for _ in range(copies)]
        self._started, self._failures = [0] * copies, [0] * copies
        self._deadlines = np.zeros(copies)
        self._next_check = np.inf
        self._results: list[Result] = []
        self._by_reply: dict[int, int] = {}
        self._by_done: dict[int, EnvProcess] = {}
        self._epoll = select.epoll()
        self._most_events = min(copies, 256)
        self._closed = False
        self._finalizer = weakref.finalize(self, _release, self._processes, self._template, self._epoll, self._memory)

    @property
    def process_ids(self) -> list[int]:
        """IDs of the environments' processes."""
        return sorted({process.pid for process in self._processes if process is not None})

    def step(self, copies: Sequence[int]) -> None:
        """Begin a step in each of these copies; their rows of actions must have been written.

        A copy that has failed since it was ready makes no step: `recv` returns it as lost.
        """
        copies = [b for b in copies if self._tasks[b] == _Task.READY]
        self._sent(copies, self._step_s)
        for b in copies:
            self._tasks[b] = _Task.STEPPING
        together: dict[EnvProcess, list[int]] = {}
        for b in copies:
            process = self._processes[b]
            if process is None:  # it has just ended with another copy
                continue
            if process.steps is not None:
                together.setdefault(process, []).append(b)
                continue
            try:
                os.write(process.commands[b], frames.STEP)
            except OSError as error:
                self._fail(process, b, Trouble(f"it is gone ({error})"))
        for process, of_process in together.items():
            assert process.steps is not None
            first = process.copies[0]
            try:
                os.write(process.steps, bytes([b - first for b in of_process]))
            except OSError as error:
                self._fail(process, of_process[0], Trouble(f"it is gone ({error})"))

    def reset(self, copies: Sequence[int], options: Sequence[dict[str, Any]] | None = None) -> None:
        """Begin an episode in each of these copies; start missing processes.

        Raises:
            EnvFailed: a process cannot be started, or the pool is closed.
        """
        if self._closed:
            raise EnvFailed("the environments are closed")
        self._sent(copies, self._start_s)
        for b, each in zip(copies, options or [{}] * len(copies), strict=True):
            self._options[b], self._tasks[b] = each, _Task.RESETTING
        for b in copies:
            self._command_reset(b)

    def recv(self, at_least: int, max_wait_s: float, timeout_s: float) -> list[Result]:
        """Wait for `at_least` copies to become ready, and return all that are.

        Return fewer once `max_wait_s` has passed since the first, once no copy is pending, or after `timeout_s`.

        Raises:
            EnvFailed: an environment failed several times in a row.
        """
        start = now = monotonic()
        first: float | None = None
        while True:
            until = min(start + timeout_s, self._next_check)
            if not self.pending.any():
                until = now
            elif self._results:
                until = min(until, start if first is None else first + max_wait_s)
            patience = max(until - now, 0.0)
            if patience and at_least > 1 and at_least - len(self._results) >= np.count_nonzero(self.pending):
                self._wait_for_one(patience)  # all pending copies are needed: avoid a wake-up for each
                patience = 0.0
            for descriptor, _ in self._epoll.poll(patience, self._most_events):
                self._take(descriptor)
            now = monotonic()
            if now >= self._next_check:
                self._end_overdue(now)
            if len(self._results) >= at_least or not self.pending.any():
                break
            if self._results and first is None:
                first = now
            if (first is not None and now >= first + max_wait_s) or now >= start + timeout_s:
                break
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """Close all environments and end their processes; a process that does not end is killed."""
        self._closed = True
        processes = {process.pid: process for process in self._processes if process is not None}
        for process in processes.values():
            for descriptor in process.commands.values():
                with suppress(OSError):  # it may be gone already
                    os.write(descriptor, frames.CLOSE)
        until = monotonic() + _CLOSING_S
        left = set(processes)
        with select.epoll() as ends:
            for process in processes.values():
                ends.register(next(iter(process.replies.values())), 0)  # no event except the end
            of = {next(iter(process.replies.values())): pid for pid, process in processes.items()}
            while left and (now := monotonic()) < until:
                for descriptor, _ in ends.poll(until - now):
                    ends.unregister(descriptor)
                    left.discard(of[descriptor])
        self._finalizer()
        self.pending[:] = False

    def _first_description(self) -> dict[str, Any]:
        trouble: Trouble | None = None
        for _ in range(_TRIES):
            try:
                return self._template.describe()
            except Trouble as error:
                trouble = error
                log.warning("no environment could be made", reason=str(error))
        raise EnvFailed(f"no environment can be made after {_TRIES} tries; the last: {trouble}")

    def _sent(self, copies: Sequence[int], timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        self._deadlines[copies] = deadline
        self.pending[copies] = True
        self._next_check = min(self._next_check, deadline)

    def _wait_for_one(self, patience: float) -> None:
        """Wait for the reply of the first pending copy, even if others reply earlier."""
        b = int(self.pending.argmax())
        process = self._processes[b]
        assert process is not None
        poll = select.poll()
        poll.register(process.replies[b], select.POLLIN)
        if process.done is not None:
            poll.register(process.done, select.POLLIN)
        poll.poll(patience * 1e3)

    def _take(self, descriptor: int) -> None:
        """Read the reply of a copy, or of several that have made a step."""
        b = self._by_reply.get(descriptor)
        if b is None:
            of_several = self._by_done.get(descriptor)
            if of_several is not None:  # else the process has just ended because another of its copies failed
                self._take_together(of_several, descriptor)
            return
        process = self._processes[b]
        assert process is not None
        try:
            data = os.read(descriptor, _MUCH if self._data[b] else _LITTLE)
            if data == frames.DONE and not self._data[b]:
                self._done(b, _NO_INFOS)
                return
            if not data:
                raise Trouble("it crashed")
            self._data[b] += data
            self._parse(b)
        except BlockingIOError:
            return  # the event was of an earlier process, whose descriptor had the same number
        except (Trouble, OSError) as error:
            self._fail(process, b, error)

    def _take_together(self, process: EnvProcess, descriptor: int) -> None:
        """Read which copies of a process have made a step."""
        b = process.copies[0]
        try:
            made = os.read(descriptor, _MUCH)
            if not made:
                raise Trouble("it crashed")
            for place in made:
                if place >= len(process.copies):
                    raise Trouble(f"it answered with nonsense: a step of copy {place} of {len(process.copies)}")
                b = process.copies[place]
                self._done(b, _NO_INFOS)
        except BlockingIOError:
            return  # the event was of an earlier process, whose descriptor had the same number
        except (Trouble, OSError) as error:
            self._fail(process, b, error)

    def _parse(self, b: int) -> None:
        data = self._data[b]
        head = bytes(data[:1])
        if head in frames.BODIES:
            if len(data) < 5:
                return
            size = int.from_bytes(data[1:5], "big")
            if size > frames.LIMIT:
                raise Trouble(f"it answered with nonsense: a reply of {size} bytes")
            if len(data) < 5 + size:
                return
            try:
                body = frames.unpacked(data[5 : 5 + size])
            except (ValueError, TypeError) as error:
                raise Trouble(f"it answered with nonsense ({error})") from error
            del data[: 5 + size]
            if head == frames.REFUSED:
                raise UsageError(str(body))
            if head == frames.ERROR:
                raise Trouble(str(body))
            if not isinstance(body, dict):
                raise Trouble(f"it answered with nonsense: infos are {body!r:.200}")
            self._done(b, body)
        elif bytes(data) in (frames.DONE, frames.RENEWED):
            data.clear()
            self._done(b, {}, renewed=head == frames.RENEWED)
        else:
            raise Trouble(f"it answered with nonsense: {bytes(data[:20])!r}")
        if data:
            raise Trouble(f"it answered with nonsense: {bytes(data[:20])!r} after its reply")

    def _done(self, b: int, infos: dict[str, Any], *, renewed: bool = False) -> None:
        task = self._tasks[b]
        if task not in (_Task.STEPPING, _Task.RESETTING):
            raise Trouble("it answered with nonsense: a reply without a request")
        self._failures[b] = 0
        self._tasks[b] = _Task.READY
        self.pending[b] = False
        outcome = Outcome.STEPPED if task == _Task.STEPPING else Outcome.RESET
        if renewed:
            log.warning("an environment has started again by itself; its episode is dropped", copy=b)
            self.restarts += 1
            self.episodes_lost += 1
            outcome = Outcome.RENEWED
        self._results.append(Result(b, outcome, infos))

    def ended(self, copies: Sequence[int]) -> None:
        """Note that the episodes of these copies have ended: no episode is lost if they fail now."""
        for b in copies:
            self._tasks[b] = _Task.IDLE

    def _command_reset(self, b: int) -> None:
        while self._failures[b] < _TRIES:
            process = self._processes[b]
            try:
                if process is None:
                    self._start(b)
                    continue
                frames.write(process.commands[b], frames.RESET, self._options[b])
                return
            except (Trouble, OSError) as error:
                self._failures[b] += 1
                trouble = error
                if process is not None:
                    self._fail(process, b, error, count=False)
                    return
        raise EnvFailed(f"copy {b}: no environment after {_TRIES} tries; the last: {trouble}")

    def _start(self, b: int) -> None:
        """Start the process of a copy and of the copies that share it."""
        first = b - b % self._per_process
        copies = list(range(first, min(first + self._per_process, len(self._processes))))
        seeds = [self._seeds(each, self._started[each]) for each in copies]
        process = self._template.fork(copies, seeds, self._fields, len(self._processes), self._memory)
        for each in copies:
            self._started[each] += 1
            self._processes[each] = process
            self._data[each].clear()
            self._by_reply[process.replies[each]] = each
            self._epoll.register(process.replies[each], select.EPOLLIN)
        if process.done is not None:
            self._by_done[process.done] = process
            self._epoll.register(process.done, select.EPOLLIN)

    def _fail(self, process: EnvProcess, b: int, trouble: Exception, *, count: bool = True) -> None:
        """End the process in which copy `b` failed. Copies that lose an episode become ready; resets are repeated."""
        log.warning(
            "an environment failed and is replaced",
            copy=b,
            pid=process.pid,
            reason=str(trouble),
        )
        for each, descriptor in process.replies.items():
            self._epoll.unregister(descriptor)
            del self._by_reply[descriptor]
            self._processes[each] = None
        if process.done is not None:
            self._epoll.unregister(process.done)
            del self._by_done[process.done]
        process.kill()
        self._template.reap(process)
        again, lost = [], []
        for each in process.copies:
            self.restarts += 1
            task, self._tasks[each] = self._tasks[each], _Task.IDLE
            if task == _Task.RESETTING:
                again.append(each)
            elif task != _Task.IDLE:
                self.episodes_lost += 1
                self.pending[each] = False
                lost.append(each)
        # A result that has not been returned yet belongs to the lost episode.
        self._results = [result for result in self._results if result.copy not in lost]
        self._results += [Result(each, Outcome.LOST, {}) for each in lost]
        if b in again and count:
            self._failures[b] += 1
        if self._failures[b] >= _TRIES:
            raise EnvFailed(f"copy {b}: no episode begins after {_TRIES} tries; the last: {trouble}")
        if again:
            self.reset(again, [self._options[each] for each in again])

    def _end_overdue(self, now: float) -> None:
        """End the processes of copies that hang."""
        overdue = np.flatnonzero(self.pending & (self._deadlines <= now)).tolist()
        for b in overdue:
            process = self._processes[b]
            if process is not None and self.pending[b]:
                limit = self._step_s if self._tasks[b] == _Task.STEPPING else self._start_s
                self._fail(process, b, Trouble(f"it hangs: no answer in {limit:g} s"))
        self._next_check = float(self._deadlines[self.pending].min(initial=np.inf))


def _release(processes: list[EnvProcess | None], template: Template, epoll: Any, memory: int) -> None:
    for process in {id(each): each for each in processes if each is not None}.values():
        process.kill()
    processes[:] = [None] * len(processes)
    template.close()
    epoll.close()
    os.close(memory)
