"""Gymnasium environments for processes; apart from the others, which need no Gymnasium."""

import gymnasium
import numpy as np
from gymnasium import spaces
from hosted_envs import first, misbehave


class Machine(gymnasium.Env):
    """A Gymnasium environment with structured spaces; the fifth step of each episode ends it."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Box(-10, 10, (2, 3), np.float64),
            "parts": spaces.Tuple((spaces.Discrete(50), spaces.MultiBinary(4))),
        }
    )
    action_space = spaces.Dict({"go": spaces.Discrete(5), "push": spaces.Box(-1, 1, (2,), np.float32)})

    def __init__(self, trouble="", at=3, once=""):
        self._trouble, self._at, self._once = trouble, at, once

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t, self._sum = 0, 0.0
        return self._seen(), {"begun": True, "options": options or {}}

    def step(self, action):
        self._t += 1
        self._sum += float(action["go"]) + float(action["push"].sum())
        if self._t == self._at and self._trouble and first(self._once):
            misbehave(self._trouble)
        return self._seen(), self._sum, self._t == 5, False, {"t": self._t, "pair": np.array([self._t, self._t + 1])}

    def _seen(self):
        place = np.full((2, 3), self._sum) + self.np_random.random((2, 3))
        return {"place": place.clip(-10, 10), "parts": (np.int64(self._t), np.array([1, 0, self._t % 2, 1], np.int8))}


class Unsized(gymnasium.Env):
    observation_space = spaces.Text(5)
    action_space = spaces.Discrete(2)
