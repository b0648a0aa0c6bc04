"""Runs experiments: `orchestra.run`, `orchestra.run_async` and `orchestra.start`. `orchestra run` calls the same.

All three take an experiment, the options of every run, which are flags of `orchestra run` too, and the flags of the
experiment, as keywords:

    result = orchestra.run("experiments/qmix_8m.py", scenario="3m", steps=50_000, seed=1)

One run at a time goes on in a process. When it is over, nothing of it is left in the process: signal handlers, logging
and the garbage collector's settings are as before.
"""

import asyncio
import contextlib
import functools
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from orchestra import log
from orchestra.clock import Clock, RealClock
from orchestra.errors import CannotWrite, OrchestraError, UsageError, causes
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.collected_code import make
from orchestra.hosts.output import LAST_ERROR
from orchestra.hosts.run_plan import RunPlan
from orchestra.runs.hosted_run import run_over_hosts
from orchestra.runs.plan import OPTIONS, PlannedRun, plan
from orchestra.runs.processes import ActorsLost
from orchestra.runs.result import RunFailed, RunFiles, RunResult, failure_text
from orchestra.runs.resumption import warn_of_unplanned
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_list import set_aside
from orchestra.runs.run_lock import Holder, locked
from orchestra.runs.runner import (
    ABORTED,
    Ending,
    Stopping,
    run_in_one_process,
    run_in_processes,
    run_loop,
    stopped_by_signals,
    tuned_gc,
)
from orchestra.runs.whole_files import replacing

P = ParamSpec("P")
T = TypeVar("T")

_one_at_a_time = threading.Lock()


def carry_out(
    planned: PlannedRun,
    stopping: Stopping | None = None,
    begun: Callable[[RunDirectory], object] = lambda _: None,
) -> RunResult:
    """Run to the end, on an event loop of its own.

    Args:
        planned: not run before.
        stopping: stops the run.
        begun: called with the run's directory once it exists.

    Raises:
        UsageError: the run cannot begin; nothing was written.
        RunFailed: it began, and failed.
    """
    planned.topology.prepare()
    return run_loop(_carry_out_here(planned, stopping, begun))


async def _carry_out_here(
    planned: PlannedRun,
    stopping: Stopping | None = None,
    begun: Callable[[RunDirectory], object] = lambda _: None,
) -> RunResult:
    """Run a prepared topology to the end, on the running event loop. Takes and raises what `carry_out` does."""
    stopping = stopping or Stopping()
    with _going_on(planned) as (run, launch, stale):
        begun(run)
        return await conclude(run, _log_file(planned, run), _run_to_the_end(planned, run, launch, stale, stopping))


async def _run_to_the_end(
    planned: PlannedRun, run: RunDirectory, launch: RunPlan, stale: Holder | None, stopping: Stopping
) -> Ending:
    grace = None if planned.hosts is None else planned.hosts.grace
    with _logging(planned, run), stopped_by_signals(planned.topology.root.name, stopping, grace):
        if stale is not None:
            log.get(actor="run").warning("a stale lock is taken over", host=stale.host, pid=stale.pid)
        launch = replace(launch, code=_keep_code(planned, run))
        if planned.hosts is not None:
            return await run_over_hosts(planned, launch, stopping)
        warn_of_unplanned(launch.resume_from, planned.topology)
        if planned.listen is None:
            return await run_in_one_process(planned.topology, launch, stopping)
        return await run_in_processes(planned.topology, launch, planned.listen, stopping)


async def conclude(run: RunDirectory, log_file: Path, ending: Awaitable[Ending]) -> RunResult:
    """Wait for the `ending` of a run that has begun, write it into the summary, and return the result.

    Args:
        run: where the run keeps its files.
        log_file: that of the root, which has the traceback of a failure.
        ending: of the main actor. It raises what `failing_in_one_line` does.

    Raises:
        RunFailed: the run failed.
    """
    try:
        ended = await ending
        result = RunResult(ended.state, ended.reason, run)
        if ended.state == "failed":
            reason = f"{ended.verdict} ({ended.reason})"
            raise RunFailed(f"the run failed: {reason}; traceback in {log_file}", replace(result, reason=reason))
    except RunFailed as failed:
        _write_ending(run, "failed", failed.result.reason)
        raise
    except BaseException as error:
        state = {asyncio.CancelledError: "stopped", KeyboardInterrupt: "interrupted"}.get(type(error), "failed")
        _write_ending(run, state, (failure_text(error) or type(error).__name__) if state == "failed" else None)
        raise
    state = "done" if result.completed else result.state
    _write_ending(run, state, ABORTED if result.reason == ABORTED else None)
    return result


def _write_ending(run: RunDirectory, state: str, reason: str | None) -> None:
    try:
        run.write_ending(state, reason)
    except OSError as error:
        log.get(actor="run").warning("cannot write how the run ended", path=str(run.summary), error=repr(error))


