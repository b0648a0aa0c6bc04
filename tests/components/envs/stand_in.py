"""A stand-in for the package `smac.env`: its class's interface, played by arithmetic, and misbehaving when told to."""

import os
import subprocess
import sys
import time
from pathlib import Path


def _replies():
    """Return the descriptor of the pipe that this process writes its replies to."""
    for name in os.listdir("/proc/self/fd"):
        flags = (
            Path(f"/proc/self/fdinfo/{name}").read_text().split() if Path(f"/proc/self/fdinfo/{name}").exists() else []
        )
        if int(name) > 2 and flags and int(flags[3], 8) & os.O_WRONLY:
            return int(name)
    raise AssertionError("no pipe to write to")


class StarCraft2Env:
    """Episodes of `length` steps; observations name the seed and the step. `trouble` comes once, at step `at`."""

    def __init__(self, map_name, seed, continuing_episode, length=4, limit=9, trouble="", at=2, once=None, child=None):
        assert continuing_episode
        self.force_restarts = 0
        self._seed, self._length, self._limit = seed % 1000, length, limit
        self._trouble, self._at, self._once = trouble, at, once and Path(once)
        if child:
            game = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with Path(child).open("a") as file:
                file.write(f"{game.pid}\n")
        self._t = 0

    def get_env_info(self):
        if self._trouble == "sizes":
            return dict.fromkeys(("state_shape", "obs_shape", "n_actions", "n_agents", "episode_limit"), -1)
        return {"state_shape": 2, "obs_shape": 3, "n_actions": 4, "n_agents": 2, "episode_limit": self._limit}

    def reset(self):
        self._t = 0
        self._misbehave(0)

    def step(self, actions):
        self._t += 1
        self._misbehave(self._t)
        if self._broken():
            self.force_restarts += 1
            return 0, True, {}
        cut = self._t >= self._limit
        info = {"battle_won": self._t == self._length, "dead_allies": 0, "dead_enemies": 0}
        if cut:
            info["episode_limit"] = True
        return float(sum(actions)), self._t == self._length or cut, info

    def _broken(self):
        return self._trouble == "protocol" and self._t == self._at and self._first()

    def _first(self):
        if self._once is None:
            return True
        try:
            self._once.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _misbehave(self, t):
        if t != self._at or self._trouble in ("", "protocol", "shape", "nan", "none") or not self._first():
            return
        if self._trouble == "crash":
            os._exit(1)
        if self._trouble == "error":
            raise ConnectionError("the game is gone")
        if self._trouble == "hang":
            time.sleep(600)
        if self._trouble == "garbage":
            os.write(_replies(), b"what\xff")
            time.sleep(600)
        if self._trouble == "flood":
            os.write(_replies(), b"i" + b"\xff" * 8)
            time.sleep(600)

    def get_obs(self):
        values = [[self._seed, self._t, agent] for agent in range(2)]
        if self._t == self._at and self._trouble in ("shape", "nan") and self._first():
            return values[:1] if self._trouble == "shape" else [[float("nan")] * 3] * 2
        return values

    def get_state(self):
        return [self._seed, self._t]

    def get_avail_actions(self):
        if self._t == self._at and self._trouble == "none" and self._first():
            return [[0] * 4] * 2
        return [[0, 1, 1, 0], [1, 0, 0, 1]]

    def close(self):
        pass
