"""The template of a run's processes: it has imported what they need, and forks one for each node.

A worker that imports numba and the simulator itself takes half a second of processor time and 80 MB. A forked one takes
some milliseconds, and shares that memory with the template and its siblings until one of them writes to it.

The root sends requests over a socket, one datagram each, with the descriptor of the output of the process. The template
answers with the process id and a pidfd, and reports the exit code. It ends when the root closes the socket or dies; the
processes that it has forked go on. Like them it ignores the signals by which an engine ends a job (`scancel` sends them
to every process): until the root has ended, processes may have to start again.

Nodes with actors of classes that preload something (`Preloads`) come from a second template, which is forked from the
first and preloads it: a proxy does without the simulator.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from setproctitle import setproctitle
from threadpoolctl import threadpool_limits

MESSAGE_BYTES = 1 << 18
"""Size of the largest request; a larger one cannot be sent, and its process is started without the template."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""The signals by which people and engines end processes. A forked node ignores them until it handles them itself."""
Preload = Callable[[], object]
"""Loads what an actor needs."""
Find = Callable[[str, str], Sequence[Preload]]
"""Returns what the actors of a node preload, given the run's plan as text and the node's name."""
Become = Callable[[list[str]], NoReturn]
"""Carries out a command of `orchestra` in this process, which ends with it."""


class Template:
    """Forks processes on request until the root is gone.

    Args:
        control: the socket to the root, or to the first template. Each message is a datagram.
        preloads, become: see `Find` and `Become`.
    """

    def __init__(self, control: socket.socket, preloads: Find, become: Become) -> None:
        self._control = control
        self._preloads = preloads
        self._become = become
        self._children: dict[int, int] = {}
        """Process ids by pidfd."""
        self._second: socket.socket | None = None
        self._second_pid = 0
        self._forwarded: set[int] = set()
        """Requests that the second template has not answered yet."""

    def serve(self) -> bool:
        """Answer requests until the other end of the socket is closed; return whether that end announced it."""
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        gc.disable()  # a collection would write to every object, and so copy the memory that is shared
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                for fd, _ in poll.poll():
                    if fd == self._control.fileno():
                        request, fds = _received(self._control)
                        if request is None or "end" in request:
                            return request is not None
                        for new in self._answer(request, fds):
                            poll.register(new, select.POLLIN)
                    elif self._second is not None and fd == self._second.fileno():
                        if not self._pass_back(self._second):
                            poll.unregister(fd)
                            self._second_is_gone(self._second)
                    else:
                        poll.unregister(fd)
                        self._reap(fd)
        return False

    def _answer(self, request: dict[str, Any], fds: Sequence[int]) -> list[int]:
        """Carry out a request; return the new descriptors to wait for."""
        try:
            preloading = [] if request.get("preloaded") else self._preloads(request["plan"], request["node"])
            if preloading and self._second is not None:
                self._forward(request, fds)
                return []
            threads = len(os.listdir("/proc/self/task"))
            if threads > 1:  # one of them may hold a lock, which no thread would release in the forked process
                raise RuntimeError(f"what it has imported runs {threads - 1} threads")
            if not preloading:
                return [self._fork(request, *fds)]
            self._second = self._fork_second(preloading, fds)
            self._forward(request, fds)
            return [self._second.fileno()]
        except Exception as error:  # the process is started without the template, and reports its own errors
            _send(self._control, {"id": request["id"], "error": f"{type(error).__name__}: {error}"})
            return []
        finally:
            for fd in fds:
                os.close(fd)

    def _fork(self, request: dict[str, Any], output: int, lifeline: int) -> int:
        """Fork the process that is asked for, and return its pidfd.

        Args:
            request: what it is to do.
            output: where it prints.
            lifeline: its standard input.
        """
        pid = _fork()
        if pid == 0:
            with _ending():
                self._leave()
                os.setsid()
                os.dup2(lifeline, 0)
                for fd in (1, 2):
                    os.dup2(output, fd)
                os.close(output)
                os.close(lifeline)
                # Processes that began with equal global generators would explore alike. `random` reseeds itself.
                if numpy := sys.modules.get("numpy"):
                    numpy.random.seed()  # that of users' code
                os.environ.update(request["environment"])
                _set_threads(request["environment"])
                command: list[str] = request["command"]
                setproctitle(" ".join(command))
                sys.argv[1:] = command[3:]
                gc.enable()
                self._become(command[3:])
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        _send(self._control, {"id": request["id"], "pid": pid}, [pidfd])
        return pidfd

    def _fork_second(self, preloads: Sequence[Preload], fds: Sequence[int]) -> socket.socket:
        """Fork the template that preloads, and return the socket to it.

        It closes `fds`, those of a request: a pipe that it kept open would not end with the process that is asked for.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._second_pid = _fork()
        if self._second_pid == 0:
            with _ending():
                ours.close()
                self._leave()
                for fd in fds:
                    os.close(fd)
                for preload in preloads:
                    try:
                        preload()
                    except Exception:
                        traceback.print_exc()
                gc.collect()
                Template(its, self._preloads, self._become).serve()
        its.close()
        return ours

    def _forward(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        """Have the second template carry out a request."""
        assert self._second is not None
        self._forwarded.add(request["id"])
        with contextlib.suppress(BrokenPipeError):  # `serve` notices that it is gone
            _send(self._second, {**request, "preloaded": True}, fds)

    def _pass_back(self, second: socket.socket) -> bool:
        """Pass an answer of the second template to the root; return False if that template is gone."""
        answer, fds = _received(second)
        if answer is None:
            return False
        self._forwarded.discard(answer.get("id", -1))
        _send(self._control, answer, fds)
        for fd in fds:
            os.close(fd)
        return True

    def _second_is_gone(self, second: socket.socket) -> None:
        """Report what the second template has not done. The next request for one of its processes starts another."""
        second.close()
        self._second = None
        os.waitpid(self._second_pid, 0)
        for number in self._forwarded:
            _send(self._control, {"id": number, "error": "the template that preloads has ended"})
        self._forwarded.clear()

    def _reap(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        _send(self._control, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _leave(self) -> None:
        """Close what belongs to the template, in a process that it has forked."""
        self._control.close()
        if self._second is not None:
            self._second.close()
        for pidfd in self._children:
            os.close(pidfd)


def _fork() -> int:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or both processes would print what is buffered
    gc.freeze()
    return os.fork()


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """End this process with the block, whatever happens in it: it must not go on as the template."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _received(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next message and its file descriptors; None if the other end is closed."""
    try:
        data, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 4)
    except ConnectionResetError:
        return None, []
    return (json.loads(data) if data else None), fds


def _send(control: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    socket.send_fds(control, [json.dumps(message).encode()], list(fds))


def _set_threads(environment: Mapping[str, str]) -> None:
    """Set the threads of libraries that the template has loaded: they read the environment variables only once."""
    if (said := environment.get("OMP_NUM_THREADS")) is not None:
        threadpool_limits(int(said))
