"""The declaration of an engine: its own flags, the hosts that a number stands for, and its launcher."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import Field

from orchestra.errors import UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.launch.protocol import Launcher, Submission

Settings = Mapping[str, Any]
"""The flags of an engine that were given, by the names of its parameters."""

Python = Annotated[str | None, Field(description="the interpreter of the hosts")]
Setup = Annotated[
    str | None, Field(description="commands of the shell before the interpreter starts: 'module load cuda'")
]
HostCores = Annotated[int | None, Field(ge=1, description="cores of each host; 1 by default")]
HostGpus = Annotated[int | None, Field(ge=1, description="GPUs of each host")]
HostMemory = Annotated[
    str | None, Field(coerce_numbers_to_str=True, description="the memory of each host: 512Mi, 16Gi, or bytes")
]
HeadCores = Annotated[int | None, Field(ge=1, description="cores of the head; with slurm it then gets another node")]
HeadGpus = Annotated[int | None, Field(ge=1, description="GPUs of the head; with slurm it then gets another node")]
Detach = Annotated[bool, Field(description="submit the job, and do not follow it")]
"""Flags that several engines have."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True, slots=True)
class AskedHosts:
    """The hosts of a run, as asked of an engine."""

    hosts: tuple[HostSettings, ...]
    """The hosts with an agent, in the order of their slots, which begin with 1."""
    here: HostSettings | None = None
    """The head, if workers run on it, too."""
    head: HostSettings | None = None
    """The settings requested for a head that only learns, if there are any."""
    head_elsewhere: bool = False
    """True if the engine starts the head, on a machine whose shape is not known yet."""


def no_check(words: Sequence[str]) -> None:
    """Accept all further flags without a check."""


@dataclass(frozen=True, slots=True)
class HeadJob:
    """A run whose head is started by the engine. This process asks the engine for it, and only watches it."""

    experiment: str
    """The name of the topology."""
    words: tuple[str, ...]
    """The words after `orchestra run` in the job, without the flags of `Engine.submit_flags` and without `--as`."""
    name: str | None
    """The name of the run's directory, if `--as` was given."""
    resumes: bool
    """True if the words have `--resume`, so that the run has a directory already."""
    folder: str
    """The folder of the experiment's runs: `runs/qmix_8m`."""
    hosts: AskedHosts
    settings: Settings
    grace: float
    """Seconds from SIGTERM until the engine ends the job by force."""
    check: Callable[[Sequence[str]], object] = no_check
    """Checks further flags of the experiment or of the run, and raises `UsageError`."""


class Submitter(Protocol):
    """Has an engine start the head of a run."""

    def submission(self, job: HeadJob) -> Submission:
        """Return all that `submit` will send to the engine. This needs no engine."""

    def submit(self, job: HeadJob, submission: Submission) -> int:
        """Ask the engine for the run, show what becomes of it, and return the exit code of the command.

        Raises:
            UsageError: the engine is not there, or refuses.
        """


def no_flags() -> None:
    """Describe an engine without flags of its own."""


def never(settings: Settings) -> Submitter | None:
    """Return no submitter: the head runs in the process of `orchestra run`."""
    return None


def none(settings: Settings) -> frozenset[str]:
    """Return no flags."""
    return frozenset()


def nothing(settings: Settings) -> str:
    """Do nothing, since the exit code of the head tells the engine what it needs."""
    return ""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine as `--launch NAME` knows it."""

    name: str
    launcher: Callable[[Sequence[HostSettings], Settings], Launcher]
    """Makes the launcher from the hosts with an agent and the flags that were given. Nothing is started."""
    flags: Callable[..., None] = no_flags
    """Describes the engine's own flags by its parameters, which are keywords with annotations and defaults."""
    counted: Callable[[int | None, Settings], AskedHosts] | None = None
    """Returns the hosts that `--hosts N` stands for, or those of a run without `--hosts`. None: `--hosts` takes names.

    Raises:
        UsageError: the engine has fewer hosts, or the number is missing.
    """
    takes_file: bool = False
    """True if `--hosts` may also name a file with the settings of each host."""
    join_timeout: float = 600.0
    """Seconds for the hosts to report, from their start, unless `--join-timeout` says otherwise."""
    submitter: Callable[[Settings], Submitter | None] = never
    """Returns the submitter, which starts the head; None if the head runs in the process of `orchestra run`."""
    submit_flags: frozenset[str] = frozenset()
    """The flags that are for the submitter: the head's own command line does not have them."""
    needless: Callable[[Settings], frozenset[str]] = none
    """Returns the flags that have no effect here, as in a submitted job. Such flags from a file are left out."""
    stopped: Callable[[Settings], str] = nothing
    """Called when a run with a name was stopped by a signal and has ended completely. Has the engine start it again,
    unless the exit code does so. Returns what was done, for people."""


def bytes_of(flag: str, text: str) -> int:
    """Return an amount of memory such as `16Gi` in bytes; 0 for an empty text.

    Raises:
        UsageError: it is no such amount.
    """
    if not text:
        return 0
    found = re.fullmatch(r"(\d+)([KMGT]i?|)", text)
    if found is None or not int(found[1]):
        raise UsageError(f"{flag}: {text!r} is no amount of memory; write bytes, or a number with one of Mi, Gi, M, G")
    return int(found[1]) * _UNITS[found[2]]


def on_top(number: int | None, settings: Settings) -> AskedHosts:
    """Return `number` hosts on which workers run, beside a head that only learns.

    Raises:
        UsageError: there is no number.
    """
    if number is None:
        raise UsageError("--launch is for a run over several hosts; add --hosts")
    return AskedHosts(tuple(HostSettings(slot) for slot in range(1, number + 1)))
