"""The options of a run over several hosts: flags of `orchestra run`, keywords of `orchestra.run`, and `hosts.toml`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.fields import FieldInfo

from orchestra.errors import UsageError
from orchestra.hosts.settings import HERE, HostSettings
from orchestra.hosts.shape import HEAD, Hosts, HostShape
from orchestra.launch.engine import AskedHosts, Engine
from orchestra.launch.engines import ENGINES, KNOWN_BY, PARAMETERS, EngineName, engines_with
from orchestra.runs.flags import Flags
from orchestra.runs.hosts_file import HostsFile, is_hosts_file, read_hosts_file

MOST_HOSTS = 1024
"""Hosts that a run may have."""


@dataclass(frozen=True, slots=True)
class HostsOptions:
    """The checked options of a run over several hosts. Nothing was started."""

    engine: str
    """A name of `ENGINES`."""
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
    """The port where the head listens for the hosts: `N`, or `A-B` for the first free one; empty for any."""
    advertise: tuple[str, ...] = ()
    """The addresses at which the hosts reach the head: `HOST` or `HOST:PORT`. Its interfaces by default."""
    token: Path | None = None
    """The file of a join token that was made before the run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own flags that were given, by parameter."""
    head_elsewhere: bool = False
    """True if the engine starts the head, and this process only asks for it."""
    ship: tuple[str, ...] = ()
    """Files and folders that go to the hosts beside the code."""
    file_words: tuple[str, ...] = ()
    """The flags with the settings of a file of hosts, in place of that file where the engine starts the head."""
    code: Literal["bundle", "installed"] = "bundle"
    """`installed` if the hosts use the orchestra that they have installed."""
    allow_mixed_python: bool = False
    """True if hosts may have another version of Python."""

    def shapes(self, this: HostShape) -> Hosts:
        """Return the shapes of the hosts as asked for, if the head is the machine `this`."""
        here = self.here
        machine = HostShape(HEAD) if self.head_elsewhere else this
        head = replace(machine.requested(cores=here.cores, gpus=here.gpus, memory=here.memory), plays=self.head_plays)
        return Hosts([replace(head, slot=HEAD), *(host.shape for host in self.hosts)])


def host_flags(
    *,
    hosts: Annotated[
        str | None,
        Field(
            coerce_numbers_to_str=True,
            description="other machines to run on: names for ssh (here,cpu1,me@cpu3:2222; `here` has workers beside "
            "the learner), a file hosts.toml, or for the other engines of --launch a number",
        ),
    ] = None,
    launch: Annotated[
        EngineName | None,
        Field(description="what starts the hosts; ssh by default, and local for pretended hosts on this machine"),
    ] = None,
    min_hosts: Annotated[
        int | None, Field(ge=1, description="hosts below which the run does not begin, and fails; all by default")
    ] = None,
    max_hosts: Annotated[
        int | None,
        Field(ge=1, le=MOST_HOSTS, description=f"hosts that are let in, late ones included; {MOST_HOSTS} by default"),
    ] = None,
    join_timeout: Annotated[
        float | None,
        Field(
            gt=0,
            description="seconds for the hosts to report, from their start; 60 by default with ssh, 600 in a queue",
        ),
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


def _all_parameters() -> tuple[inspect.Parameter, ...]:
    """Return the parameters of all engines, and behind them those that only some engines have."""
    found = list(inspect.signature(host_flags).parameters.values())
    for name, parameter in PARAMETERS.items():
        described = FieldInfo.from_annotation(parameter.annotation).description
        text = Field(description=f"{', '.join(KNOWN_BY[name])}: {described}")
        found.append(parameter.replace(annotation=Annotated[parameter.annotation, text]))
    return tuple(found)


HOST_PARAMETERS: Sequence[inspect.Parameter] = _all_parameters()
HOST_ANNOTATIONS: Mapping[str, Any] = {parameter.name: parameter.annotation for parameter in HOST_PARAMETERS}


def _described() -> Callable[..., None]:
    def flags(**given: Any) -> None: ...

    flags.__signature__ = inspect.Signature(HOST_PARAMETERS)  # type: ignore[attr-defined]  # read by inspect
    flags.__annotations__ = dict(HOST_ANNOTATIONS)
    return flags


HOST_FLAGS = Flags.of(_described())
"""The flags of a run over several hosts."""


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
        if not given:
            return None
        if (known := ENGINES.get(given.get("launch", ""))) is None or known.counted is None:
            raise UsageError(f"{_option(next(iter(given)))} is for a run over several hosts; add --hosts")
    file = read_hosts_file(Path(hosts)) if hosts and is_hosts_file(hosts) else HostsFile()
    of_file = {name: _checked(Path(hosts), name, value) for name, value in file.launch.items()}
    settings = {name: value for name, value in (of_file | given).items() if value is not False and value != ()}
    engine = ENGINES[settings.pop("launch", "ssh")]
    for name in engine.needless(settings) & of_file.keys() - given.keys():
        settings.pop(name, None)
    for name in settings:
        if engine.name not in (engines := engines_with(name)):
            where = "" if name in given else f"{hosts}, [launch]: "
            raise UsageError(f"{where}{_option(name)} is for --launch {_listed(engines)}, not for {engine.name}")
    own = {name: settings[name] for name in KNOWN_BY if name in settings}
    defaults = {name: settings.get(name, "") for name in ("python", "setup", "scratch")}
    settings = {name: value for name, value in settings.items() if name not in {*own, *defaults}}
    asked = _asked(hosts, file, engine, own)
    least, most = (
        settings.pop("min_hosts", len(asked.hosts)),
        settings.pop("max_hosts", max(MOST_HOSTS, len(asked.hosts))),
    )
    if least > len(asked.hosts):
        raise UsageError(f"--min-hosts: {least} is more than the {len(asked.hosts)} hosts of the run")
    if most < len(asked.hosts):
        raise UsageError(f"--max-hosts: {most} is less than the {len(asked.hosts)} hosts of the run")
    times = {"join_timeout": engine.join_timeout, "grace": 120.0, "orphan_timeout": 300.0}
    return HostsOptions(
        engine=engine.name,
        hosts=tuple(host.with_defaults(**defaults) for host in asked.hosts),
        here=asked.here or asked.head or HostSettings(HEAD),
        head_plays=asked.here is not None,
        min_hosts=least,
        max_hosts=most,
        settings=own,
        file_words=_words(file, engine, given),
        head_elsewhere=asked.head_elsewhere,
        **times | settings,
    )


def _asked(hosts: str | None, file: HostsFile, engine: Engine, settings: Mapping[str, Any]) -> AskedHosts:
    """Return the head if it is among the hosts, and the other hosts in the order of their slots."""
    if (file.hosts or file.here) and engine.takes_file:
        return AskedHosts(file.hosts, file.here)
    if file.number is not None:
        hosts = str(file.number)
    number = int(hosts) if hosts and hosts.isascii() and hosts.isdecimal() else None
    if engine.counted is not None:
        if hosts and number is None:
            file_too = " or a file" if engine.takes_file else ", or a file with hosts = N in [launch]"
            raise UsageError(f"--launch {engine.name} takes a number of hosts{file_too}, got --hosts {hosts}")
        if number is not None and not 1 <= number <= MOST_HOSTS:
            raise UsageError(f"--hosts: {hosts} hosts are not allowed; 1 to {MOST_HOSTS} are")
        return engine.counted(number, settings)
    assert hosts is not None
    if number is not None:
        counting = ", ".join(name for name, known in ENGINES.items() if known.counted is not None)
        raise UsageError(
            f"--hosts {hosts}: a number needs --launch, one of {counting}; for {engine.name} write names: "
            "--hosts cpu1,cpu2"
        )
    here, entries = None, list[HostSettings]()
    for word in hosts.split(","):
        if word.strip() == HERE:
            here = HostSettings(HEAD)
            continue
        try:
            entries.append(HostSettings.parse(word.strip(), len(entries) + 1))
        except UsageError as error:
            raise UsageError(f"--hosts: {error}; a file of hosts ends in .toml") from None
    return AskedHosts(tuple(entries), here)


def _words(file: HostsFile, engine: Engine, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the settings of a file as flags of a command line, without those that are only for the submitter."""
    if file.number is None:
        return ()
    words = [f"--hosts={file.number}"]
    for name, value in file.launch.items():
        if name in given or name in engine.submit_flags or value is False:
            continue
        values = value if isinstance(value, list) else [value]
        words += [_option(name) if one is True else f"{_option(name)}={one}" for one in values]
    return tuple(words)


def _checked(file: Path, name: str, value: object) -> Any:
    known = {flag.name: flag for flag in HOST_FLAGS if flag.name not in ("hosts", "head")}
    if name not in known:
        raise UsageError(f"{file}, [launch]: there is no {name!r}; the settings are {', '.join(known)}")
    try:
        return known[name].validated(value)
    except UsageError as error:
        raise UsageError(f"{file}, [launch]: {error}") from None


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
