"""`hosts.toml`: the hosts of a run, each with its settings, and a table `[launch]` with the flags of the launcher.

[launch]
join-timeout = 120
python = "/opt/py/bin/python3"

[[host]]
name = "here"            # workers run beside the learner, too

[[host]]
name = "me@cpu3:2222"
cores = 16
memory = "64 GiB"
setup = "module load cuda"
scratch = "/scratch/me"

Where the engine chooses the hosts, the table has their number, and there is no `[[host]]`:

[launch]
launch = "slurm"
hosts = 8
partition = "cpu"
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestra.errors import UsageError
from orchestra.hosts.settings import HERE, HostSettings
from orchestra.hosts.shape import HEAD

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True, slots=True)
class HostsFile:
    """A file of hosts."""

    launch: Mapping[str, Any] = field(default_factory=dict)
    """The flags of its table `[launch]` by parameter name, not yet checked, but for `hosts`."""
    number: int | None = None
    """The number of hosts in its table `[launch]`, if the engine chooses them; None if the file names them."""
    here: HostSettings | None = None
    """The head, if it is among the hosts."""
    hosts: tuple[HostSettings, ...] = ()


class _Entry(BaseModel):
    """A table `[[host]]`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    cores: int = Field(0, ge=1)
    gpus: int = Field(0, ge=0)
    memory: int = Field(0, ge=1)
    python: str = ""
    setup: str = ""
    scratch: str = ""

    @field_validator("memory", mode="before")
    @classmethod
    def _nbytes(cls, value: object) -> object:
        if isinstance(value, str):
            parts = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})", value)
            if parts is None:
                raise ValueError(f"write bytes or a size such as '64 GiB'; the units are {', '.join(_UNITS)}")
            return int(float(parts[1]) * _UNITS[parts[2]])
        return value


def is_hosts_file(text: str) -> bool:
    """Return whether the value of `--hosts` names a file."""
    return text.endswith(".toml")


def read_hosts_file(path: Path) -> HostsFile:
    """Return what a file of hosts says.

    Raises:
        UsageError: it cannot be read, is not TOML, or has a table or a setting that is unknown or of another type.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"--hosts: cannot read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    if strangers := [name for name in tables if name not in ("launch", "host")]:
        raise UsageError(f"{path}: there is no table {strangers[0]!r}; write [launch], and [[host]] for each host")
    launch, entries = tables.get("launch", {}), tables.get("host", [])
    if not isinstance(launch, dict):
        raise UsageError(f"{path}: launch must be a table, [launch]")
    count = launch.pop("hosts", None)
    if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
        raise UsageError(f"{path}, [launch]: hosts is {count!r}: it must be a number, or write [[host]] for each")
    if count is not None and entries:
        raise UsageError(f"{path}: [launch] asks for {count} hosts, and [[host]] names some; write one of both")
    if count is None and (not isinstance(entries, list) or not entries):
        raise UsageError(
            f"{path}: it has no host; write [[host]] and name = ... for each, or hosts = N in [launch] for an engine "
            "that chooses them"
        )
    here, hosts = None, list[HostSettings]()
    for number, entry in enumerate(entries, start=1):
        one = _host(f"{path}, host {number}", entry, len(hosts) + 1)
        if one.name != HERE:
            hosts.append(one)
        elif here is not None:
            raise UsageError(f"{path}, host {number}: {HERE!r} is named twice")
        else:
            here = replace(one, slot=HEAD, name="")
    return HostsFile({name.replace("-", "_"): value for name, value in launch.items()}, count, here, tuple(hosts))


def _host(where: str, entry: object, slot: int) -> HostSettings:
    try:
        found = _Entry.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the entry"
        if first["type"] == "extra_forbidden":
            known = ", ".join(_Entry.model_fields)
            raise UsageError(f"{where}: there is no setting {name!r}; the settings are {known}") from None
        if first["type"] == "missing":
            raise UsageError(f"{where}: its {name} is missing") from None
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "it must be")
        raise UsageError(f"{where}: {name} is {first['input']!r}: {said}") from None
    try:
        parsed = HostSettings.parse(found.name, slot)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    rest = found.model_dump(exclude={"name"})
    return replace(parsed, **rest)
