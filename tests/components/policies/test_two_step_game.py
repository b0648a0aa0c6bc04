"""The two-step matrix game of the QMIX paper (§5), where a sum of values is not enough."""

import numpy as np
import pytest

from components.envs.base import Env, EnvSpec
from components.policies import Qmix, Vdn
from components.replay_buffers import EpisodeReplay, Episodes

PAYOFF = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)  # after the first agent's 0, after its 1


class TwoStepGame(Env):
    """The first agent's first action picks one of two matrices, the second joint action an entry of it.

    The first matrix gives 7 whatever is done; the second gives 8, but only to agents that both dare.
    """

    def __init__(self, n_envs: int) -> None:
        self.spec = EnvSpec("two_step", n_agents=2, n_actions=2, obs_size=3, state_size=3, episode_limit=2)
        self.n_envs = n_envs
        self.obs = np.zeros((n_envs, 2, 3), np.float32)
        self.state = np.zeros((n_envs, 3), np.float32)
        self.available = np.ones((n_envs, 2, 2), np.bool_)
        self.reward = np.zeros(n_envs, np.float32)
        self.terminated, self.truncated, self.won = (np.zeros(n_envs, np.bool_) for _ in range(3))
        self._at = np.zeros(n_envs, np.int64)

    def reset(self, which=None):
        self._show(np.zeros_like(self._at) if which is None else np.where(which, 0, self._at))
        self.terminated[slice(None) if which is None else which] = False

    def step(self, actions):
        second = self._at > 0
        self.reward[:] = np.where(second, PAYOFF[self._at - 1, actions[:, 0], actions[:, 1]], 0.0)
        self.terminated[:] = second
        self._show(np.where(second, self._at, 1 + actions[:, 0]))

    def _show(self, at):
        self._at = at
        self.state[:] = np.eye(3, dtype=np.float32)[at]
        self.obs[:] = self.state[:, None]


def play(env, policy, *, epsilon, rng):
    """Play one episode in every copy; return them as `EpisodeReplay.insert` takes them."""
    env.reset()
    hidden, last = policy.initial_hidden(env.n_envs), np.full((env.n_envs, 2), -1)
    obs, state, actions, reward = [env.obs.copy()], [env.state.copy()], [], []
    for _ in range(2):
        last, hidden = policy.act(env.obs, env.available, last, hidden, epsilon=epsilon, rng=rng)
        env.step(last)
        obs.append(env.obs.copy())
        state.append(env.state.copy())
        actions.append(last)
        reward.append(env.reward.copy())
    return {
        "obs": np.stack(obs, 1).reshape(-1, 2, 3),
        "state": np.stack(state, 1).reshape(-1, 3),
        "available": np.ones((3 * env.n_envs, 2, 2), np.bool_),
        "actions": np.stack(actions, 1).reshape(-1, 2),
        "reward": np.stack(reward, 1).reshape(-1),
        "terminated": env.terminated.copy(),
        "lengths": np.full(env.n_envs, 2, np.int32),
    }


@pytest.mark.parametrize(("algorithm", "payoff"), [(Qmix, 8.0), (Vdn, 7.0)], ids=["Qmix", "Vdn"])
@pytest.mark.parametrize("seed", [0, 1])
def test_qmix_finds_the_eight_and_vdn_is_content_with_seven(algorithm, payoff, seed):
    rng, env = np.random.default_rng(seed), TwoStepGame(256)
    policy = algorithm(
        env.spec, hidden_size=32, learning_rate=3e-3, optimizer="adam", target_update_interval=25, seed=seed
    )
    replay = EpisodeReplay(env.spec, 2048)
    for _ in range(8):
        replay.insert(Episodes(**play(env, policy, epsilon=1.0, rng=rng)))  # as in the paper: no bias from exploring
    for _ in range(400):
        policy.learn(replay.sample(64, rng).batch)
    played = play(env, policy, epsilon=0.0, rng=rng)
    assert played["reward"].reshape(-1, 2).sum(1).tolist() == [payoff] * 256
