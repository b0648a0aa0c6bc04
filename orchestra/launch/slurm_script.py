"""The job script of a run under SLURM: what is asked of sbatch, and the command that becomes the head.

Only what was asked for is written, so that the defaults of the cluster hold for everything else.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from orchestra.errors import UsageError
from orchestra.launch.engine import HeadJob

LEAST_TIME_S = 300
"""A job of less time gets no warning: SLURM may send it up to a minute early."""
MOST_JOBS = 1000
"""Runs of a sweep."""
_TIME = re.compile(r"(?:(?P<d>\d+)-)?(?P<a>\d+)(?::(?P<b>\d+))?(?::(?P<c>\d+))?")
_ENDLESS = ("INFINITE", "UNLIMITED")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfig:
    """The request to SLURM for one run. Empty texts and zeros are not written into the script.

    Raises:
        UsageError: a value is not allowed.
    """

    job_name: str = "orchestra"
    nodes: int = 1
    """Hosts of the run, that of the head among them."""
    gpus_per_node: int = 0
    time_limit: str = "01:00:00"
    """Minutes, or hours, minutes and seconds, or days and hours, in the forms that sbatch takes."""
    partition: str = ""
    gpu_type: str = ""
    """The type of the GPUs: `a100`."""
    debug: bool = False
    """True if the script prints its commands, and the logs have everything."""
    cpus_per_task: int = 0
    """The cores of each host."""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    reservation: str = ""
    exclude: str = ""
    """Nodes that are not to be used: `n[3-5],n9`."""
    mem: str = ""
    """The memory of each host: `16G`."""
    setup: str = ""
    """Commands of the shell before the interpreter starts: `module load cuda`."""
    python: str = ""
    """The interpreter; that of this process by default."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch: `--mail-type=END`. They come last, so that they win."""
    requeue: bool = True
    """True if SLURM may start the job again, and the head asks for it when it is preempted or its time is over."""
    grace: float = 120.0
    """Seconds before the end of its time at which the job is told."""
    head_gpus: int = 0
    """GPUs of the head's node, if that is to be another kind of node."""
    head_cores: int = 0
    head_partition: str = ""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "cpus_per_task", "head_gpus", "head_cores"):
            if (value := getattr(self, name)) < (1 if name == "nodes" else 0):
                raise UsageError(f"{name} is {value}: it must be {1 if name == 'nodes' else 0} or more")
        for name in ("job_name", "partition", "account", "qos", "constraint", "reservation", "exclude", "mem"):
            if re.search(r"\s", value := getattr(self, name)):
                raise UsageError(f"{name} is {value!r}: a value of an option of sbatch has no spaces")
        for word in self.extra:
            if not re.fullmatch(r"--?[A-Za-z][^\n]*", word):
                raise UsageError(f"{word!r} is no option of sbatch: write it as in --sbatch=--mail-type=END")
        seconds_of(self.time_limit)

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, job_name: str, nodes: int, grace: float) -> Self:
        """Return what the flags of `orchestra run --launch slurm` ask for."""
        taken = {field: settings[flag] for field, flag in FLAGS.items() if flag in settings}
        taken["requeue"] = not settings.get("once", False)
        return cls(**{"job_name": job_name, "nodes": nodes, "grace": grace, "time_limit": "", **taken})

    def options(self) -> dict[str, Any]:
        """Return the keywords of `orchestra.run` for a run whose head is this process, and whose hosts are this job."""
        said = {
            flag: value for field, flag in FLAGS.items() if (value := getattr(self, field)) not in ("", 0, False, ())
        }
        return {"launch": "slurm", "head_here": True, "hosts": self.nodes, "grace": self.grace, **said}

    @property
    def two_kinds(self) -> bool:
        """True if the head is to have a node of another kind than the other hosts."""
        return self.nodes > 1 and bool(self.head_gpus or self.head_cores or self.head_partition)

    def head_alone(self) -> Self:
        """Return what is asked for a run whose only host is the head."""
        return replace(
            self,
            gpus_per_node=self.head_gpus or self.gpus_per_node,
            cpus_per_task=self.head_cores or self.cpus_per_task,
            partition=self.head_partition or self.partition,
        )

    def directives(self) -> list[str]:
        """Return the options of the job, without those of output and arrays; `hetjob` separates two kinds of hosts."""
        warned = not self.time_limit or (seconds_of(self.time_limit) or 1 << 62) >= max(LEAST_TIME_S, 2 * self.grace)
        job = [
            *([f"--signal=B:TERM@{self.grace:.0f}"] if warned else []),
            "--requeue" if self.requeue else "--no-requeue",
            "--no-kill",
        ]
        if not self.two_kinds:
            one = self.head_alone() if self.nodes == 1 else self
            return [*self._part(self.nodes, one.gpus_per_node, one.cpus_per_task, one.partition), *job, *self.extra]
        head_part = self._part(1, self.head_gpus, self.head_cores, self.head_partition or self.partition)
        rest = self._part(self.nodes - 1, self.gpus_per_node, self.cpus_per_task, self.partition)
        return [*head_part, *job, *self.extra, "hetjob", *rest, "--no-kill", *self.extra]

    def _part(self, nodes: int, gpus: int, cores: int, partition: str) -> list[str]:
        kind = f"{self.gpu_type}:" if self.gpu_type else ""
        asked = {
            "job-name": self.job_name,
            "nodes": nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": cores,
            "gpus-per-node": f"{kind}{gpus}" if gpus else "",
            "time": self.time_limit,
            "partition": partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "reservation": self.reservation,
            "exclude": self.exclude,
            "mem": self.mem,
        }
        return [f"--{name}={value}" for name, value in asked.items() if value]


