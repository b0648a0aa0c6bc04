"""The processes that hold environments: a template, and the environments' processes, which it forks.

The template is started afresh, never forked from its owner, whose threads and sockets it must not have. It imports what
the environments need once, makes one to describe it, and closes that. It has a single thread, so that it can be forked
safely; what it has imported, its forks share.

All of them end with their owner, however it ends. The template sees the end of its owner and kills the groups of all
its processes, even of those that hang. The processes see it too, for the template may be gone.
"""

import gc
import os
import random  # noqa: TID251  # to seed it, for environments that use it
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
"""Copies in a process at most: a message over a socket carries 253 descriptors."""


def main(descriptor: int) -> None:
    """Be the template: describe the environment, then fork a process at each request, until the owner is gone."""
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
                    os.setpgid(0, 0)  # the leader of a group, so that what the environments start ends with them
                    control.close()
                    _be_process(kind, make, request, descriptors)
                with suppress(OSError):  # it has done so itself
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
    """Have a fork make an environment and describe it; return its factory, or None if there is no such environment."""
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
        gc.freeze()  # the collector of a fork does not touch, and so copy, what it shares
    frames.send_message(control, said)
    return make if "about" in said else None


def _asked_of_a_fork(control: socket.socket, kind: str, make: Callable[..., Any]) -> dict[str, Any]:
    """Return what a process says of an environment that it makes. The process then ends, with all that it started."""
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setpgid(0, 0)
            control.close()
            frames.write(writes, b"", _description(kind, make))
        finally:
            _kill_group(0)
    with suppress(OSError):  # it has done so itself
        os.setpgid(pid, pid)
    os.close(writes)
    try:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        poll.register(control, 0)  # no event but the end of the owner
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
        """Make the environment and do what is asked, until it is closed or fails, or its owner is gone."""
        with self.reported():
            env = self.hosted()
            while command := os.read(self.commands, 1):
                if command == frames.STEP:
                    self.reply(env.step(self.rows))
                elif command == frames.RESET:
                    self.reply(env.reset(self.rows, frames.read_body(self.commands)))
                else:
                    env.close()
                    return

    def hosted(self) -> Hosted:
        """Make the environment."""
        env = _hosted(self.kind, self.make, self.seed)
        if env.fields != self.fields:
            raise ValueError(f"its arrays are {env.fields}, those of the first were {self.fields}")
        return env

    def reply(self, infos: dict[str, Any] | None) -> None:
        """Say that a step or a reset is made."""
        if infos:
            frames.write(self.replies, frames.INFO, infos)
        else:
            os.write(self.replies, frames.RENEWED if infos is None else frames.DONE)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Report a failure within the block to the owner, which then ends this process."""
        try:
            yield
        except UsageError as error:
            self._report(frames.REFUSED, str(error))
        except Exception as error:  # the owner gets every failure as an answer
            self._report(frames.ERROR, f"{type(error).__name__}: {error}")

    def _report(self, head: bytes, text: str) -> None:
        with suppress(OSError):  # the owner may be gone
            frames.write(self.replies, head, text)
        threading.Event().wait()  # until the owner, which has read it, ends this process


def serve_together(copies: Sequence[_Copy], steps: int, done: int) -> None:
    """Serve copies of a `TimedEnv` in this thread, until all are closed or one fails, or their owner is gone.

    Args:
        copies: 255 at most.
        steps: descriptor that gives the places of the copies that are to make a step, a byte each.
        done: descriptor that takes the places of those that have made one.
    """
    envs: list[HostedTimed] = []
    places: dict[int, int] = {}  # by the descriptors of the copies' own commands
    due: list[tuple[float, int]] = []  # a heap of the steps under way: time, place of the copy
    with select.epoll() as epoll:
        epoll.register(steps, select.EPOLLIN)
        for place, copy in enumerate(copies):
            with copy.reported():
                envs.append(cast("HostedTimed", copy.hosted()))
            epoll.register(copy.commands, select.EPOLLIN)
            places[copy.commands] = place
        while places:
            # Waiting by `select` is exact to microseconds, by `epoll` to a millisecond.
            select.select([epoll], [], [], max(due[0][0] - monotonic(), 0.0) if due else None)
            for descriptor, _ in epoll.poll(0.0, len(copies) + 1):
                if descriptor == steps:
                    asked = os.read(steps, len(copies))
                    if not asked:
                        return
                    for place in asked:
                        with copies[place].reported():
                            heappush(due, (envs[place].begin(copies[place].rows), place))
                    continue
                place = places[descriptor]
                copy, env = copies[place], envs[place]
                with copy.reported():
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
                with copy.reported():
                    infos = envs[place].finish(copy.rows)
                    if infos == {}:
                        made.append(place)
                    else:
                        copy.reply(infos)
            if made:
                os.write(done, made)


def _hosted(kind: str, make: Callable[..., Any], seed: int) -> Hosted:
    """Make one copy; `kind` says which of the two classes hosts it: "env" or "gymnasium"."""
    if kind == "env":
        env = make(1, seed=seed)
        return HostedTimedEnv(env) if isinstance(env, TimedEnv) else HostedEnv(env)
    from components.envs.asynchronous.hosted_gymnasium import HostedGymnasium

    return HostedGymnasium(make())


def _be_process(kind: str, make: Callable[..., Any], request: dict[str, Any], descriptors: list[int]) -> None:
    """Serve the copies of this process and end; an error ends it too. Copies that block have a thread each."""
    try:
        gc.enable()
        memory, *pipes = descriptors
        several = 2 * len(request["copies"])
        fields = {name: (tuple(shape), dtype) for name, (shape, dtype) in request["fields"].items()}
        arrays = shared_arrays(memory, fields, request["capacity"])
        os.close(memory)
        threading.Thread(target=_end_with_owner, args=(pipes[1],), daemon=True).start()
        # What draws from the global generators would draw the same numbers in every fork.
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
    """Return views of the rows of a copy; of a number too."""
    return {name: array[b : b + 1].reshape(array.shape[1:]) for name, array in arrays.items()}


def _end_with_owner(replies: int) -> None:
    """End this process and what it started once nobody reads its replies, even while an environment hangs."""
    poll = select.poll()
    poll.register(replies, select.POLLERR)
    poll.poll()
    _kill_group(0)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
