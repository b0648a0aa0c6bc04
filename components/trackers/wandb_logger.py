"""Logging to Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path

import wandb

from components.trackers.identity import flags_of_run, identity
from orchestra import RunDirectory


class WandbLogger:
    """A run of Weights & Biases, which a resumed run continues. The axis of all figures is `env_steps`.

    Args:
        run: the run. The files of wandb are in its folder `wandb`.
        resumes_at: unused: if a step is repeated, its figures follow the earlier ones.
        argument: the project; `orchestra` by default.
        offline: send nothing; `wandb sync RUN_DIR/wandb/offline-run-*` does later.
    """

    def __init__(self, run: RunDirectory, resumes_at: int | None, *, argument: str, offline: bool) -> None:
        settings = wandb.Settings(console="off", disable_git=True, x_disable_stats=True, silent=True)
        self._run = wandb.init(
            project=argument or "orchestra",
            dir=Path(run.path).resolve(),
            id=identity(run),
            name=f"{run.path.parent.name}/{run.path.name}",
            group=run.path.parent.name,
            config=flags_of_run(run),
            mode="offline" if offline else None,
            resume=None if offline else "allow",
            settings=settings,
        )
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures."""
        self._run.log({**figures, "env_steps": step})

    def close(self) -> None:
        """Send the remaining figures."""
        self._run.finish()
