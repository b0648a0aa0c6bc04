"""A job of SLURM that has the hosts of a run alone, for a head that runs outside of it (`--head-here`).

The agents read the join token from a file in the run directory, which only its user can read. They end when the head
has ended, however it has, and the job ends with them.
"""

import asyncio
import contextlib
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra import log
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.launch.events import HostEvents
from orchestra.launch.protocol import HostEvent, HostRequest, Submission
from orchestra.launch.slurm_job import HOPELESS, JobState, asked
from orchestra.launch.slurm_script import SlurmConfig

if TYPE_CHECKING:  # it imports numpy
    from orchestra.hosts.run_plan import RunPlan

SCRIPT = "hosts.sbatch"
TOKEN = "token"  # noqa: S105 (the name of a file)
UNKNOWN = Path("<run directory>")
"""Stands in a dry run for the folder that the run would make."""
ASK_S = 2.0
"""Seconds between two questions about the job."""


class SlurmHostsLauncher:
    """Submits a job whose tasks are the agents. Implements `Launcher`.

    Args:
        hosts: the hosts with an agent.
        config: what is asked of SLURM.
        ask: carries out a command of SLURM.
    """

    name = "slurm"
    replaces = False

    def __init__(self, hosts: Sequence[HostSettings], config: SlurmConfig, ask: Callable[..., str] = asked) -> None:
        self._hosts = hosts
        self._config = replace(config, nodes=len(hosts), requeue=False)
        self._ask = ask
        self._token = UNKNOWN / TOKEN
        self._job = ""
        self._following: asyncio.Task[None] | None = None
        self._events = HostEvents(self._where)
        self._log = log.get(actor="launcher")

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return the script, which is the input of sbatch."""
        folder = UNKNOWN if plan.run_directory == Path() else plan.run_directory.absolute()
        self._token = folder / TOKEN
        return Submission({SCRIPT: self._script(folder, len(requests))}, (("sbatch", "--parsable"),))

    def _script(self, folder: Path, number: int) -> str:
        config, host = self._config, self._hosts[0]
        output = str(folder / "slurm-hosts.log").replace("\\", "\\\\").replace("%", "%%")
        first, *others = config.directives()
        words = ["-m", "orchestra", "host", "--token", str(self._token)]
        scratch = f" --scratch {shlex.quote(host.scratch)}" if host.scratch else ""
        place = f'--slot $((SLURM_PROCID + 1)) --name "$SLURMD_NODENAME"{scratch}'
        step = [
            *("srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1"),
            *([f"--cpus-per-task={config.cpus_per_task}"] if config.cpus_per_task else []),
            *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--no-kill", "--wait=0", "--kill-on-bad-exit=0"),
            *("--label", "sh", "-c", f'exec "$0" {shlex.join(words)} {place}', config.python or sys.executable),
        ]
        options = [first, f"--output={output}", "--open-mode=append", *others]
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#SBATCH {option}" for option in options),
                *(["set -x"] if config.debug else []),
                *([config.setup.strip()] if config.setup.strip() else []),
                f"exec {shlex.join(step)}",
                "",
            ]
        )

    async def start(self, submission: Submission, token: str) -> None:
        """Write the token and submit the job. What becomes of it is an event of each slot."""
        _write_privately(self._token, token)
        try:
            answer = await asyncio.to_thread(self._ask, *submission.commands[0], text=submission.files[SCRIPT])
        except OrchestraError as error:
            self._token.unlink()
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"--launch slurm: sbatch does not take the job: {error}") from None
        self._job = answer.strip().partition(";")[0]
        self._log.info("the job of the hosts is submitted", job=self._job)
        for host in self._hosts:
            self._events.tell(host.slot, "asked")
        self._following = asyncio.create_task(self._follow(), name=f"slurm: job {self._job}")

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        """Refuse.

        Raises:
            OrchestraError: the job starts each agent once.
        """
        raise OrchestraError(f"job {self._job} starts each of its agents once")

    async def stop(self, deadline: float) -> None:
        """Wait until the job is over, which it is with its agents; then end what is left of it."""
        self._events.mute()
        if self._following is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._following, deadline)
            with contextlib.suppress(OrchestraError):  # it is over
                await asyncio.to_thread(self._ask, "scancel", self._job)
        self._token.unlink(missing_ok=True)
        self._events.close()

    async def _follow(self) -> None:
        """Report the state of the job in SLURM until it is over."""
        said = ""
        while True:
            try:
                answer = await asyncio.to_thread(self._ask, "squeue", "-h", "-j", self._job, "-o", "%T %r")
            except OrchestraError as error:
                if "Invalid job id" not in str(error):
                    self._log.warning("SLURM does not answer", reason=str(error))
                    await asyncio.sleep(ASK_S)
                    continue
                answer = ""
            state, _, reason = answer.strip().partition(" ")
            if not state:
                break
            if answer != said:
                said = answer
                self._heard(state, reason)
            await asyncio.sleep(ASK_S)
        how = await self._end()
        for host in self._hosts:
            self._events.tell(host.slot, "ended", how, again=False)

    def _heard(self, state: str, reason: str) -> None:
        for host in self._hosts:
            if state == "PENDING":
                self._events.tell(host.slot, "queued", f"PENDING ({reason})")
                if reason in HOPELESS:
                    self._events.tell(host.slot, "ended", f"PENDING ({reason}): will never start", again=False)
            elif state == "RUNNING":
                self._events.tell(host.slot, "started")

    async def _end(self) -> str:
        """Return how the job has ended."""
        try:
            state = JobState.parse(await asyncio.to_thread(self._ask, "scontrol", "show", "job", self._job, "-o"))
        except OrchestraError as error:
            return f"job {self._job} is over; how is not known: {error}"
        return f"job {self._job} is {state.state}, exit code {state.code}"

    def _where(self, slot: int) -> str:
        return f"job {self._job} task {slot - 1}"


def _write_privately(path: Path, text: str) -> None:
    """Write a file that its user alone can read."""
    path.unlink(missing_ok=True)  # of a head that was killed
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
