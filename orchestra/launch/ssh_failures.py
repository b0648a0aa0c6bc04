"""Determines why a `ssh` ended, from its last lines and its exit code. Code 255 stands for any failure of ssh."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestra.launch.protocol import NEVER_AGAIN

SSH_FAILED = 255
NOT_EXECUTABLE, NOT_FOUND = 126, 127


@dataclass(frozen=True, slots=True)
class Failure:
    """The end of a `ssh` process."""

    reason: str
    """One line."""
    code: int | None
    """The exit code of the agent; None if it never ran, or if the code is unknown."""
    again: bool = True
    """False if a later try would end in the same way."""
    transient: bool = False
    """True if a later try may reach the host."""


_REFUSALS: tuple[tuple[str, str, bool], ...] = (
    # A pattern of the text of ssh, the text shown instead (empty: that of ssh), and whether a later try may succeed.
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed; if that is right: ssh-keygen -R {name}",
        False,
    ),
    (r"Host key verification failed", "its host key is not known: log in once, with: ssh {destination}", False),
    (r"Permission denied|Too many authentication failures|Unable to authenticate", "", False),
    (r"Could not resolve hostname .*: (Name or service not known|No address associated|nodename nor)", "", False),
    (r"Could not resolve hostname", "", True),
    (r"Connection refused|Connection timed out|Operation timed out|No route to host|is unreachable", "", True),
    (r"Connection (closed|reset)|kex_exchange_identification|banner exchange|Broken pipe|not responding", "", True),
)


def explained(code: int, lines: Sequence[str], destination: str, *, name: str, logged_in: bool) -> Failure:
    """Return how a `ssh` ended.

    Args:
        code: its exit code; negative, the signal that killed it.
        lines: the last lines that it and the agent have printed.
        destination: the host, as one would type it behind `ssh`.
        name: its name alone.
        logged_in: whether the remote shell has run. Before that only ssh itself speaks.
    """
    if code < 0:
        return Failure(f"ssh was killed by {_signal_name(-code)}", None)
    return _agent_ended(code, lines) if logged_in else _not_logged_in(code, lines, destination, name)


def _not_logged_in(code: int, lines: Sequence[str], destination: str, name: str) -> Failure:
    last = _spoken(lines)
    if code != SSH_FAILED:
        return Failure(f"the login shell exited with code {code} before the agent{_quoted(last)}", None, again=False)
    for pattern, reason, transient in _REFUSALS:
        line = next((line for line in reversed(lines) if re.search(pattern, line)), None)
        if line is not None:
            text = reason.format(destination=destination, name=name) or _short(line)
            return Failure(text, None, again=transient, transient=transient)
    return Failure(_short(last) or "ssh failed without a word", None, again=False)


def _agent_ended(code: int, lines: Sequence[str]) -> Failure:
    last = _spoken(lines)
    if code == SSH_FAILED:
        if any(re.search(pattern, line) for pattern, _, transient in _REFUSALS[-2:] for line in lines if transient):
            return Failure(f"the connection broke: {_short(last)}", None)
        return Failure(f"the agent was killed by a signal, or ssh ended{_quoted(last)}", None)
    if code in (NOT_EXECUTABLE, NOT_FOUND):
        return Failure(f"its Python cannot be started{_quoted(last)}; see --python and --setup", code, again=False)
    if absent := next((line for line in lines if "No module named orchestra" in line), None):
        python = absent.partition(": No module")[0]
        return Failure(f"orchestra is not installed for {python}; see --python and --setup", code, again=False)
    if code == 0:
        return Failure("the agent ended", code)
    return replace(Failure(f"the agent exited with code {code}{_quoted(last)}", code), again=code not in NEVER_AGAIN)


def _spoken(lines: Sequence[str]) -> str:
    return lines[-1] if lines else ""


def _quoted(line: str) -> str:
    return f": {line}" if line else ""


def _short(line: str) -> str:
    """Return a line of ssh without its prefix, such as host and port: `Connection refused`."""
    for prefix in (r"ssh: connect to host \S+ port \d+: ", r"ssh: ", r"\S+@\S+: (?=Permission denied)"):
        line = re.sub(f"^{prefix}", "", line)
    return line.rstrip(". ")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
