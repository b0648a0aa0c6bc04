"""Starts the head of a run on another host by ssh, such as the one with a GPU. This terminal shows its display."""

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from orchestra.hosts.settings import HostSettings
from orchestra.launch.ssh import destination_of, python_commands, ssh_words
from orchestra.launch.ssh_failures import SSH_FAILED

_INTERRUPT = b"\x03"
"""The byte that a terminal sends for Ctrl-C."""


def head_command(
    host: HostSettings, arguments: Sequence[str], folder: Path, *, ssh: str = "ssh", dumb: bool = False
) -> list[str]:
    """Return the command line that runs `orchestra ARGUMENTS` on `host`, at a terminal there.

    The terminal is what tells the program there that this one has ended: it then saves, and ends too.

    Args:
        host: the host, with its interpreter and the commands before it.
        arguments: a command of `orchestra`, and its flags.
        folder: the folder there.
        ssh: the command of ssh.
        dumb: True if the output goes to no terminal here.
    """
    commands = [
        f"cd -- {shlex.quote(str(folder))} || exit 2",
        *(["TERM=dumb; export TERM; stty -echo -onlcr"] if dumb else []),
        *([host.setup.strip().rstrip(";")] if host.setup.strip() else []),
        python_commands(host.python, shlex.join(["-m", "orchestra", *arguments])),
    ]
    port = ("-p", str(host.port)) if host.port else ()
    alive = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
    script = shlex.quote("; ".join(commands))
    return [*ssh_words(ssh), "-tt", *alive, *port, "--", destination_of(host), f"exec sh -c {script}"]


def run_there(host: HostSettings, arguments: Sequence[str], *, ssh: str = "ssh") -> int | None:
    """Run `orchestra ARGUMENTS` on `host`, in the folder of the same path, and return its exit code.

    Ctrl-C goes to the program there. SIGTERM and SIGHUP end the connection, upon which the program saves and ends.

    Returns:
        None if ssh failed, or was ended: it has said why.
    """
    at_terminal = sys.stdin.isatty()
    command = head_command(host, arguments, Path.cwd(), ssh=ssh, dumb=not sys.stdout.isatty())
    process = subprocess.Popen(command, stdin=None if at_terminal else subprocess.PIPE)  # noqa: S603 (a list, for no shell here)
    with _passing_signals_on(process):
        code = process.wait()
    return code if 0 <= code < SSH_FAILED else None


@contextmanager
def _passing_signals_on(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """While the block runs, hand Ctrl-C to the program at the other end, and end ssh on SIGTERM and SIGHUP."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if process.stdin is not None:  # else the terminal is ssh's, and sends it what is typed
            with suppress(BrokenPipeError):
                process.stdin.write(_INTERRUPT)
                process.stdin.flush()

    def end(number: int, frame: FrameType | None) -> None:
        process.terminate()

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: end, signal.SIGHUP: end}
    usual = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
