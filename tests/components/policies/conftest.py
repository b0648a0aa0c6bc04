"""Small episodes to learn from."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch


@pytest.fixture
def spec() -> EnvSpec:
    return EnvSpec("tiny", n_agents=3, n_actions=5, obs_size=7, state_size=6, episode_limit=9)


@pytest.fixture
def make_batch(spec) -> Callable[..., EpisodeBatch]:
    def make(lengths=(4, 9, 1, 6), *, seed=0, padding=0.0, weights=None) -> EpisodeBatch:
        rng = np.random.default_rng(seed)
        e, t, a = len(lengths), max(lengths), spec.n_agents
        available = rng.random((e, t + 1, a, spec.n_actions)) < 0.6
        available[..., 0] = True
        batch = EpisodeBatch(
            obs=rng.standard_normal((e, t + 1, a, spec.obs_size), dtype=np.float32),
            state=rng.standard_normal((e, t + 1, spec.state_size), dtype=np.float32),
            available=available,
            actions=np.where(available[:, :-1], rng.random((e, t, a, spec.n_actions)), -1.0).argmax(-1),
            reward=rng.standard_normal((e, t), dtype=np.float32),
            lengths=np.array(lengths, np.int32),
            terminated=rng.random(e) < 0.5,
            weights=np.ones(e, np.float32) if weights is None else np.array(weights, np.float32),
        )
        for i, n in enumerate(lengths):
            batch.obs[i, n + 1 :] = batch.state[i, n + 1 :] = batch.reward[i, n:] = padding
            batch.available[i, n + 1 :] = False
            batch.actions[i, n:] = 0
        return batch

    return make


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Networks this small gain nothing from threads, and lose much where several test runs share a machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
