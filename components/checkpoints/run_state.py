"""What a run saves of all its actors at one moment, so that `orchestra run --resume` goes on from there.

A moment is a folder of the run's `state`: a file for each actor, NumPy's npz with the actor's plain values beside its
arrays. It takes its name once it is whole; the one before it is removed then. Nothing in it is ever unpickled.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import write_checkpoint
from orchestra import RunDirectory, UsageError

_VALUES = "values"


def moment(env_steps: int) -> str:
    """What the moment after so many environment steps is called."""
    return f"steps-{env_steps:010d}"


def unfinished(run_directory: Path, env_steps: int) -> Path:
    """The folder in which the state after so many environment steps is gathered."""
    return RunDirectory(run_directory).state / f"{moment(env_steps)}.unfinished"


def begin(run_directory: Path, env_steps: int) -> None:
    """Make that folder, empty.

    Raises:
        OSError: it cannot be made.
    """
    path = unfinished(run_directory, env_steps)
    shutil.rmtree(path, ignore_errors=True)  # an attempt that was cut short
    path.mkdir(parents=True)


def rename(run_directory: Path, env_steps: int, to: int) -> None:
    """Go on with that folder, if it is there (see `write`), as the one of the moment after `to` steps.

    Raises:
        OSError: it cannot be renamed.
    """
    shutil.rmtree(unfinished(run_directory, to), ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(unfinished(run_directory, env_steps), unfinished(run_directory, to))


def finish(run_directory: Path, env_steps: int, keep: Path | None = None) -> Path:
    """Declare it whole, remove every other but `keep`, and return its path.

    Raises:
        OSError: it cannot be renamed.
    """
    gathered = unfinished(run_directory, env_steps)
    whole = gathered.with_suffix("")
    shutil.rmtree(whole, ignore_errors=True)
    os.replace(gathered, whole)
    for other in whole.parent.iterdir():
        if other != whole and (keep is None or other.name != keep.name):
            shutil.rmtree(other, ignore_errors=True)
    return whole


def write(
    folder: Path, address: str, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
) -> None:
    """Write what the actor at `address` holds: plain `values` that JSON knows, and `arrays`.

    The folder is made if it is not there: an actor that is replayed is alone with what it writes.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = np.frombuffer(json.dumps(values).encode(), np.uint8)
    write_checkpoint(_file(folder, address), {**(arrays or {}), _VALUES: told})


def read(folder: Path, address: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read what `write` wrote; None if that actor had not been there.

    Raises:
        UsageError: the file is damaged.
    """
    path = _file(folder, address)
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        values = json.loads(arrays.pop(_VALUES).tobytes())
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise UsageError(f"{str(path)!r} is damaged: {error}") from error
    return dict(values), arrays


def companion(folder: Path, address: str, what: str) -> Path:
    """Where the actor at `address` keeps something of its own beside its file."""
    return folder / f"{address.replace('/', '.')}.{what}.npz"


def _file(folder: Path, address: str) -> Path:
    return folder / f"{address.replace('/', '.')}.npz"
