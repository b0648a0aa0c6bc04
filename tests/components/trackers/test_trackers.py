"""Figures of a run reach trackers, and a tracker that fails holds nothing up."""

import json
import threading
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from components.trackers import named
from components.trackers.background import WAITING, BackgroundLogger
from components.trackers.logger import Logger
from orchestra import RunDirectory, UsageError

OWN = """
class Own:
    def __init__(self, run, resumes_at):
        self.file = (run.path / "own.txt").open("a")
        self.file.write(f"from {resumes_at}\\n")

    def write(self, step, figures):
        self.file.write(f"{step} {sorted(figures.items())}\\n")

    def close(self):
        self.file.write("closed\\n")
        self.file.close()


class NoLogger:
    def write(self, step, figures):
        pass
"""


class Clock:
    def now(self) -> Any:
        return datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def kept(tmp_path: Path) -> RunDirectory:
    file = tmp_path / "tracked_qmix.py"
    file.write_text("")
    run = RunDirectory.create(tmp_path / "runs", "qmix", 0, clock=Clock(), name="first")  # type: ignore[arg-type]
    run.write_config(experiment=file, flags={"gamma": 0.9}, seed=3, argv=["orchestra"], clock=Clock())  # type: ignore[arg-type]
    return run


class Kept:
    """Keeps what it takes, and fails as it is told to."""

    def __init__(self, failing: Mapping[int, str] | None = None) -> None:
        self.taken: list[tuple[int, Mapping[str, float]]] = []
        self.threads: set[int] = set()
        self.failing = failing or {}
        self.closed = 0

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.threads.add(threading.get_ident())
        if step in self.failing:
            raise ConnectionError(self.failing[step])
        self.taken.append((step, figures))

    def close(self) -> None:
        self.closed += 1


def test_a_logger_takes_all_figures_in_order_in_one_other_thread() -> None:
    kept = Kept()
    assert isinstance(kept, Logger)
    logger = BackgroundLogger(lambda: kept, "mine")
    for step in range(1, 50):
        logger.write(step, {"loss": float(step)})
    logger.close()
    logger.close()
    assert kept.taken == [(step, {"loss": float(step)}) for step in range(1, 50)]
    assert len(kept.threads) == 1
    assert threading.get_ident() not in kept.threads
    assert kept.closed == 1


def test_figures_that_change_after_they_were_logged_arrive_as_they_were() -> None:
    kept, gate = Kept(), threading.Event()

    def made() -> Kept:
        gate.wait()
        return kept

    logger, figures = BackgroundLogger(made, "mine"), {"loss": 1.0}
    logger.write(1, figures)
    figures["loss"] = 2.0
    gate.set()
    logger.close()
    assert kept.taken == [(1, {"loss": 1.0})]


def test_errors_of_a_logger_are_one_warning_for_each_succession_and_a_sum() -> None:
    kept = Kept({2: "down", 3: "down", 5: "again"})
    with capture_logs() as logs:
        logger = BackgroundLogger(lambda: kept, "mine")
        for step in range(1, 7):
            logger.write(step, {})
        logger.close()
    assert [step for step, _ in kept.taken] == [1, 4, 6]
    assert [(line["event"], line.get("error"), line.get("records")) for line in logs] == [
        ("a tracker takes no figures", "ConnectionError('down')", None),
        ("a tracker takes no figures", "ConnectionError('again')", None),
        ("a tracker lost records", None, 3),
    ]


def test_a_logger_that_cannot_be_made_is_a_warning() -> None:
    def made() -> Kept:
        raise OSError("the port is in use")

    with capture_logs() as logs:
        logger = BackgroundLogger(made, "mine")
        logger.write(1, {})
        logger.close()
    assert [(line["event"], line["tracker"]) for line in logs] == [
        ("a tracker cannot be started", "mine"),
        ("a tracker lost records", "mine"),
    ]