def _new_directory(planned: PlannedRun, clock: Clock) -> RunDirectory:
    name, experiment = planned.name, planned.topology.name
    if name is not None:
        set_aside(RunDirectory(planned.runs_dir / experiment / name))  # it has no checkpoint to go on from
    return RunDirectory.create(planned.runs_dir, experiment, planned.launch.seed, clock=clock, name=name)


@contextlib.contextmanager
def _going_on(planned: PlannedRun) -> Iterator[tuple[RunDirectory, RunPlan, Holder | None]]:
    if planned.hosts is not None and planned.hosts.head_elsewhere:
        engine = planned.hosts.engine
        raise UsageError(
            f"--launch {engine}: the head of such a run is started by {engine}; submit it by the command orchestra run"
        )
    if not _one_at_a_time.acquire(blocking=False):
        raise UsageError(
            "another run goes on in this process, and two would share its logs; wait for its end, or start this "
            "one in a process of its own"
        )
    try:
        clock = RealClock()
        run = planned.resumed or _new_directory(planned, clock)
        with locked(run) as stale, _kept_if_refused(run, resumed=planned.resumed is not None):
            resume_from = None if planned.resumed is None else run.newest_state().absolute()
            run.write_config(
                experiment=planned.launch.experiment,
                function=planned.launch.function,
                flags=planned.layout.values,
                options=planned.options,
                seed=planned.launch.seed,
                argv=planned.command,
                clock=clock,
                hosts=planned.shapes,
                placement=planned.placement,
            )
            run.summary.unlink(missing_ok=True)  # that of the run that is resumed
            yield run, replace(planned.launch, run_directory=run.path, resume_from=resume_from), stale
    finally:
        _one_at_a_time.release()


@contextlib.contextmanager
def _kept_if_refused(run: RunDirectory, *, resumed: bool) -> Iterator[None]:
    """Restore config and summary of a resumed run if it is refused, so that it can be resumed in another way."""
    if not resumed:
        yield
        return
    state = run.newest_state()
    before = {path: path.read_bytes() for path in (run.config_path, run.summary) if path.exists()}
    try:
        yield
    except OrchestraError as error:
        if any(isinstance(cause, UsageError) for cause in causes(error)) and run.newest_state() == state:
            for path, content in before.items():
                with replacing(path) as file:
                    file.write(content)
        raise


def _keep_code(planned: PlannedRun, run: RunDirectory) -> str:
    """Write the code of a run into its directory; return the digest, or an empty text if nothing is kept.

    Raises:
        UsageError: it cannot go to other hosts.
        CannotWrite: the disk is full.
    """
    made = code_of(planned)
    if made is None:
        return ""
    run.write_code(made)
    return made.digest


def code_of(planned: PlannedRun) -> Bundle | None:
    """Return the code of a run, or None if no other process needs it.

    Raises:
        UsageError: it cannot go to other hosts.
    """
    if planned.launch.experiment is None:
        return None
    hosts = planned.hosts
    ships = [*planned.topology.shipped, *(() if hosts is None else map(Path, hosts.ship))]
    try:
        installed = hosts is not None and hosts.code == "installed"
        return make(planned.launch.experiment, ships, planned.topology.named_files, installed=installed)
    except UsageError as error:
        if hosts is not None:
            raise
        # On one machine the run needs none; a replay then takes the code as it is.
        log.get(actor="run").info("the code of the run is not kept", reason=str(error))
        return None


@contextlib.contextmanager
def _logging(planned: PlannedRun, run: RunDirectory) -> Iterator[None]:
    with (
        log.configured(
            run.logs, node=planned.topology.root.name, level=planned.launch.log_level, quiet=planned.launch.quiet
        ),
        failing_in_one_line("the run", _log_file(planned, run), run),
        tuned_gc(),
    ):
        yield


def _log_file(planned: PlannedRun, run: RunDirectory) -> Path:
    return run.logs / f"{planned.topology.root.name}.jsonl"


@contextlib.contextmanager
def failing_in_one_line(what: str, log_file: Path, run: RunDirectory) -> Iterator[None]:
    """Turn any failure of `what` into one `RunFailed`, with the traceback in the log. A `UsageError` stays one."""
    try:
        yield
    except (ExceptionGroup, OrchestraError) as error:
        errors = list(_leaves(error))
        if misuse := next((one for one in errors if isinstance(one, UsageError)), None):
            raise misuse from None
        if not all(isinstance(one, OrchestraError) for one in errors):
            raise
        log.get().error(f"{what} failed", exc_info=error, quiet=True)
        errors.sort(key=lambda one: not isinstance(one.__cause__, CannotWrite))  # a full disk fails others, too
        text = failure_text(errors[0])
        details = errors[0].details if isinstance(errors[0], ActorsLost) else ()
        said = "\n".join([f"{what} failed: {text.removesuffix('.')}; traceback in {log_file}", *details])
        last_errors = [line for line in details if line.startswith(LAST_ERROR)]
        raise RunFailed(said, RunResult("failed", "; ".join([text, *last_errors[:1]]), run)) from error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


