"""Resumption: the state that a resumed run takes from the run before, which may have had other hosts."""

import hashlib
import re
from pathlib import Path

from orchestra import log
from orchestra.errors import UsageError
from orchestra.runs.experiment import recorded_experiment
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Topology


def unplanned(state: Path, topology: Topology) -> list[str]:
    """Return the saved states of actors that `topology` does not plan, by the names of their files, in order.

    A state is a file `NODE.ACTOR.EXTENSION` of the folder `state`; a file `NODE.ACTOR.PART.EXTENSION` belongs to it. An
    actor without a state begins without one.
    """
    actors = [f"{node.name}.{actor.name}" for node in topology.nodes.values() for actor in node.actors]
    planned = tuple(f"{actor}{end}" for actor in actors for end in ".:")  # a colon precedes the name of a child
    found = {path.name.rpartition(".")[0] for path in state.iterdir() if path.is_file()}
    lost = {name for name in found if not f"{name}.".startswith(planned)}
    return sorted(name for name in lost if not any(name.startswith(f"{other}.") for other in lost))


def warn_of_unplanned(state: Path | None, topology: Topology) -> None:
    """Log the number and the names of saved states for which a resumed run has no actors."""
    if state is not None and (dropped := unplanned(state, topology)):
        said = "states of actors that the run no longer has are dropped"
        log.get(actor="run").warning(said, count=len(dropped), states=dropped)


def check_run_name(name: str) -> None:
    """Check the name that `--as` gives a run.

    Raises:
        UsageError: it cannot be that of a folder.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UsageError(f"--as: {name!r} cannot name a folder: use letters, digits and - _ .")


def named_run(runs_dir: Path, topology: Topology, name: str, file: Path | None, seed: int | None) -> Path | None:
    """Return the directory of the run that `--as NAME` goes on with, or None if the run begins.

    Args:
        runs_dir: the folder of all runs.
        topology: of the run.
        name: of its directory.
        file: the experiment's file, or a copy of it: an engine may unpack each job's files into a folder of its own.
        seed: as given.

    Raises:
        UsageError: the run of that name is another one.
    """
    run = RunDirectory(runs_dir / topology.name / name)
    try:
        run.newest_state()
    except UsageError:
        return None
    recorded, _, _ = recorded_experiment(run)
    if file is not None and file.resolve() != recorded.resolve() and not _is_copy(file, recorded, run):
        raise UsageError(f"--as: the run {name!r} is one of {str(recorded)!r}, not of {str(file)!r}")
    if seed is not None and seed != run.config().get("seed"):
        raise UsageError(f"--seed: the run {name!r} goes on with its seed, {run.config().get('seed')}, not with {seed}")
    return run.path


def _is_copy(file: Path, recorded: Path, run: RunDirectory) -> bool:
    """Return whether `file` has the name and the content that the experiment of `run` had at `recorded`."""
    digest = run.config()["experiment"].get("sha256")
    return file.name == recorded.name and hashlib.sha256(file.read_bytes()).hexdigest() == digest