def test_a_logger_that_hangs_holds_up_neither_figures_nor_for_long_the_end() -> None:
    gate = threading.Event()

    def made() -> Kept:
        gate.wait()
        return Kept()

    with capture_logs() as logs:
        logger = BackgroundLogger(made, "mine", close_s=0.01)
        for step in range(WAITING + 5):
            logger.write(step, {})
        logger.close()
    gate.set()
    assert ("a tracker did not end in time", 5) in [(line["event"], logs[-1].get("records")) for line in logs]


def test_a_class_in_a_file_is_a_logger(tmp_path: Path, kept: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_logger.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    (text,) = named.named(["own_logger.py:Own"])
    assert text == f"{tmp_path / 'own_logger.py'}:Own"
    named.check([text])
    (make,) = named.factories([text], offline=True).values()
    logger = BackgroundLogger(partial(make, kept, 40), text)
    logger.write(50, {"b": 1.0, "a": 2.0})
    logger.close()
    assert (kept.path / "own.txt").read_text() == "from 40\n50 [('a', 2.0), ('b', 1.0)]\nclosed\n"


@pytest.mark.parametrize("wrong", ["wandbi", "own.py", "own.py:a-b", "prometheus:x", "prometheus:70000"])
def test_a_value_that_is_no_tracker_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"it must be wandb|ends in no port"):
        named.named([wrong])


def test_a_tracker_is_named_once() -> None:
    with pytest.raises(ValueError, match="a tracker is named twice"):
        named.named(["wandb", "wandb"])


def test_what_a_tracker_needs_is_checked_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "unfinished_logger.py"
    file.write_text(OWN)
    with pytest.raises(UsageError, match=r"'NoLogger' is no class in this file with the methods write and close$"):
        named.check([f"{file}:NoLogger"])
    with pytest.raises(UsageError, match=r"--track: there is no file "):
        named.check([f"{tmp_path / 'missing.py'}:Own"])
    monkeypatch.setitem(named.TRACKERS, "wandb", ("a_package_that_is_not_there", ""))
    with pytest.raises(UsageError, match=r"^--track wandb: a package is missing: pip install 'orchestra-rl\[wandb\]'$"):
        named.check(["wandb"])


def test_prometheus_reads_the_newest_figures(kept: RunDirectory) -> None:
    pytest.importorskip("prometheus_client")
    (make,) = named.factories(["prometheus:0"], offline=False).values()
    logger = make(kept, None)
    logger.write(100, {"learner/loss": 0.5})
    logger.write(200, {"learner/loss": 0.25, "lag_steps/2-3": 7})
    url = json.loads((kept.path / "prometheus.json").read_text())["url"]
    assert url.startswith("http://127.0.0.1:")
    lines = urllib.request.urlopen(url).read().decode().splitlines()
    logger.close()
    labels = '{experiment="qmix",run="first"}'
    assert {line for line in lines if not line.startswith("#")} == {
        f"orchestra_learner_loss{labels} 0.25",
        f"orchestra_lag_steps_2_3{labels} 7.0",
        f"orchestra_env_steps{labels} 200.0",
    }
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_offline_keeps_figures_and_a_resumed_run_goes_on(kept: RunDirectory) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    (make,) = named.factories(["mlflow:mine"], offline=True).values()
    for resumes_at, step in ((None, 100), (100, 200)):
        logger = make(kept, resumes_at)
        logger.write(step, {"loss": step / 100, "lag_steps/32+": 1})
        logger.close()
    client = MlflowClient(tracking_uri=f"sqlite:///{kept.path / 'mlflow' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.data.params == {"gamma": "0.9", "seed": "3"}
    assert run.info.status == "FINISHED"
    assert [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")] == [
        (100, 1.0),
        (200, 2.0),
    ]
    assert run.data.metrics["lag_steps/32_"] == 1.0


@pytest.mark.filterwarnings("ignore")  # of wandb
def test_wandb_offline_keeps_figures_in_the_run_s_directory(
    kept: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    (make,) = named.factories(["wandb:mine"], offline=True).values()
    logger = make(kept, None)
    logger.write(100, {"loss": 0.5})
    logger.close()
    (file,) = kept.path.glob("wandb/offline-run-*/*.wandb")
    written = file.read_bytes()
    assert all(part in written for part in (b"loss", b"env_steps", b"gamma", b"0.9", b"qmix/first"))
