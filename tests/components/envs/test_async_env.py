"""Environments in processes play what they would play here, and outlive neither their owner nor their own crashes."""

import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import psutil
import pytest
from hosted_envs import Walk

from components.envs import AsyncEnv, EnvFailed, Skirmish
from orchestra import UsageError

PATIENCE_S = 30.0


@pytest.fixture
def made():
    envs: list[AsyncEnv] = []

    def make(n_envs: int = 1, *, walk: dict | None = None, **options) -> AsyncEnv:
        envs.append(AsyncEnv(partial(Walk, **(walk or {})), n_envs, **options))
        return envs[-1]

    yield make
    for env in envs:
        processes = [psutil.Process(pid) for pid in env.process_ids if psutil.pid_exists(pid)]
        env.close()
        assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


def ones(n_envs: int) -> np.ndarray:
    return np.ones((n_envs, 2), np.int64)


def template_of(pid: int) -> psutil.Process:
    return psutil.Process(pid).parent()


def test_copies_play_what_each_plays_in_this_process(made) -> None:
    env = AsyncEnv(partial(Skirmish, "3m"), 3, seed=5, envs_per_process=2)
    try:
        alone = [Skirmish("3m", 1, seed=env._seed_of(b, 0)) for b in range(3)]
        assert env.spec == alone[0].spec
        env.reset()
        for each in alone:
            each.reset()
        for _ in range(70):
            actions = env.available.argmax(-1) if env.obs.sum() % 2 else env.available.cumsum(-1).argmax(-1)
            env.step(actions)
            for b, each in enumerate(alone):
                each.step(actions[b : b + 1])
                for name in ("obs", "state", "available", "reward", "terminated", "truncated", "won"):
                    np.testing.assert_array_equal(getattr(env, name)[b], getattr(each, name)[0], err_msg=name)
            over = env.terminated | env.truncated
            if over.any():
                env.reset(over)
                for b in np.flatnonzero(over):
                    alone[b].reset()
    finally:
        env.close()


def test_the_copies_that_are_ready_are_received_while_another_one_waits(made, tmp_path: Path) -> None:
    env = made(
        3, walk={"trouble": "wait", "once": str(tmp_path / "once"), "gate": str(tmp_path / "gate"), "length": 90}
    )
    env.reset()
    env.step(ones(3))
    steps = np.zeros(3, np.int64)
    ready = np.arange(3)
    while steps.sum() < 6:
        env.send(ones(len(ready)), ready)
        while len(ready := env.recv()) == 0:
            pass
        steps[ready] += 1
    slow = int(steps.argmin())
    assert steps[slow] == 0
    assert slow not in ready
    with pytest.raises(ValueError, match=f"copy {slow} is under way: receive it first"):
        env.send(ones(1), np.array([slow]))
    (tmp_path / "gate").touch()
    received = ready
    while slow not in received:
        received = env.recv()
    assert env.obs[slow, 0, 2] == 2


def test_a_minimum_batch_of_all_waits_for_all(made) -> None:
    env = made(3, walk={"length": 90}, min_batch=3, max_wait_s=0.0)
    env.send_reset(np.arange(3))
    for _ in range(8):
        assert env.recv().tolist() == [0, 1, 2]
        env.send(ones(3), np.arange(3))


def test_a_smaller_batch_is_received_after_the_maximum_wait(made, tmp_path: Path) -> None:
    trouble = {"trouble": "let one through", "at": 1, "once": str(tmp_path / "once"), "gate": str(tmp_path / "gate")}
    env = made(3, walk=trouble, min_batch=2, max_wait_s=0.01)
    env.reset()
    env._turn_s = 10.0
    since = monotonic()
    env.send(ones(3), np.arange(3))
    assert len(env.recv()) == 1
    assert monotonic() - since < 10.0  # the maximum wait has ended it, not the turn
    (tmp_path / "gate").touch()
    assert len(env.recv()) == 2


