"""The processes that hold environments: a template, and the environments' processes, which are forked from it.

The template is a fresh process, never a fork of its owner, because it must not inherit the owner's threads and sockets.
It imports what the environments need, once. A fork of it makes one environment, describes it and closes it. The
template has a single thread, so that it can be forked safely. Its forks share what it has imported.

All these processes end when their owner ends, for whatever reason. The template detects the end of its owner and kills
the process groups of all its processes, even if they hang. The processes detect it too, because the template may be
gone.
"""

import gc
import os
import random  # noqa: TID251  # to seed it, for environments that use it
import select
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from time import monotonic
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from components.envs.asynchronous import frames
from components.envs.asynchronous.arrays import Fields, Rows, shared_arrays
from components.envs.asynchronous.factories import built
from components.envs.asynchronous.hosted import Hosted, HostedEnv, HostedTimed, HostedTimedEnv
from components.envs.base import TimedEnv
from orchestra import UsageError

MOST_COPIES = 100
"""Maximum number of copies in a process, because a message over a socket carries at most 253 descriptors."""


def main(descriptor: int) -> None:
    """Run the template: describe the environment, then fork a process for each request, until the owner is gone."""
    control = socket.socket(fileno=descriptor)
    children: set[int] = set()
    try:
        with suppress(EOFError, OSError):
            request, _ = frames.receive_message(control)
            kind, make = request["kind"], _described(control, request)
            while make is not None:
                request, descriptors = frames.receive_message(control, 2 * MOST_COPIES + 3)
                if "reap" in request:
                    os.waitpid(request["reap"], 0)
                    children.discard(request["reap"])
                    continue
                pid = os.fork()
                if not pid:
                    os.setpgid(0, 0)  # group leader, so that processes that the environments start end with it
                    control.close()
                    _be_process(kind, make, request, descriptors)
                with suppress(OSError):  # the child has already done so
                    os.setpgid(pid, pid)
                children.add(pid)
                for each in descriptors:
                    os.close(each)
                frames.send_message(control, pid)
    finally:
        for pid in children:
            _kill_group(pid)
        for pid in children:
            os.waitpid(pid, 0)


def _described(control: socket.socket, request: dict[str, Any]) -> Callable[..., Any] | None:
    """Send the owner a fork's description of the environment; return the factory, or None if there is none."""
    try:
        make: Callable[..., Any] = built(request["factory"])
    except UsageError as error:
        frames.send_message(control, {"refused": str(error)})
        return None
    except Exception as error:  # the owner gets every failure as an answer
        frames.send_message(control, {"error": f"{type(error).__name__}: {error}"})
        return None
    said = _asked_of_a_fork(control, request["kind"], make)
    if "about" in said:
        if said["preload"]:
            make(1, seed=0).preload()
        gc.collect()
        gc.freeze()  # so that the collector of a fork does not touch, and thereby copy, shared memory
    frames.send_message(control, said)
    return make if "about" in said else None


