"""The unrolled GRU against torch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from components.policies.gru import unroll, unrolled_by_torch
from components.policies.scratch import Scratch


def falling(blocks):
    return sorted(blocks, reverse=True)


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.lists(st.integers(1, 6), min_size=1, max_size=7).map(falling),
    distinct=st.integers(1, 50),
    inputs=st.integers(1, 5),
    hidden=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_values_and_gradients_are_those_of_torch(blocks, distinct, inputs, hidden, seed):
    generator = torch.Generator().manual_seed(seed)
    gru = nn.GRU(inputs, hidden, dtype=torch.float64)
    for p in gru.parameters():
        p.data.normal_(generator=generator)
    x = torch.randn(distinct, inputs, dtype=torch.float64, generator=generator, requires_grad=True)
    picks = torch.randint(distinct, (sum(blocks),), generator=generator)
    push = torch.randn(sum(blocks), hidden, dtype=torch.float64, generator=generator)
    ours = unroll(gru, x, picks, blocks, blocks, Scratch())
    wanted = [x, *gru.parameters()]
    gradients = torch.autograd.grad(ours, wanted, push)
    for theirs in (
        gru(PackedSequence(x[picks], torch.tensor(blocks)))[0].data,
        unrolled_by_torch(gru, x, picks, blocks),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
        for got, want in zip(gradients, torch.autograd.grad(theirs, wanted, push), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_single_precision_agrees_with_double_as_well_as_torchs_own_does():
    generator = torch.Generator().manual_seed(0)
    gru = nn.GRU(16, 64)
    x, push = (torch.randn(700, size, generator=generator) for size in (16, 64))
    blocks, picks = [50] * 10 + [25] * 8, torch.arange(700)
    double = nn.GRU(16, 64, dtype=torch.float64)
    double.load_state_dict(gru.state_dict())

    def learnt(unrolled, gru, x, push):
        hidden = unrolled(gru, x.requires_grad_(), picks, blocks)
        return [hidden, *torch.autograd.grad(hidden, [x, *gru.parameters()], push)]

    def compiled(*args):
        return unroll(*args, blocks, Scratch())

    exact = learnt(unrolled_by_torch, double, x.double(), push.double())
    for ours, theirs, exactly in zip(
        learnt(compiled, gru, x, push), learnt(unrolled_by_torch, gru, x, push), exact, strict=True
    ):
        error, usual = ((values.double() - exactly).abs().max() for values in (ours, theirs))
        assert error < 3.0 * usual


def test_what_is_no_number_stays_none():
    x = torch.zeros(3, 2)
    x[1] = torch.nan
    hidden = unroll(nn.GRU(2, 20), x, torch.tensor([0, 1, 2]), [3], [3], Scratch())
    assert hidden.isnan().all(1).tolist() == [False, True, False]


def test_memory_of_a_longer_call_does_not_leak_into_a_shorter_one():
    gru, scratch = nn.GRU(3, 4), Scratch()
    x, picks = torch.randn(40, 3), torch.arange(40)
    first = unroll(gru, x[:7], picks[:7], [4, 2, 1], [4, 2, 1], scratch).clone()
    unroll(gru, x, picks, [8] * 5, [8] * 5, scratch)
    again = unroll(gru, x[:7], picks[:7], [4, 2, 1], [4, 2, 1], scratch)
    assert torch.equal(first, again)


def test_a_second_pass_before_the_first_has_gone_back_is_refused():
    gru, scratch = nn.GRU(3, 4), Scratch()
    first, _ = (unroll(gru, torch.randn(4, 3), torch.arange(4), [2, 2], [2, 2], scratch) for _ in range(2))
    with pytest.raises(RuntimeError, match="another pass"):
        first.sum().backward()


def test_rows_that_nobody_asks_for_are_zeros_and_what_others_learn_is_the_same_without_them():
    generator = torch.Generator().manual_seed(0)
    gru, x = nn.GRU(3, 20), torch.randn(200, 3, generator=generator, requires_grad=True)
    blocks, asked = [90, 70, 40], [90, 60, 10]
    real = torch.cat([torch.arange(block) < some for block, some in zip(blocks, asked, strict=True)])
    push = torch.randn(200, 20, generator=generator) * real.unsqueeze(1)
    some, all_ = (unroll(gru, x, torch.arange(200), blocks, these, Scratch()) for these in (asked, blocks))
    assert not some[~real].any()
    assert torch.equal(some[real], all_[real])
    wanted = [x, *gru.parameters()]
    torch.testing.assert_close(torch.autograd.grad(some, wanted, push), torch.autograd.grad(all_, wanted, push))
