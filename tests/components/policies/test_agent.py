"""The agents' network over packed episodes, against the same network by operations of torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from components.policies.agent import agent_values, agent_values_by_torch
from components.policies.inputs import AgentInputs
from components.policies.packing import Packing
from components.policies.scratch import Scratch


class Case:
    """A network and packed episodes, in which some agents see nothing.

    Args:
        lengths: steps of each episode.
        n_agents: A.
        n_actions: U.
        hidden: H.
        seed: of all numbers.
        terminated: whether the battles were over, so that nobody asks for their last frames.
        dtype: of the network.
    """

    def __init__(self, lengths, n_agents=2, n_actions=3, hidden=5, seed=0, *, terminated=True, dtype=torch.float64):
        rng, obs_size = np.random.default_rng(seed), 4
        self.n_agents, self.n_actions = n_agents, n_actions
        self.packing = Packing.of(np.array(lengths, np.int32), np.full(len(lengths), terminated))
        self.obs = rng.standard_normal((sum(lengths) + len(lengths), n_agents, obs_size)).astype(np.float32)
        self.obs[rng.random(self.obs.shape[:2]) < 0.4] = 0.0
        self.last_actions = rng.integers(-1, n_actions, (len(self.packing.frames), n_agents))
        layers = (
            nn.Linear(obs_size + n_actions + n_agents, hidden),
            nn.GRU(hidden, hidden),
            nn.Linear(hidden, n_actions),
        )
        self.layers = tuple(layer.to(dtype) for layer in layers)
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters:
            p.data.normal_(std=1.4 / hidden**0.5, generator=generator)
        self.scratch = Scratch()
        starts = np.cumsum(self.packing.frame_blocks) - self.packing.frame_blocks
        asked = np.zeros(len(self.packing.frames), np.bool_)
        for start, some in zip(starts, self.packing.asked_blocks, strict=True):
            asked[start : start + some] = True
        self.asked = torch.from_numpy(asked.repeat(n_agents)).unsqueeze(1)
        shape = (len(self.asked), n_actions)
        self.push = torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype) * self.asked

    @property
    def parameters(self):
        return [p for layer in self.layers for p in layer.parameters()]

    def inputs(self, n_parts=1):
        of = AgentInputs.of(self.obs, self.packing, self.last_actions, n_actions=self.n_actions, n_parts=n_parts)
        return of.to(torch.device("cpu"), self.parameters[0].dtype)

    def values(self, n_parts=1):
        return agent_values(self.inputs(n_parts), self.n_agents, *self.layers, self.scratch)

    def values_by_torch(self):
        return agent_values_by_torch(self.inputs(), self.n_agents, *self.layers)

    def learnt(self, values):
        """Return the values that are asked for, and all gradients."""
        return [values * self.asked, *torch.autograd.grad(values, self.parameters, self.push)]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    n_agents=st.integers(1, 4),
    n_actions=st.integers(1, 4),
    hidden=st.integers(1, 40),
    n_parts=st.integers(1, 4),
    terminated=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_torch(lengths, n_agents, n_actions, hidden, n_parts, terminated, seed):
    case = Case(lengths, n_agents, n_actions, hidden, seed, terminated=terminated)
    ours, theirs = case.learnt(case.values(n_parts)), case.learnt(case.values_by_torch())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n_parts", [1, 3])
def test_many_rows_of_many_units_agree_with_torch_too(n_parts):
    case = Case([9, 30, 12] * 8, n_agents=8, n_actions=14, hidden=64)
    ours, theirs = case.learnt(case.values(n_parts)), case.learnt(case.values_by_torch())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_single_precision_agrees_with_double_as_well_as_torchs_own_does():
    single, double = (Case([20, 35] * 8, 4, 9, 64, dtype=dtype) for dtype in (torch.float32, torch.float64))
    for p, exact in zip(single.parameters, double.parameters, strict=True):
        exact.data.copy_(p.data)
    double.push.copy_(single.push)
    exact = double.learnt(double.values_by_torch())
    for ours, theirs, exactly in zip(
        single.learnt(single.values()), single.learnt(single.values_by_torch()), exact, strict=True
    ):
        error, usual = ((values.double() - exactly).abs().max() for values in (ours, theirs))
        assert error < 3.0 * usual


def test_a_pass_that_does_not_go_back_gives_the_same_values():
    case = Case([4, 9, 7, 7, 2], n_agents=3, hidden=20)
    with_gradients = case.values(2)
    with torch.no_grad():
        assert torch.equal(case.values(2), with_gradients)


@pytest.mark.parametrize("n_parts", [2, 3, 4])
def test_values_do_not_depend_on_the_parts(n_parts):
    case = Case([9, 30, 12] * 8, n_agents=8, hidden=20, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(case.values(n_parts), case.values(1))


def test_a_part_may_be_empty():
    case = Case([5], hidden=20)
    ours, theirs = case.learnt(case.values(3)), case.learnt(case.values_by_torch())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_what_is_no_number_stays_none_in_its_episode():
    case = Case([3, 3, 3], n_agents=1, hidden=20, terminated=False)
    case.obs[4:8] = np.nan
    numbers = ~case.values().isnan().all(1)
    assert numbers.tolist() == [True, False, True] * 4


def test_memory_of_a_longer_call_does_not_leak_into_a_shorter_one():
    short, long = Case([4, 2, 1]), Case([8] * 5)
    short.scratch = long.scratch
    first = short.learnt(short.values())
    long.learnt(long.values())
    torch.testing.assert_close(short.learnt(short.values()), first, rtol=0, atol=0)


def test_passes_may_be_made_before_others_have_gone_back():
    case, other = Case([4, 2, 3]), Case([4, 2, 3])
    other.scratch = case.scratch
    alone = case.learnt(case.values())
    first, second = case.values(), case.values()
    with torch.no_grad():
        between = other.values()
    torch.testing.assert_close(case.learnt(second), alone, rtol=0, atol=0)
    torch.testing.assert_close(case.learnt(first), alone, rtol=0, atol=0)
    assert torch.equal(between, other.values())


def test_a_pass_goes_back_once():
    case = Case([2, 2])
    values = case.values()
    values.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="has gone back already"):
        values.sum().backward()


def test_memory_is_used_again_once_a_pass_has_gone_back():
    case = Case([3, 1])
    case.learnt(case.values())
    passes = case.scratch.passes
    kept = case.values()
    assert case.scratch.passes == passes + 1
    del kept
    assert not case.scratch.taken


def test_rows_that_nobody_asks_for_say_what_no_history_would():
    case = Case([3, 5, 2], hidden=20)
    values = case.values()
    assert not case.asked.all()
    head = case.layers[2]
    assert (values[~case.asked.squeeze(1)] == head.bias).all()
