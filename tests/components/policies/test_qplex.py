"""QPLEX: its mixture is the paper's, each agent's greedy action is the team's, and it represents what QMIX cannot."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qplex
from components.policies.qplex import DuplexMixer, by_head

PAYOFF = torch.tensor([[8.0, -12.0, -12.0], [-12.0, 0.0, 0.0], [-12.0, 0.0, 0.0]])
"""The matrix game of the paper (Table 1a): the best joint action pays only if both take part."""


def drawn(mixer: DuplexMixer, generator: torch.Generator, spread: float = 1.0) -> DuplexMixer:
    for p in mixer.parameters():
        p.data.normal_(0.0, spread, generator=generator)
    return mixer


@settings(max_examples=50, deadline=None)
@given(
    n_agents=st.integers(1, 4),
    n_actions=st.integers(1, 4),
    layers=st.integers(1, 3),
    scale=st.floats(0.1, 30.0),
    seed=st.integers(0, 10_000),
)
def test_the_best_joint_action_is_the_best_action_of_each_agent(n_agents, n_actions, layers, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    mixer = drawn(
        DuplexMixer(n_agents, n_actions, 5, hypernet=6, heads=3, layers=layers, hidden=4).double(), generator, 0.5
    )
    q = scale * torch.randn(n_agents, n_actions, dtype=torch.float64, generator=generator)
    joint = torch.tensor(list(product(range(n_actions), repeat=n_agents)))
    state = torch.randn(5, dtype=torch.float64, generator=generator).expand(len(joint), -1)
    chosen = q.gather(1, joint.t()).t()
    with torch.no_grad():
        total = mixer(chosen, q.amax(1).expand(len(joint), -1), state, joint)
    assert joint[int(total.argmax())].tolist() == q.argmax(1).tolist()


@settings(max_examples=50, deadline=None)
@given(n_agents=st.integers(1, 4), layers=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_the_weights_of_advantages_and_of_values_are_above_0(n_agents, layers, seed):
    generator = torch.Generator().manual_seed(seed)
    mixer = drawn(DuplexMixer(n_agents, 3, 5, hypernet=6, heads=3, layers=layers, hidden=4), generator)
    state, actions = torch.randn(20, 5, generator=generator), torch.randint(3, (20, n_agents), generator=generator)
    assert (mixer.importance(state, actions) > 0).all()
    q = torch.randn(20, n_agents, generator=generator).requires_grad_()
    (slope,) = torch.autograd.grad(mixer(q, q.detach() + 1.0, state, actions).sum(), q)
    assert (slope > 0).all()


def test_the_mixture_is_what_its_formula_says_by_hand():
    mixer = DuplexMixer(2, 2, 1, hypernet=1, heads=1, layers=1, hidden=1)
    with torch.no_grad():
        for p in mixer.parameters():
            p.zero_()
        mixer.first.weight.copy_(torch.tensor([[1.0], [2.0]]))  # at s = 1 the hidden units are 1 and 2
        mixer.w.weight.copy_(torch.tensor([[-2.0], [3.0]]))  # w = (2, 3)
        mixer.b.weight.copy_(torch.tensor([[0.5], [-1.0]]))  # b = (1, -2)
        mixer.key.weight.fill_(-4.0)  # |key| = 4, and both sigmoids are those of 0 but for the joint action's
        # The inputs are the state and one-hot actions of both agents. Action 1 of agent 0 moves agent 1's weight.
        mixer.joint.weight[1, 2] = 30.0
    q, best_q, state = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 2.5]]), torch.ones(1, 1)
    # Transformed: q (3, 4), best (7, 5.5), advantages (-4, -1.5). Values 12.5.
    still, moved = (mixer(q, best_q, state, torch.tensor([[a, 0]])).item() for a in (0, 1))
    assert still == pytest.approx(12.5 + 1.0 * -4.0 + 1.0 * -1.5)
    assert moved == pytest.approx(12.5 + 1.0 * -4.0 + 2.0 * -1.5)


def test_no_gradient_flows_through_an_advantage():
    mixer = drawn(DuplexMixer(2, 3, 4, hypernet=5, heads=2, layers=1, hidden=1), torch.Generator().manual_seed(0))
    state, actions = torch.ones(1, 4), torch.tensor([[0, 1]])
    slopes = []
    for ahead in (0.0, 5.0):  # how much better the best action is: it changes λ A, and no slope
        q = torch.tensor([[1.0, -2.0]], requires_grad=True)
        slopes.append(torch.autograd.grad(mixer(q, q.detach() + ahead, state, actions).sum(), q)[0])
    torch.testing.assert_close(*slopes)


def test_it_represents_a_game_that_no_monotonic_mixture_does():
    joint = torch.tensor(list(product(range(3), repeat=2)))
    q = torch.tensor([1.0, 0.5, 0.0])[joint]  # of both agents; their greedy actions are the best joint one
    mixer = drawn(DuplexMixer(2, 3, 1, hypernet=8, heads=4, layers=2, hidden=8), torch.Generator().manual_seed(0), 0.5)
    with torch.no_grad():
        mixer.first.weight.zero_()
        for p, number in ((mixer.first.bias, 0.0), (mixer.w.bias, 1.0), (mixer.b.bias, 3.0)):
            p.fill_(number)  # w = 1 and b = 3, so the best joint action is worth 8, and λ has to do the rest
    state, learned = torch.ones(9, 1), [mixer.key, mixer.agent, mixer.joint]
    optimizer = torch.optim.Adam([p for each in learned for p in each.parameters()], lr=0.1)
    for _ in range(200):
        loss = (mixer(q, torch.ones(9, 2), state, joint)[:, 0] - PAYOFF.view(-1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(mixer(q, torch.ones(9, 2), state, joint).detach().view(3, 3), PAYOFF, atol=1.0, rtol=0)


def test_the_networks_of_one_head_know_nothing_of_another_s_parameters():
    heads = by_head(4, 3, heads=2, layers=3, hidden=5)
    for p in heads.parameters():
        p.data.fill_(0.1)  # so that no unit is 0
    out = heads(torch.ones(1, 4)).view(2, 3)
    for head in (0, 1):
        for gradient in torch.autograd.grad(out[head].sum(), list(heads.parameters()), retain_graph=True):
            assert not gradient.chunk(2)[1 - head].any()
            assert gradient.chunk(2)[head].any()


@pytest.mark.parametrize("keyword", ["hypernet_size", "attention_heads", "attention_layers", "attention_size"])
def test_a_mixer_of_no_size_is_refused(spec, keyword):
    with pytest.raises(ValueError, match=f"^{keyword} must be at least 1, got 0$"):
        Qplex(spec, **{keyword: 0})


@pytest.mark.minutes
def test_it_learns_the_matrix_game_from_every_joint_action():
    spec = EnvSpec("matrix", n_agents=2, n_actions=3, obs_size=1, state_size=1, episode_limit=1)
    options = {"attention_heads": 10, "attention_layers": 3, "hidden_size": 32, "learning_rate": 1e-3}
    policy = Qplex(spec, optimizer="adam", seed=0, **options)
    joint = np.array(list(product(range(3), repeat=2)))
    batch = EpisodeBatch(
        obs=np.ones((9, 2, 2, 1), np.float32),
        state=np.ones((9, 2, 1), np.float32),
        available=np.ones((9, 2, 2, 3), np.bool_),
        actions=joint[:, None],
        reward=PAYOFF.numpy()[joint[:, 0], joint[:, 1]][:, None],
        lengths=np.ones(9, np.int32),
        terminated=np.ones(9, np.bool_),
        weights=np.ones(9, np.float32),
    )
    for _ in range(3000):
        policy.learn(batch)
    torch.testing.assert_close(policy.td_loss(batch).q_taken.detach().view(3, 3), PAYOFF, atol=1.0, rtol=0)
