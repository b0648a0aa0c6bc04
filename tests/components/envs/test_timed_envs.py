"""One thread of a process steps all its environments whose steps are shown later, and shows none before its time."""

import os
from functools import partial
from time import monotonic

import numpy as np
import pytest
from hosted_envs import Walk

from components.envs.asynchronous import pool
from components.envs.asynchronous.env import AsyncEnv
from components.envs.asynchronous.processes import EnvProcess
from components.envs.game_speed import STRAGGLER_S, USUAL_S, GameSpeed

pytestmark = pytest.mark.slow


def slowed(n_envs: int, per_process: int, min_batch: int = 1, **options) -> AsyncEnv:
    make = partial(GameSpeed, partial(Walk, **options))
    return AsyncEnv(make, n_envs, seed=3, min_batch=min_batch, envs_per_process=per_process, max_wait_s=0.0)


def drawn(env: AsyncEnv, steps: int) -> np.ndarray:
    """(steps, B): the times that the copies take."""
    alone = [GameSpeed(Walk, seed=env._seed_of(b, 0)) for b in range(env.n_envs)]
    return np.array([[copy._duration() for copy in alone] for _ in range(steps)])


def process_of(env: AsyncEnv, copy: int) -> tuple[EnvProcess, int]:
    """Return the process of a copy, and the pipe by which it tells of steps."""
    process = env._pool._processes[copy]
    assert process is not None
    assert process.done is not None
    return process, process.done


def threads_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads:"))


def test_a_process_has_one_thread_for_all_of_them_beside_that_which_watches_its_owner() -> None:
    env = slowed(6, 3)
    try:
        env.reset()
        assert [threads_of(pid) for pid in env.process_ids] == [2, 2]
    finally:
        env.close()


def test_all_copies_of_a_process_are_told_by_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    env = slowed(6, 3, min_batch=6)
    try:
        env.reset()
        written, write = [], os.write

        def counted(descriptor: int, data: bytes) -> int:
            written.append(bytes(data))
            return write(descriptor, data)

        monkeypatch.setattr(pool.os, "write", counted)
        env.step(np.zeros((6, 2), np.int64))
        assert written == [b"\0\1\2", b"\0\1\2"]
    finally:
        env.close()


def test_a_reply_of_a_copy_that_a_process_does_not_have_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    env = slowed(4, 2, min_batch=4)
    try:
        env.reset()
        process, done = process_of(env, 2)
        read = os.read
        monkeypatch.setattr(pool.os, "read", lambda file, size: b"\7" if file == done else read(file, size))
        env._pool._take(done)
        assert env.restarts == 2
        assert [each is process for each in env._pool._processes] == [False] * 4
    finally:
        env.close()


@pytest.mark.timeout(20)
def test_an_event_of_an_earlier_process_is_not_waited_for() -> None:
    env = slowed(4, 2, min_batch=4)
    try:
        env.reset()
        process, done = process_of(env, 2)
        for descriptor in (done, process.replies[2]):
            env._pool._take(descriptor)
        env.step(np.zeros((4, 2), np.int64))
        assert env.restarts == 0
    finally:
        env.close()


def test_copies_of_a_process_play_what_each_plays_in_a_process_of_its_own() -> None:
    played = []
    for per_process in (1, 4):
        env = slowed(4, per_process, min_batch=4)
        try:
            env.reset()
            said = []
            for t in range(12):
                env.step(np.full((4, 2), t % 2))
                said.append((env.obs.copy(), env.reward.copy(), env.terminated.copy()))
                if env.terminated.any():
                    env.reset(env.terminated.copy())
            played.append(said)
        finally:
            env.close()
    for one, other in zip(*played, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_no_step_is_shown_before_its_time_and_none_waits_for_a_slower_one() -> None:
    steps, n_envs = 40, 6
    env = slowed(n_envs, n_envs, length=1000)
    try:
        env.reset()
        left = drawn(env, steps)
        assert left.max() > STRAGGLER_S[0] > USUAL_S[1] > left.min()
        sent, made, overtaken = np.full(n_envs, monotonic()), np.zeros(n_envs, int), 0
        env.send(np.zeros((n_envs, 2), np.int64), np.arange(n_envs))
        while made.min() < 9:  # episodes of the walk are cut at nine steps
            ready = env.recv()
            now = monotonic()
            assert (now - sent[ready] >= left[made[ready], ready]).all()
            made[ready] += 1
            overtaken += int(made.max() - made.min() > 1)
            ready = ready[made[ready] < 9]
            sent[ready] = monotonic()
            env.send(np.zeros((len(ready), 2), np.int64), ready)
        assert overtaken, "fast copies go on while a straggler takes its time"
    finally:
        env.close()


@pytest.mark.parametrize("trouble", ["crash", "error", "nan"])
def test_a_copy_that_fails_is_replaced_with_those_of_its_process(tmp_path, trouble: str) -> None:
    env = slowed(4, 2, trouble=trouble, at=2, once=str(tmp_path / "once"))
    try:
        env.reset()
        lost = np.zeros(4, np.bool_)
        for _ in range(3):
            env.step(np.zeros((4, 2), np.int64))
            lost |= env.failed_copies()
        assert lost.sum() == 2
        assert (env.restarts, env.episodes_lost) == (2, 2)
        assert set(env.obs[~lost, 0, 2]) == {3.0}
    finally:
        env.close()


def test_a_failure_is_told_of_the_copy_that_failed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = slowed(2, 2, trouble="error", at=1, once=str(tmp_path / "once"))
    try:
        env.reset()
        failed, fail = [], env._pool._fail

        def noted(process: EnvProcess, b: int, trouble: Exception, **options: bool) -> None:
            failed.append(b)
            fail(process, b, trouble, **options)

        monkeypatch.setattr(env._pool, "_fail", noted)
        env.send(np.zeros((1, 2), np.int64), np.array([0]))
        while not failed:
            env.recv()
        assert failed == [0]
    finally:
        env.close()
