"""The options of a run over several hosts: flags of `orchestra run`, keywords of `orchestra.run`, and `hosts.toml`."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from orchestra.errors import UsageError
from orchestra.hosts.settings import HERE, HostSettings
from orchestra.hosts.shape import HEAD, Hosts, HostShape
from orchestra.runs.flags import Flags
from orchestra.runs.hosts_file import HostsFile, is_hosts_file, read_hosts_file

Engine = Literal["local", "ssh"]

MOST_HOSTS = 1024
"""Hosts that a run may have."""
ENGINE_FLAGS: Mapping[str, tuple[Engine, ...]] = {
    "python": ("ssh",),
    "setup": ("ssh",),
    "ssh": ("ssh",),
    "ssh_parallel": ("ssh",),
    "tunnel": ("ssh",),
    "head": ("ssh",),
}
"""The flags that some engines know; all engines know the others."""


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """What a run over several hosts was asked to do. It was checked, and nothing was started."""

    engine: Engine
    hosts: tuple[HostSettings, ...]
    """The hosts with an agent, in the order of their slots, which begin with 1."""
    here: HostSettings
    """The head, which has slot 0."""
    head_plays: bool
    """True if workers run on the head, too."""
    min_hosts: int
    """Hosts with an agent below which the run does not begin, and fails."""
    max_hosts: int
    """Hosts with an agent that are let in."""
    join_timeout: float
    """Seconds for the hosts to report, from their start."""
    grace: float
    """Seconds from SIGTERM until the engine ends a host by force."""
    orphan_timeout: float
    """Seconds for which an agent looks for a head that is silent."""
    port: str = ""
    """Where the head listens for the hosts: `N`, or `A-B` for the first free one; empty for any."""
    advertise: tuple[str, ...] = ()
    """Where the hosts reach the head: `HOST` or `HOST:PORT`. Its interfaces by default."""
    token: Path | None = None
    """The file of a join token that was made before the run."""
    ssh: str = "ssh"
    """The command of ssh, with options."""
    ssh_parallel: int = 32
    """Hosts that ssh logs in to at the same time."""
    tunnel: bool = False
    """True if all connections to the head go through ssh."""
    ship: tuple[str, ...] = ()
    """Files and folders that go to the hosts beside the code."""
    code: Literal["bundle", "installed"] = "bundle"
    """`installed` if the hosts use the orchestra that they have installed."""
    allow_mixed_python: bool = False
    """True if hosts may have another version of Python."""

    def shapes(self, this: HostShape) -> Hosts:
        """Return the shapes of the hosts as asked for, if the head is the machine `this`."""
        here = self.here
        head = replace(this.requested(cores=here.cores, gpus=here.gpus, memory=here.memory), plays=self.head_plays)
        return Hosts([replace(head, slot=HEAD), *(host.shape for host in self.hosts)])


def host_flags(
    *,
    hosts: Annotated[
        str | None,
        Field(
            coerce_numbers_to_str=True,
            description="other machines to run on: names for ssh (here,cpu1,me@cpu3:2222; `here` has workers beside "
            "the learner), a file hosts.toml, or with --launch local a number",
        ),
    ] = None,
    launch: Annotated[
        Literal["local", "ssh"] | None,
        Field(description="what starts the hosts: ssh, or local for pretended hosts on this machine; ssh by default"),
    ] = None,
    min_hosts: Annotated[
        int | None, Field(ge=1, description="hosts below which the run does not begin, and fails; all by default")
    ] = None,
    max_hosts: Annotated[
        int | None,
        Field(ge=1, le=MOST_HOSTS, description=f"hosts that are let in, late ones included; {MOST_HOSTS} by default"),
    ] = None,
    join_timeout: Annotated[
        float | None, Field(gt=0, description="seconds for the hosts to report, from their start; 60 by default")
    ] = None,
    grace: Annotated[
        float | None,
        Field(gt=0, description="seconds from SIGTERM until the engine ends a host by force; 120 by default"),
    ] = None,
    orphan_timeout: Annotated[
        float | None,
        Field(gt=0, description="seconds for which a host looks for a head that is silent; 300 by default"),
    ] = None,
    port: Annotated[
        str | None,
        Field(
            coerce_numbers_to_str=True,
            description="the port of the head for the hosts: N, or A-B for the first free one; any by default",
        ),
    ] = None,
    advertise: Annotated[
        tuple[str, ...],
        Field(
            description="HOST or HOST:PORT where the hosts reach the head, if that is none of its interfaces; may be "
            "repeated"
        ),
    ] = (),
    token: Annotated[
        Path | None, Field(description="the join token that the hosts have, from `orchestra token --new`")
    ] = None,
    scratch: Annotated[str | None, Field(description="the folder of each host for the run's files")] = None,
    python: Annotated[str | None, Field(description="ssh: the interpreter of the hosts")] = None,
    setup: Annotated[
        str | None, Field(description="ssh: commands of the shell before the interpreter starts: 'module load cuda'")
    ] = None,
    ssh: Annotated[str | None, Field(description="ssh: its command, with options: 'ssh -F config'")] = None,
    ssh_parallel: Annotated[
        int | None, Field(ge=1, description="ssh: hosts to log in to at the same time; 32 by default")
    ] = None,
    tunnel: Annotated[bool, Field(description="ssh: all connections to the head go through ssh")] = False,
    head: Annotated[str | None, Field(description="ssh: the host that runs the head, for one with a GPU")] = None,
    ship: Annotated[
        tuple[str, ...],
        Field(description="a file or folder of the project that goes to the hosts beside the code; may be repeated"),
    ] = (),
    code: Annotated[
        Literal["bundle", "installed"] | None,
        Field(
            description="bundle, the default, sends orchestra itself to the hosts; installed has them use their own, "
            "which must be the same"
        ),
    ] = None,
    allow_mixed_python: Annotated[bool, Field(description="let hosts with another version of Python in")] = False,
) -> None:
    """Describe the flags of a run over several hosts by its parameters. `hosts_options` checks their values."""


HOST_FLAGS = Flags.of(host_flags)
"""The flags of a run over several hosts."""
HOST_PARAMETERS: Sequence[inspect.Parameter] = tuple(inspect.signature(host_flags).parameters.values())


def hosts_options(given: Mapping[str, Any]) -> HostsOptions | None:
    """Return the options of a run over several hosts, or None for a run on this machine alone.

    Args:
        given: the flags that were given. They beat the table `[launch]` of the file.

    Raises:
        UsageError: the options contradict each other, the file is damaged, or a name is none.
    """
    given = {name: value for name, value in given.items() if value is not None}
    hosts = given.pop("hosts", None)
    if "head" in given:
        raise UsageError("--head starts the command orchestra run on another host; from Python, start it there")
    if hosts is None:
        if given:
            raise UsageError(f"{_option(next(iter(given)))} is for a run over several hosts; add --hosts")
        return None
    file = read_hosts_file(Path(hosts)) if is_hosts_file(hosts) else HostsFile()
    of_file = {name: _checked(Path(hosts), name, value) for name, value in file.launch.items()}
    settings = {name: value for name, value in (of_file | given).items() if value is not False and value != ()}
    engine: Engine = settings.pop("launch", None) or "ssh"
    here, entries = _entries(hosts, file, engine)
    for name in settings:
        if engine not in (engines := ENGINE_FLAGS.get(name, (engine,))):
            where = "" if name in given else f"{hosts}, [launch]: "
            raise UsageError(f"{where}{_option(name)} is for --launch {' and '.join(engines)}, not for {engine}")
    defaults = {name: settings.pop(name, "") for name in ("python", "setup", "scratch")}
    least, most = settings.pop("min_hosts", len(entries)), settings.pop("max_hosts", max(MOST_HOSTS, len(entries)))
    if least > len(entries):
        raise UsageError(f"--min-hosts: {least} is more than the {len(entries)} hosts of the run")
    if most < len(entries):
        raise UsageError(f"--max-hosts: {most} is less than the {len(entries)} hosts of the run")
    return HostsOptions(
        engine=engine,
        hosts=tuple(entry.with_defaults(**defaults) for entry in entries),
        here=here or HostSettings(HEAD),
        head_plays=here is not None,
        min_hosts=least,
        max_hosts=most,
        **{"join_timeout": 60.0, "grace": 120.0, "orphan_timeout": 300.0, **settings},
    )


def _entries(hosts: str, file: HostsFile, engine: Engine) -> tuple[HostSettings | None, list[HostSettings]]:
    """Return the head if it is among the hosts, and the other hosts in the order of their slots."""
    if is_hosts_file(hosts):
        return file.here, list(file.hosts)
    if hosts.isascii() and hosts.isdecimal():
        if engine != "local":
            raise UsageError(f"--hosts {hosts}: a number needs --launch local; for ssh write names: --hosts cpu1,cpu2")
        if not 1 <= int(hosts) <= MOST_HOSTS:
            raise UsageError(f"--hosts: {hosts} hosts are not allowed; 1 to {MOST_HOSTS} are")
        return None, [HostSettings(slot, f"local-{slot}") for slot in range(1, int(hosts) + 1)]
    if engine == "local":
        raise UsageError(f"--launch local takes a number of hosts or a file, got --hosts {hosts}")
    here, entries = None, list[HostSettings]()
    for word in hosts.split(","):
        if word.strip() == HERE:
            here = HostSettings(HEAD)
            continue
        try:
            entries.append(HostSettings.parse(word.strip(), len(entries) + 1))
        except UsageError as error:
            raise UsageError(f"--hosts: {error}; a file of hosts ends in .toml") from None
    return here, entries


def _checked(file: Path, name: str, value: object) -> Any:
    known = {flag.name: flag for flag in HOST_FLAGS if flag.name not in ("hosts", "head")}
    if name not in known:
        raise UsageError(f"{file}, [launch]: there is no {name!r}; the settings are {', '.join(known)}")
    try:
        return known[name].validated(value)
    except UsageError as error:
        raise UsageError(f"{file}, [launch]: {error}") from None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
