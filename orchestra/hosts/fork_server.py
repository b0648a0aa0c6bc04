"""The root's side of the template of processes (`template.py`): asks it for processes and watches them."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestra import log

ANSWER_BYTES = 1 << 12
LOST_S = 1.0
"""Time for the exit code of an ended process to arrive from its template."""
LONGEST_LINE = 1 << 20
"""Bytes of a line of output; a longer one is dropped."""
LOST = 256
"""The exit code of a process whose own was lost with its template: no process can have it."""


class ForkedProcess:
    """A process that the template has forked, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int, pidfd: int, stdout: asyncio.StreamReader) -> None:
        self.pid, self.stdout = pid, stdout
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._is_gone)

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code, or minus the number of the signal that killed it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal. Without effect on a process that has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def exited(self, code: int) -> None:
        """Note the exit code."""
        if self.returncode is None:
            self.returncode = code
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._ended.set()

    def _is_gone(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._loop.call_later(LOST_S, self.exited, LOST)


class _Output(asyncio.StreamReaderProtocol):
    """Reads the output of a process to its end."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False  # else uvloop keeps the pipe open until its loop closes


@dataclass(frozen=True, slots=True)
class Base:
    """The settings that the processes of a host have in common."""

    environment: Mapping[str, str] | None = None
    """Their environment; by default that of this process."""
    folder: Path | None = None
    """Their working directory; by default that of this process."""


class ForkServer:
    """Starts processes as forks of a template, which it starts with the first of them, and again when it has died.

    Args:
        relay: copies the output of the template to where it belongs.
        root: returns the address of the root. The template removes the socket file of a root that is killed.
        base: what the processes have in common.
    """

    def __init__(
        self,
        relay: Callable[[asyncio.StreamReader], Coroutine[Any, Any, None]],
        root: Callable[[], str],
        base: Base,
    ) -> None:
        self._relay, self._root, self._base = relay, root, base
        self._starting = asyncio.Lock()
        self._template: asyncio.subprocess.Process | None = None
        self._relaying: asyncio.Task[None] | None = None
        self._control: socket.socket | None = None
        self._asked: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._processes: dict[int, ForkedProcess] = {}
        self._outputs: list[asyncio.ReadTransport] = []
        self._number = 0
        self._useless = sys.platform != "linux"
        """True once it has turned out that the template cannot fork the processes of this run."""
        self._log = log.get(actor="launcher")

    async def start(
        self, node: str, command: Sequence[str], plan: str, lifeline: int, environment: Mapping[str, str]
    ) -> ForkedProcess | None:
        """Start the process of a node; return None if the template cannot do so.

        Args:
            node: its name.
            command: its command line, as if it were started without a template.
            plan: the launch plan, as text.
            lifeline: the file descriptor of its standard input, which stays the caller's.
            environment: variables that it has beside those of the template.
        """
        if self._useless:
            return None
        async with self._starting:
            if self._control is None:
                await self._start_template()
        assert self._control is not None
        self._number += 1
        number, (output, its_output) = self._number, os.pipe()
        request = {"id": number, "node": node, "command": list(command), "plan": plan, "environment": dict(environment)}
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], [its_output, lifeline])
            os.close(its_output)
            its_output = -1
            pid, pidfd = await answer
        except (OSError, CannotFork) as error:
            os.close(output)
            self._useless = isinstance(error, CannotFork)
            self._log.info("a process is started without the template", process=node, reason=str(error))
            return None
        finally:
            del self._asked[number]
            if its_output >= 0:
                os.close(its_output)
        reader = asyncio.StreamReader(LONGEST_LINE)
        loop = asyncio.get_running_loop()
        process = self._processes[pid] = ForkedProcess(pid, pidfd, reader)
        transport, _ = await loop.connect_read_pipe(lambda: _Output(reader), os.fdopen(output, "rb"))
        self._outputs = [each for each in self._outputs if not each.is_closing()] + [transport]
        return process

    async def close(self) -> None:
        """End the template, and read no more output. The processes that it has forked go on."""
        for output in self._outputs:  # a process that a node has started may keep it open
            output.close()
        if self._control is not None:
            with contextlib.suppress(OSError):  # it has died in this moment
                self._control.send(json.dumps({"end": True}).encode())
            self._lose_template()
        if self._template is not None:
            await self._template.wait()
            assert self._relaying is not None
            await self._relaying

    async def _start_template(self) -> None:
        if self._template is not None:
            await self._template.wait()
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # One that has threads cannot be forked, and NumPy starts some for the products of matrices.
        environment = {"OPENBLAS_NUM_THREADS": "1", **(self._base.environment or os.environ)}
        with its:
            self._template = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "orchestra", "template"),
                *("--control", str(its.fileno()), "--root", self._root()),
                pass_fds=[its.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                cwd=self._base.folder,
                start_new_session=True,
            )
        assert self._template.stdout is not None
        self._relaying = asyncio.create_task(
            self._relay(self._template.stdout), name="launcher: output of the template"
        )
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard)

    def _heard(self) -> None:
        assert self._control is not None
        try:
            data, fds, _, _ = socket.recv_fds(self._control, ANSWER_BYTES, 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self._log.warning("the template of the processes has ended; the processes that it has started go on")
            self._lose_template()
            return
        match json.loads(data):
            case {"id": int(number), "pid": int(pid)}:
                self._asked[number].set_result((pid, fds[0]))
            case {"id": int(number), "error": str(error)}:
                self._asked[number].set_exception(CannotFork(error))
            case {"pid": int(pid), "code": int(code)}:
                self._processes.pop(pid).exited(code)

    def _lose_template(self) -> None:
        assert self._control is not None
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError("the template has ended"))


class CannotFork(Exception):
    """The template cannot fork the processes of this run; the text says why."""
