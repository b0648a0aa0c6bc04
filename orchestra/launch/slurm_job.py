"""A job of SLURM: the nodes of it that this process may use, the state of the job, and its restart."""

import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from orchestra.errors import OrchestraError, UsageError

GPUS = "CUDA_VISIBLE_DEVICES"
HOPELESS = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "DependencyNeverSatisfied")
"""Reasons for which a job that waits will never start."""
PATIENCE_S = 60.0
"""Seconds for SLURM to answer one question."""


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one component of a job. A job of one kind of nodes is one component."""

    number: int | None
    """The number of the component in a heterogeneous job."""
    cores: tuple[int, ...]
    """The cores that the job has on each node, in the order of its node list."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes that SLURM has given the job in which this process runs."""

    job: str
    groups: tuple[Group, ...]
    on_first_node: bool
    """True if this process runs on the first node. Else it runs outside of the job's nodes, as below `salloc`."""
    gives_gpus: bool = False
    """True if SLURM has told this process which GPUs are its own, and so tells the processes of other nodes."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self | None:
        """Return the allocation that the variables of a process tell of, or None if there is none.

        Raises:
            UsageError: the process is one of several of a step, or none of the first node.
        """
        job = environment.get("SLURM_JOB_ID")
        if not job:
            return None
        if "SLURM_STEP_ID" in environment and int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            raise UsageError(
                "--launch slurm: srun has started orchestra run in several tasks; start it once, without srun, and it "
                "starts the other hosts itself"
            )
        if environment.get("SLURM_NODEID", "0") != "0":
            raise UsageError("--launch slurm: this is not the first node of the job; start orchestra run on that one")
        components = int(environment.get("SLURM_HET_SIZE", "0"))
        names: list[tuple[int | None, str]] = [(number, f"_HET_GROUP_{number}") for number in range(components)]
        names = names or [(None, "")]
        groups = tuple(
            Group(
                number, cores_of(environment.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", ""), _nodes(environment, suffix))
            )
            for number, suffix in names
        )
        return cls(job, groups, "SLURMD_NODENAME" in environment, GPUS in environment)

    @property
    def cores(self) -> list[int]:
        """The cores of all nodes."""
        return [cores for group in self.groups for cores in group.cores]


def _nodes(environment: Mapping[str, str], suffix: str) -> int:
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := environment.get(f"{name}{suffix}", ""):
            return int(text)
    raise UsageError(f"--launch slurm: SLURM_JOB_NUM_NODES{suffix} is not set, although SLURM_JOB_ID is")


def cores_of(text: str, nodes: int) -> tuple[int, ...]:
    """Return the cores of each node as `SLURM_JOB_CPUS_PER_NODE` has them: `16(x3),8`. 0 stands for unknown ones."""
    found: list[int] = []
    for part in text.split(","):
        if (one := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)) is not None:
            found += [int(one[1])] * int(one[2] or 1)
    return tuple((found + [0] * nodes)[:nodes])


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, as SLURM reports it."""

    state: str
    """`RUNNING`, `COMPLETING`, `CANCELLED`, …"""
    requeue: bool
    """True if it may be started again."""
    batch: bool
    """True if it has a script, which is then started again."""
    restarts: int
    code: int
    """The exit code of its script; more than 128 if a signal has ended it."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `scontrol show job ID -o` says. Of a heterogeneous job it is the first component."""
        first = next(iter(text.splitlines()), "")
        found = dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", first))
        code, _, number = found.get("ExitCode", "0:0").partition(":")
        return cls(
            found.get("JobState", ""),
            found.get("Requeue") == "1",
            found.get("BatchFlag") not in ("0", None),
            int(found.get("Restarts", 0)),
            128 + int(number) if int(number or 0) else int(code),
        )


def asked(*command: str, text: str = "") -> str:
    """Return what a command of SLURM prints.

    Raises:
        UsageError: the command is not installed.
        OrchestraError: it fails.
    """
    try:
        done = subprocess.run(  # noqa: S603 (a list, for no shell)
            command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise UsageError(f"--launch slurm: there is no {command[0]} here; is this a machine of the cluster?") from None
    except subprocess.TimeoutExpired:
        raise OrchestraError(f"{command[0]} has not answered within {PATIENCE_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise OrchestraError(f"{lines[-1] if lines else f'{command[0]} ended with code {done.returncode}'}")
    return done.stdout


def requeued(environment: Mapping[str, str], most: int) -> str:
    """Have SLURM start the job of this process again, if it was told to end and not cancelled; return what was done.

    The process must have nothing left to do: SLURM ends it.

    Args:
        environment: the variables of the process.
        most: how often a job may be started again.
    """
    job = environment.get("SLURM_JOB_ID", "")
    if not job or "SLURMD_NODENAME" not in environment:
        return ""
    try:
        state = JobState.parse(asked("scontrol", "show", "job", job, "-o"))
        if not state.batch or not state.requeue:
            return ""
        if state.state != "RUNNING":
            return f"job {job} is {state.state}: it was cancelled, or SLURM itself queues it again"
        if state.restarts >= most:
            return f"job {job} was started again {state.restarts} times, and --max-restarts allows no more"
        for number in (signal.SIGTERM, signal.SIGHUP):  # a requeue sends SIGTERM, and this process ends with its code
            signal.signal(number, signal.SIG_IGN)
        asked("scontrol", "requeue", job)
    except OrchestraError as error:
        return f"job {job} is not queued again: {error}"
    return f"job {job} is queued again, and goes on when it starts"
