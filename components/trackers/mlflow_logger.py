"""Logging to MLflow, by its client without global state."""

import re
from collections.abc import Mapping

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from components.trackers.identity import flags_of_run, identity
from orchestra import RealClock, RunDirectory

TAG = "orchestra.run"
"""Tag by which a resumed run finds its MLflow run."""


class MlflowLogger:
    """A run of MLflow, which a resumed run continues. The step of all figures is the number of environment steps.

    Args:
        run: the run.
        resumes_at: unused: if a step is repeated, its figures follow the earlier ones.
        argument: the experiment of MLflow; by default the name of the run's experiment.
        offline: write to the folder `mlflow` of the run, by SQLite; otherwise to MLFLOW_TRACKING_URI.
    """

    def __init__(self, run: RunDirectory, resumes_at: int | None, *, argument: str, offline: bool) -> None:
        self._clock = RealClock()
        uri = artifacts = None
        if offline:
            folder = (run.path / "mlflow").resolve()
            folder.mkdir(exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=uri)
        name, mark = argument or run.path.parent.name, identity(run)
        experiment = self._client.get_experiment_by_name(name)
        number = (
            self._client.create_experiment(name, artifact_location=artifacts)
            if experiment is None
            else experiment.experiment_id
        )
        found = self._client.search_runs([number], filter_string=f"tags.`{TAG}` = '{mark}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        created = self._client.create_run(number, tags={TAG: mark}, run_name=run.path.name)
        self._id = created.info.run_id
        flags = [Param(key, str(value)) for key, value in flags_of_run(run).items()]
        for start in range(0, len(flags), 100):  # the most that MLflow accepts at once
            self._client.log_batch(self._id, params=flags[start : start + 100])

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """Log the figures."""
        now_ms = int(self._clock.now().timestamp() * 1000)
        self._client.log_batch(self._id, [Metric(_allowed(key), value, now_ms, step) for key, value in figures.items()])

    def close(self) -> None:
        """End the run of MLflow."""
        self._client.set_terminated(self._id)


def _allowed(key: str) -> str:
    """Return a name that MLflow accepts, such as `lag_steps/32_` for `lag_steps/32+`."""
    return re.sub(r"[^\w. :/-]", "_", key)
