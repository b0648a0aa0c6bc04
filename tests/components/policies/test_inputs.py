"""What the agents' network reads."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.policies.inputs import AgentInputs
from components.policies.packing import Packing


def packed(frames, frame_blocks, asked_blocks):
    none = np.zeros(0, np.int64)
    return Packing(frame_blocks, asked_blocks, frames, steps=none, departs=none, episode=none, last=none)


@settings(max_examples=40, deadline=None)
@given(n_frames=st.integers(1, 5), n_agents=st.integers(1, 4), size=st.integers(1, 3), seed=st.integers(0, 1000))
def test_every_row_finds_its_observation_or_its_pair(n_frames, n_agents, size, seed):
    rng = np.random.default_rng(seed)
    given = rng.integers(-1, 2, (10, n_agents, size)).astype(np.float32)
    frames = rng.choice(10, n_frames)
    last_actions = rng.integers(-1, 4, (n_frames, n_agents))
    inputs = AgentInputs.of(given, packed(frames, [n_frames], [n_frames]), last_actions, n_actions=4)
    n_pairs = 5 * n_agents
    pairs = torch.from_numpy((last_actions + 1) * n_agents + np.arange(n_agents)).view(-1)
    obs = torch.from_numpy(given[frames]).reshape(-1, size)
    living = obs.any(1)
    (rows,) = inputs.living
    assert inputs.blocks.tolist() == [n_frames * n_agents]
    assert torch.equal(rows.obs, obs[living])
    assert torch.equal(rows.pairs, pairs[living])
    assert torch.equal(inputs.picks[living], n_pairs + torch.arange(int(living.sum())))
    assert torch.equal(inputs.picks[~living], pairs[~living])


def test_frames_that_nobody_asks_for_pass_for_frames_that_see_nothing():
    given, last_actions = np.ones((3, 2, 5), np.float32), np.full((3, 2), -1)
    inputs = AgentInputs.of(given, packed(np.arange(3), [2, 1], [1, 1]), last_actions, n_actions=4)
    assert inputs.asked.tolist() == [2, 2]
    assert inputs.picks.tolist() == [10, 11, 0, 1, 12, 13]


def test_an_observation_of_no_numbers_is_not_taken_for_none():
    given = np.full((1, 1, 2), np.nan, np.float32)
    inputs = AgentInputs.of(given, packed(np.array([0]), [1], [1]), np.array([[-1]]), n_actions=4)
    assert len(inputs.living[0].obs) == 1


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), n_parts=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_row_finds_the_same_input_in_whatever_part(lengths, n_parts, seed):
    rng, (n_agents, n_actions) = np.random.default_rng(seed), (2, 3)
    packing = Packing.of(np.array(lengths, np.int32), np.zeros(len(lengths), np.bool_))
    given = rng.integers(-1, 2, (sum(lengths) + len(lengths), n_agents, 2)).astype(np.float32)
    last_actions = rng.integers(-1, n_actions, (len(packing.frames), n_agents))
    whole, parted = (AgentInputs.of(given, packing, last_actions, n_actions=n_actions, n_parts=n) for n in (1, n_parts))
    n_pairs, rows, start = (n_actions + 1) * n_agents, {}, 0
    for block in parted.blocks.tolist():
        for part, living in enumerate(parted.living):
            for row in range(parted.bounds[part], min(parted.bounds[part + 1], block)):
                pick = int(parted.picks[start + row])
                rows[start + row] = pick if pick < n_pairs else living.obs[pick - n_pairs].tolist()
        start += block
    assert sorted(rows) == list(range(len(whole.picks)))
    for row, found in rows.items():
        pick = int(whole.picks[row])
        assert found == (pick if pick < n_pairs else whole.living[0].obs[pick - n_pairs].tolist())
