"""Checkpoints of a run: the state of all its actors after a number of steps, for `orchestra run --resume`.

A checkpoint is a folder of the run's `state` with a file for each actor, an npz of NumPy that holds the actor's plain
values as JSON beside its arrays. Actors write into a staging folder; `commit` gives it its name and removes the
checkpoint before. Nothing is ever unpickled.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from components.checkpoints.array_file import FORMAT, CheckpointError, open_checkpoint, write_checkpoint
from orchestra import RunDirectory, UsageError

P = ParamSpec("P")

# Names of arrays, part of the format.
_FORMAT, _VALUES = "format", "values"


def checkpoint_name(env_steps: int) -> str:
    """Return the name of the checkpoint after `env_steps` environment steps."""
    return f"steps-{env_steps:010d}"


def staging_folder(run_directory: Path, env_steps: int) -> Path:
    """Return the folder in which the checkpoint after `env_steps` environment steps is gathered."""
    return RunDirectory(run_directory).state / f"{checkpoint_name(env_steps)}.unfinished"


def begin(run_directory: Path, env_steps: int) -> None:
    """Make the staging folder, empty.

    Raises:
        OSError: the folder cannot be made.
    """
    path = staging_folder(run_directory, env_steps)
    shutil.rmtree(path, ignore_errors=True)  # left by an interrupted attempt
    path.mkdir(parents=True)


def reason(error: OSError) -> str:
    """Return why a checkpoint cannot be written, in words: `No space left on device`."""
    return error.strerror or str(error)


def attempt(write: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> str:
    """Call `write`; return its `OSError` in words, or an empty text."""
    try:
        write(*args, **kwargs)
    except OSError as error:
        return reason(error)
    return ""


def discard(run_directory: Path, *env_steps: int | None) -> None:
    """Remove the staging folders for these numbers of steps: the checkpoint cannot be completed."""
    for steps in env_steps:
        if steps is not None:
            shutil.rmtree(staging_folder(run_directory, steps), ignore_errors=True)


def last_complete(run_directory: Path) -> str:
    """Return, in words, which checkpoint of the run is the last complete one."""
    try:
        return f"the last complete checkpoint is {RunDirectory(run_directory).newest_state()}"
    except UsageError:
        return "no checkpoint is complete"


def rename(run_directory: Path, env_steps: int, to: int) -> None:
    """Rename the staging folder, if there is one (see `write`), to that of the checkpoint after `to` steps.

    Raises:
        OSError: the folder cannot be renamed.
    """
    shutil.rmtree(staging_folder(run_directory, to), ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.replace(staging_folder(run_directory, env_steps), staging_folder(run_directory, to))


def commit(run_directory: Path, env_steps: int, keep: Path | None = None) -> Path:
    """Make the staging folder the run's checkpoint, remove all others but `keep`, and return its path.

    Raises:
        OSError: the folder cannot be renamed.
    """
    staged = staging_folder(run_directory, env_steps)
    whole = staged.with_suffix("")
    shutil.rmtree(whole, ignore_errors=True)
    os.replace(staged, whole)
    for other in whole.parent.iterdir():
        if other != whole and (keep is None or other.name != keep.name):
            shutil.rmtree(other, ignore_errors=True)
    return whole


def write(
    run_directory: Path | None,
    env_steps: int,
    address: str,
    values: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write the state of the actor at `address` into the staging folder, and return that folder.

    The folder is made if it is missing: the Orchestrator makes it only on its own host, and not for a replayed actor.
    Staging folders of earlier checkpoints are then removed, because no other process of that host removes them.

    Args:
        run_directory: directory of the run.
        env_steps: environment steps of the checkpoint.
        address: address of the actor.
        values: plain values that JSON can hold.
        arrays: arrays by name.

    Raises:
        OSError: the file cannot be written.
        UsageError: the run has no directory.
    """
    if run_directory is None:
        raise UsageError("this run keeps no files, so there is no place for a checkpoint")
    folder = staging_folder(run_directory, env_steps)
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.parent.glob(f"*{folder.suffix}"):
            if other.name < folder.name:
                shutil.rmtree(other, ignore_errors=True)
    encoded = np.frombuffer(json.dumps(values).encode(), np.uint8)
    write_checkpoint(_file(folder, address), {**(arrays or {}), _FORMAT: np.array(FORMAT), _VALUES: encoded})
    return folder


def read(folder: Path, address: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read the values and the arrays that `write` wrote for the actor at `address`.

    Raises:
        UsageError: the checkpoint has no file of that actor, or the file is damaged or of another format.
    """
    found = find(folder, address)
    if found is None:
        raise UsageError(f"{str(folder)!r} holds nothing of {address}")
    return found


def find(folder: Path, address: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read as `read` does, but return None if the actor was not part of the checkpoint.

    Raises:
        UsageError: the file is damaged or of another format.
    """
    path = _file(folder, address)
    if not path.exists():
        return None
    try:
        with open_checkpoint(path) as reader:
            arrays = reader.read_all()
        found = int(arrays.pop(_FORMAT, 1))
        if found == FORMAT:
            return dict(json.loads(arrays.pop(_VALUES).tobytes())), arrays
    except (CheckpointError, OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{str(path)!r} is damaged: {error}") from error
    raise UsageError(f"{str(path)!r} has format {found}; this version reads format {FORMAT} only")


def companion(folder: Path, address: str, what: str) -> Path:
    """Return the path of a further file of the actor at `address`, beside the one that `write` makes."""
    return folder / f"{address.replace('/', '.')}.{what}.npz"


def _file(folder: Path, address: str) -> Path:
    return folder / f"{address.replace('/', '.')}.npz"
