"""The owner's side of the environments' processes: it starts them through a template, and ends them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from components.envs.asynchronous import frames
from components.envs.asynchronous.factories import described
from orchestra import UsageError

_START = (
    "import sys; sys.path[:] = dict.fromkeys(sys.argv[2:] + sys.path); "
    "from components.envs.asynchronous.process import main; main(int(sys.argv[1]))"
)
_CLOSING_S = 5.0
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Trouble(Exception):
    """An environment or its process crashed, hangs, or answered nonsense."""


class EnvProcess:
    """A process that holds the environments of some copies, and the pipes to each of them."""

    def __init__(
        self, copies: list[int], pid: int, commands: list[int], replies: list[int], steps: int | None, done: int | None
    ) -> None:
        self.copies, self.pid = copies, pid
        self.commands = dict(zip(copies, commands, strict=True))
        self.replies = dict(zip(copies, replies, strict=True))
        self.steps = steps
        """Takes the indices in `copies` that must make a step, one byte each; None if each copy gets a command."""
        self.done = done
        """Gives the indices in `copies` that have made a step, one byte each; None if each copy sends a reply."""

    def kill(self) -> None:
        """Kill the process and all that it started. Its PID is not reused yet: the template has not reaped it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for descriptor in (*self.commands.values(), *self.replies.values(), self.steps, self.done):
            if descriptor is not None:
                os.close(descriptor)


class Template:
    """The process from which the environments' processes are forked. If it dies, a new one is started.

    Args:
        kind: "env" or "gymnasium".
        make: the factory of the environments.
        timeout_s: seconds for one answer; before the first, everything is imported and an environment is made.
    """

    def __init__(self, kind: str, make: Callable[..., Any], *, timeout_s: float) -> None:
        self._request = {"kind": kind, "factory": described(make)}
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._timed = False  # whether one thread can serve all copies of a process

    def describe(self) -> dict[str, Any]:
        """Start the process; return its description of the environment, with `fields` and `about`.

        Raises:
            Trouble: the environment cannot be made.
            UsageError: there is no such environment on this system.
        """
        self.close()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(self._timeout_s)
        # The paths of this process first, so that both import the same files.
        words = [sys.executable, "-P", "-c", _START, str(theirs.fileno()), *(path or os.getcwd() for path in sys.path)]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 (no shell)
                words,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                # Environments share the processors, so none starts a thread for each processor.
                env={**dict.fromkeys(_THREADS, "1"), **os.environ},
            )
        said = self._ask(self._request)
        if "refused" in said:
            self.close()
            raise UsageError(str(said["refused"]))
        if "error" in said:
            self.close()
            raise Trouble(str(said["error"]))
        self._timed = bool(said["timed"])
        return dict(said)

    def fork(self, copies: list[int], seeds: list[int], fields: Any, capacity: int, memory: int) -> EnvProcess:
        """Start a process that makes the environments of `copies`.

        Raises:
            Trouble: it cannot be started.
        """
        if self._control is None:
            self.describe()
        together = self._timed and len(copies) > 1
        pipes = [os.pipe() for _ in range(2 * (len(copies) + together))]
        (reads, own_writes), (own_reads, writes) = (zip(*part, strict=True) for part in (pipes[::2], pipes[1::2]))
        theirs = [memory, *(each for pair in zip(reads, writes, strict=True) for each in pair)]
        request = {"copies": copies, "seeds": seeds, "fields": fields, "capacity": capacity, "together": together}
        try:
            pid = int(self._ask(request, theirs))
        except BaseException:
            for descriptor in (*own_writes, *own_reads):
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs[1:]:
                os.close(descriptor)
        for descriptor in own_reads:  # an event may belong to an earlier pipe with the same number
            os.set_blocking(descriptor, False)
        shared = (own_writes[-1], own_reads[-1]) if together else (None, None)
        n = len(copies)
        return EnvProcess(copies, pid, list(own_writes[:n]), list(own_reads[:n]), *shared)

    def reap(self, process: EnvProcess) -> None:
        """Have the template reap the killed process, which removes it from the system's process table."""
        if self._control is not None:
            try:
                frames.send_message(self._control, {"reap": process.pid})
            except OSError:  # the template is gone; the process that adopted its children reaps them
                self.close()

    def close(self) -> None:
        """End the template, and with it all processes that are left."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_CLOSING_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _ask(self, request: dict[str, Any], descriptors: list[int] | None = None) -> Any:
        assert self._control is not None
        try:
            frames.send_message(self._control, request, descriptors)
            return frames.receive_message(self._control)[0]
        except TimeoutError as error:
            self.close()
            raise Trouble(f"it hangs: no answer in {self._timeout_s:g} s") from error
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise Trouble(f"it crashed ({error})" if str(error) else "it crashed") from error
