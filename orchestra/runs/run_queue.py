"""A queue of runs: several at a time, each in a process of its own, resumable.

The folder of a queue holds:

    queue.json        the arguments, the state and the duration of each run
    runs/             the directories of the runs
    output/NAME.txt   what each run has printed
    lock.json         the process that works through the queue: only meanwhile

Each run is the command `orchestra run … --as NAME`. So a run that was interrupted goes on from its newest checkpoint.
A run that is done is not repeated.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestra.clock import Clock, RealClock
from orchestra.errors import CannotWrite, UsageError
from orchestra.hosts.shape import this_machine
from orchestra.runs.resumption import check_run_name
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_list import is_running, last_record
from orchestra.runs.run_lock import locked
from orchestra.runs.whole_files import write_json

QueueState = Literal["waiting", "running", "done", "failed", "stopped"]
RUN_COMMAND = (sys.executable, "-m", "orchestra", "run")
TICK_S = 1.0
"""Seconds between two calls of `on_tick`."""


@dataclass(frozen=True, slots=True)
class QueuedRun:
    """A run for a queue.

    Args:
        name: of its directory, its output, and its row in the table; unique in the queue.
        words: the arguments of `orchestra run`, without `--as` and `--runs-dir`.
    """

    name: str
    words: Sequence[str]


def check_run(words: Sequence[str]) -> None:
    """Have `orchestra run` check the words of a run, so that an error common to all runs is reported once, early.

    Raises:
        UsageError: it refuses.
    """
    call = [*RUN_COMMAND, *words, "--dry-run"]
    done = subprocess.run(call, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(last.removeprefix("orchestra: error: "))


@dataclass(slots=True)
class QueueEntry:
    """A run of a queue, and how it stands."""

    run: QueuedRun
    state: QueueState = "waiting"
    """`stopped`: by `RunQueue.stop`; the queue does not start it again."""
    exit_code: int | None = None
    """Of its last process; None before its end, and for a run that another process has ended."""
    seconds: float = 0.0
    """Wall-clock time of all its processes that have ended."""
    began: float | None = None
    """Time of the clock at which its process began; None if it has none."""


class RunQueue:
    """Works through runs, several at a time.

    Runs that run at the same time have cores of their own, as far as there are enough.

    Args:
        folder: of the queue; it is made.
        parallel: the runs at a time; by default half as many as this machine has cores.
        command: starts a run; its words follow.
        shares: further words for the runs in each of the `parallel` places, as the hosts that they may use; by default
            none. They do not tell one run from another: a run may go on with those of another place.
        clock: gives durations.

    Raises:
        UsageError: `parallel` is below 1 or not the number of shares, or `queue.json` in the folder is damaged.
        OSError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        *,
        parallel: int | None = None,
        command: Sequence[str] = RUN_COMMAND,
        shares: Sequence[Sequence[str]] = (),
        clock: Clock | None = None,
    ) -> None:
        if parallel is not None and parallel < 1:
            raise UsageError(f"--parallel: {parallel} is not allowed: it must be 1 or more")
        if shares and parallel != len(shares):
            raise UsageError(f"--parallel: {parallel} is not allowed: there is room for {len(shares)} runs at a time")
        self.folder = folder
        self.runs_dir = folder / "runs"
        self.parallel = parallel or max(1, this_machine().cores // 2)
        self.clock = clock or RealClock()
        self.entries: dict[str, QueueEntry] = {}
        """All runs by name, in the order in which they start."""
        self.on_tick: Callable[[], None] | None = None
        """Called about once a second while runs are running, and after each change. It may call `add` and `stop`."""
        self.on_stopping: Callable[[int], None] | None = None
        """Called when `work` is cancelled, with the number of runs that are stopped, before it waits for them."""
        self._command = tuple(command)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._stopped: set[str] = set()
        self._starting = asyncio.Lock()
        self._cores = _cores(sorted(os.sched_getaffinity(0))[: this_machine().cores], self.parallel)
        self._shares = shares or [()] * self.parallel
        for path in (self.runs_dir, folder / "output"):
            try:
                path.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise UsageError(f"{str(folder)!r} is no folder") from error
            except OSError as error:
                raise CannotWrite(f"cannot write into {str(folder)!r}: {error.strerror}") from error
        self._recorded = _read(folder / "queue.json")

    def add(self, run: QueuedRun) -> QueueEntry:
        """Put a run at the end of the queue.

        A run that an earlier process has done or stopped with the same words keeps that state. With other words it goes
        on from its newest checkpoint.

        Raises:
            UsageError: the name is in use, or cannot be that of a folder.
        """
        check_run_name(run.name)
        if run.name in self.entries:
            raise UsageError(f"the queue in {str(self.folder)!r} has a run {run.name!r} already")
        entry = QueueEntry(run)
        earlier = self._recorded.get(run.name, {})
        entry.seconds = float(earlier.get("seconds", 0.0))
        if earlier.get("words") == list(run.words) and earlier.get("state") in ("done", "stopped"):
            entry.state, entry.exit_code = earlier["state"], earlier.get("exit_code")
            if entry.state == "done" and not self._is_done(run.name):  # its directory was removed
                entry.state, entry.seconds, entry.exit_code = "waiting", 0.0, None
        self.entries[run.name] = entry
        return entry

    def stop(self, name: str) -> None:
        """Stop a run that is waiting or running, in order; it is not started again. One that has ended stays as it is.

        Raises:
            KeyError: there is no run of that name.
        """
        entry = self.entries[name]
        if entry.state == "waiting":
            entry.state = "stopped"
        elif entry.state == "running":
            self._stopped.add(name)
            if name in self._processes:
                _signal(self._processes[name].terminate)

    def directory(self, name: str) -> RunDirectory | None:
        """Return the directory of a run, or None if it has not begun."""
        found = sorted(self.runs_dir.glob(f"*/{name}/config.json"), key=lambda path: path.stat().st_mtime_ns)
        return RunDirectory(found[-1].parent) if found else None

    def output(self, name: str) -> Path:
        """Return the file of what a run prints."""
        return self.folder / "output" / f"{name}.txt"

    def last_record(self, name: str) -> dict[str, Any]:
        """Return the last record of a run's metrics; empty if there is none."""
        run = self.directory(name)
        return {} if run is None else last_record(run)

    def counts(self) -> dict[QueueState, int]:
        """Return how many runs are in each state."""
        states: tuple[QueueState, ...] = ("waiting", "running", "done", "failed", "stopped")
        return {state: sum(entry.state == state for entry in self.entries.values()) for state in states}

    async def work(self) -> None:
        """Work through the queue, those runs included that are added meanwhile; return when all have ended.

        A run that fails holds up no other. A cancellation stops the runs in order, so that they can go on; a second one
        kills them.

        Raises:
            UsageError: another process works through the queue.
            CannotWrite: a file of the queue cannot be written.
        """
        with locked(RunDirectory(self.folder)):
            self._save()
            free = list(range(self.parallel))
            tasks: dict[asyncio.Task[None], int] = {}
            try:
                while True:
                    waiting = (entry for entry in self.entries.values() if entry.state == "waiting")
                    for entry, slot in zip(waiting, list(free), strict=False):
                        free.remove(slot)
                        entry.state = "running"
                        tasks[asyncio.create_task(self._carry_out(entry, slot))] = slot
                    self._tick()
                    if not tasks:
                        if not self.counts()["waiting"]:  # `on_tick` may have added some
                            break
                        continue
                    ended, _ = await asyncio.wait(tasks, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
                    for task in ended:
                        free.append(tasks.pop(task))
                        task.result()
            finally:
                if tasks and self.on_stopping is not None:
                    self.on_stopping(len(tasks))
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._save()

    def _tick(self) -> None:
        if self.on_tick is not None:
            self.on_tick()

    async def _carry_out(self, entry: QueueEntry, slot: int) -> None:
        """Run an entry to its end in this place, and write down how it ended."""
        name = entry.run.name
        entry.began = self.clock.monotonic()
        self._save()
        try:
            if not await self._waited_for_another(name) and name not in self._stopped:
                entry.exit_code = await self._in_process(entry, slot)
            entry.state = "done" if self._is_done(name) and not entry.exit_code else "failed"
            if name in self._stopped and entry.state != "done":
                entry.state = "stopped"
        except asyncio.CancelledError:
            entry.state = "waiting"
            raise
        finally:
            entry.seconds += self.clock.monotonic() - entry.began
            entry.began = None
            self._stopped.discard(name)
            self._save()

    async def _waited_for_another(self, name: str) -> bool:
        """Wait for the end of a run that a killed queue has left running; return whether it is done."""
        run = self.directory(name)
        while run is not None and is_running(run):  # noqa: ASYNC110  # a process that is not ours
            await asyncio.sleep(TICK_S)
        earlier = self._recorded.get(name, {})
        same = earlier.get("words") == list(self.entries[name].run.words)
        return same and earlier.get("state") == "running" and self._is_done(name)

    async def _in_process(self, entry: QueueEntry, slot: int) -> int:
        words = [
            *self._command,
            *entry.run.words,
            *self._shares[slot],
            "--as",
            entry.run.name,
            "--runs-dir",
            str(self.runs_dir),
        ]
        async with self._starting:  # the cores are those of this thread while the process starts
            with self.output(entry.run.name).open("ab") as output, _on_cores(self._cores[slot]):
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the queue, which stops its runs in order
                )
        self._processes[entry.run.name] = process
        try:
            if entry.run.name in self._stopped:
                _signal(process.terminate)
            return await process.wait()
        except asyncio.CancelledError:
            _signal(process.terminate)
            try:
                await process.wait()
            except asyncio.CancelledError:
                _signal(process.kill)
                await process.wait()
            raise
        finally:
            del self._processes[entry.run.name]

    def _is_done(self, name: str) -> bool:
        run = self.directory(name)
        return run is not None and run.ending().get("state") == "done"

    def _save(self) -> None:
        written = {
            name: {
                "words": list(entry.run.words),
                "state": entry.state,
                "exit_code": entry.exit_code,
                "seconds": entry.seconds,
            }
            for name, entry in self.entries.items()
        }
        write_json(self.folder / "queue.json", {"runs": self._recorded | written})


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        runs = json.loads(path.read_bytes())["runs"]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{str(path)!r} is damaged: {error!r}; remove it to start the queue anew") from error
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        raise UsageError(f"{str(path)!r} is damaged: it lists no runs; remove it to start the queue anew")
    return runs


def _cores(cores: Sequence[int], parallel: int) -> list[list[int]]:
    """Return the cores of each of `parallel` runs: disjoint, or one core each in turn if there are fewer."""
    if parallel >= len(cores):
        return [[cores[slot % len(cores)]] for slot in range(parallel)]
    return [
        list(cores[slot * len(cores) // parallel : (slot + 1) * len(cores) // parallel]) for slot in range(parallel)
    ]


@contextlib.contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """While the block runs, have this thread, and processes that it starts, use these cores alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _signal(send: Callable[[], None]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        send()
