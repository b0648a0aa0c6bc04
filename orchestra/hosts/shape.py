"""Host shapes: what each machine of a run has. An experiment lays out its topology by them.

Nothing here imports torch or numpy: the agent of a host imports this module.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Self

HEAD = 0
"""The slot of the head, which runs the root of the topology."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class HostShape:
    """The resources of one host of a run. 0 stands for an unknown number, as before the host has reported."""

    slot: int
    """The number of the host in its run; 0 is the head's."""
    name: str = ""
    cores: int = 0
    """The cores that processes may use: the affinity of the process within the quota of its cgroups."""
    gpus: int = 0
    memory: int = 0
    """The bytes that processes may use."""
    plays: bool = True
    """True if workers run here. The head of a run over several hosts may only learn."""

    def requested(self, *, cores: int = 0, gpus: int = 0, memory: int = 0) -> Self:
        """Return the shape with the numbers that the user asked for in place of those that the host reports."""
        return replace(self, cores=cores or self.cores, gpus=gpus or self.gpus, memory=memory or self.memory)

    def room_for(self, cores: int, *, reserved: int = 0) -> int:
        """Return how many processes of `cores` cores each the host has room for; at least one.

        Args:
            cores: of each process.
            reserved: the cores that other processes of the host use.
        """
        return max(1, (self.cores - reserved) // cores)

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        memory = f", {memory_text(self.memory)}" if self.memory else ""
        cores = f"{self.cores or '?'} core{'' if self.cores == 1 else 's'}"
        return f"{self.slot} ({self.name or '?'}): {cores}{gpus}{memory}{'' if self.plays else ', does not play'}"


class Hosts(tuple[HostShape, ...]):
    """The hosts of a run, in the order of their slots. An experiment for several hosts has a parameter `hosts: Hosts`.

    Raises:
        ValueError: a slot appears twice.
    """

    __slots__ = ()

    def __new__(cls, shapes: Sequence[HostShape] = ()) -> Self:
        ordered = sorted(shapes, key=lambda shape: shape.slot)
        for shape, following in pairwise(ordered):
            if shape.slot == following.slot:
                raise ValueError(f"slot {shape.slot} appears twice: {shape.name or '?'} and {following.name or '?'}")
        return super().__new__(cls, ordered)

    @property
    def playing(self) -> "Hosts":
        """The hosts on which workers run."""
        return Hosts([shape for shape in self if shape.plays])

    def at(self, slot: int) -> HostShape | None:
        """Return the host at a slot, or None if there is none."""
        return next((shape for shape in self if shape.slot == slot), None)


def this_machine(
    slot: int = HEAD,
    *,
    plays: bool = True,
    root: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    affinity: int | None = None,
) -> HostShape:
    """Return the shape of this machine, as far as this process may use it.

    Args:
        slot: the number of the host.
        plays: whether workers run here.
        root: where `/proc` and `/sys` are.
        environment: the variables of the process; by default its own.
        affinity: the cores on which the process may run; by default as the system says.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return HostShape(
        slot=slot,
        name=platform.node(),
        cores=min([affinity, *_quotas(root)]),
        gpus=_gpus(root, os.environ if environment is None else environment),
        memory=min([_machine_memory(root), *_memory_limits(root)]),
        plays=plays,
    )


def one_core(shape: HostShape) -> HostShape:
    """Return the shape of a machine on which one process runs all nodes, one after the other."""
    return replace(shape, cores=1)


def memory_text(nbytes: int) -> str:
    """Return a number of bytes as people write it: `62.8 GiB`."""
    value, unit = float(nbytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def visible_gpus(indexes: str, environment: Mapping[str, str]) -> str:
    """Return `CUDA_VISIBLE_DEVICES` for a process that gets some of the GPUs of this one, by their indexes: `0,1`."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not indexes:
        return indexes
    mine = _devices(visible)
    return ",".join(mine[int(index)] for index in indexes.split(",") if int(index) < len(mine))


def _devices(visible: str) -> list[str]:
    """Return the devices that a value of `CUDA_VISIBLE_DEVICES` names."""
    # CUDA stops at the first device that it does not know: -1, or SLURM's NoDevFiles.
    names = [name.strip() for name in visible.split(",")]
    return list(takewhile(re.compile(r"\d+|(GPU|MIG)-.+").fullmatch, names))


def _gpus(root: Path, environment: Mapping[str, str]) -> int:
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len(_devices(visible))
    driver = root / "proc/driver/nvidia/gpus"
    if driver.is_dir():
        return len(list(driver.iterdir()))
    # A container may have the devices without the driver's folder, and Linux within Windows has another one.
    devices = sum(bool(re.fullmatch(r"nvidia\d+", path.name)) for path in (root / "dev").glob("nvidia*"))
    return devices or int((root / "dev/dxg").exists())


def _quotas(root: Path) -> Iterator[int]:
    """Yield the whole cores of each CPU quota of the cgroups that this process is in; at least 1."""
    for folder in _cgroups(root, "cpu"):
        quota, _, period = (_read(folder / "cpu.max") or "max 0").partition(" ")
        if quota == "max":
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):  # -1 is no quota
            yield max(1, int(quota) // int(period))


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _cgroups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = _read(folder / name)
            if limit.isdecimal():  # "max" is no limit
                yield int(limit)


def _machine_memory(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if total := re.fullmatch(r"MemTotal:\s*(\d+) kB", line):
            return int(total[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's cgroup and of those around it, for version 2 and for one of version 1."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        top = root / "sys/fs/cgroup"
        if number != "0":
            if controller not in controllers.split(","):
                continue
            top = next((one for one in (top / controllers, top / controller) if one.is_dir()), top / controller)
        here = top / path.lstrip("/")
        # In a container the path may be one that only the machine outside has.
        yield from [folder for folder in (here, *here.parents) if folder == top or top in folder.parents]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
