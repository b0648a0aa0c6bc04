"""The parser of every command's flags."""

import argparse
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

from orchestra.errors import UsageError
from orchestra.runs.suggestions import did_you_mean


class FlagParser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` where argparse would print to stderr and exit."""

    completer: ClassVar[Callable[[Any], None] | None] = None  # answers a shell that completes a line

    def __init__(self, **options: Any) -> None:
        options.setdefault("allow_abbrev", False)  # a flag added tomorrow must not make today's command ambiguous
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(exit_on_error=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error as a `UsageError`."""
        raise UsageError(message)

    def positions(self, argv: Sequence[str]) -> list[int]:
        """Return the positions of words that are neither flags nor values of flags. Unknown flags take no value."""
        found = []
        takes_value = False
        for position, word in enumerate(argv):
            if not word.startswith("-") and not takes_value:
                found.append(position)
            # Private, but the only place where argparse keeps the flags of a parser and of its groups.
            action = self._option_string_actions.get(word)
            takes_value = action is not None and action.nargs != 0
        return found

    def without(self, argv: Sequence[str], options: Collection[str]) -> list[str]:
        """Return the words of a command line without some flags, such as `--time`, and their values."""
        found = []
        dropping = False
        for word in argv:
            option = word.partition("=")[0]
            action = self._option_string_actions.get(option)
            if word.startswith("-"):
                dropping = option in options or (option.startswith("--no-") and f"--{option[5:]}" in options)
                drops_value = dropping and "=" not in word and action is not None and action.nargs != 0
            elif dropping and drops_value:
                drops_value = False
                continue
            else:
                dropping = False
            if not dropping:
                found.append(word)
        return found

    def parse_strictly(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse all of `argv`.

        Raises:
            UsageError: a flag is unknown (the error suggests the closest known one) or misused.
        """
        if FlagParser.completer is not None:
            FlagParser.completer(self)
        namespace, rest = self.parse_partly(argv)
        if rest:
            raise UsageError(unknown(rest, self._option_string_actions))
        return namespace

    def parse_partly(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the known flags of `argv`; return the other words, too.

        Raises:
            UsageError: a known flag is misused.
        """
        try:
            return self.parse_known_args(argv)
        except argparse.ArgumentError as error:
            raise UsageError(_reworded(error)) from error


def unknown(rest: Sequence[str], known: Iterable[str]) -> str:
    """Return what is wrong with words that no flag takes."""
    flags = [word for word in rest if word.startswith("-")]
    if not flags:
        return f"unexpected argument {rest[0]!r}"
    if re.match(r"-[\d.]", flags[0]):  # argparse takes -1e-4 for a flag, but not -0.0001
        return f"unexpected argument {flags[0]!r}; a value that begins with a dash is written --flag={flags[0]}"
    given = flags[0].partition("=")[0]
    if given == "--":
        return "unexpected argument '--'"
    return f"unknown flag {given}{did_you_mean(given, known)}"


def _reworded(error: argparse.ArgumentError) -> str:
    said = error.message
    if explicit := re.fullmatch(r"ignored explicit argument (.*)", said):
        said = f"takes no value, got {explicit[1]}"
    return f"{error.argument_name}: {said}" if error.argument_name else said
