"""Starts agents by the system's `ssh`: one connection for each host, which stays open as the agent's life-line.

Names, users, keys and jump hosts are those of the user's ssh configuration. The join token goes to the agent's standard
input, which ends when this process ends, however it does. A `ssh` that is killed ends nothing on its host: the agent
goes on as long as its connection to the head lives.
"""

import asyncio
import contextlib
import json
import re
import secrets
import shlex
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestra import log
from orchestra.errors import UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.launch.engine import Engine, Python, Settings, Setup
from orchestra.launch.events import REASON, HostEvents
from orchestra.launch.protocol import HostEvent, HostRequest, Submission
from orchestra.launch.ssh_failures import Failure, explained

if TYPE_CHECKING:  # it imports numpy
    from orchestra.hosts.run_plan import RunPlan

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
LOGGED_IN = "orchestra: logged in"
"""The first line of the remote shell. Text before it is ssh's, about the connection; later text is the agent's."""
PORT, RANDOM = "<port>", "<random>"
"""Parts of a command that are known when the head listens: its port, and a name that cannot be guessed."""
FIRST_TRIES = 4
"""Attempts to reach a host when the run begins."""
PATIENCE_S = 300.0
"""Seconds for which a host that was in the run, and is gone, is tried again: it may start up."""
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before the second try, the third, …; the last one before each later try."""
LAST_LINES = 20
KILL_S = 2.0
"""Seconds for a `ssh` that was asked to end."""


class _Attempt:
    """One `ssh`, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, said: Callable[[str, bool], None]) -> None:
        self.process = process
        self.logged_in = asyncio.Event()
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._said = said
        self.following = asyncio.create_task(self._follow(), name="ssh: output")
        """Ends with the exit code."""

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def _follow(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        reading = [
            asyncio.create_task(self._read(self.process.stdout, errors=False)),
            asyncio.create_task(self._read(self.process.stderr, errors=True)),
        ]
        code = await self.process.wait()
        _, late = await asyncio.wait(reading, timeout=KILL_S)  # a process of ssh's, such as a proxy, may keep a pipe
        for task in late:
            task.cancel()
        self.close_input()
        return code

    async def _read(self, stream: asyncio.StreamReader, *, errors: bool) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the reader's limit: asyncio has dropped it
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if errors or self.logged_in.is_set():
                if text:
                    self.lines.append(text)
                    self._said(text, self.logged_in.is_set())
            elif text == LOGGED_IN:  # all before it is what the login shell prints
                self.lines.clear()
                self.logged_in.set()


class SshLauncher:
    """Starts one agent on each host by ssh, and keeps the connection.

    A host that cannot be reached is tried 4 times when the run begins, and for 5 minutes when `again` asks for it.
    It must be used from one event loop.

    Args:
        hosts: the hosts, each with its slot.
        ssh: the command, with options if need be: `ssh -F my_config`.
        parallel: how many log-ins may be under way at a time.
        tunnel: True if agents reach the head through ssh alone. Else they do so where they reach it in no other way.

    Raises:
        UsageError: `ssh` is no command.
    """

    name = "ssh"
    replaces = False

    def __init__(
        self, hosts: Sequence[HostSettings], *, ssh: str = "ssh", parallel: int = 32, tunnel: bool = False
    ) -> None:
        self._hosts = {host.slot: host for host in sorted(hosts, key=lambda host: host.slot)}
        self._ssh = ssh_words(ssh)
        self._tunnel = tunnel
        self._log_ins = asyncio.Semaphore(parallel)
        self._commands: dict[int, tuple[str, ...]] = {}
        self._token = ""
        self._events = HostEvents(self._where)
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._opening: set[asyncio.Task[_Attempt]] = set()
        self._attempts: dict[int, _Attempt] = {}
        self._log = log.get(actor="launcher")

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return the command line of each slot's `ssh`, in the order of the slots.

        Raises:
            UsageError: the requests are for other slots than this launcher has hosts.
        """
        slots = sorted(request.slot for request in requests)
        if slots != list(self._hosts):
            raise UsageError(f"--hosts: ssh has hosts for the slots {list(self._hosts)}, not for {slots}")
        return Submission({}, tuple(self._command(slot, host) for slot, host in self._hosts.items()))

    async def start(self, submission: Submission, token: str) -> None:
        """Begin to start all agents, and return. What becomes of each is an event."""
        self._token = token
        self._commands = dict(zip(self._hosts, submission.commands, strict=True))
        for slot in self._hosts:
            self._begin(slot, FIRST_TRIES, 0.0)

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        """Start another agent for a slot whose agent has ended. The `ssh` of an earlier one is ended first."""
        keeping = self._keeping.get(slot)
        if keeping is not None and not keeping.done():
            keeping.cancel()
            await asyncio.wait({keeping, *self._opening})
        if slot in self._attempts:
            await self._end([self._attempts[slot]])
        self._begin(slot, 1, PATIENCE_S)

    async def stop(self, deadline: float) -> None:
        """End the agents' input, wait until they have ended, and then end each `ssh` that is left."""
        for task in self._keeping.values():
            task.cancel()
        for tasks in (self._keeping.values(), self._opening):
            if tasks:
                await asyncio.wait(list(tasks))
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.close_input()
        if following := [attempt.following for attempt in attempts if attempt.logged_in.is_set()]:
            await asyncio.wait(following, timeout=deadline)
        await self._end(attempts)
        self._events.close()

    def _command(self, slot: int, host: HostSettings) -> tuple[str, ...]:
        port = ("-p", str(host.port)) if host.port else ()
        options = [word for option in OPTIONS for word in ("-o", option)]
        tunnel = ("-R", f"{_socket(RANDOM)}:127.0.0.1:{PORT}")
        words = (*self._ssh, "-T", *options, *tunnel, *port, "--", destination_of(host))
        return (*words, f"exec sh -c {shlex.quote(self._script(slot, host))}")

    def _script(self, slot: int, host: HostSettings) -> str:
        """Return the shell commands that become the agent. Their input is the token, which `setup` must not read."""
        arguments = ["-m", "orchestra", "host", "--token", "-", "--slot", str(slot), "--name", host.name]
        if host.scratch:
            arguments += ["--scratch", host.scratch]
        setup = host.setup.strip().rstrip(";")
        return "; ".join(
            [
                f"echo {shlex.quote(LOGGED_IN)}",
                *([f"{{ {setup}; }} </dev/null"] if setup else []),
                python_commands(host.python, shlex.join(arguments)),
            ]
        )

    def _begin(self, slot: int, tries: int, patience_s: float) -> None:
        name = f"ssh: {self._hosts[slot].name}"
        self._keeping[slot] = asyncio.create_task(self._keep(slot, tries, patience_s), name=name)
        self._keeping[slot].add_done_callback(partial(self._events.failed, slot, self._log))

    async def _keep(self, slot: int, tries: int, patience_s: float) -> None:
        """Try to reach a host at least `tries` times and for `patience_s`, and follow its agent to the end."""
        loop = asyncio.get_running_loop()
        begun, made, reason = loop.time(), 0, ""
        while True:
            self._events.tell(slot, "asked", reason)
            failure = await self._attempt(slot)
            made += 1
            if not failure.transient:
                break
            reason = f"{failure.reason}, {made} {'try' if made == 1 else 'tries'}"
            if made >= tries and loop.time() - begun >= patience_s:
                failure = Failure(reason, failure.code, again=False)
                break
            spread = 1 + slot % 8 / 16  # hosts behind one address do not come back at the same moment
            await asyncio.sleep(BACKOFF_S[min(made, len(BACKOFF_S)) - 1] * spread)
        self._events.tell(slot, "ended", failure.reason, failure.code, again=failure.again)

    async def _attempt(self, slot: int) -> Failure:
        """Run one `ssh` to its end, and return how it ended."""
        host = self._hosts[slot]
        async with self._log_ins:  # until the log-in is over: a `ssh` lives as long as the run
            opening = asyncio.create_task(self._open(slot), name=f"ssh: {host.name}")
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
            try:
                attempt = await asyncio.shield(opening)  # it is in `_attempts` before anything else may happen
            except OSError as error:
                return Failure(f"cannot run {self._ssh[0]!r}: {error.strerror or error}", None, again=False)
            logging_in = asyncio.create_task(attempt.logged_in.wait())
            await asyncio.wait({logging_in, attempt.following}, return_when=asyncio.FIRST_COMPLETED)
            logging_in.cancel()
        if attempt.logged_in.is_set():
            self._events.tell(slot, "started")
        code = await asyncio.shield(attempt.following)
        self._attempts.pop(slot, None)
        port = f"-p {host.port} " if host.port else ""
        destination, logged_in = f"{port}{destination_of(host)}", attempt.logged_in.is_set()
        return explained(code, list(attempt.lines), destination, name=host.name, logged_in=logged_in)

    async def _open(self, slot: int) -> _Attempt:
        """Start a `ssh`, and give it the token."""
        random, port = secrets.token_hex(8), _port(self._token)
        command = [word.replace(RANDOM, random).replace(PORT, port) for word in self._commands[slot]]
        if not port:
            place = command.index("-R")
            del command[place : place + 2]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # the terminal's Ctrl-C is for the head alone
        )
        assert process.stdin is not None
        if not process.stdin.is_closing():  # it has not failed yet
            process.stdin.write(self._token_for(random).encode() + b"\n")
        attempt = self._attempts[slot] = _Attempt(process, partial(self._said, slot))
        return attempt

    def _said(self, slot: int, text: str, logged_in: bool) -> None:
        self._log.info("a host said", host=self._hosts[slot].name, slot=slot, text=text)
        if logged_in and text.startswith(REASON):
            self._events.tell(slot, "started", text.removeprefix(REASON))

    def _token_for(self, random: str) -> str:
        """Return the join token with the tunnel's end as the last address, or as the only one."""
        token = json.loads(self._token)
        if _port(self._token):
            address = f"tunnel://{_socket(random)}"
            token["join"] = [address] if self._tunnel else [*token["join"], address]
        return json.dumps(token)

    async def _end(self, attempts: Sequence[_Attempt]) -> None:
        """End each `ssh`, and kill those that do not end soon."""
        for send in ("terminate", "kill"):
            alive = [attempt for attempt in attempts if attempt.process.returncode is None]
            for attempt in alive:
                with contextlib.suppress(ProcessLookupError):
                    getattr(attempt.process, send)()
            if alive:
                await asyncio.wait([attempt.following for attempt in alive], timeout=KILL_S)
        if attempts:
            await asyncio.wait([attempt.following for attempt in attempts])
        self._attempts = {slot: attempt for slot, attempt in self._attempts.items() if attempt not in attempts}

    def _where(self, slot: int) -> str:
        return f"{destination_of(self._hosts[slot])} by ssh"