FLAGS: Mapping[str, str] = {
    "job_name": "job_name",
    "gpus_per_node": "gpus_per_node",
    "time_limit": "time",
    "partition": "partition",
    "gpu_type": "gpu_type",
    "debug": "debug",
    "cpus_per_task": "cpus_per_task",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "reservation": "reservation",
    "exclude": "exclude",
    "mem": "mem",
    "setup": "setup",
    "python": "python",
    "extra": "sbatch",
    "head_gpus": "head_gpus",
    "head_cores": "head_cores",
    "head_partition": "head_partition",
}
"""The flag of `orchestra run` for each field of `SlurmConfig`, but for `nodes` and `grace`, which all engines have, and
`requeue`, which `--once` turns off."""


def job_script(config: SlurmConfig, job: HeadJob, sweep: Sequence[Sequence[str]] = (), parallel: int = 0) -> str:
    """Return the script of a job whose batch process becomes the head.

    Args:
        config: what is asked of SLURM.
        job: the run.
        sweep: the further flags of each run of an array of jobs; empty for one job.
        parallel: how many jobs of the array may run at the same time; 0 for any number.
    """
    which = "%A-%a" if sweep else "%j"
    folder = job.folder.replace("\\", "\\\\").replace("%", "%%")
    array = [f"--array=0-{len(sweep) - 1}{f'%{parallel}' if parallel else ''}"] if sweep else []
    first, *others = config.directives()
    options = [first, *array, f"--output={folder}/slurm-{which}.log", "--open-mode=append", *others]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            *(["set -x"] if config.debug else []),
            'cd -- "$SLURM_SUBMIT_DIR" || exit 2',
            *([config.setup.strip()] if config.setup.strip() else []),
            *_table(sweep),
            f"exec {_head(config, job, sweep=bool(sweep))}",
            "",
        ]
    )


def _table(sweep: Sequence[Sequence[str]]) -> list[str]:
    rows = [f"    {number}) set -- {shlex.join(words)} ;;" for number, words in enumerate(sweep)]
    return ["case $SLURM_ARRAY_TASK_ID in", *rows, "esac"] if rows else []


def _head(config: SlurmConfig, job: HeadJob, *, sweep: bool) -> str:
    name = '"slurm-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"' if sweep else '"slurm-$SLURM_JOB_ID"'
    if job.name is not None:
        name = shlex.quote(job.name) + ('"-$SLURM_ARRAY_TASK_ID"' if sweep else "")
    level = ["--log-level=debug"] if config.debug else []
    words = [config.python or sys.executable, "-m", "orchestra", "run", *job.words, *level]
    named = "" if job.resumes else f" --as {name}"
    further = ' "$@"' if sweep else ""
    return f"{shlex.join(words)}{named}{further}"


def sweep_of(settings: Sequence[str]) -> list[list[str]]:
    """Return the flags of each run of a sweep: every combination of the values of its settings, the last one fastest.

    Args:
        settings: as typed: `seed=0..9`, `algorithm=qmix,vdn`.

    Raises:
        UsageError: a setting is malformed, or there are too many runs.
    """
    ways: list[list[str]] = []
    for text in settings:
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_-]*", name) or not values:
            raise UsageError(f"--sweep: {text!r} is no setting: write NAME=FIRST..LAST or NAME=VALUE,VALUE")
        if span := re.fullmatch(r"(-?\d+)\.\.(-?\d+)", values):
            first, last = int(span[1]), int(span[2])
            if not 0 <= last - first < MOST_JOBS:
                raise UsageError(
                    f"--sweep: {text!r} has {max(last - first + 1, 0)} values; 1 to {MOST_JOBS} are allowed"
                )
            found = [str(value) for value in range(first, last + 1)]
        else:
            found = values.split(",")
        ways.append([f"--{name.replace('_', '-')}={value}" for value in found])
    runs = [list(words) for words in itertools.product(*ways)] if ways else []
    if len(runs) > MOST_JOBS:
        raise UsageError(f"--sweep: these are {len(runs)} runs; {MOST_JOBS} are allowed")
    return runs


def seconds_of(time_limit: str) -> int | None:
    """Return the seconds of a time as sbatch takes it; None if there is no limit, or none is asked for.

    Raises:
        UsageError: it is no such time.
    """
    if not time_limit or time_limit.upper() in _ENDLESS:
        return None
    found = _TIME.fullmatch(time_limit)
    if found is None:
        raise UsageError(f"{time_limit!r} is no time: write MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES")
    parts = [int(part) for part in (found["a"], found["b"], found["c"]) if part is not None]
    if found["d"] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(found["d"]) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(parts) == 3:
        return (parts[0] * 60 + parts[1]) * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)
