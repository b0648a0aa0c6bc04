"""Collects the code of a run: files of the experiment's project, and of the files that its flags name.

The *project root* of a file is the nearest folder above it with `pyproject.toml` or `.git`, else its own folder.
"""

import ast
import json
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from orchestra.errors import UsageError
from orchestra.hosts.bundle import ELSEWHERE, MANIFEST, OURS, PACKAGES, PROJECT, Bundle, check_size

MARKERS = ("pyproject.toml", ".git")
"""The folder that holds one of these is a project root."""
_HOME = Path(__file__).resolve().parents[2]
_OUR_EXPERIMENTS = _HOME / "orchestra" / "experiments"
"""The experiments of an installation."""


def make(
    experiment: Path, ships: Iterable[Path] = (), named: Iterable[Path] = (), *, installed: bool = False
) -> Bundle:
    """Return the bundle of an experiment that this process has imported.

    It holds what this process has imported from below the project root of the experiment, and what these files import
    anywhere, in a function too: another process may come there first. The same holds for the project roots of the files
    that flags name. Installed distributions are left out.

    Args:
        experiment: the experiment's file.
        ships: further files, and folders with all that is in them; below the project root.
        named: Python files that flags of the experiment name, which `import_file` has imported.
        installed: leave our packages out; the hosts use those that they have installed.

    Raises:
        UsageError: a shipped file does not exist or lies elsewhere, or the bundle is too large.
    """
    files = sorted({Path(os.path.abspath(file)) for file in named})
    return _Collected(Path(os.path.abspath(experiment)), files, installed=installed).bundle(ships)


def project_root(file: Path) -> Path:
    """Return the nearest folder with `pyproject.toml` or `.git`, else the folder of the file itself."""
    folder = Path(os.path.abspath(file)).parent
    for parent in [folder, *folder.parents]:
        if parent in _installations():
            break  # a virtual environment may lie in a project, to which what is installed there does not belong
        if any((parent / marker).exists() for marker in MARKERS):
            return parent
    return _OUR_EXPERIMENTS if folder.is_relative_to(_OUR_EXPERIMENTS) else folder


