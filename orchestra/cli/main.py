"""The command line: the commands of this package, and those that other packages add as entry points.

A command's module is imported when the command runs, and not for the overview, which takes a tenth of a second.
"""

import ast
import atexit
import contextlib
import errno
import importlib.util
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import NoReturn

from orchestra.cli.exit_codes import CANNOT_WRITE, FAILED, FINISHED, MISUSED, of_error
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.open_files import too_many_files
from orchestra.runs.suggestions import did_you_mean

COMMANDS = "orchestra.commands"
"""The group of entry points that add commands: functions from the arguments to an exit code, documented in one line."""

Command = Callable[[list[str]], int]

_USAGE = {
    "run": "run FILE [flags]",
    "ls": "ls",
    "ps": "ps [RUN_DIR]",
    "top": "top [RUN_DIR]",
    "logs": "logs [RUN_DIR]",
    "dashboard": "dashboard [RUN_DIR ...]",
    "scale": "scale N",
    "config": "config [RUN_DIR]",
    "prune": "prune --keep N",
    "token": "token RUN_DIR",
    "host": "host --token -",
    "leave": "leave SLOT",
    "replay": "replay RUN_DIR",
    "trace": "trace ls RUN_DIR",
    "completion": "completion SHELL",
}
"""The commands of this package, with their text in the overview. Each is the function `command` of its file."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code, one of `orchestra/cli/exit_codes.py`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _carried_out(arguments)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        return FINISHED
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends so at a closed pipe
            return FINISHED
        raise


def _reader_is_gone() -> bool:
    """Return whether the reader of stdout or stderr, such as `head`, has closed its end."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no file: replaced, closed, or None
            poll.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _carried_out(arguments: list[str]) -> int:
    try:
        return _dispatch(arguments)
    except UsageError as error:
        print(f"orchestra: error: {error}", file=sys.stderr)
        return of_error(error)
    except OrchestraError as error:
        print(f"orchestra: {error}", file=sys.stderr)
        return of_error(error)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            print(f"orchestra: {too_many_files()}", file=sys.stderr)
            return FAILED
        if of_error(error) != CANNOT_WRITE:
            raise
        print(f"orchestra: cannot write: {error}", file=sys.stderr)
        return CANNOT_WRITE
    except KeyboardInterrupt as error:
        return of_error(error)


def program(argv: Sequence[str] | None = None) -> NoReturn:
    """Carry out one command in a process of its own, and end the process.

    The exit functions run, and then the process ends at once: to tear down its modules one by one takes a process with
    torch a second or two on a busy machine.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # a run handles them; before and after it they must not kill
    if "_ARGCOMPLETE" in os.environ:
        from orchestra.cli.completion import complete

        complete(_commands())
    code = main(argv)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if it was closed when the process began
            with contextlib.suppress(BrokenPipeError):  # the reader has closed its end
                stream.flush()
    os._exit(code)


def _commands() -> dict[str, EntryPoint]:
    commands = {name: EntryPoint(name, f"orchestra.cli.{name}:command", COMMANDS) for name in _USAGE}
    added = {point.name: point for point in entry_points(group=COMMANDS)}
    return commands | {name: added[name] for name in sorted(added) if name not in commands}


def _dispatch(arguments: list[str]) -> int:
    commands = _commands()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(commands))
        return FINISHED if arguments else MISUSED
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        print(f"orchestra {version('orchestra-rl')}")
        return FINISHED
    if name in ("node", "prepare"):  # runs start them; users do not
        commands[name] = EntryPoint(name, f"orchestra.cli.{name}:command", COMMANDS)
    if name == "template":  # likewise; the processes that it forks become such programs
        from orchestra.cli.template import command_with

        return command_with(program)(rest)
    if name not in commands:
        raise UsageError(
            f"there is no command {name!r}{did_you_mean(name, commands)}; the commands are {', '.join(commands)}"
        )
    command: Command = commands[name].load()
    return command(rest)


def _overview(commands: dict[str, EntryPoint]) -> str:
    rows = [(_USAGE.get(name, name), _summary(point)) for name, point in commands.items()]
    width = max(len(row[0]) for row in rows) + 2
    listed = "\n".join(f"  {left:<{width}}{right}" for left, right in rows)
    return (
        "usage: orchestra COMMAND ...\n\n"
        "Runs reinforcement learning as actors that send each other typed messages.\n\n"
        f"commands:\n{listed}\n\n"
        "`orchestra COMMAND --help` says more; `orchestra run FILE --help` lists the flags of an experiment.\n"
        "`orchestra --version` prints the version."
    )


def _summary(point: EntryPoint) -> str:
    """Return the first line of a command's docstring, read from its source: importing the module may take seconds."""
    spec = importlib.util.find_spec(point.module)
    if spec is None or not spec.has_location or not str(spec.origin).endswith(".py"):
        doc = point.load().__doc__
    else:
        tree = ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == point.attr)
        doc = next((ast.get_docstring(function) for function in functions), None)
    line = (doc or "").strip().partition("\n")[0].rstrip(".")
    return line[:1].lower() + line[1:]
