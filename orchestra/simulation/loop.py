"""An asyncio event loop in virtual time, without sockets and threads. The seed decides the order of callbacks."""

import asyncio
import contextvars
import hashlib
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, TypeVar, TypeVarTuple

from orchestra.errors import OrchestraError
from orchestra.nodes.stacks import suspended
from orchestra.simulation.seeded_random import SeededRandom
from orchestra.simulation.strands import Strand, Strands

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Context = contextvars.Context

OFFLOADED_S = 5e-3
"""Mean virtual duration of offloaded work."""
MAX_CALLBACKS_AT_ONCE = 200_000
"""Callbacks at one moment of virtual time after which the simulation counts as stuck in an endless loop."""
RECENT_EVENTS = 30


class SimulationStuck(OrchestraError):
    """The simulation cannot finish, or exceeded a limit. The text shows what each task awaits."""


class _Future(asyncio.Future[Any]):
    """A future whose hash depends on its number instead of its memory address, so that sets have one order."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task, hashed like a `_Future`."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number  # first: the base class registers the task in a set
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop that never waits: when no callback is ready, its time jumps to the next timer.

    Args:
        random: decides what asyncio, threads and machines leave open.
    """

    def __init__(self, random: SeededRandom) -> None:
        super().__init__()
        self.random = random
        self.strands = Strands(random)
        self.limit = float("inf")
        """The virtual time at which the simulation fails."""
        self.report: Callable[[], str] = str
        """Describes what every task awaits."""
        self.steps = 0
        """Callbacks run so far."""
        self._now = 0.0
        self._numbers = 0
        self._timers: list[tuple[float, int, events.TimerHandle, Strand]] = []
        self._steps_before = 0
        """`steps` when the time last advanced."""
        self._error: BaseException | None = None
        self._tasks: dict[Strand, list[asyncio.Task[Any]]] = {}
        self._hash = hashlib.blake2b(digest_size=16)
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=RECENT_EVENTS)
        self._discarding = False

    # The interface of asyncio

    def time(self) -> float:
        """Return the virtual time in seconds; it begins at 0."""
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> events.Handle:
        """Run `callback` after the callbacks that were queued in its strand before."""
        context = context if context is not None else contextvars.copy_context()
        handle = events.Handle(callback, args, self, context)
        self._make_ready(handle, self.strands.of(context))
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """Run `callback` at the time `when`, plus the lateness of its process."""
        context = context if context is not None else contextvars.copy_context()
        strand = self.strands.of(context)
        timer = events.TimerHandle(when, callback, args, self, context)
        self._numbers += 1
        heapq.heappush(self._timers, (max(when, self._now) + strand.lateness, self._numbers, timer, strand))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future."""
        self._numbers += 1
        return _Future(self._numbers, self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task that runs `coro`."""
        assert asyncio.iscoroutine(coro)
        self._numbers += 1
        context = context if context is not None else contextvars.copy_context()
        name = f"task {self._numbers}" if name is None else str(name)
        task: asyncio.Task[T] = _Task(self._numbers, coro, loop=self, name=name, context=context)
        tasks = self._tasks.setdefault(self.strands.of(context), [])
        tasks.append(task)
        if len(tasks) % 64 == 0:
            tasks[:] = [task for task in tasks if not task.done()]
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a simulated thread."""
        return asyncio.wrap_future(SimulatedThreads(self).submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the simulation with an unhandled exception."""
        if self._discarding:
            return  # raised by a task that is discarded
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = RuntimeError(f"{context['message']}: {context.get('task') or context.get('future')}")
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the simulation with `error`, unless it has failed before."""
        if self._error is None:
            self._error = error

    def __del__(self) -> None:
        """Do nothing: the loop holds no resources, and the base class would warn of a loop that was not closed."""

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """A cancelled timer stays in the heap until it is due."""

    def _run_once(self) -> None:
        if self._error is not None:
            raise self._error
        ready = self.strands.next()
        if ready is None:
            self._advance()
            return
        strand, handle = ready
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps - self._steps_before > MAX_CALLBACKS_AT_ONCE:
            raise self.stuck(f"{MAX_CALLBACKS_AT_ONCE:,} callbacks have run at one moment of virtual time")
        self.note(strand, _callback_name(handle))
        handle._run()

    def _advance(self) -> None:
        """Advance the time to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise self.stuck("no callback and no timer is left")
        when = timers[0][0]
        if when > self.limit:
            raise self.stuck(f"the limit of {self.limit:g} s is exceeded")
        self._now = when
        self._steps_before = self.steps
        while timers and timers[0][0] <= when:
            _, _, timer, strand = heapq.heappop(timers)
            if not timer.cancelled():
                self._make_ready(timer, strand)

    def _make_ready(self, handle: events.Handle, strand: Strand) -> None:
        if not self._discarding:
            self.strands.add(handle, strand)

    # The interface of the simulation

    @property
    def digest(self) -> str:
        """A hash of all events so far, in their order."""
        return self._hash.hexdigest()

    @property
    def recent(self) -> list[str]:
        """The last events as text."""
        return [f"{now:.6f} {strand}: {what}" for now, strand, what in self._recent]

    def note(self, strand: Strand, what: str) -> None:
        """Record an event."""
        event = (self._now, strand.name, what)
        self._recent.append(event)
        self._hash.update(repr(event).encode())

    def waiting(self) -> dict[str, list[asyncio.Task[Any]]]:
        """Return the unfinished tasks of the running processes, by process."""
        return {
            strand.name: [task for task in tasks if not task.done()]
            for strand, tasks in self._tasks.items()
            if strand.alive
        }

    def stuck(self, why: str) -> SimulationStuck:
        """Return the error that ends a simulation which cannot finish, with the report."""
        return SimulationStuck(f"after {self._now:.3f} s, {why}\n{self.report()}")

    def pause(self, strand: Strand, seconds: float) -> None:
        """Run nothing of `strand` for some time, like a stopped process; time goes on meanwhile."""
        if strand.alive and not strand.paused:
            self.strands.pause(strand)
            self.call_later(seconds, self.strands.resume, strand, context=self.strands.outside.context)

    def check(self) -> None:
        """Raise the first unhandled exception, including those of tasks that no code awaited."""
        # A task reports its unhandled exception when its last reference is dropped.
        self._tasks = {
            strand: [task for task in tasks if not (strand.alive and task.done())]
            for strand, tasks in self._tasks.items()
        }
        if self._error is not None:
            raise self._error

    def discard_tasks(self) -> None:
        """Close the coroutines that will not continue, so that the garbage collector reports none."""
        self._discarding = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            while self._tasks:  # a `finally` of one may create another
                for task in self._tasks.pop(next(iter(self._tasks))):
                    if not task.done():
                        _discard(task)
        finally:
            events._set_running_loop(before)
        self._timers.clear()
        self.strands.clear()


