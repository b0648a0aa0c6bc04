"""What a run was made of, for those who look at it afterwards: its environments and its policy."""

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from orchestra import RunDirectory, Topology, UsageError
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

if TYPE_CHECKING:
    from components.rollout import EnvFactory, PolicyFactory


def factories_of(run: RunDirectory) -> tuple["EnvFactory", "PolicyFactory"]:
    """Return what makes the run's environments and its policy: what its first Worker was given.

    An experiment that has changed since the run is noted on stderr.

    Raises:
        UsageError: its config is damaged, its experiment gone, or its topology has no Worker.
    """
    from components.worker import Worker

    topology = _planned(run)
    for node in topology.nodes.values():
        for actor in node.actors:
            if issubclass(actor.kind, Worker):
                return actor.factory.keywords["env"], actor.factory.keywords["policy"]
    raise UsageError(f"topology {topology.name!r} has no Worker, so it does not say what is played")


def _planned(run: RunDirectory) -> Topology:
    """Build the run's topology again, from what its config says."""
    config = run.config()
    try:
        file, known = Path(config["experiment"]["absolute"]), config["experiment"]["sha256"]
        values = dict(config["flags"])
    except (KeyError, TypeError) as error:
        raise UsageError(f"{str(run.path)!r}: its config.json lacks {error}") from error
    function = load_experiment(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != known:
        print(f"orchestra: note: {file} has changed since the run", file=sys.stderr)
    flags = Flags.of(function)
    return build(function, {flag.name: flag.validated(values.get(flag.name, flag.default)) for flag in flags})
