"""StarCraft II's adapter, against a stand-in for the game that crashes, hangs and talks nonsense, in real processes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from components.envs.asynchronous.pool import EnvFailed
from components.envs.smac import Smac
from components.playing import play
from components.rollout import Rollout
from components.worker import Worker
from orchestra import UsageError
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

STAND_IN = Path(__file__).with_name("stand_in.py")
PATIENCE_S = 30.0
CHOICE = np.array([1, 3])


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the games' processes find `smac.env` in."""
    package = tmp_path / "packages" / "smac"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "env.py").write_text(STAND_IN.read_text())
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    return package


@pytest.fixture
def made(installed: Path):
    envs: list[Smac] = []

    def make(n_envs: int = 1, **options) -> Smac:
        envs.append(Smac("8m", n_envs, **options))
        return envs[-1]

    yield make
    for env in envs:
        processes = [psutil.Process(pid) for pid in env.process_ids]
        env.close()
        assert not any(process.is_running() for process in processes)


def same(n_envs: int) -> np.ndarray:
    return np.tile(CHOICE, (n_envs, 1))


def gone(pids: list[int]) -> bool:
    alive = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between two questions
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
    return not psutil.wait_procs(alive, timeout=PATIENCE_S)[1]


def gone_already(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_games_are_played_side_by_side_each_with_its_seed(made) -> None:
    env = made(2, seed=3)
    spec = env.spec
    sizes = (spec.n_agents, spec.n_actions, spec.obs_size, spec.state_size, spec.episode_limit)
    assert (spec.name, *sizes) == ("8m", 2, 4, 3, 2, 9)
    env.reset()
    seeds = env.obs[:, 0, 0].copy()
    assert seeds[0] != seeds[1]
    for t in range(1, 5):
        env.step(same(2))
        np.testing.assert_array_equal(env.obs[:, :, 1], t)
        np.testing.assert_array_equal(env.obs[:, 1], [[seeds[0], t, 1], [seeds[1], t, 1]])
        np.testing.assert_array_equal(env.state, [[seeds[0], t], [seeds[1], t]])
        np.testing.assert_array_equal(env.reward, 4.0)
        assert env.terminated.all() == env.won.all() == (t == 4)
    assert not env.truncated.any()
    assert not env.failed_copies().any()
    with pytest.raises(ValueError, match="copy 0 is over: reset it"):
        env.step(same(2))
    env.reset(np.array([True, False]))
    assert (env.terminated.tolist(), env.reward.tolist()) == ([False, True], [0.0, 4.0])
    assert (env.restarts, env.episodes_lost) == (0, 0)


def test_an_episode_that_is_cut_is_truncated(made) -> None:
    env = made(length=99, limit=2)
    env.reset()
    env.step(same(1))
    env.step(same(1))
    assert (env.terminated[0], env.truncated[0], env.won[0]) == (False, True, False)


def test_what_is_not_available_is_refused_before_any_game_steps(made) -> None:
    env = made()
    env.reset()
    with pytest.raises(ValueError, match=r"copy 0, agent 1: action 2 is not available, of these one is: \[0, 3\]"):
        env.step(np.array([[1, 2]]))
    with pytest.raises(ValueError, match=r"must be integers \(1, 2\)"):
        env.step(np.zeros((1, 3), np.int64))
    env.step(same(1))
    assert env.obs[0, 0, 1] == 1


TROUBLES = ["crash", "error", "hang", "garbage", "flood", "shape", "nan", "none", "protocol"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_game_in_trouble_is_replaced_and_its_episode_dropped(made, tmp_path: Path, trouble: str) -> None:
    timeout = {"step_timeout_s": 3.0} if trouble == "hang" else {}
    env = made(2, trouble=trouble, once=str(tmp_path / "once"), **timeout)
    env.reset()
    env.step(same(2))
    env.step(same(2))
    lost = env.failed_copies().copy()
    assert lost.sum() == 1
    assert (env.restarts, env.episodes_lost) == (1, 1)
    np.testing.assert_array_equal(env.obs[:, 0, 1], np.where(lost, 0, 2))
    np.testing.assert_array_equal(env.reward, np.where(lost, 0.0, 4.0))
    assert not (env.terminated | env.truncated).any()
    env.step(same(2))
    assert not env.failed_copies().any()
    np.testing.assert_array_equal(env.obs[:, 0, 1], np.where(lost, 1, 3))


def test_a_game_that_never_begins_is_given_up(made) -> None:
    env = made(trouble="error", at=0)
    with pytest.raises(EnvFailed, match="no episode begins after 3 tries; the last: ConnectionError: the game is gone"):
        env.reset()
    assert env.restarts == 3


def test_sizes_that_make_no_sense_are_not_believed(installed: Path) -> None:
    with pytest.raises(
        EnvFailed, match="no environment can be made after 3 tries; the last: ValueError: the game's sizes"
    ):
        Smac("8m", trouble="sizes")


def test_the_optimiser_of_that_name_is_refused_with_what_to_install(installed: Path) -> None:
    (installed / "env.py").unlink()
    with pytest.raises(UsageError) as caught:
        Smac("8m")
    said = str(caught.value)
    assert "the package 'smac' that is installed is not the StarCraft challenge" in said
    assert "pip install git+https://github.com/oxwhirl/smac.git" in said
    assert "\n" not in said


def test_without_any_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"the StarCraft challenge is not installed: .*oxwhirl/smac"):
        Smac("8m")


@pytest.mark.parametrize("options", [{"n_envs": 0}, {"seed": -1}, {"step_timeout_s": 0.0}])
def test_numbers_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match="must be"):
        Smac("8m", **options)


