import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.policies import Qmix
from components.policies.qmix import MonotonicMixer


@settings(max_examples=50, deadline=None)
@given(
    n_agents=st.integers(1, 6), state_size=st.integers(1, 9), scale=st.floats(0.1, 30.0), seed=st.integers(0, 10_000)
)
def test_the_team_value_never_falls_when_an_agents_value_rises(n_agents, state_size, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    mixer = MonotonicMixer(n_agents, state_size, embed=8, hypernet=8)
    for p in mixer.parameters():
        p.data.normal_(0.0, 0.5, generator=generator)
    q = (scale * torch.randn(20, n_agents, generator=generator)).requires_grad_()
    state = scale * torch.randn(20, state_size, generator=generator)
    (slope,) = torch.autograd.grad(mixer(q, state).sum(), q)
    assert (slope >= 0).all()
    assert (slope > 0).any()


def test_the_mixture_depends_on_the_state(spec):
    mixer = MonotonicMixer(3, 6, embed=8, hypernet=8)
    q = torch.ones(2, 3)
    same, other = mixer(q, torch.stack([torch.zeros(6), torch.ones(6)]))
    assert same.item() != other.item()


def test_the_mixture_is_what_its_formula_says():
    mixer = MonotonicMixer(2, 1, embed=1, hypernet=1)
    with torch.no_grad():
        for p in mixer.parameters():
            p.zero_()
        # Rows of the first layers: for W_1, for w_2, for v, and b_1 itself.
        mixer.first.weight.copy_(torch.tensor([[1.0], [2.0], [3.0], [-4.0]]))
        mixer.w_1.weight.copy_(torch.tensor([[-1.0], [0.5]]))
        mixer.w_2.weight.fill_(-0.5)
        mixer.v.weight.fill_(1.0)
    # s = 2: W_1 = |(-2, 1)| = (2, 1), w_2 = |-0.5 * 4| = 2, v = 6, b_1 = -8.
    # q = (3, 4): 3*2 + 4*1 - 8 = 2; 2*2 + 6 = 10.
    assert mixer(torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0]])).item() == pytest.approx(10.0)
    # q = (3, 1): 6 + 1 - 8 = -1, ELU(-1) = 1/e - 1.
    assert mixer(torch.tensor([[3.0, 1.0]]), torch.tensor([[2.0]])).item() == pytest.approx(2 * (np.exp(-1) - 1) + 6)


@pytest.mark.parametrize("keyword", ["mixer_embed", "hypernet_size"])
def test_a_mixer_of_no_size_is_refused(spec, keyword):
    with pytest.raises(ValueError, match="mixer_embed and hypernet_size must be at least 1"):
        Qmix(spec, **{keyword: 0})


@pytest.mark.parametrize(("keyword", "other"), [("mixer_embed", "hypernet_size"), ("hypernet_size", "mixer_embed")])
def test_a_mixer_of_one_unit_learns(spec, make_batch, keyword, other):
    policy = Qmix(spec, **{keyword: 1, other: 3})
    assert getattr(policy, keyword) == 1
    before = [p.detach().clone() for p in policy.mixer.parameters()]
    policy.learn(make_batch())
    assert any((p != old).any() for p, old in zip(policy.mixer.parameters(), before, strict=True))


@settings(max_examples=30, deadline=None)
@given(steps=st.integers(1, 6), agents=st.integers(1, 4), embed=st.integers(1, 20), seed=st.integers(0, 1000))
def test_the_compiled_mixer_and_its_gradients_are_those_of_torch(steps, agents, embed, seed):
    generator = torch.Generator().manual_seed(seed)
    mixer = MonotonicMixer(agents, state_size=3, embed=embed, hypernet=5).double()
    for p in mixer.parameters():
        p.data.normal_(generator=generator)
    q, state, push = (torch.randn(steps, size, dtype=torch.float64, generator=generator) for size in (agents, 3, 1))
    wanted = [q.requires_grad_(), *mixer.parameters()]
    ours, theirs = (
        [total, *torch.autograd.grad(total, wanted, push)] for total in (mixer(q, state), mixer.by_torch(q, state))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
