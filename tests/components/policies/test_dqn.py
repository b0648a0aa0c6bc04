"""DQN: its targets are those of the paper, a cut episode is none that ended, and it learns what to do."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from components.envs.base import EnvSpec
from components.experience import FieldSpec
from components.policies import EpisodeBatch
from components.policies.dqn import Dqn
from orchestra import UsageError

SPEC = EnvSpec("tiny", n_agents=1, n_actions=3, obs_size=4, state_size=4, episode_limit=9)
RNG = np.random.default_rng(0)


def batch_of(lengths: list[int], terminated: list[bool], agents: int = 1) -> EpisodeBatch:
    e, t = len(lengths), max(lengths)
    return EpisodeBatch(
        obs=RNG.normal(size=(e, t + 1, agents, 4)).astype(np.float32),
        state=np.zeros((e, t + 1, 4), np.float32),
        available=RNG.random((e, t + 1, agents, 3)) < [1.0, 0.5, 0.5],
        actions=RNG.integers(0, 3, (e, t, agents)),
        reward=RNG.normal(size=(e, t)).astype(np.float32),
        lengths=np.array(lengths, np.int32),
        terminated=np.array(terminated),
        weights=np.ones(e, np.float32),
    )


@pytest.mark.parametrize("double_q", [False, True])
def test_its_loss_is_that_of_the_paper_step_by_step(double_q: bool) -> None:
    policy = Dqn(SPEC, seed=1, width=8, gamma=0.9, double_q=double_q)
    with torch.no_grad():
        policy._target_flat.mul_(1.7)
    batch = batch_of([3, 1, 2], [True, False, False])  # the second and the third were cut, or go on
    losses, worst = [], np.zeros(3)
    for e, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            now, then = (torch.from_numpy(batch.obs[e, i, 0]) for i in (t, t + 1))
            with torch.no_grad():
                allowed = torch.from_numpy(batch.available[e, t + 1, 0])
                chooser = policy._q if double_q else policy._target_q
                best = chooser(then).masked_fill(~allowed, -torch.inf).argmax()
                ends = batch.terminated[e] and t == length - 1
                target = float(batch.reward[e, t]) + (0.0 if ends else 0.9 * float(policy._target_q(then)[best]))
                error = float(policy._q(now)[batch.actions[e, t, 0]]) - target
            losses.append(0.5 * error**2 if abs(error) < 1 else abs(error) - 0.5)
            worst[e] = max(worst[e], abs(error))
    learned = policy.learn(batch)
    assert learned.metrics["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    np.testing.assert_allclose(learned.priorities, worst, rtol=1e-5, atol=1e-6)


def test_the_target_network_follows_in_its_interval_alone() -> None:
    policy = Dqn(SPEC, seed=1, width=8, target_update_interval=3)
    batch = batch_of([2, 2], [False, True])
    start = policy._target_flat.clone()
    for update in range(1, 7):
        policy.learn(batch)
        assert torch.equal(policy._target_flat, policy._flat) == (update % 3 == 0)
    assert not torch.equal(start, policy._target_flat)


def test_it_learns_which_action_pays() -> None:
    policy = Dqn(replace(SPEC, n_agents=2), seed=1, width=16, learning_rate=1e-2)
    for _ in range(150):
        batch = batch_of([1] * 32, [True] * 32, agents=2)
        pays = batch.obs[:, :1, :, :3].argmax(-1)
        policy.learn(batch.replaced(reward=(batch.actions == pays).astype(np.float32)))
    obs = RNG.normal(size=(200, 2, 4)).astype(np.float32)
    free = np.ones((200, 2, 3), np.bool_)
    actions, _ = policy.act(obs, free, None, policy.initial_hidden(200), epsilon=0.0, rng=RNG)
    assert (actions == obs[..., :3].argmax(-1)).mean() > 0.85
    masked = free.copy()
    masked[..., 1:] = False
    actions, _ = policy.act(obs, masked, None, policy.initial_hidden(200), epsilon=0.5, rng=RNG)
    assert not actions.any()


def test_a_checkpoint_goes_on_bit_for_bit() -> None:
    one, other = Dqn(SPEC, seed=1, width=8), Dqn(SPEC, seed=2, width=8)
    batches = [batch_of([2, 3], [False, True]) for _ in range(4)]
    for batch in batches[:2]:
        one.learn(batch)
    other.load_state_dict(one.state_dict())
    for batch in batches[2:]:
        assert one.learn(batch).metrics == other.learn(batch).metrics
    assert one.params().tobytes() == other.params().tobytes()


def test_an_environment_that_it_cannot_play_is_refused_in_a_sentence() -> None:
    image = ("obs", FieldSpec((2, 2), "uint8", "frame", agents=True))
    mask = ("available", FieldSpec((3,), "bool", "frame", agents=True))
    actions = ("actions", FieldSpec((), "int64", agents=True, n_values=(3,)))
    box = ("actions", FieldSpec((2,), "float32", agents=True))
    reward = ("reward", FieldSpec((), "float32"))
    for fields in ((image, mask, actions, reward), (box, reward)):
        with pytest.raises(UsageError, match="flat observations and discrete actions, which tiny does not have"):
            Dqn(replace(SPEC, fields=fields), seed=0)
