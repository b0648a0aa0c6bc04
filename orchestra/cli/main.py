"""The command line: `orchestra run` and its like, and the commands that packages above add."""

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points, version
from typing import NoReturn

from orchestra.cli import node, ps, replay, run, top, trace
from orchestra.cli.endings import ABORTED, MISUSED
from orchestra.errors import UsageError

COMMANDS = "orchestra.commands"
"""The entry points that add commands: functions from the arguments to an exit code, documented in one line."""

Command = Callable[[list[str]], int]

_OWN: dict[str, tuple[Command, str]] = {
    "run": (run.command, "run FILE [flags]"),
    "ps": (ps.command, "ps [RUN_DIR]"),
    "top": (top.command, "top [RUN_DIR]"),
    "replay": (replay.command, "replay RUN_DIR"),
    "trace": (trace.command, "trace ls RUN_DIR"),
}
"""What carries a command out, and how the overview spells it; the first line of its docstring says what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code: 0, 1 for a run that failed, 2 for a misuse, 130 aborted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UsageError as error:
        print(f"orchestra: error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return ABORTED


def program() -> NoReturn:
    """Be the process of one command, and end it.

    At once, after what was registered for its end: nothing else is left to do, and to take apart what it has imported,
    module by module, takes a process with torch a second or two on a busy machine.
    """
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was open when the process began
            with contextlib.suppress(BrokenPipeError):  # whoever read it has heard enough
                stream.flush()
    os._exit(code)


def _dispatch(arguments: list[str]) -> int:
    added = {point.name: point for point in entry_points(group=COMMANDS)}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview(added))
        return 0 if arguments else MISUSED
    name, rest = arguments[0], arguments[1:]
    if name == "--version":
        print(f"orchestra {version('orchestra-rl')}")
        return 0
    if name == "node":
        return node.command(rest)
    if name in _OWN:
        return _OWN[name][0](rest)
    if name in added:
        command: Command = added[name].load()
        return command(rest)
    known = ", ".join([*_OWN, *sorted(added)])
    raise UsageError(f"there is no command {name!r}; the commands are {known}")


def _overview(added: dict[str, EntryPoint]) -> str:
    own = [(spelt, command) for command, spelt in _OWN.values()]
    others: list[tuple[str, Command]] = [(name, point.load()) for name, point in sorted(added.items())]
    rows = [(spelt, _in_a_line(command)) for spelt, command in own + others]
    width = max(len(row[0]) for row in rows) + 2
    listed = "\n".join(f"  {left:<{width}}{right}" for left, right in rows)
    return (
        "usage: orchestra COMMAND ...\n\n"
        "Runs reinforcement learning as actors that send each other typed messages.\n\n"
        f"commands:\n{listed}\n\n"
        "`orchestra COMMAND --help` says more; `orchestra run FILE --help` lists the flags of an experiment.\n"
        "`orchestra --version` prints the version."
    )


def _in_a_line(command: Command) -> str:
    doc = (command.__doc__ or "").strip().splitlines()
    line = doc[0].rstrip(".") if doc else ""
    return line[:1].lower() + line[1:]
