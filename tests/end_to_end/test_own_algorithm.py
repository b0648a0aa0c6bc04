"""A policy class from a user's folder outside of the checkout trains with two workers, resumes, and is replayed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not int(os.environ.get("ORCHESTRA_FAULTS", "0")), reason="takes a minute: ORCHESTRA_FAULTS=1"),
]
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "actor_critic.py"


def test_it_trains_with_two_workers_resumes_and_its_trainer_is_replayed(
    launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    file = shutil.copyfile(EXAMPLE, folder / "of_mine.py")
    own = ("--algorithm", f"{file}:ActorCritic", "--width", "7", "--segment-length", "16", "--workers", "2")
    launched = launch(*own, "--steps", "400", "--trace", "full")
    assert launched.ends() == 0, launched.story("failed")
    config = json.loads((launched.run / "config.json").read_text())
    assert (config["flags"]["algorithm"], config["flags"]["width"]) == (f"{file}:ActorCritic", 7)
    assert launched.records()[-1]["learner/width"] == 7.0

    monkeypatch.chdir("/")
    resumed = launch.command("run", "--resume", launched.run, "--steps", "800", "--trace", "full")
    assert resumed.ends() == 0, resumed.story("failed")
    updates = [record["updates"] for record in resumed.records()]
    assert max(updates) > 1
    assert main(["replay", str(resumed.run), "--actor", "learner/trainer"]) == 0
    assert main(["replay", str(resumed.run), "--actor", "worker-0-1/worker"]) == 0
