"""The plan by which every process of a run builds the same topology, as JSON on a command line or in a message."""

import base64
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from orchestra.errors import UsageError
from orchestra.hosts.shape import HostShape
from orchestra.trace.recording.settings import NO_TRACE, TraceSettings
from orchestra.wire import blocks

LONG = 16 << 10
"""Characters of a plan from which on it is compressed: a word of a command line has 128 KiB at most."""
PACKED = "zlib:"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan by which every process of a run builds the same topology and opens its node."""

    experiment: Path | None
    """The file that each process imports; None for a topology that no file describes, which runs in one process."""
    flags: Sequence[str]
    """The experiment's flags, as on a command line."""
    seed: int
    run_directory: Path
    code: str = ""
    """The digest of the run's `code.zip`; empty if it has none."""
    function: str = "experiment"
    """The function of the file that returns the topology."""
    hosts: Sequence[HostShape] = ()
    """The hosts of the run, for which the topology is built; none for the machine of the process alone."""
    log_level: str = "info"
    quiet: bool = False
    """True if nothing is printed while the run goes on."""
    log_to_output: bool = False
    """True on other hosts than the head's: a process writes its log to its output, and its agent sends it on."""
    trace: TraceSettings = NO_TRACE
    resume_from: Path | None = None
    """The folder of the state that the actors of a resumed run load."""
    tls_dir: Path | None = None
    """The folder of the run's certificates, if it goes over TLS."""
    shared_memory: int = blocks.CAPACITY
    """Bytes of an arena of shared memory."""
    unencrypted: bool = False
    """True if plain TCP beyond this host is allowed."""
    advertise: Sequence[str] = ()
    """The names or addresses at which other hosts reach the nodes of this one; its interfaces by default."""

    def command(self, node: str, listen: str, *, again: bool = False) -> list[str]:
        """Return the command line of the process of `node`. One that is started `again` loads no saved state."""
        text = self.text(again=again)
        return [sys.executable, "-m", "orchestra", "node", node, "--listen", listen, "--plan", text]

    def preparation(self) -> list[str]:
        """Return the command line of the process that prepares what the others of its host would wait for."""
        return [sys.executable, "-m", "orchestra", "prepare", "--plan", self.text()]

    def text(self, *, again: bool = False) -> str:
        """Return the plan as JSON, for a process that is started, or started `again` and loads no saved state.

        A long one, for hundreds of hosts, is compressed.
        """
        plan = replace(
            self,
            run_directory=self.run_directory.absolute(),
            resume_from=None if again else self.resume_from,
        )
        text: bytes = TypeAdapter(RunPlan).dump_json(plan)
        return text.decode() if len(text) < LONG else PACKED + base64.b64encode(zlib.compress(text)).decode()

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the plan that `text` wrote.

        Raises:
            UsageError: the text is no such plan.
        """
        if text.startswith(PACKED):
            try:
                text = zlib.decompress(base64.b64decode(text.removeprefix(PACKED), validate=True)).decode()
            except (ValueError, zlib.error) as error:
                raise UsageError(f"--plan: not the plan of a run: {error}") from None
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"--plan: not the plan of a run: {where}: {first['msg']}") from None