class _Collected:
    """The files of a bundle, as they are found."""

    def __init__(self, experiment: Path, named: Iterable[Path], *, installed: bool) -> None:
        self._experiment = experiment
        self._installed = installed
        self._root = project_root(experiment)
        self._roots = {PROJECT: self._root}
        """The project roots by their folders in the bundle."""
        self._named = [file for file in named if not _is_installed(file)]
        for file in self._named:
            if self._name_of(file) is None:
                self._roots[f"{ELSEWHERE}/{len(self._roots) - 1}"] = project_root(file)
        self._files: dict[str, Path] = {}
        """By name in the bundle."""
        self._bases: set[Path] = {experiment.parent, *(file.parent for file in self._named)}
        """The folders of the projects that modules were imported from."""

    def bundle(self, ships: Iterable[Path]) -> Bundle:
        for file in (self._experiment, *self._named):
            self._add(file)
        for name, file in _imported():
            self._add_module(name, file)
        importable = {Path(os.path.abspath(path)) for path in sys.path}
        self._bases |= {path for path in importable if self._name_of(path) is not None and not _is_installed(path)}
        self._add_imports_of(list(self._files.values()))
        for path in ships:
            self._ship(path)
        files = dict(self._files)
        if not self._installed:
            files |= our_files()
        check_size({name: path.stat().st_size for name, path in files.items()})
        contents = {name: (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for name, path in files.items()}
        contents[MANIFEST] = (json.dumps(self._manifest(), indent=1).encode(), False)
        return Bundle.of(contents)

    def _name_of(self, path: Path) -> str | None:
        """Return the name in the bundle of a project's file, as it is spelt or with links followed; None of others."""
        for folder, root in self._roots.items():
            for above, file in ((root, path), (root.resolve(), path.parent.resolve() / path.name)):
                if file.is_relative_to(above):
                    return (PurePosixPath(folder) / file.relative_to(above).as_posix()).as_posix()
        return None

    def _add(self, file: Path) -> bool:
        """Add a file of a project; return whether it was missing."""
        name = self._name_of(file)
        if name is None or name in self._files or _is_installed(file):
            return False
        self._files[name] = file
        return True

    def _add_module(self, module: str, file: Path) -> None:
        if _is_installed(file):
            return
        if module.partition(".")[0] in OURS and file.is_relative_to(_HOME):
            return
        self._add(file)
        parts = module.split(".")
        path = file.parent if file.stem == "__init__" else file.with_suffix("")
        base = path.parents[len(parts) - 1]
        if path.parts[-len(parts) :] == tuple(parts) and self._name_of(base) is not None:
            self._bases.add(base)

    def _add_imports_of(self, files: list[Path]) -> None:
        """Add the modules of the project that Python files import, and those that these import in turn."""
        while files:
            file = files.pop()
            if file.suffix != ".py":
                continue
            for base, module in self._imports_in(file):
                files += filter(self._add, _files_of(base, module))

    def _imports_in(self, file: Path) -> Iterator[tuple[Path, str]]:
        """Yield the folder and the name of each module that a file may import from the project."""
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            return  # a shipped file need not be valid Python
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((base, alias.name) for alias in node.names for base in self._bases_of(alias.name))
            elif isinstance(node, ast.ImportFrom):
                names = [node.module] if node.module else []
                names += [".".join(filter(None, [node.module, alias.name])) for alias in node.names]
                for name in names:
                    bases = [file.parents[node.level - 1]] if node.level else self._bases_of(name)
                    yield from ((base, name) for base in bases)

    def _bases_of(self, module: str) -> list[Path]:
        top = module.partition(".")[0]
        return [] if top in OURS or top in sys.stdlib_module_names else sorted(self._bases)

    def _ship(self, path: Path) -> None:
        file = Path(os.path.abspath(path))
        if not file.exists():
            raise UsageError(f"--ship: there is no file {str(path)!r}")
        if (name := self._name_of(file)) is None or not name.startswith(f"{PROJECT}/"):
            raise UsageError(
                f"--ship: {str(path)!r} lies outside of the project root {str(self._root)!r}, so that no process of "
                "another host would find it; move it there, or put a pyproject.toml into a folder above both"
            )
        found = [file] if file.is_file() else sorted(each for each in file.rglob("*") if each.is_file())
        for each in found:
            if "__pycache__" not in each.parts:
                self._add(each)

    def _manifest(self) -> dict[str, Any]:
        """Return what a process must know to import the code as the head has."""
        spelt = [os.path.abspath(path) for path in sys.path]
        stdlib = sysconfig.get_path("stdlib")
        end = spelt.index(stdlib) if stdlib in spelt else 0
        first: list[str] = [] if self._installed else [PACKAGES]
        last: list[str] = []
        places = {str(base): spelt.index(str(base)) if str(base) in spelt else len(spelt) for base in self._bases}
        for base in sorted(places, key=lambda base: (places[base], base)):
            name = self._name_of(Path(base))
            if name is not None and any(file.is_relative_to(base) for file in self._files.values()):
                (first if places[base] < end else last).append(name)
        # Whole paths only of files that flags name: otherwise equal contents have equal digests wherever they lie.
        named = {str(file): self._name_of(file) for file in self._named}
        return {"experiment": self._name_of(self._experiment), "named": named, "first": first, "last": last}


def _imported() -> list[tuple[str, Path]]:
    """Return the names and the files of the modules that this process has imported."""
    found = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.isfile(file):
            found.append((name, Path(os.path.abspath(file))))
    return found


def _files_of(base: Path, module: str) -> Iterator[Path]:
    """Yield the files that an import of `module` from the folder `base` executes, if it is there."""
    path = base
    for part in module.split("."):
        if (path / f"{part}.py").is_file():
            yield path / f"{part}.py"
            return
        path /= part
        if (path / "__init__.py").is_file():
            yield path / "__init__.py"
        elif not path.is_dir():
            return


def our_files() -> dict[str, Path]:
    """Return the files of our packages in this process, by their names in a bundle."""
    files = {}
    for package in OURS:
        for path in (_HOME / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{PACKAGES}/{path.relative_to(_HOME).as_posix()}"] = path
    return files


@cache
def _installations() -> frozenset[Path]:
    """Return the folders of installed distributions, and of Python's own library."""
    paths = sysconfig.get_paths()
    return frozenset(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to an installed distribution; our experiments are in the bundle all the same."""
    return not path.is_relative_to(_OUR_EXPERIMENTS) and any(path.is_relative_to(each) for each in _installations())
