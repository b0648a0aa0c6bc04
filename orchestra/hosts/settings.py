"""Host settings: one host of a run as its user asks for it, in words or in a file."""

import re
from dataclasses import dataclass, replace
from typing import Any, Self

from orchestra.errors import UsageError
from orchestra.hosts.shape import HostShape

HERE = "here"
"""The name that stands for the head, so that workers run beside the learner."""
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@:\[\]\s]+)@)?(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^@:\[\]\s]+)(?::(?P<port>\d{1,6}))?"
)


@dataclass(frozen=True, slots=True)
class HostSettings:
    """One host as asked for. Empty texts and zeros leave it to the host."""

    slot: int
    name: str = ""
    """The name or address of the host, without user and port."""
    user: str = ""
    """The user that logs in there."""
    port: int = 0
    """The port of its ssh server."""
    cores: int = 0
    gpus: int = 0
    memory: int = 0
    """Bytes."""
    python: str = ""
    """The interpreter there."""
    setup: str = ""
    """Commands of the shell before the interpreter starts: `module load cuda`."""
    scratch: str = ""
    """The folder there for the run's files."""

    @classmethod
    def parse(cls, text: str, slot: int) -> Self:
        """Return the host that `[USER@]NAME[:PORT]` names; an IPv6 address stands in brackets.

        Raises:
            UsageError: the text is no such name.
        """
        found = _ADDRESS.fullmatch(text)
        # ssh would take a name that begins with a dash for an option.
        if found is None or found["host"].startswith("-") or (found["user"] or "").startswith("-"):
            raise UsageError(f"{text!r} is no host: write NAME, USER@NAME or USER@NAME:PORT, and IPv6 in brackets")
        port = int(found["port"] or 0)
        if found["port"] is not None and not 1 <= port <= 65535:
            raise UsageError(f"{text!r}: port {port} is not allowed; 1 to 65535 are")
        return cls(slot, found["host"].strip("[]"), found["user"] or "", port)

    def with_defaults(self, **defaults: Any) -> Self:
        """Return the settings with `defaults` in place of empty ones."""
        return replace(self, **{name: value for name, value in defaults.items() if not getattr(self, name)})

    @property
    def shape(self) -> HostShape:
        """The shape as asked for; 0 for what only the host knows."""
        return HostShape(self.slot, self.name, self.cores, self.gpus, self.memory)
