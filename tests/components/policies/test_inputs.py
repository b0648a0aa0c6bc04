"""What the agents' network reads, and the layer that reads it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.policies.embed import embed, embedded_by_torch
from components.policies.inputs import AgentInputs
from components.policies.packing import Packing
from components.policies.scratch import Scratch


def packed(frames, frame_blocks, asked_blocks):
    none = np.zeros(0, np.int64)
    return Packing(frame_blocks, asked_blocks, frames, steps=none, departs=none, episode=none, last=none)


@settings(max_examples=40, deadline=None)
@given(n_frames=st.integers(1, 5), n_agents=st.integers(1, 4), size=st.integers(1, 3), seed=st.integers(0, 1000))
def test_every_row_finds_its_observation_or_its_pair(n_frames, n_agents, size, seed):
    rng = np.random.default_rng(seed)
    padded = rng.integers(-1, 2, (2, 5, n_agents, size)).astype(np.float32)
    frames = rng.choice(10, n_frames)
    last_actions = rng.integers(-1, 4, (n_frames, n_agents))
    inputs = AgentInputs.of(padded, packed(frames, [n_frames], [n_frames]), last_actions, n_actions=4)
    n_pairs = 5 * n_agents
    pairs = torch.from_numpy((last_actions + 1) * n_agents + np.arange(n_agents)).view(-1)
    obs = torch.from_numpy(padded.reshape(10, n_agents, size)[frames]).reshape(-1, size)
    living = obs.any(1)
    assert inputs.blocks == (n_frames * n_agents,)
    assert torch.equal(inputs.obs, obs[living])
    assert torch.equal(inputs.pairs, pairs[living])
    assert torch.equal(inputs.picks[living], n_pairs + torch.arange(int(living.sum())))
    assert torch.equal(inputs.picks[~living], pairs[~living])


def test_frames_that_nobody_asks_for_pass_for_frames_that_see_nothing():
    padded, last_actions = np.ones((3, 2, 5), np.float32), np.full((3, 2), -1)
    inputs = AgentInputs.of(padded, packed(np.arange(3), [2, 1], [1, 1]), last_actions, n_actions=4)
    assert inputs.asked == (2, 2)
    assert inputs.picks.tolist() == [10, 11, 0, 1, 12, 13]


def test_an_observation_of_no_numbers_is_not_taken_for_none():
    padded = np.full((1, 1, 1, 2), np.nan, np.float32)
    assert len(AgentInputs.of(padded, packed(np.array([0]), [1], [1]), np.array([[-1]]), n_actions=4).obs) == 1


@settings(max_examples=20, deadline=None)
@given(living=st.integers(0, 9), pairs=st.integers(1, 6), size=st.integers(1, 40), seed=st.integers(0, 1000))
def test_the_layer_and_its_gradients_are_those_of_torch(living, pairs, size, seed):
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    obs, w, table = random(living, 3), random(size, 3).requires_grad_(), random(pairs, size).requires_grad_()
    picked, push = torch.randint(pairs, (living,), generator=generator), random(pairs + living, size)
    got, want = (
        [x, *torch.autograd.grad(x, [w, table], push)]
        for x in (embed(obs, w, picked, table, Scratch()), embedded_by_torch(obs, w, picked, table))
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
