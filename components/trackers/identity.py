"""Properties of a run for trackers: a name that stays the same when the run is resumed, and its flags."""

import hashlib
from typing import Any

from orchestra import RunDirectory


def identity(run: RunDirectory) -> str:
    """Return 16 hexadecimal digits that are unique to the run and stay the same when it is resumed."""
    return hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:16]


def flags_of_run(run: RunDirectory) -> dict[str, Any]:
    """Return the flags and the seed of a run."""
    config = run.config()
    return {**config["flags"], "seed": config["seed"]}
