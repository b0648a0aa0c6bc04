"""The loop: asyncio in virtual time, in an order that the seed decides. No sockets, no threads, no waiting.

asyncio promises that what is scheduled first runs first; processes promise each other nothing. So callbacks are kept in
*strands*, one for each simulated process: within a strand they run in the order in which they were made, and which
strand goes next is the seed's choice. A strand is a context variable: whatever a callback schedules, spawns or awaits
belongs to its own strand, and all of it ends when the process dies.
"""

import asyncio
import contextvars
import hashlib
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from orchestra.errors import OrchestraError
from orchestra.simulation.dice import Dice

if TYPE_CHECKING:
    from orchestra.simulation.network import Network

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Context = contextvars.Context

OUTSIDE = "outside"
"""The strand of the code that runs the simulation."""
LATENESS_S = 1e-3
"""No process's timers fire later than this after they are due: no two are late by the same."""
OFFLOADED_S = 5e-3
"""What a computation off the loop takes, on average."""
PATIENCE = 200_000
"""Callbacks at one moment of virtual time after which it is taken for granted that they go on for ever."""
RECENT = 30
EVENTS = 4096
"""Events that the fingerprint takes in at once."""

_ASYNCIO = str(Path(asyncio.__file__).parent)


class SimulationStuck(OrchestraError):
    """Nothing will ever happen again, or the same for ever; the text says who waits for what."""


class Strand:
    """What runs one after the other: the callbacks of one simulated process."""

    def __init__(self, name: str, lateness: float = 0.0) -> None:
        self.name = name
        self.lateness = lateness
        self.ready: deque[events.Handle] = deque()
        self.alive = True
        self.standing = False
        """Whether the process stands still: it is there, and does nothing."""
        self.context = contextvars.copy_context()
        """What everything begins with that comes to the process from outside."""
        self.context.run(_strand.set, self)


_strand: contextvars.ContextVar[Strand] = contextvars.ContextVar("strand")


