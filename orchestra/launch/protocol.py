"""The contract of launchers. A launcher has an engine (ssh, a batch system) start an agent on each host of a run.

A launcher never sees actors, nodes or messages, and no type of an engine's library leaves it.
"""

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # it imports numpy, which no launcher needs
    from orchestra.hosts.run_plan import RunPlan


NEVER_AGAIN = (2, 76, 77)
"""Exit codes of agents after which another one would end likewise."""
SlotState = Literal["asked", "queued", "started", "ended"]


@dataclass(frozen=True, slots=True)
class HostRequest:
    """One slot, as asked of an engine."""

    slot: int
    name: str = ""
    """The name by which the engine reaches the host; only ssh has one."""
    cores: int = 0
    """0 for whatever the host has."""
    gpus: int = 0
    memory: int = 0
    """Bytes; 0 for whatever the host has."""


@dataclass(frozen=True, slots=True)
class Submission:
    """All that a launcher will do, as text and argument lists. Nothing in it is secret."""

    files: Mapping[str, str]
    """The files that it writes, by name: `job.sbatch`, `job.yaml`. `--dry-run` prints them."""
    commands: tuple[tuple[str, ...], ...]
    """The commands that it runs."""

    def __str__(self) -> str:
        """Return the files and the commands as people read them. If no command names a file, they read it."""
        shown = [f"--- {name}\n{text.rstrip()}\n---" for name, text in self.files.items()]
        named = any(name in word for command in self.commands for word in command for name in self.files)
        for command in self.commands:
            read = [] if named else list(self.files)
            shown.append(" < ".join([shlex.join(command), *read[:1]]))
        return "\n".join(shown)


@dataclass(frozen=True, slots=True)
class HostEvent:
    """An event that the engine reports for a slot. The reports of its agent come over the wire."""

    slot: int
    state: SlotState
    where: str
    """The engine's description of the host: `cpu3 by ssh`, `job 4711 task 3 on n17`, `pod qmix-hosts-3`."""
    reason: str = ""
    """One line: `Connection refused`, `PENDING (Resources)`, `ImagePullBackOff`."""
    code: int | None = None
    """The exit code of the agent, if it has one."""
    again: bool = True
    """False if it is useless to start it again: a wrong key, no such image."""


class Launcher(Protocol):
    """Has an engine start agents, and yields the engine's events about them."""

    name: str
    """The engine, as `--launch` names it."""
    replaces: bool
    """True if the engine by itself starts another agent for a slot whose agent it has told to end."""

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return all that `start` will do. This needs no engine."""

    async def start(self, submission: Submission, token: str) -> None:
        """Start the agents; return when the engine has accepted them.

        Args:
            submission: as returned by `submission`.
            token: the join token, one line of text. It is secret: it goes to the agents' standard input, or into a
                file that their user alone can read.

        Raises:
            UsageError: the engine cannot be used as asked.
            OrchestraError: the engine refuses.
        """

    def events(self) -> AsyncIterator[HostEvent]:
        """Yield what happens to the slots, until `stop` is done."""

    async def again(self, slot: int) -> None:
        """Start another agent for a slot whose agent has ended. Engines that do so themselves do nothing."""

    async def stop(self, deadline: float) -> None:
        """End the remaining agents within `deadline` seconds. Afterwards the engine holds nothing of this run."""
