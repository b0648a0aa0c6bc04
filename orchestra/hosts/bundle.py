"""The bundle: a zip of the code of a run, made when the run begins, from which every node of another host runs.

    bundle.json     the experiment's file and the import paths
    packages/       `orchestra`, `messages` and `components`, unless the hosts use their installed ones
    project/        of the experiment's project: its file, the modules that it imports, and shipped files

Equal contents have equal digests: names are sorted, times are fixed, and the digest is that of the contents.
"""

import ast
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Self

from orchestra.errors import CannotWrite, UsageError

MOST_BYTES = 64 << 20
"""Bytes of the files of a bundle."""
MARKERS = ("pyproject.toml", ".git")
"""The folder that holds one of these is a project root."""
OURS = ("orchestra", "messages", "components")
MANIFEST = "bundle.json"
PACKAGES, PROJECT = "packages", "project"
_HOME = Path(__file__).resolve().parents[2]
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNPACKED_TIME = 315_532_800
"""The time of every unpacked file, in seconds since 1970. numba takes a source with another time for another one."""
_SHOWN = 5
_SAFE_PATH = "PYTHONSAFEPATH"


@dataclass(frozen=True, slots=True)
class Bundle:
    """The zip of a run's code."""

    data: bytes
    """The zip itself."""
    digest: str
    """SHA-256 of the names, permissions and contents of its files, in hexadecimal."""
    sizes: Mapping[str, int]
    """Bytes of each file once it is unpacked, by name."""

    @property
    def nbytes(self) -> int:
        """Bytes of all files once they are unpacked."""
        return sum(self.sizes.values())

    def contents(self) -> dict[str, bytes]:
        """Return the contents of the files by name."""
        return {name: content for name, (content, _) in _checked(self.data).items()}

    def largest(self, count: int = _SHOWN) -> list[tuple[str, int]]:
        """Return the names and the sizes of the largest files, the largest first."""
        return sorted(self.sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:count]

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the bundle that `data` is the zip of.

        Raises:
            UsageError: it is no bundle, is larger than allowed, or a name in it is not allowed.
        """
        files = _checked(data)
        return cls(data, _digest(files), {name: len(content) for name, (content, _) in files.items()})

    def unpack(self, folder: Path, staging: Path) -> "UnpackedCode":
        """Write the files into `folder`, which appears once it is complete; if it is there already it is left alone.

        Args:
            folder: the place of the code.
            staging: a folder on the same disk, in which the files are written first.

        Raises:
            UsageError: a name in the zip is not allowed.
            CannotWrite: the folder cannot be written.
        """
        files = _checked(self.data)
        partial = staging / f"{folder.name}.{secrets.token_hex(4)}"
        try:
            partial.mkdir(mode=0o700)
            for name, (content, executable) in files.items():
                path = partial / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                path.chmod(0o755 if executable else 0o644)
                os.utime(path, (_UNPACKED_TIME, _UNPACKED_TIME))
            try:
                partial.rename(folder)
            except OSError:
                if not (folder / MANIFEST).exists():
                    raise
                shutil.rmtree(partial)  # another agent of this user has unpacked it meanwhile
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CannotWrite(f"cannot unpack the run's code in {str(folder)!r}: {error.strerror or error}") from error
        return UnpackedCode.open(folder)


@dataclass(frozen=True)
class UnpackedCode:
    """The folder of an unpacked bundle."""

    folder: Path
    experiment: Path
    """The experiment's file in it."""
    first: tuple[Path, ...]
    """Folders that come first on the import path: those of our packages, and those that did so at the head."""
    last: tuple[Path, ...]
    """Folders that come last on the import path."""

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return the unpacked bundle in `folder`.

        Raises:
            UsageError: there is none.
        """
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            first = [folder / path for path in manifest["first"]]
            last = [folder / path for path in manifest["last"]]
            found = cls(folder, folder / manifest["experiment"], tuple(first), tuple(last))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{str(folder)!r} holds no unpacked code of a run: {error}") from error
        return found

    @classmethod
    def holding(cls, experiment: Path) -> Self | None:
        """Return the unpacked bundle whose experiment is the file `experiment`; None if it lies in no bundle."""
        for parent in experiment.parents:
            if (parent / MANIFEST).exists():
                found = cls.open(parent)
                return found if found.experiment == experiment else None
        return None

    @property
    def experiment_name(self) -> str:
        """The path of the experiment's file below the project root."""
        return self.experiment.relative_to(self.project).as_posix()

    @property
    def project(self) -> Path:
        """The copy of the project root: relative paths in flags begin here, if they did so at the head."""
        return self.folder / PROJECT

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the environment `base` for a process that imports this code before anything else."""
        known = filter(None, base.get("PYTHONPATH", "").split(os.pathsep))
        paths = dict.fromkeys([*map(str, self.first), *known])
        # `python -m orchestra` would import what lies in the current folder first.
        return {**base, "PYTHONPATH": os.pathsep.join(paths), _SAFE_PATH: "1"}

    def append_import_paths(self) -> None:
        """Append to this process's import path the folders that came last at the head, too."""
        sys.path.extend(str(path) for path in self.last if str(path) not in sys.path)
        os.environ.pop(_SAFE_PATH, None)  # a script that an actor starts may import what lies beside it


def make(experiment: Path, ships: Iterable[Path] = (), *, installed: bool = False) -> Bundle:
    """Return the bundle of an experiment that this process has imported.

    It holds what this process has imported from below the project root of the experiment, and what these files import
    anywhere, in a function too: another process may come there first. Installed distributions are left out.

    Args:
        experiment: the experiment's file.
        ships: further files, and folders with all that is in them; below the project root.
        installed: leave our packages out; the hosts use those that they have installed.

    Raises:
        UsageError: a shipped file does not exist or lies elsewhere, or the bundle is too large.
    """
    return _Collected(Path(os.path.abspath(experiment)), installed=installed).bundle(ships)


