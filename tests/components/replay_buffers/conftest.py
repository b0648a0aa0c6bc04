"""Small episodes to keep."""

import numpy as np
import pytest

from components.envs.base import EnvSpec


@pytest.fixture(scope="session")
def spec() -> EnvSpec:
    return EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


@pytest.fixture(scope="session")
def make_episodes(spec):
    """Return a function that makes what `insert` takes; every number in an episode tells which it is."""

    def make(lengths, *, first=0):
        e, n = len(lengths), sum(lengths)
        frames = np.concatenate([first + i + np.arange(k + 1) / 10 for i, k in enumerate(lengths)])
        steps = np.concatenate([first + i + np.arange(k) / 10 for i, k in enumerate(lengths)])
        per_agent = frames[:, None, None] + np.arange(spec.n_agents)[:, None] * 100.0
        return {
            "obs": np.broadcast_to(per_agent, (n + e, spec.n_agents, spec.obs_size)).astype(np.float32),
            "state": np.broadcast_to(-1 - frames[:, None], (n + e, spec.state_size)).astype(np.float32),
            "available": np.broadcast_to(
                (frames * 10).round().astype(int)[:, None, None] % 3 != np.arange(spec.n_actions),
                (n + e, spec.n_agents, spec.n_actions),
            ).copy(),
            "actions": np.broadcast_to((steps * 10).round().astype(np.int64)[:, None] % 3, (n, spec.n_agents)).copy(),
            "reward": (steps + 0.5).astype(np.float32),
            "terminated": np.arange(first, first + e) % 2 == 0,
            "lengths": np.array(lengths, np.int32),
        }

    return make