def test_receiving_returns_none_after_a_while(made, tmp_path: Path) -> None:
    env = made(2, walk={"trouble": "wait", "at": 1, "gate": str(tmp_path / "gate")})
    env.reset()
    env.send(ones(2), np.arange(2))
    assert env.recv().tolist() == []
    (tmp_path / "gate").touch()
    assert len(env.recv()) >= 1


TROUBLES = ["crash", "error", "hang", "hang in C", "nan", "no action"]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_environment_in_trouble_is_replaced_and_its_episode_dropped(made, tmp_path: Path, trouble: str) -> None:
    timeout = {"step_timeout_s": 2.0} if "hang" in trouble else {}
    env = made(3, walk={"trouble": trouble, "once": str(tmp_path / "once")}, **timeout)
    env.reset()
    before, seeds = env.process_ids, env.obs[:, 0, 0].copy()
    env.step(ones(3))
    env.step(ones(3))
    lost = env.failed_copies().copy()
    assert lost.sum() == 1
    assert (env.restarts, env.episodes_lost) == (1, 1)
    assert len(set(env.process_ids) & set(before)) == 2
    np.testing.assert_array_equal(env.obs[:, 0, 2], np.where(lost, 0, 2))
    np.testing.assert_array_equal(env.obs[:, 0, 0] != seeds, lost)  # another seed
    np.testing.assert_array_equal(env.reward, np.where(lost, 0.0, 2.0))
    assert not (env.terminated | env.truncated).any()
    env.step(ones(3))
    assert not env.failed_copies().any()
    np.testing.assert_array_equal(env.obs[:, 0, 2], np.where(lost, 1, 3))


def test_a_process_that_is_killed_between_two_steps_is_replaced(made) -> None:
    env = made(2)
    env.reset()
    env.step(ones(2))
    victim = psutil.Process(env.process_ids[0])
    victim.kill()
    env.step(ones(2))
    while not env.failed_copies().any():  # the step may be made before the process is gone
        env.step(ones(2))
    assert env.failed_copies().sum() == 1
    assert env.episodes_lost == env.restarts == 1


def test_an_episode_that_has_ended_is_not_lost_with_its_process(made) -> None:
    env = made(1, walk={"length": 1})
    env.reset()
    env.step(ones(1))
    assert env.terminated[0]
    os.kill(env.process_ids[0], signal.SIGKILL)
    env.reset()
    assert not env.failed_copies().any()
    assert (env.obs[0, 0, 2], env.episodes_lost) == (0, 0)


def test_the_copies_of_a_process_share_its_end(made, tmp_path: Path) -> None:
    env = made(5, walk={"trouble": "crash", "once": str(tmp_path / "once")}, envs_per_process=2)
    env.reset()
    assert len(env.process_ids) == 3
    env.step(ones(5))
    env.step(ones(5))
    lost = env.failed_copies()
    assert lost.tolist() in ([True, True, False, False, False], [False, False, True, True, False], [False] * 4 + [True])
    assert env.episodes_lost == lost.sum()
    assert len(env.process_ids) == 3
    np.testing.assert_array_equal(env.obs[:, 0, 2], np.where(lost, 0, 2))


def test_without_the_process_that_all_are_forked_from_they_go_on_and_are_replaced(made) -> None:
    env = made(2, walk={"length": 90})
    env.reset()
    template = template_of(env.process_ids[0])
    template.kill()
    template.wait(PATIENCE_S)
    env.step(ones(2))
    assert not env.failed_copies().any()
    os.kill(env.process_ids[0], signal.SIGKILL)
    while not env.failed_copies().any():
        env.step(ones(2))
    assert len(env.process_ids) == 2
    assert env.episodes_lost == 1
    assert template_of(env.process_ids[1]).pid != template.pid or template_of(env.process_ids[0]).pid != template.pid


def test_an_environment_that_never_begins_is_given_up(made, tmp_path: Path) -> None:
    env = made(1, walk={"trouble": "crash", "at": 1})
    env.reset()
    for _ in range(5):  # an episode that begins and is lost is no failure to begin
        env.step(ones(1))
    assert (env.episodes_lost, env.failed_copies().tolist()) == (5, [True])
    os.kill(env.process_ids[0], signal.SIGKILL)
    env._pool._template._request["factory"] = 5
    env._pool._template.close()
    with pytest.raises(EnvFailed, match="no environment after 3 tries; the last: "):
        env.reset()


