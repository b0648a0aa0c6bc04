"""Compiling: once for each machine and version of the source, whatever the number of processes that ask for it.

numba's cache on disk notices a change in the file that a function is in, not in those whose functions it calls. So the
cache of this package lies in a directory named after the contents of all its files.
"""

import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

config: Any = numba.config  # its settings are made at run time, which no type checker sees

_F = TypeVar("_F", bound=Callable[..., Any])

COMPILED = not config.DISABLE_JIT
"""False under `NUMBA_DISABLE_JIT=1`."""


def _fingerprint() -> str:
    """A name for the compiler and the contents of this package."""
    digest = hashlib.sha256(f"{sys.version} {numba.__version__}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _home() -> Path:
    """Where compiled code is kept: the first of numba's own setting, this package, and the user's cache to be writable.

    Where none is, a directory that lasts as long as the machine runs.
    """
    places = [Path(__file__).parent / "__pycache__", Path.home() / ".cache" / "orchestra"]
    if config.CACHE_DIR:
        places.insert(0, Path(config.CACHE_DIR))
    for place in places:
        home = place / f"skirmish-{_fingerprint()}"
        try:
            home.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=home).close()
        except OSError:
            continue
        return home
    return Path(tempfile.mkdtemp(prefix="skirmish-"))


HOME = _home() if COMPILED else Path()


def compiled(function: _F) -> _F:
    """Compile at the first call and keep the result on disk; never fast-math, which may round differently."""
    usual, config.CACHE_DIR = config.CACHE_DIR, str(HOME)
    try:
        return cast("_F", numba.njit(cache=COMPILED, nogil=True, error_model="numpy", forceinline=True)(function))
    finally:
        config.CACHE_DIR = usual
