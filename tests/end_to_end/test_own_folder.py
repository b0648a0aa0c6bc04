"""A policy class and an environment from a user's folder are trained and resumed by an installed orchestra."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestra import Replay

pytestmark = [pytest.mark.slow, pytest.mark.minutes]
ROOT = Path(__file__).resolve().parents[2]

ENVIRONMENT = '''
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformReward

class Guess(gymnasium.Env):
    """Shows a number below 4 and pays for repeating it; an episode has 5 steps."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.drawn(), {}

    def step(self, action):
        reward = float(action == self.number)
        self.step_number += 1
        return self.drawn(), reward, False, False, {}

    def drawn(self):
        self.number = np.int64(self.np_random.integers(4))
        return self.number

def make_env(scale: float = 1.0) -> gymnasium.Env:
    return TransformReward(Guess(), lambda reward: scale * reward)
'''


@pytest.fixture
def installed(launch: Any, tmp_path: Path) -> dict[str, str]:
    """The environment of processes that find orchestra as an installation has it, apart from the checkout."""
    site = tmp_path / "site"
    for package in ("orchestra", "messages", "components"):
        shutil.copytree(ROOT / package, site / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "experiments", site / "orchestra" / "experiments")
    return {"PYTHONPATH": str(site)}


@pytest.fixture
def words(launch: Any) -> list[str]:
    """A run of both from the folder `mine`."""
    folder = launch.folder / "mine"
    folder.mkdir()
    (folder / "guessing_game.py").write_text(ENVIRONMENT)
    shutil.copy(ROOT / "docs" / "examples" / "actor_critic.py", folder / "my_critic.py")
    return [
        *("--env", "mine/guessing_game.py:make_env", "--env-arg", "scale=2.0", "--episode-limit", "5"),
        *("--algorithm", "mine/my_critic.py:ActorCritic", "--width", "7", "--learning-rate", "0.01"),
        *("--segment-length", "3", "--batch-size", "8", "--envs-per-worker", "4"),
        *("--eval-interval", "1000", "--eval-episodes", "2", "--final-eval-episodes", "2"),
    ]


def test_they_are_trained_by_two_workers_and_resumed_and_trainer_and_worker_are_replayed(
    launch: Any, installed: dict[str, str], words: list[str]
) -> None:
    few = ("--workers", "2", "--steps", "1500", "--checkpoint-interval", "500", "--trace", "full")
    first = launch.command("run", "train", *words, *few, **installed)
    assert first.ends() == 0, first.story("failed")
    config, records = first.json("config.json"), first.records()
    assert config["experiment"]["absolute"].startswith(installed["PYTHONPATH"])
    assert config["flags"]["algorithm"] == f"{launch.folder}/mine/my_critic.py:ActorCritic"
    assert config["flags"]["env"] == f"{launch.folder}/mine/guessing_game.py:make_env"
    assert records[-1]["learner/width"] == 7.0
    assert records[-1]["env_steps"] >= 1500
    assert 0.0 < records[-1]["train_return"] <= 10.0
    steps = str(records[-1]["env_steps"] + 1000)
    resumed = launch.command("run", "--resume", str(first.run), "--steps", steps, "--trace", "full", **installed)
    assert resumed.ends() == 0, resumed.story("cannot be resumed")
    assert resumed.json("summary.json")["env_steps"] >= int(steps)
    assert max(record["updates"] for record in resumed.records()) > 1
    for actor in ("learner/trainer", "worker-0-1/worker"):
        with Replay(resumed.run, actor) as replay:
            assert sum(1 for _ in replay) > 10


def worker_of(launched: Any) -> int | None:
    """The process of the worker on the second host."""
    return next(
        (each.pid for each in launched.process.children(recursive=True) if "worker-1-0" in words_of(each)), None
    )


def words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_hosts_have_both_from_the_start_of_the_run_even_if_the_folder_is_gone(
    launch: Any, installed: dict[str, str], words: list[str], tmp_path: Path
) -> None:
    hosts = ("--launch", "local", "--hosts", "2", "--scratch", str(tmp_path / "scratch"), "--workers", "1")
    launched = launch.command("run", "train", *words, *hosts, "--steps", "1000000000", **installed)
    launched.until_playing()
    launch.until_all_play(launched, "worker-1-0")
    (launch.folder / "mine").rename(launch.folder / "yours")
    killed = worker_of(launched)
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    launched.until(lambda: worker_of(launched) not in (None, killed))
    launch.until_all_play(launched, "worker-1-0")
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("ended in another way")
