"""Compiled packages: numba compiles their functions once per machine and version of the source.

numba's cache on disk detects a change in the file of a function, but not in the files of the functions that it calls.
Therefore the name of a package's cache folder contains a digest of all its files. The folder also holds copies of the
files, and numba gets these as the source files of the functions, because it does not reuse code that it compiled for a
file at another path. So all installations of one version share a cache: a checkout, a wheel, and a run's unpacked code.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])

KEPT_CACHES = 5
"""Number of caches of other sources to keep, because several checkouts share a place."""
_COPIED = 315_532_800
"""Modification time of the copies, in seconds since 1970. numba treats a file with another time as another source."""
UNCOUNTED: dict[str, Any] = {"_nrt": False}
"""Options of `numba.njit` for functions that make no arrays: numba's runtime, which makes arrays and counts references
to them by atomic operations, is left out. The caller keeps the arrays that it passes."""
CLEAR = "\x1b[K"
"""Escape code that erases the rest of a terminal's line."""
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0").strip() in ("", "0")
"""False under `NUMBA_DISABLE_JIT=1`. Read from the environment, because only processes that compute import numba."""


def import_numba() -> Any:  # numba.config is filled at run time: unknown to type checkers
    """Import numba and return it.

    Raises:
        ValueError: a configuration file contradicts the environment on whether numba compiles.
    """
    import numba  # takes 50 MB and a tenth of a second

    config: Any = numba.config
    if bool(config.DISABLE_JIT) == COMPILED:
        raise ValueError("numba's DISABLE_JIT is set in a configuration file; set NUMBA_DISABLE_JIT=1 instead")
    return numba


def _processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _running(function: str) -> Iterator[None]:
    """Call a function in another process, which is killed at the end of the context.

    Args:
        function: `MODULE:FUNCTION`, or an empty string for none.
    """
    if not function:
        yield
        return
    module, name = function.split(":")
    process = subprocess.Popen(  # noqa: S603 (no shell)
        [sys.executable, "-P", "-c", f"from {module} import {name}; {name}()"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.curdir for path in sys.path)},
        start_new_session=True,  # Ctrl-C reaches only this process, which then kills the other
    )
    try:
        yield
    finally:
        process.kill()  # results that it has not saved by now are not needed
        process.wait()


class CompiledPackage:
    """A package whose functions numba compiles, and the folder of its cache.

    The cache lies in the first writable folder of `places`, or else in a temporary folder.

    Args:
        name: the prefix of the cache's folder.
        sources: the folder of the package.
        places: candidates for the parent of the cache's folder. The default is `NUMBA_CACHE_DIR` where it is set, then
            the user's cache, then the package's `__pycache__`.
        module: the full name of a module of the package. numba stores it in the cache, so a package that is
            installed under two names has two caches.
    """

    def __init__(self, name: str, sources: Path, places: list[Path] | None = None, *, module: str = "") -> None:
        self.name, self._sources, self._module = name, sources, module
        if places is None:
            places = [Path.home() / ".cache" / "orchestra", sources / "__pycache__"]
            if folder := import_numba().config.CACHE_DIR:
                places.insert(0, Path(folder))
        self._shared = True
        """False if the cache is in a temporary folder, which other processes do not use."""
        self.home = self._home_in(places) if COMPILED else Path()
        """The folder of the cache."""
        self._complete = not COMPILED

    def fingerprint(self) -> str:
        """Return a digest of the package's Python files and module, of Python's version and of numba's."""
        digest = hashlib.sha256(f"{self._module} {sys.version} {import_numba().__version__}".encode())
        for path in [Path(__file__), *sorted(self._sources.glob("*.py"))]:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]

    def _home_in(self, places: list[Path]) -> Path:
        for place in places:
            home = place / f"{self.name}-{self.fingerprint()}"
            try:
                home.mkdir(parents=True, exist_ok=True)
                self._copy_sources(home)
            except OSError:
                continue
            return home
        self._shared = False
        home = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self._copy_sources(home)
        return home

    def _copy_sources(self, home: Path) -> None:
        """Copy the sources into the folder of the cache, with a constant modification time.

        Raises:
            OSError: the folder cannot be written to.
        """
        for source in self._sources.glob("*.py"):
            copy = home / source.name
            if not copy.exists():
                with tempfile.NamedTemporaryFile(dir=home, delete=False) as file:
                    file.write(source.read_bytes())
                os.utime(file.name, (_COPIED, _COPIED))
                os.replace(file.name, copy)
        tempfile.TemporaryFile(dir=home).close()

    def compiled(self, function: _F, *, internal: bool = False, cached: bool = True, **options: Any) -> _F:
        """Return `function` as a numba function, which is compiled at its first call.

        Args:
            internal: whether only compiled functions call it. Without an entry point for Python it compiles faster.
            cached: whether the result is kept on disk. If not, cached functions that call this one include its code.
            options: further options of `numba.njit`, such as `fastmath`.
        """
        config = import_numba().config
        usual, config.CACHE_DIR = config.CACHE_DIR, str(self.home)
        try:
            if COMPILED:
                plain: Any = function  # functions have `__code__`, other callables may not
                file = str(self.home / Path(plain.__code__.co_filename).name)
                plain.__code__ = plain.__code__.replace(co_filename=file)
            options |= {"no_cpython_wrapper": internal, "no_cfunc_wrapper": True}
            jit = import_numba().njit(cache=COMPILED and cached, nogil=True, error_model="numpy", **options)
            return cast("_F", jit(function))
        finally:
            config.CACHE_DIR = usual

    def compile_once(
        self, title: str, calls: Mapping[str, Callable[[], object]], stream: TextIO | None = None, beside: str = ""
    ) -> None:
        """Compile the package unless the cache is complete. One process compiles; the others wait for it.

        numba compiles one function at a time in a process. With `beside`, a second process compiles some of them at
        the same time, if there are two processors.

        All but the newest five caches of other sources are removed. A process that is killed while it compiles leaves
        an incomplete cache, which the next process completes.

        Args:
            title: what is compiled, as shown to the user.
            calls: named calls that together use every function with all argument types that occur.
            stream: where progress is shown; stderr by default.
            beside: `MODULE:FUNCTION`, a function without arguments that makes the calls of the second process. It
                should begin with functions that `calls` reach last.
        """
        if self._complete or (self.home / "complete").exists():
            self._complete = True
            return
        stream = stream or sys.stderr
        with (self.home / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"Waiting for another process, which compiles {title} ...", file=stream, flush=True)
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (self.home / "complete").exists():
                with _running(beside if self._shared and _processors() > 1 else ""):
                    self._compile(title, calls, stream)
        self._complete = True

    def _compile(self, title: str, calls: Mapping[str, Callable[[], object]], stream: TextIO) -> None:
        print(f"Compiling {title} for this machine, once; the result stays in {self.home}", file=stream, flush=True)
        start = perf_counter()
        for n_done, (name, call) in enumerate(calls.items()):
            if stream.isatty():
                print(f"\r{n_done}/{len(calls)}  {name}{CLEAR}", end="", file=stream, flush=True)
            call()
        (self.home / "complete").touch()
        back = f"\r{CLEAR}" if stream.isatty() else ""
        print(f"{back}Compiled {title} in {perf_counter() - start:.0f} s", file=stream, flush=True)
        others = [folder for folder in self.home.parent.glob(f"{self.name}-*") if folder != self.home]
        for old in sorted(others, key=lambda folder: folder.stat().st_mtime)[:-KEPT_CACHES]:
            shutil.rmtree(old, ignore_errors=True)