def python_commands(python: str, arguments: str) -> str:
    """Return shell commands that become the interpreter `python` with `arguments`.

    Without a name it is this process's own path if there is such a program there, else `python3`.
    """
    if not python:
        return f'p={shlex.quote(sys.executable)}; [ -x "$p" ] || p=python3; exec "$p" {arguments}'
    if python.startswith("~/"):
        return f'exec "$HOME"/{shlex.quote(python[2:])} {arguments}'
    return f"exec {shlex.quote(python)} {arguments}"


def ssh_words(command: str) -> list[str]:
    """Return the words of a command such as `ssh -F my_config`.

    Raises:
        UsageError: it has none, or a quote is not closed.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--ssh is {command!r}, which is no command: {error}") from None
    if not words:
        raise UsageError("--ssh is empty: it must be a command, such as 'ssh -F my_config'")
    return words


def destination_of(host: HostSettings) -> str:
    """Return the host as ssh takes it, without its port."""
    return f"{host.user}@{host.name}" if host.user else host.name


def _socket(random: str) -> str:
    return f"/tmp/orchestra-{random}.sock"  # noqa: S108 (the name cannot be guessed, and every host has the folder)


def _port(token: str) -> str:
    """Return the port at which the head listens; empty if it listens at none."""
    match = re.fullmatch(r"\w+://.*:(\d+)", json.loads(token)["join"][0])
    return match[1] if match else ""


def _flags(
    *,
    python: Python = None,
    setup: Setup = None,
    ssh: Annotated[str | None, Field(description="its command, with options: 'ssh -F config'")] = None,
    ssh_parallel: Annotated[
        int | None, Field(ge=1, description="hosts to log in to at the same time; 32 by default")
    ] = None,
    tunnel: Annotated[bool, Field(description="all connections to the head go through ssh")] = False,
    head: Annotated[str | None, Field(description="the host that runs the head, for one with a GPU")] = None,
) -> None:
    """Describe the flags of ssh."""


def _launcher(hosts: Sequence[HostSettings], settings: Settings) -> SshLauncher:
    parallel = settings.get("ssh_parallel", 32)
    return SshLauncher(hosts, ssh=settings.get("ssh", "ssh"), parallel=parallel, tunnel=settings.get("tunnel", False))


ENGINE = Engine("ssh", _launcher, _flags, takes_file=True, join_timeout=60.0)
