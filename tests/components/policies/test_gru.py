"""The unrolled GRU against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from components.policies.gru import unroll
from components.policies.scratch import Scratch


def falling(blocks):
    return sorted(blocks, reverse=True)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.lists(st.integers(1, 6), min_size=1, max_size=7).map(falling),
    inputs=st.integers(1, 5),
    hidden=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_torch(blocks, inputs, hidden, seed):
    generator = torch.Generator().manual_seed(seed)
    gru = nn.GRU(inputs, hidden, dtype=torch.float64)
    for p in gru.parameters():
        p.data.normal_(generator=generator)
    x = torch.randn(sum(blocks), inputs, dtype=torch.float64, generator=generator, requires_grad=True)
    push = torch.randn(sum(blocks), hidden, dtype=torch.float64, generator=generator)
    ours = unroll(gru, x, blocks, Scratch())
    theirs = gru(PackedSequence(x, torch.tensor(blocks)))[0].data
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    wanted = [x, *gru.parameters()]
    for got, want in zip(
        torch.autograd.grad(ours, wanted, push), torch.autograd.grad(theirs, wanted, push), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_memory_of_a_longer_call_does_not_leak_into_a_shorter_one():
    gru, scratch = nn.GRU(3, 4), Scratch()
    x = torch.randn(7, 3)
    first = unroll(gru, x, [4, 2, 1], scratch).clone()
    unroll(gru, torch.randn(40, 3), [8, 8, 8, 8, 8], scratch)
    again = unroll(gru, x, [4, 2, 1], scratch)
    assert torch.equal(first, again)


def test_a_second_pass_before_the_first_has_gone_back_is_refused():
    gru, scratch = nn.GRU(3, 4), Scratch()
    first = unroll(gru, torch.randn(4, 3), [2, 2], scratch)
    unroll(gru, torch.randn(4, 3), [2, 2], scratch)
    with pytest.raises(RuntimeError, match="another pass"):
        first.sum().backward()