class SimulatedThreads(Executor):
    """A thread pool without threads: work runs inline, at once or later, and takes some virtual time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Return the future of `fn(*args, **kwargs)`."""
        job: Future[T] = Future()
        call = partial(fn, *args, **kwargs)
        duration = self._loop.random.exponential(OFFLOADED_S)
        if self._loop.random.chance(0.5):
            job.set_running_or_notify_cancel()
            finish = _run(job, call)
        else:
            finish = partial(_begin, job, call)
        self._loop.call_later(duration, finish)
        return job


def _begin(job: Future[Any], call: Callable[[], Any]) -> None:
    if job.set_running_or_notify_cancel():  # False: cancelled before a thread was free
        _run(job, call)()


def _run(job: Future[Any], call: Callable[[], Any]) -> Callable[[], None]:
    """Run `call`, and return a function that sets its result in `job`."""
    try:
        return partial(job.set_result, call())
    except Exception as error:
        return partial(job.set_exception, error)


def location_of(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost function outside of asyncio, and its line."""
    frames = list(suspended(task))
    own = (frame for frame in frames if not frame.f_globals.get("__name__", "").startswith("asyncio."))
    found = next(own, frames[-1] if frames else None)
    if found is None:
        return "a task that has not started"
    return f"{found.f_code.co_qualname} ({found.f_code.co_filename}:{found.f_lineno})"


def _callback_name(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]  # asyncio has no public way to say what it runs
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def _discard(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does for its children
    coroutine = task.get_coro()
    assert coroutine is not None
    for _ in range(100):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it awaited in a `finally`; the next close continues from there
        except Exception:  # noqa: S110  (the process is dead: an error of its `finally` never happened)
            pass
        return
