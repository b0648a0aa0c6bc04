"""The fingerprint of a host: the versions that the processes of a run must share, compared before it gets the plan."""

import hashlib
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from orchestra.actors.message import Message
from orchestra.hosts.collected_code import our_files
from orchestra.wire.frames import VERSION

LIBRARIES = ("numpy", "pydantic", "msgpack", "numba", "torch")
"""The libraries whose versions are compared."""
_MISSING = re.compile(r"No module named '([\w.]+)'")


class Fingerprint(Message):
    """The software that the processes of a host run on."""

    protocol: int
    """The version of the wire protocol."""
    byte_order: str
    python: str
    """`3.11.9`."""
    executable: str
    libraries: dict[str, str]
    """The version of each of `LIBRARIES` that is installed."""
    files: dict[str, str]
    """The first digits of the SHA-256 of each file of our packages as they are installed there."""


def fingerprint() -> Fingerprint:
    """Return the fingerprint of this process. The libraries themselves are not imported."""
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return Fingerprint(
        protocol=VERSION,
        byte_order=sys.byteorder,
        python=platform.python_version(),
        executable=sys.executable,
        libraries=libraries,
        files={name: _digest(path) for name, path in our_files().items() if "/experiments/" not in name},
    )


def refusal(head: Fingerprint, host: Fingerprint, *, mixed_python: bool = False, installed: bool = False) -> str:
    """Return why a host cannot take part, in words; an empty text if it can.

    Args:
        head: the fingerprint of the head.
        host: that of the host.
        mixed_python: whether another `major.minor` of Python is allowed.
        installed: whether the host uses its installed `orchestra`, so that it must equal the head's.
    """
    if host.protocol != head.protocol:
        return f"speaks version {host.protocol} of the wire protocol, and the head speaks {head.protocol}"
    if host.byte_order != head.byte_order:
        return f"is {host.byte_order}-endian, and the head is {head.byte_order}-endian"
    if not mixed_python and _numbers(host.python, 2) != _numbers(head.python, 2):
        return (
            f"has Python {host.python} ({host.executable}), and the head has {head.python}; install it there, name "
            "another by --python, or add --allow-mixed-python"
        )
    for name, version in host.libraries.items():
        if name in head.libraries and _numbers(version, 1) != _numbers(head.libraries[name], 1):
            return f"has {name} {version} in {host.executable}, and the head has {head.libraries[name]}"
    if installed:
        for name in sorted(head.files.keys() | host.files.keys()):
            if head.files.get(name) != host.files.get(name):
                here = "lacks" if name not in host.files else "has another"
                return f"{here} {name} in its installed packages; leave out --code installed, or install the same there"
    return ""


def warning(head: Fingerprint, host: Fingerprint) -> str:
    """Return the tolerated differences of a host, in one line; an empty text if there are none."""
    different = [
        f"{name} {version} (head: {head.libraries[name]})"
        for name, version in host.libraries.items()
        if name in head.libraries and _numbers(version, 2) != _numbers(head.libraries[name], 2)
    ]
    if _numbers(host.python, 2) != _numbers(head.python, 2):
        different.insert(0, f"Python {host.python} (head: {head.python})")
    return f"has {', '.join(different)}" if different else ""


def missing_import(output: Sequence[str], head: Fingerprint, host: Fingerprint) -> str:
    """Return which module a process of a host could not import, in words; an empty text if its output names none.

    Args:
        output: the last lines that the process has printed.
        head: the fingerprint of the head.
        host: that of the host.
    """
    for line in reversed(output):
        if found := _MISSING.search(line):
            name = found[1].partition(".")[0]
            version = head.libraries.get(name) or _version_of(name)
            having = f", which the head has as {version}" if version else ""
            return f"cannot import {name}{having}, in {host.executable}"
    return ""


def _version_of(module: str) -> str:
    """Return the version of the distribution that installs a module in this process; an empty text if none does."""
    distributions: Mapping[str, Sequence[str]] = metadata.packages_distributions()
    return next((metadata.version(name) for name in distributions.get(module, ())), "")


def _numbers(version: str, count: int) -> tuple[str, ...]:
    return tuple(version.split(".")[:count])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
