"""Stacks of all actors of a process, logged on SIGUSR1. It works even while the event loop is stuck."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from orchestra import log
from orchestra.actors.statistics import Wait
from orchestra.nodes.node import Node

_HERE = str(Path(__file__).resolve().parents[1]) + os.sep


@contextlib.contextmanager
def on_request(nodes: Sequence[Node], then: Callable[[], None] | None = None) -> Iterator[None]:
    """Within the block, write the state of all actors of `nodes` into the log file on SIGUSR1.

    Args:
        nodes: the nodes of this process; may grow.
        then: given by the root, which passes the signal on: called after each signal. The text then also goes to
            stderr.
    """
    writing: list[threading.Thread] = []

    def dump(number: int, frame: FrameType | None) -> None:
        # Python calls this between any two instructions of the main thread, which may hold a lock of the log. So the
        # state is collected here, and written by a thread.
        found = [actor for node in nodes for actor in actors_of(node, frame)]
        thread = threading.Thread(target=_write, args=(found, then is not None), name="dump")
        writing[:] = [*(thread for thread in writing if thread.is_alive()), thread]
        thread.start()
        if then is not None:
            then()

    try:
        with handling(dump, signal.SIGUSR1):
            yield
    finally:
        for thread in writing:
            thread.join()


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *signals: signal.Signals) -> Iterator[None]:
    """Within the block, have `handler` handle `signals`. Only the main thread can; in any other this does nothing."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals} if in_main_thread else {}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, signal.SIG_DFL if handled is None else handled)


def actors_of(node: Node, running: FrameType | None = None) -> list[dict[str, Any]]:
    """Return the statistics of each actor of `node`, its `stack`, and `threads`, the stacks of its offloaded work.

    Args:
        node: a node of this process.
        running: the current frame of the main thread.
    """
    try:
        task = asyncio.current_task(node.loop)
    except RuntimeError:
        task = None
    threads = sys._current_frames()
    made = []
    for cell in list(node.cells.values()):
        is_running = task is not None and task is cell.task
        frames = list(_inner_first(running)) if is_running else list(suspended(cell.task))
        told = cell.statistics()
        made.append(
            {
                **told.model_dump(exclude={"mailbox"}),
                "state": "handling" if is_running and told.state == "idle" else told.state,
                "queue": told.mailbox.depth,
                "queue_bytes": told.mailbox.nbytes,
                "stack": _lines(frames) if told.message or told.state == "stopping" else [],
                "threads": {
                    str(wait): _lines(_work(threads[wait.thread]))
                    for wait in cell.context.waits
                    if wait.thread in threads
                },
            }
        )
    return made


def as_text(actors: Sequence[dict[str, Any]]) -> str:
    """Format the result of `actors_of` for people."""
    lines = [f"what {len(actors)} actors of process {os.getpid()} are doing:"]
    for actor in actors:
        doing = actor["state"]
        if actor["message"]:
            doing += f", {actor['message']} of {actor['sender']} for {actor['for_s']:.1f} s"
        doing += "".join(f", {what}" for what in actor["waits_for"])
        lines.append(f"  {actor['address']} {actor['kind']}: {doing}; queue: {actor['queue']}")
        lines += [f"      {line}" for line in actor["stack"]]
        for what, stack in actor["threads"].items():
            lines.append(f"    {what}")
            lines += [f"      {line}" for line in stack]
    return "\n".join(lines)


def _write(actors: list[dict[str, Any]], for_people: bool) -> None:
    path = log.record("what every actor is doing", actors=actors)
    if for_people:
        log.say(as_text(actors) + (f"\nthose of the other processes: in {path.parent}" if path is not None else ""))


def _inner_first(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def suspended(task: asyncio.Task[Any] | None) -> Iterator[FrameType]:
    """Return the frames of a suspended task, from the innermost awaited coroutine outwards."""
    found: list[FrameType] = []
    step: Any = None if task is None else task.get_coro()
    while step is not None:
        kind = next((prefix for prefix in ("cr", "ag", "gi") if hasattr(step, f"{prefix}_frame")), None)
        if kind is None:
            break  # a future, which has no frame
        frame = getattr(step, f"{kind}_frame")
        if frame is not None:
            found.append(frame)
        step = getattr(step, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return reversed(found)


def _work(frame: FrameType) -> Iterator[FrameType]:
    """Yield the frames of a thread, from the innermost to the runtime's call, which is left out."""
    for entry in _inner_first(frame):
        if entry.f_code is Wait.work.__code__:
            return
        yield entry


def _lines(inner_first: Iterator[FrameType] | list[FrameType]) -> list[str]:
    """Format frames as lines, the innermost last, without the frames of the runtime."""
    frames = [(frame, frame.f_lineno) for frame in inner_first if not frame.f_code.co_filename.startswith(_HERE)]
    frames = frames[: next((i for i, (frame, _) in enumerate(frames) if _is_loop(frame)), len(frames))]
    summary = traceback.StackSummary.extract(iter(reversed(frames)))
    return [f"{entry.filename}:{entry.lineno} {entry.name}: {entry.line}" for entry in summary]


def _is_loop(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("asyncio", "uvloop")