class RunHandle(RunFiles):
    """A run that goes on in a thread of this process. `orchestra.start` returns it once the run has a directory."""

    def __init__(self, planned: PlannedRun) -> None:
        self._stopping = Stopping()
        self._begun: Future[RunDirectory] = Future()
        self._result: Future[RunResult] = Future()
        self._thread = threading.Thread(target=self._carry_out, args=(planned,), name="orchestra run")
        self._thread.start()
        try:
            self.directory = self._begun.result()
        except KeyboardInterrupt:
            self._stopping.request("interrupted", abort=True)
            raise
        except OrchestraError:
            self._thread.join()
            raise

    def __repr__(self) -> str:
        return f"<RunHandle {'running' if self.running else 'over'}, {self.directory.path}>"

    @property
    def running(self) -> bool:
        """False once the run is over, however it ended."""
        return not self._result.done()

    def stop(self, *, abort: bool = False) -> None:
        """Ask the run to handle what is queued, save and stop, and return at once. Without effect once it is over.

        Args:
            abort: cancel what goes on and save nothing.
        """
        self._stopping.request(abort=abort)

    def result(self, timeout: float | None = None) -> RunResult:
        """Wait for the end of the run and return its result.

        Ctrl-C stops the run as `stop` does, and the wait goes on; pressed again, it aborts the run.

        Raises:
            RunFailed: the run failed.
            TimeoutError: it was not over within `timeout` seconds.
            KeyboardInterrupt: Ctrl-C aborted the run.
        """
        presses = 0
        while True:
            try:
                result = self._result.result(timeout)
                self._thread.join()
                return _unless_aborted(result)
            except KeyboardInterrupt:
                if not self.running:
                    raise
                presses += 1
                self._stopping.request("interrupted", abort=presses > 1)

    def _carry_out(self, planned: PlannedRun) -> None:
        try:
            self._result.set_result(carry_out(planned, self._stopping, self._begun.set_result))
        except BaseException as error:
            # To the thread that waits: for the directory, or for the result.
            (self._result if self._begun.done() else self._begun).set_exception(error)


def _unless_aborted(result: RunResult) -> RunResult:
    if result.state == "interrupted" and result.reason == ABORTED:
        raise KeyboardInterrupt
    return result


def _from_a_plan(make: Callable[P, PlannedRun]) -> Callable[[Callable[[PlannedRun], T]], Callable[P, T]]:
    """Return a decorator that gives a function of a planned run the parameters of `make`, and checks the options."""
    hints = typing.get_type_hints(make)  # without the metadata of the flags
    signature = inspect.signature(make)
    signature = signature.replace(
        parameters=[one.replace(annotation=hints[one.name]) for one in signature.parameters.values()]
    )

    def decorate(function: Callable[[PlannedRun], T]) -> Callable[P, T]:
        @functools.wraps(function)
        def planned(*args: P.args, **keywords: P.kwargs) -> T:
            options = {flag.name: flag.validated(keywords[flag.name]) for flag in OPTIONS if flag.name in keywords}
            return function(make(*args, **cast("Any", {**keywords, **options})))

        planned.__signature__ = signature.replace(  # type: ignore[attr-defined]  # read by help()
            return_annotation=inspect.signature(function).return_annotation
        )
        return planned

    return decorate


@_from_a_plan(plan)
def run(planned: PlannedRun) -> RunResult:
    """Run an experiment to its end.

    In the main thread Ctrl-C, or SIGTERM, stops the run in order; pressed again, it aborts the run. Where an event loop
    runs already, as in a notebook, the run goes on in a thread of its own while this call waits.

    Args:
        experiment: the path of an experiment's file, a function that returns a `Topology`, or a `Topology`. A file, or
            a function that stands in one, may use several processes, each of which imports the file. All nodes of a
            `Topology`, and of a function of a notebook, run in this process.
        flags: the parameters of the experiment. All other keywords are the options of every run, which
            `orchestra run --help` lists.

    Raises:
        UsageError: the run cannot begin as asked; nothing was written.
        RunFailed: it failed. The error's `result` has the run's directory.
        KeyboardInterrupt: Ctrl-C was pressed twice.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _unless_aborted(carry_out(planned))
    return RunHandle(planned).result()


@_from_a_plan(plan)
async def run_async(planned: PlannedRun) -> RunResult:
    """Run an experiment to its end, on the running event loop. Takes and raises what `run` does.

    Cancelled, it stops the run in order first.
    """
    await asyncio.to_thread(planned.topology.prepare)  # it may compile for a minute
    return _unless_aborted(await _carry_out_here(planned))


@_from_a_plan(plan)
def start(planned: PlannedRun) -> RunHandle:
    """Start an experiment in a thread of its own, and return once the run has a directory. Takes what `run` does.

    The process does not end before the run does. Signals are not handled: `RunHandle.stop` stops the run.

    Raises:
        UsageError: the run cannot begin as asked; nothing was written.
    """
    return RunHandle(planned)
