"""New battles with the best parameters of a run, at fixed and at varied starting positions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestra import RunDirectory, UsageError, write_json

FILE = "suite_battles.json"
"""File in the directory of the run with the results so far."""
EPISODES = 256
SEED = 1_000_000
"""Seed of the battles; no run of a suite trains with it."""


def battles_of(run: RunDirectory, jitters: Sequence[float], *, episodes: int = EPISODES) -> dict[float, dict[str, Any]]:
    """Return, by jitter, the win rate and the mean return of the best checkpoint. Results on disk are reused.

    Args:
        run: a run that has a checkpoint.
        jitters: cells per axis by which starting positions vary.
        episodes: greedy episodes for each jitter.

    Raises:
        UsageError: the run has no checkpoint, or plays outside of the simulator.
        OSError: the results cannot be written.
    """
    import numpy as np

    from components.playing import play
    from components.reporting.saved_policy import load_policy

    path = run.path / FILE
    checkpoint = run.newest_checkpoint()
    if checkpoint is None:
        raise UsageError(f"{str(run.path)!r} has no checkpoint")
    made_ns = max(file.stat().st_mtime_ns for file in run.checkpoints.iterdir())
    known = _read(path, made_ns)
    for jitter in jitters:
        name = f"{jitter:g}"
        if known.get(name, {}).get("episodes") == episodes:
            continue
        start_jitter = jitter or None  # with 0, the run's own fixed starting positions
        env, policy, _, _ = load_policy(run, None, min(episodes, 64), seed=SEED, start_jitter=start_jitter)
        try:
            played = play(env, policy, episodes, np.random.default_rng(SEED))
        finally:
            env.close()
        known[name] = {
            "episodes": episodes,
            "win_rate": float(played.won.mean()),
            "return": float(played.returns.mean()),
        }
        write_json(path, {"checkpoints_ns": made_ns, "by_jitter": known})
    return {jitter: known[f"{jitter:g}"] for jitter in jitters}


def _read(path: Path, made_ns: int) -> dict[str, dict[str, Any]]:
    """Return the results on disk; none if they are damaged or of other checkpoints."""
    try:
        written = json.loads(path.read_bytes())
        return dict(written["by_jitter"]) if written["checkpoints_ns"] == made_ns else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}