def test_close_ends_what_the_game_has_started(made, tmp_path: Path) -> None:
    env = made(child=str(tmp_path / "pids"))
    env.reset()
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert gone(pids[:1])  # of the game that was made to learn its sizes
    assert not gone_already(pids[1])
    env.close()
    assert gone(pids)
    with pytest.raises(EnvFailed, match="the environments are closed"):
        env.reset()


def test_no_process_outlives_a_parent_that_is_killed_even_if_the_game_hangs(installed: Path, tmp_path: Path) -> None:
    program = f"""
import sys
import numpy as np
from components.envs.smac import Smac
env = Smac("8m", child={str(tmp_path / "pids")!r}, trouble="hang", at=1)
env.reset()
print(*env.process_ids, flush=True)
env.step(np.array([[1, 3]]))
"""
    root = str(Path(__file__).resolve().parents[3])
    environ = os.environ | {"PYTHONPATH": f"{installed.parent}{os.pathsep}{root}"}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(parent.stdout.readline()), *map(int, (tmp_path / "pids").read_text().split())]
        parent.send_signal(signal.SIGKILL)
    assert gone(pids)


def test_a_lost_episode_reaches_nobody_who_learns(made, scripted, tmp_path: Path) -> None:
    env = made(2, trouble="crash", once=str(tmp_path / "once"))
    policy = scripted(env.spec, seed=0)
    rollout = Rollout(env, policy, np.random.default_rng(0))
    lengths, steps = [], []
    while len(lengths) < 6:
        episodes = rollout.collect(4, 0.0)
        if episodes is not None:
            lengths += episodes.lengths.tolist()
            steps += episodes["obs"][:, 0, 1].tolist()
    assert set(lengths) == {4}
    assert steps == [0.0, 1.0, 2.0, 3.0, 4.0] * len(lengths)
    assert env.episodes_lost == 1


def test_a_lost_episode_is_not_counted_in_a_test(made, scripted, tmp_path: Path) -> None:
    env = made(2, trouble="crash", once=str(tmp_path / "once"))
    played = play(env, scripted(env.spec, seed=0), 2, np.random.default_rng(0))
    assert played.lengths.tolist() == [4, 4]
    assert played.won.all()
    assert env.episodes_lost == 1


def test_an_experiment_plays_the_game_by_a_flag(installed: Path) -> None:
    function = load_experiment(Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py")
    topology = build(function, Flags.of(function).parse(["--env", "smac", "--envs-per-worker", "2"]))
    (worker,) = [actor for node in topology.nodes.values() for actor in node.actors if issubclass(actor.kind, Worker)]
    env = worker.factory.keywords["env"](1, seed=0)
    assert repr(env) == "<Smac 8m x 1>"
    env.close()