class _Future(asyncio.Future[Any]):
    """A future whose place in a set depends on when it was made, not on where it lies in memory."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[Any]):
    """A task, hashed like a `_Future`."""

    def __init__(
        self,
        number: int,
        coro: Coroutine[Any, Any, Any],
        loop: asyncio.AbstractEventLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        self._number = number  # first: the base class registers the task in a set
        super().__init__(coro, loop=loop, name=name or f"task {number}", context=context)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop that never waits: when nothing is ready, its time jumps to the next timer.

    Args:
        dice: decides whatever asyncio, threads and machines leave open.
    """

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self.dice = dice
        self.outside = Strand(OUTSIDE)
        self.until = float("inf")
        """The time at which patience ends."""
        self.network: Network
        """What connects the processes."""
        self.report: Callable[[], str] = str
        """Says who waits for what."""
        self.steps = 0
        """Callbacks run so far."""
        self._now = 0.0
        self._numbers = 0
        self._runnable: list[Strand] = []
        self._current: Strand | None = None
        self._loyalty = dice.choice((0.0, 0.5, 0.9))
        self._timers: list[tuple[float, int, events.TimerHandle, Strand]] = []
        self._jumped = 0
        self._broken: BaseException | None = None
        self._tasks: dict[Strand, list[asyncio.Task[Any]]] = {}
        self._schedule = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[float, str, str]] = []
        """What has happened since the fingerprint was last taken, and a little before."""
        self._told = 0
        """How much of that is in the fingerprint."""
        self._burying = False

    # What asyncio asks of a loop

    def time(self) -> float:
        """Return the virtual time, in seconds; it begins at 0."""
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> events.Handle:
        """Run `callback` after everything that its strand has been given before."""
        context = context if context is not None else contextvars.copy_context()
        handle = events.Handle(callback, args, self, context)
        self._make_ready(handle, context.get(_strand, self.outside))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.Handle:
        """As `call_soon`: there are no threads."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """Run `callback` after `delay` seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> events.TimerHandle:
        """Run `callback` at the time `when`, or as late as this process is."""
        context = context if context is not None else contextvars.copy_context()
        strand = context.get(_strand, self.outside)
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
        task: asyncio.Task[T] = _Task(self._numbers, coro, self, None if name is None else str(name), context)
        self._keep(context.get(_strand, self.outside), task)
        return task

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` inline: at once or later, and hand over its result after some time."""
        return asyncio.wrap_future(SimulatedThreads(self).submit(func, *args), loop=self)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the simulation: nobody handles an exception here."""
        if self._burying:
            return  # of what a process would have done, had it not died before
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = RuntimeError(f"{context['message']}: {context.get('task') or context.get('future')}")
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the simulation with `error`, unless it has failed before."""
        if self._broken is None:
            self._broken = error

    def __del__(self) -> None:
        """Nothing to give back: it may be made and never run."""

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """Nothing to do: it is dropped when its time comes."""

    def _run_once(self) -> None:
        dice, runnable = self.dice, self._runnable
        if self._broken is not None:
            raise self._broken
        if not runnable:
            self._jump()
            return
        if len(runnable) == 1:
            index = 0
        elif self._current in runnable and dice.chance(self._loyalty):
            index = runnable.index(self._current)
        else:
            index = dice.below(len(runnable))
        strand = self._current = runnable[index]
        handle = strand.ready.popleft()
        if not strand.ready:
            del runnable[index]
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps - self._jumped > PATIENCE:
            raise self.stuck(f"{PATIENCE:,} callbacks have run without any time passing")
        self.note(strand, _name(handle))
        handle._run()

    def _jump(self) -> None:
        """Let time pass until a timer is due."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise self.stuck("nothing will ever happen again")
        when = timers[0][0]
        if when > self.until:
            raise self.stuck("it should have come to an end by now")
        self._now = when
        self._jumped = self.steps
        while timers and timers[0][0] <= when:
            _, _, timer, strand = heapq.heappop(timers)
            if not timer.cancelled():
                self._make_ready(timer, strand)

    def _make_ready(self, handle: events.Handle, strand: Strand) -> None:
        if not strand.alive or self._burying:
            return
        if not strand.ready and not strand.standing:
            self._runnable.append(strand)
        strand.ready.append(handle)

    # What a simulation asks beyond that

    @property
    def digest(self) -> str:
        """A fingerprint of all that has happened so far, and in which order."""
        self._take_fingerprint()
        return self._schedule.hexdigest()

    @property
    def recent(self) -> list[str]:
        """The last things that happened."""
        return [f"{now:.6f} {strand}: {what}" for now, strand, what in self._events[-RECENT:]]

    def note(self, strand: Strand, what: str) -> None:
        """Write down that something happened."""
        self._events.append((self._now, strand.name, what))
        if len(self._events) >= EVENTS:
            self._take_fingerprint()

    def _take_fingerprint(self) -> None:
        self._schedule.update(repr(self._events[self._told :]).encode())
        self._events = self._events[-RECENT:]
        self._told = len(self._events)

    def here(self) -> Strand:
        """Return the strand that is running."""
        return _strand.get(self.outside)

    def lateness(self) -> float:
        """Return how late the timers of a new strand shall be, in seconds."""
        return self.dice.uniform(0.0, LATENESS_S)

    def waiting(self) -> dict[str, list[asyncio.Task[Any]]]:
        """Return the tasks that are not done, by the names of their strands; not those of the dead."""
        return {
            strand.name: [task for task in tasks if not task.done()]
            for strand, tasks in self._tasks.items()
            if strand.alive
        }

    def stuck(self, why: str) -> SimulationStuck:
        """Return the error that says `why` nothing comes of this any more, and who waits for what."""
        return SimulationStuck(f"after {self._now:.3f} s, {why}\n{self.report()}")

    def stand(self, strand: Strand, seconds: float) -> None:
        """Let nothing of `strand` run for so long, as if its process had been stopped; time goes on meanwhile."""
        if strand.standing or not strand.alive:
            return
        strand.standing = True
        if strand in self._runnable:
            self._runnable.remove(strand)
        self.call_later(seconds, self._go_on, strand, context=self.outside.context)

    def end(self, strand: Strand) -> None:
        """Let nothing of `strand` run any more: no callback, no `finally`, no goodbye."""
        strand.alive = False
        strand.ready.clear()
        if strand in self._runnable:
            self._runnable.remove(strand)

    def check(self) -> None:
        """Raise what went wrong and nobody has seen yet, in a task that nobody awaited for example."""
        # With the last reference to it, a task complains of an exception that nobody took.
        self._tasks = {
            strand: [task for task in tasks if not (strand.alive and task.done())]
            for strand, tasks in self._tasks.items()
        }
        if self._broken is not None:
            raise self._broken

    def bury(self) -> None:
        """Take the coroutines apart that will not run on, so that no collector of garbage finds them."""
        self._burying = True
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for tasks in self._tasks.values():
                for task in tasks:
                    if not task.done():
                        _dismantle(task)
        finally:
            events._set_running_loop(before)
        self._tasks.clear()
        self._timers.clear()
        self._runnable.clear()

    def _go_on(self, strand: Strand) -> None:
        strand.standing = False
        if strand.ready and strand.alive:
            self._runnable.append(strand)

    def _keep(self, strand: Strand, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks.setdefault(strand, [])
        tasks.append(task)
        if len(tasks) % 64 == 0:
            self._tasks[strand] = [task for task in tasks if not task.done()]


class SimulatedThreads(Executor):
    """Threads that are none: what is to run in one runs inline, at once or later, and takes some virtual time."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Return the future of `fn(*args, **kwargs)`."""
        job: Future[T] = Future()
        dice = self._loop.dice
        lasts = dice.exponential(OFFLOADED_S)
        if dice.chance(0.5):
            job.set_running_or_notify_cancel()
            finish = _work(job, partial(fn, *args, **kwargs))
        else:
            finish = partial(_begin, job, partial(fn, *args, **kwargs))
        self._loop.call_later(lasts, finish)
        return job


def _begin(job: Future[Any], call: Callable[[], Any]) -> None:
    if job.set_running_or_notify_cancel():  # else it was cancelled before a thread was free
        _work(job, call)()


def _work(job: Future[Any], call: Callable[[], Any]) -> Callable[[], None]:
    """Make `call`, and return what tells `job` how it went."""
    try:
        return partial(job.set_result, call())
    except Exception as error:
        return partial(job.set_exception, error)


def where(task: asyncio.Task[Any]) -> str:
    """Say where a task waits: the innermost function that is not asyncio's own, and its line."""
    inner: Any = task.get_coro()
    found = None
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None and (found is None or not frame.f_code.co_filename.startswith(_ASYNCIO)):
            found = frame
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    if found is None:
        return "what has not begun"
    return f"{found.f_code.co_qualname} ({found.f_code.co_filename}:{found.f_lineno})"


def _name(handle: events.Handle) -> str:
    callback = handle._callback  # type: ignore[attr-defined]  # asyncio has no public way to say what it runs
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def _dismantle(task: asyncio.Task[Any]) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio.gather does: nobody shall await it
    coroutine = task.get_coro()
    assert coroutine is not None
    for _ in range(100):
        try:
            coroutine.close()
        except RuntimeError:
            continue  # it awaits something in a `finally`; it stands there now, and the next close goes on from it
        except Exception:  # noqa: S110  (its process is dead: what its `finally` stumbles over never happened)
            pass
        return