def test_an_environment_that_cannot_be_made_says_why() -> None:
    with pytest.raises(EnvFailed, match=r"no environment can be made after 3 tries; .* TypeError: .* 'colour'"):
        AsyncEnv(partial(Walk, colour="red"), 1)


def test_a_lambda_is_refused_with_what_to_give() -> None:
    with pytest.raises(UsageError, match=r"a function or class that can be imported, or a functools\.partial"):
        AsyncEnv(lambda n_envs, *, seed: Walk(n_envs, seed=seed), 1)


@pytest.mark.parametrize(
    "options",
    [
        {"n_envs": 0},
        {"seed": -1},
        {"min_batch": 0},
        {"max_wait_s": -1.0},
        {"envs_per_process": 0},
        {"envs_per_process": 101},
    ],
)
def test_numbers_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*, must be"):
        AsyncEnv(Walk, **options)


def test_actions_are_checked_before_any_copy_steps(made) -> None:
    env = made(2)
    with pytest.raises(ValueError, match="copy 0 is over: reset it"):
        env.step(ones(2))
    env.reset()
    with pytest.raises(ValueError, match=r"copy 1, agent 0: action 2 is not available, of these one is: \[0, 1\]"):
        env.step(np.array([[1, 1], [2, 1]]))
    with pytest.raises(ValueError, match=r"must be integers \(2, 2\)"):
        env.step(ones(3))
    env.step(ones(2))
    np.testing.assert_array_equal(env.obs[:, 0, 2], 1)


def test_a_snapshot_is_not_taken(made) -> None:
    assert made(1).snapshot() is None


@pytest.mark.parametrize(("trouble", "templates"), [("", 1), ("hang", 1), ("hang in C", 1), ("hang", 0)])
def test_nothing_outlives_an_owner_that_is_killed(trouble: str, templates: int, tmp_path: Path) -> None:
    program = f"""
import numpy as np
from functools import partial
from hosted_envs import Walk
from components.envs import AsyncEnv
env = AsyncEnv(partial(Walk, trouble={trouble!r}, at=1), 3, envs_per_process=2)
env.reset()
print(*env.process_ids, flush=True)
env.send(np.ones((3, 2), np.int64), np.arange(3))
input()
"""
    root = str(Path(__file__).resolve().parents[3])
    environ = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{root}"}
    shared = set(os.listdir("/dev/shm"))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], env=environ, text=True, **pipes) as parent:
        processes = [psutil.Process(int(word)) for word in parent.stdout.readline().split()]
        processes.append(processes[0].parent())
        assert len(processes) == 3
        if not templates:  # it is killed before
            processes[2].kill()
            end = monotonic() + PATIENCE_S
            while processes[2].status() != psutil.STATUS_ZOMBIE:  # its parent does not ask for its exit code
                assert monotonic() < end
            assert all(process.is_running() for process in processes[:2])
        parent.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]
    assert set(os.listdir("/dev/shm")) - shared == set()


def test_a_function_of_the_program_itself_makes_environments(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from hosted_envs import Walk\n"
        "from components.envs import AsyncEnv\n"
        "def make(n_envs, *, seed): return Walk(n_envs, seed=7)\n"
        "if __name__ == '__main__':\n"
        "    env = AsyncEnv(make, 2)\n"
        "    env.reset()\n"
        "    print(env.obs[:, 0, 0].tolist())\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    environ = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{root}"}
    told = subprocess.run([sys.executable, program], env=environ, capture_output=True, text=True, check=True)
    assert told.stdout == "[7.0, 7.0]\n"


def test_an_environment_may_be_driven_from_any_thread(made) -> None:
    env = made(2)
    thread = threading.Thread(target=env.reset)
    thread.start()
    thread.join(PATIENCE_S)
    env.step(ones(2))
    np.testing.assert_array_equal(env.obs[:, 0, 2], 1)
