"""The bundle: a zip of the code of a run, made when the run begins, from which every node of another host runs.

    bundle.json     the experiment's file, the files that its flags name, and the import paths
    packages/       `orchestra`, `messages` and `components`, unless the hosts use their installed ones
    project/        of the experiment's project: its file, the modules that it imports, and shipped files
    elsewhere/N/    of other projects: files that flags of the experiment name, and the modules that they import

`collected_code.py` says which files these are. Equal contents have equal digests: names are sorted, times are fixed,
and the digest is that of the contents.
"""

import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from orchestra.errors import CannotWrite, UsageError

MOST_BYTES = 64 << 20
"""Bytes of the files of a bundle."""
OURS = ("orchestra", "messages", "components")
MANIFEST = "bundle.json"
PACKAGES, PROJECT, ELSEWHERE = "packages", "project", "elsewhere"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNPACKED_TIME = 315_532_800
"""The time of every unpacked file, in seconds since 1970. numba treats a source with another time as changed."""
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
    def of(cls, contents: Mapping[str, tuple[bytes, bool]]) -> Self:
        """Return the bundle of files: by name the contents, and whether it is executable."""
        return cls(_zipped(contents), _digest(contents), {name: len(data) for name, (data, _) in contents.items()})

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
    """Folders that come first on the import path: those of our packages, and those that came first at the head."""
    last: tuple[Path, ...]
    """Folders that come last on the import path."""
    named: Mapping[Path, Path] = field(default_factory=dict)
    """The files that flags of the experiment name: where they lay at the head, and where they lie here."""

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
            named = {Path(path): folder / name for path, name in manifest["named"].items()}
            found = cls(folder, folder / manifest["experiment"], tuple(first), tuple(last), named)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{str(folder)!r} holds no unpacked code of a run: {error}") from error
        return found

    @classmethod
    def holding(cls, experiment: Path) -> Self | None:
        """Return the unpacked bundle whose experiment is the file `experiment`; None if it lies in no bundle."""
        for parent in experiment.parents:
            if (parent / MANIFEST).exists() and (parent / PROJECT).is_dir():
                found = cls.open(parent)
                return found if found.experiment == experiment else None
        return None

    @property
    def experiment_name(self) -> str:
        """The path of the experiment's file below the project root."""
        return self.experiment.relative_to(self.project).as_posix()

    @property
    def elsewhere(self) -> dict[str, Path]:
        """The other project roots, as they lay at the head, by their folders in the bundle."""
        roots = {}
        for there, here in self.named.items():
            top, number, *rest = here.relative_to(self.folder).parts
            if top == ELSEWHERE:
                roots[f"{top}/{number}"] = there.parents[len(rest) - 1]
        return roots

    @property
    def project(self) -> Path:
        """The copy of the project root. Relative paths in flags begin here if they began at the root on the head."""
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


def check_size(sizes: Mapping[str, int]) -> None:
    """Check that the files of a bundle, of these sizes in bytes, are not too large.

    Raises:
        UsageError: they are. The text names the largest.
    """
    if sum(sizes.values()) > MOST_BYTES:
        raise UsageError(_too_large(sizes))


def _too_large(sizes: Mapping[str, int]) -> str:
    largest = sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))[:_SHOWN]
    named = ", ".join(f"{name} ({nbytes / 1e6:,.1f} MB)" for name, nbytes in largest)
    return (
        f"the code of the run has {sum(sizes.values()) / 1e6:,.1f} MB, and {MOST_BYTES >> 20} MiB are allowed; its "
        f"largest files are {named}"
    )


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
            check_size(sizes)
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
