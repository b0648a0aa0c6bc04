"""Playing whole episodes with a policy that does not learn, and their results."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from components.acting_copies import ActingCopies
from components.envs.base import ALL, Env
from components.policies.acting import ActingPolicy
from components.rollout import ActingFactory, EnvFactory


class EpisodeResults(NamedTuple):
    """Results of E episodes."""

    won: NDArray[np.bool_]  # (E,)
    returns: NDArray[np.float64]  # (E,)
    lengths: NDArray[np.int64]  # (E,)


def play_once(
    make_env: EnvFactory,
    n_envs: int,
    seed: int,
    make_policy: ActingFactory,
    params: NDArray[np.float32],
    episodes: int,
    rng: np.random.Generator,
) -> EpisodeResults:
    """Make environments and a policy with `params`, `play` greedily, and close the environments, also on failure."""
    env = make_env(n_envs, seed=seed)
    try:
        policy = make_policy(env.spec, seed=0)
        policy.load(params)
        return play(env, policy, episodes, rng)
    finally:
        env.close()


def play(
    env: Env, policy: ActingPolicy, episodes: int, rng: np.random.Generator, *, epsilon: float = 0.0
) -> EpisodeResults:
    """Play `episodes` whole episodes, greedily by default, and return their results.

    The episodes that began first count. Counting those that ended first would favour short episodes.
    """
    rounds: list[EpisodeResults] = []
    copies = ActingCopies(env, policy, rng)
    while (left := episodes - sum(len(part.won) for part in rounds)) > 0:
        copies.begin(ALL)
        total = np.zeros(env.n_envs)
        length = np.zeros(env.n_envs, np.int64)
        victory = np.zeros(env.n_envs, np.bool_)
        playing = np.ones(env.n_envs, np.bool_)
        while playing.any():
            copies.act(epsilon)
            stepped, lost = copies.receive()
            counts = np.zeros(env.n_envs, np.bool_)
            counts[stepped] = playing[stepped]
            total[counts] += reward_of(env)[counts]
            length[counts] += 1
            victory[counts] |= env.won[counts]
            if lost is not None:  # their copies play another episode instead
                total[lost & playing] = 0.0
                length[lost & playing] = 0
            done = np.zeros(env.n_envs, np.bool_)
            done[stepped] = env.terminated[stepped] | env.truncated[stepped]
            playing &= ~done
            if not done.any():
                continue
            if not env.lock_step:
                copies.leave(np.flatnonzero(done))
            elif playing.any():
                copies.begin(np.flatnonzero(done))  # a finished copy continues with an episode that does not count
        count = min(left, env.n_envs)
        rounds.append(EpisodeResults(victory[:count], total[:count], length[:count]))
    return EpisodeResults(*map(np.concatenate, zip(*rounds, strict=True)))


def reward_of(env: Env) -> NDArray[np.float32]:
    """Return the reward (B,) of the step just made, the mean over agents where each has one."""
    reward = env.fields()["reward"]
    return reward if reward.ndim == 1 else reward.reshape(len(reward), -1).mean(1)
