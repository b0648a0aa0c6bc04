"""`orchestra completion`: completion of commands, experiments, flags and values by the tab key of a shell.

The shell starts `orchestra` with the line that is being typed in its environment. The command of that line makes its
parser, and argcomplete answers from it in place of parsing.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

import argcomplete
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from orchestra.errors import OrchestraError
from orchestra.runs.experiment import own_experiments
from orchestra.runs.flag_parser import FlagParser

SHELLS = ("bash", "zsh", "fish")
_HELP = """Print the code that has a shell complete commands, experiments, flags and values.

  bash   echo 'eval "$(orchestra completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(orchestra completion zsh)"' >> ~/.zshrc
  fish   orchestra completion fish > ~/.config/fish/completions/orchestra.fish"""


def command(arguments: list[str]) -> int:
    """Print the code that has a shell complete commands and flags."""
    parser = FlagParser(prog="orchestra completion", description=_HELP)
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_strictly(arguments).shell
    print(shellcode(["orchestra"], shell=shell), end="")
    return 0


def complete(commands: Mapping[str, EntryPoint]) -> NoReturn:
    """Answer the shell, whose line is in the environment, and end the process.

    Args:
        commands: all commands by name.
    """
    _, prefix, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    given = words[1:]
    if not given:
        _answer(_choosing(commands))
    elif given[0] == "trace" and len(given) == 1:
        from orchestra.cli.trace import COMMANDS

        _answer(_choosing(COMMANDS), skipped=1)
    elif given == ["run"] and not prefix.startswith("-"):
        _answer(_choosing([*own_experiments(), *_files(prefix)]), skipped=1)
    elif given[0] in commands:
        skipped = 2 if given[0] == "trace" else 1
        FlagParser.completer = lambda parser: _answer(parser, skipped=skipped)
        with contextlib.suppress(OrchestraError):  # no experiment or run is named yet: names of files complete the line
            commands[given[0]].load()(given[1:])
    os._exit(1)


def _choosing(names: Iterable[str]) -> FlagParser:
    parser = FlagParser()
    parser.add_argument("word", choices=list(names))
    return parser


def _files(prefix: str) -> Sequence[str]:
    return [f"{path}/" if path.is_dir() else str(path) for path in Path().glob(f"{prefix}*") if _leads_on(path)]


def _leads_on(path: Path) -> bool:
    return path.suffix == ".py" or path.is_dir()


def _answer(parser: FlagParser, *, skipped: int = 0) -> NoReturn:
    """Write the completions of the last word. The parser does not get the first `skipped` words after `orchestra`."""
    os.environ["_ARGCOMPLETE"] = str(1 + skipped)
    argcomplete.autocomplete(parser, always_complete_options=False, print_suppressed=True)
    os._exit(1)
