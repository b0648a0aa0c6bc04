"""Compiling: once for each machine and version of the source, whatever the number of processes that ask for it.

numba's cache on disk notices a change in the file that a function is in, not in those whose functions it calls. So the
cache of this package lies in a directory named after the contents of all its files.
"""

import fcntl
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, cast

import numba
import numpy as np

config: Any = numba.config  # its settings are made at run time, which no type checker sees

_F = TypeVar("_F", bound=Callable[..., Any])

COMPILED = not config.DISABLE_JIT
"""False under `NUMBA_DISABLE_JIT=1`."""

_PREFIX = "skirmish-"


def fingerprint(sources: Path) -> str:
    """A name for the contents of a folder's Python files, and for who compiles them."""
    digest = hashlib.sha256(f"{sys.version} {numba.__version__}".encode())
    for path in sorted(sources.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_home(sources: Path, places: list[Path]) -> Path:
    """Where compiled code is kept: in the first of these places that can be written to.

    Where none can, in a folder that lasts until the machine is tidied.
    """
    for place in places:
        home = place / f"{_PREFIX}{fingerprint(sources)}"
        try:
            home.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=home).close()
        except OSError:
            continue
        return home
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


_SOURCES = Path(__file__).parent
_PLACES = [_SOURCES / "__pycache__", Path.home() / ".cache" / "orchestra"]
if config.CACHE_DIR:
    _PLACES.insert(0, Path(config.CACHE_DIR))
HOME = cache_home(_SOURCES, _PLACES) if COMPILED else Path()


def compiled(function: _F) -> _F:
    """Compile at the first call and keep the result on disk; never fast-math, which may round differently."""
    usual, config.CACHE_DIR = config.CACHE_DIR, str(HOME)
    try:
        jit = numba.njit(cache=COMPILED, nogil=True, error_model="numpy")
        return cast("_F", jit(function))
    finally:
        config.CACHE_DIR = usual


def inlined(function: _F) -> _F:
    """Compile as part of each caller: for what is done for every unit in every tick."""
    return cast("_F", numba.njit(nogil=True, error_model="numpy", forceinline=True)(function))


def compile_once(home: Path, compile_all: Callable[[], None], say: Callable[[str], object]) -> None:
    """Compile unless that has been done here; one process does, the others wait for it.

    Older versions' caches beside `home` are removed. Whoever is killed while compiling leaves nothing but work undone.
    """
    done = home / "complete"
    if done.exists():
        return
    with (home / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is compiling the battle simulator: waiting for it ...\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        say("Compiling the battle simulator, once for this machine: some twenty seconds ...\n")
        start = perf_counter()
        compile_all()
        done.touch()
        say(f"... compiled in {perf_counter() - start:.0f} s\n")
        for old in home.parent.glob(f"{_PREFIX}*"):
            if old != home:
                shutil.rmtree(old, ignore_errors=True)


def records(array: Any) -> Any:
    """The array as the kernel takes it: only a recarray knows `unit.x`, and only compiled code goes without."""
    return array if COMPILED else array.view(np.recarray)
