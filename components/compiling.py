"""Compiling: once for each machine and version of the source, whatever the number of processes that ask for it.

numba's cache on disk notices a change in the file that a function is in, not in those whose functions it calls. So the
cache of a package of such functions lies in a directory named after the contents of all its files.
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

config: Any = numba.config  # its settings are made at run time, which no type checker sees

_F = TypeVar("_F", bound=Callable[..., Any])

COMPILED = not config.DISABLE_JIT
"""False under `NUMBA_DISABLE_JIT=1`."""


class CompiledPackage:
    """A package whose functions numba compiles, and where the result is kept.

    That is in the first of `places` that can be written to, and where none can, in a folder that lasts until the
    machine is tidied.

    Args:
        name: what its caches' names begin with.
        sources: its folder.
        places: folders for the cache; by default its `__pycache__`, or the user's cache.
    """

    def __init__(self, name: str, sources: Path, places: list[Path] | None = None) -> None:
        self.name, self._sources = name, sources
        if places is None:
            places = [sources / "__pycache__", Path.home() / ".cache" / "orchestra"]
            if config.CACHE_DIR:
                places.insert(0, Path(config.CACHE_DIR))
        self.home = self._home_in(places) if COMPILED else Path()
        """Where compiled code is kept."""

    def fingerprint(self) -> str:
        """A name for the contents of the folder's Python files, and for who compiles them and how."""
        digest = hashlib.sha256(f"{sys.version} {numba.__version__}".encode())
        for path in [Path(__file__), *sorted(self._sources.glob("*.py"))]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def _home_in(self, places: list[Path]) -> Path:
        for place in places:
            home = place / f"{self.name}-{self.fingerprint()}"
            try:
                home.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=home).close()
            except OSError:
                continue
            return home
        return Path(tempfile.mkdtemp(prefix=f"{self.name}-"))

    def compiled(self, function: _F, **options: Any) -> _F:
        """Compile at the first call and keep the result on disk; fast-math only where the options ask for it."""
        usual, config.CACHE_DIR = config.CACHE_DIR, str(self.home)
        try:
            jit = numba.njit(cache=COMPILED, nogil=True, error_model="numpy", **options)
            return cast("_F", jit(function))
        finally:
            config.CACHE_DIR = usual

    def compile_once(self, about: str, compile_all: Callable[[], None], say: Callable[[str], object]) -> None:
        """Compile unless that has been done here; one process does, the others wait for it.

        Older versions' caches beside this one are removed. Whoever is killed while compiling leaves nothing but work
        undone.

        Args:
            about: what is compiled, to tell who waits.
            compile_all: does it, by calling everything once.
            say: shows a line.
        """
        done = self.home / "complete"
        if done.exists():
            return
        with (self.home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"Another process is compiling {about}: waiting for it ...\n")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if done.exists():
                return
            say(f"Compiling {about}, once for this machine: some twenty seconds ...\n")
            start = perf_counter()
            compile_all()
            done.touch()
            say(f"... compiled in {perf_counter() - start:.0f} s\n")
            for old in self.home.parent.glob(f"{self.name}-*"):
                if old != self.home:
                    shutil.rmtree(old, ignore_errors=True)
