"""Environments for processes: they play by arithmetic, and crash, hang and wait when told to."""

import ctypes
import os
import time
from pathlib import Path

import numpy as np

from components.envs.base import Env, EnvSpec


def first(path: str) -> bool:
    """Return True for the first caller in any process."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def wait(gate: str) -> None:
    """Wait until there is this file."""
    while not Path(gate).exists():
        time.sleep(0.005)


def misbehave(trouble: str) -> None:
    if trouble == "crash":
        os._exit(1)
    if trouble == "error":
        raise ConnectionError("it is gone")
    if trouble == "hang":
        time.sleep(600)
    if trouble == "hang in C":
        ctypes.PyDLL(None).sleep(600)  # without releasing the GIL


class Walk(Env):
    """Episodes of `length` steps, cut at 9; observations are the seed, the episode, and the step.

    In step `at` of any episode the first copy that makes the file `once` gets into `trouble`. It may also `wait` until
    there is the file `gate`,or `let one through`, while all others wait.
    """

    def __init__(self, n_envs=1, *, seed=0, length=4, trouble="", at=2, once="", gate=""):
        self.n_envs = n_envs
        self.spec = EnvSpec("walk", n_agents=2, n_actions=3, obs_size=3, state_size=1, episode_limit=9)
        self._allocate()
        self.available[:] = [True, True, False]
        self._seed, self._length = seed % 1000, length
        self._trouble, self._at, self._once, self._gate = trouble, at, once, gate
        self._episode, self._t = -1, 0

    def reset(self, which=None):
        self._episode += 1
        self._t = 0
        self.reward[0], self.terminated[0], self.truncated[0], self.won[0] = 0.0, False, False, False
        self._look()

    def step(self, actions):
        self._t += 1
        self.reward[0] = actions.sum()
        self.terminated[0] = self.won[0] = self._t == self._length
        self.truncated[0] = self._t == 9 != self._length
        self._look()
        if self._t != self._at or not self._trouble:
            return
        if self._trouble == "let one through":
            if not first(self._once):
                wait(self._gate)
        elif not self._once or first(self._once):
            misbehave(self._trouble)
            if self._trouble == "wait":
                wait(self._gate)
            if self._trouble == "nan":
                self.obs[0, 0, 0] = np.nan
            if self._trouble == "no action":
                self.available[0, 0] = False

    def _look(self):
        self.obs[0] = [self._seed, self._episode, self._t]
        self.state[0] = self._t