def _asked_of_a_fork(control: socket.socket, kind: str, make: Callable[..., Any]) -> dict[str, Any]:
    """Return the description of an environment that a fork makes. The fork then ends, with all that it started."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setpgid(0, 0)
            control.close()
            frames.write(writes, b"", _description(kind, make))
        finally:
            _kill_group(0)
    with suppress(OSError):  # the child has already done so
        os.setpgid(pid, pid)
    os.close(writes)
    try:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        poll.register(control, 0)  # no event except the end of the owner
        if reads in dict(poll.poll()):
            return dict(frames.read_body(reads))
        raise EOFError
    except EOFError:
        return {"error": "it crashed"}
    finally:
        os.close(reads)
        _kill_group(pid)
        os.waitpid(pid, 0)


def _description(kind: str, make: Callable[..., Any]) -> dict[str, Any]:
    try:
        env = _hosted(kind, make, seed=0)
        timed = isinstance(env, HostedTimedEnv)
        said = {"fields": env.fields, "about": env.about, "preload": env.preload, "timed": timed}
        env.close()
        return said
    except UsageError as error:
        return {"refused": str(error)}
    except Exception as error:  # the owner gets every failure as an answer
        return {"error": f"{type(error).__name__}: {error}"}


@dataclass
class _Copy:
    """One environment of a process."""

    kind: str
    make: Callable[..., Any]
    seed: int
    fields: Fields
    rows: Rows
    commands: int
    replies: int

    def serve(self) -> None:
        """Make the environment and carry out commands until it is closed, it fails, or its owner is gone."""
        try:
            env = self.hosted()
            while command := os.read(self.commands, 1):
                if command == frames.STEP:
                    self.reply(env.step(self.rows))
                elif command == frames.RESET:
                    self.reply(env.reset(self.rows, frames.read_body(self.commands)))
                else:
                    env.close()
                    return
        except Exception as error:  # the owner gets every failure as an answer
            self.report(error)

    def hosted(self) -> Hosted:
        """Make the environment."""
        env = _hosted(self.kind, self.make, self.seed)
        if env.fields != self.fields:
            raise ValueError(f"its arrays are {env.fields}, those of the first were {self.fields}")
        return env

    def reply(self, infos: dict[str, Any] | None) -> None:
        """Report that a step or a reset is done."""
        if infos:
            frames.write(self.replies, frames.INFO, infos)
        else:
            os.write(self.replies, frames.RENEWED if infos is None else frames.DONE)

    def report(self, error: Exception) -> None:
        """Report a failure to the owner, and wait until it has read it and ends this process."""
        head, text = frames.ERROR, f"{type(error).__name__}: {error}"
        if isinstance(error, UsageError):
            head, text = frames.REFUSED, str(error)
        with suppress(OSError):  # the owner may be gone
            frames.write(self.replies, head, text)
        threading.Event().wait()


def serve_together(copies: Sequence[_Copy], steps: int, done: int) -> None:
    """Serve copies of a `TimedEnv` in this thread, until all are closed or one fails, or their owner is gone.

    Args:
        copies: 255 at most.
        steps: descriptor to read from: the indices of the copies that must make a step, one byte each.
        done: descriptor to write to: the indices of the copies that have made a step, one byte each.
    """
    copy = copies[0]  # the one that is being served
    try:
        with select.epoll() as epoll:
            epoll.register(steps, select.EPOLLIN)
            envs: list[HostedTimed] = []
            for copy in copies:
                envs.append(cast("HostedTimed", copy.hosted()))
                epoll.register(copy.commands, select.EPOLLIN)
            places = {each.commands: place for place, each in enumerate(copies)}
            due: list[tuple[float, int]] = []  # a heap of the steps in progress: time, place of the copy
            while places:
                # Waiting by `select` is exact to microseconds, by `epoll` to a millisecond.
                select.select([epoll], [], [], max(due[0][0] - monotonic(), 0.0) if due else None)
                for descriptor, _ in epoll.poll(0.0, len(copies) + 1):
                    if descriptor == steps:
                        asked = os.read(steps, len(copies))
                        if not asked:
                            return
                        for place in asked:
                            copy = copies[place]
                            heappush(due, (envs[place].begin(copy.rows), place))
                        continue
                    place = places[descriptor]
                    copy, env = copies[place], envs[place]
                    if os.read(descriptor, 1) == frames.RESET:
                        copy.reply(env.reset(copy.rows, frames.read_body(descriptor)))
                    else:
                        env.close()
                        epoll.unregister(descriptor)
                        del places[descriptor]
                made, now = bytearray(), monotonic()
                while due and due[0][0] <= now:
                    place = heappop(due)[1]
                    copy = copies[place]
                    infos = envs[place].finish(copy.rows)
                    if infos == {}:
                        made.append(place)
                    else:
                        copy.reply(infos)
                if made:
                    os.write(done, made)
    except Exception as error:  # the owner gets every failure as an answer
        copy.report(error)


def _hosted(kind: str, make: Callable[..., Any], seed: int) -> Hosted:
    """Make one copy, hosted by the class for its `kind`: "env" or "gymnasium"."""
    if kind == "env":
        env = make(1, seed=seed)
        return HostedTimedEnv(env) if isinstance(env, TimedEnv) else HostedEnv(env)
    from components.envs.asynchronous.hosted_gymnasium import HostedGymnasium

    return HostedGymnasium(make())


def _be_process(kind: str, make: Callable[..., Any], request: dict[str, Any], descriptors: list[int]) -> None:
    """Serve the copies of this process, then end it; an error ends it too. Copies that block get one thread each."""
    try:
        gc.enable()
        memory, *pipes = descriptors
        several = 2 * len(request["copies"])
        fields = {name: (tuple(shape), dtype) for name, (shape, dtype) in request["fields"].items()}
        arrays = shared_arrays(memory, fields, request["capacity"])
        os.close(memory)
        threading.Thread(target=_end_with_owner, args=(pipes[1],), daemon=True).start()
        # Otherwise, code that draws from the global generators would draw the same numbers in every fork.
        random.seed(request["seeds"][0])
        np.random.seed(request["seeds"][0] % (1 << 32))  # noqa: NPY002, TID251  # users' environments may use it
        copies = [
            _Copy(kind, make, seed, fields, _rows(arrays, b), commands, replies)
            for b, seed, commands, replies in zip(
                request["copies"], request["seeds"], pipes[:several:2], pipes[1:several:2], strict=True
            )
        ]
        if request["together"]:
            serve_together(copies, *pipes[-2:])
            return
        others = [threading.Thread(target=copy.serve, daemon=True) for copy in copies[1:]]
        for other in others:
            other.start()
        copies[0].serve()
        for other in others:
            other.join()
    finally:
        _kill_group(0)


def _rows(arrays: Mapping[str, NDArray[Any]], b: int) -> Rows:
    """Return views of the rows of copy `b`; a number becomes an array without dimensions."""
    return {name: array[b : b + 1].reshape(array.shape[1:]) for name, array in arrays.items()}


def _end_with_owner(replies: int) -> None:
    """End this process and what it started once its replies have no reader, even while an environment hangs."""
    poll = select.poll()
    poll.register(replies, select.POLLERR)
    poll.poll()
    _kill_group(0)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