def project_root(experiment: Path) -> Path:
    """Return the nearest folder with `pyproject.toml` or `.git`, else the folder of the file itself."""
    folder = Path(os.path.abspath(experiment)).parent
    for parent in [folder, *folder.parents]:
        if parent in _installations():
            break  # a virtual environment may lie in a project, to which what is installed there does not belong
        if any((parent / marker).exists() for marker in MARKERS):
            return parent
    ours = _HOME / "orchestra" / "experiments"
    return ours if folder.is_relative_to(ours) else folder


class _Collected:
    """The files of a bundle, as they are found."""

    def __init__(self, experiment: Path, *, installed: bool) -> None:
        self._experiment = experiment
        self._installed = installed
        self._root = project_root(experiment)
        self._files: dict[str, Path] = {}
        """By name in `project/`."""
        self._bases: set[Path] = {experiment.parent}
        """The folders of the project that modules were imported from."""

    def bundle(self, ships: Iterable[Path]) -> Bundle:
        self._add(self._experiment)
        for name, file in _imported():
            self._add_module(name, file)
        importable = {Path(os.path.abspath(path)) for path in sys.path}
        self._bases |= {path for path in importable if self._below(path) is not None and not _is_installed(path)}
        self._add_imports_of(list(self._files.values()))
        for path in ships:
            self._ship(path)
        files = {f"{PROJECT}/{name}": path for name, path in self._files.items()}
        if not self._installed:
            files |= our_files()
        self._check_size(files)
        contents = {name: (path.read_bytes(), bool(path.stat().st_mode & 0o100)) for name, path in files.items()}
        contents[MANIFEST] = (json.dumps(self._manifest(), indent=1).encode(), False)
        return Bundle(_zipped(contents), _digest(contents), {name: len(data) for name, (data, _) in contents.items()})

    def _below(self, path: Path) -> str | None:
        """Return the path within the project root, as it is spelt or with links followed; None if it lies elsewhere."""
        for root, file in ((self._root, path), (self._root.resolve(), path.parent.resolve() / path.name)):
            if file.is_relative_to(root):
                return file.relative_to(root).as_posix()
        return None

    def _add(self, file: Path) -> bool:
        """Add a file of the project; return whether it was missing."""
        name = self._below(file)
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
        if path.parts[-len(parts) :] == tuple(parts) and self._below(base := path.parents[len(parts) - 1]) is not None:
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
            return  # a shipped file need not be ours to read
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
        if self._below(file) is None:
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
            name = self._below(Path(base))
            if name is not None and any(file.is_relative_to(base) for file in self._files.values()):
                (first if places[base] < end else last).append((PurePosixPath(PROJECT) / name).as_posix())
        experiment = self._below(self._experiment)
        return {"experiment": f"{PROJECT}/{experiment}", "first": first, "last": last}

    def _check_size(self, files: Mapping[str, Path]) -> None:
        sizes = {name: path.stat().st_size for name, path in files.items()}
        if sum(sizes.values()) > MOST_BYTES:
            raise UsageError(_too_large(sizes))


def _too_large(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:_SHOWN]
    named = ", ".join(f"{name} ({nbytes / 1e6:,.1f} MB)" for name, nbytes in largest)
    return (
        f"the code of the run has {sum(sizes.values()) / 1e6:,.1f} MB, and {MOST_BYTES >> 20} MiB are allowed; its "
        f"largest files are {named}"
    )


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
    return any(path.is_relative_to(folder) for folder in _installations())


def _digest(files: Mapping[str, tuple[bytes, bool]]) -> str:
    digest = hashlib.sha256()
    for name, (content, executable) in sorted(files.items()):
        line = json.dumps([name, executable, hashlib.sha256(content).hexdigest()])
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _zipped(files: Mapping[str, tuple[bytes, bool]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (content, executable) in sorted(files.items()):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system = 3  # Unix, wherever it is made
            info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
    return buffer.getvalue()


def _checked(data: bytes) -> dict[str, tuple[bytes, bool]]:
    """Return the contents of the files of a zip, and whether each is executable, by name.

    Raises:
        UsageError: it is no bundle, is larger than allowed, or a name in it is not allowed.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            for entry in entries:
                _check_name(entry)
            sizes = {entry.filename: entry.file_size for entry in entries}
            if len(sizes) < len(entries):
                raise UsageError("the code of the run holds two files of one name")
            if sum(sizes.values()) > MOST_BYTES:
                raise UsageError(_too_large(sizes))
            # `read` stops at the size that the entry states, and checks its CRC.
            files = {
                entry.filename: (archive.read(entry), bool(entry.external_attr >> 16 & 0o100)) for entry in entries
            }
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise UsageError(f"the code of the run is no zip: {error}") from error
    if MANIFEST not in files:
        raise UsageError(f"the code of the run lacks {MANIFEST}")
    return files


def _check_name(entry: zipfile.ZipInfo) -> None:
    """Check that an entry is a plain file below the folder that it is unpacked in.

    Raises:
        UsageError: it is not.
    """
    name, mode = entry.orig_filename, entry.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if stat.S_ISLNK(mode):
        wrong = "is a link"
    elif name.startswith("/"):
        wrong = "is absolute"
    elif any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        wrong = "is no plain relative name"
    elif kind not in (0, stat.S_IFREG):
        wrong = "is no plain file"
    else:
        return
    raise UsageError(f"the code of the run holds {name!r}, which {wrong}; only files below its folder are allowed")
