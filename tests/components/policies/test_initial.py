"""What parameters are before anything is learned."""

import numpy as np
import pytest
import torch
from torch import nn

from components.policies import Coma, Qmix
from components.policies.initial import initialise


def drawn(kind, seed=0):
    modules = [nn.Linear(5, 9), nn.Linear(9, 5), nn.GRU(4, 6)]
    initialise(modules, kind, torch.Generator().manual_seed(seed))
    return modules


def test_orthogonal_weights_keep_the_length_of_what_goes_in_or_comes_back():
    wide, narrow, gru = drawn("orthogonal")
    torch.testing.assert_close(wide.weight.t() @ wide.weight, torch.eye(5))
    torch.testing.assert_close(narrow.weight @ narrow.weight.t(), torch.eye(5))
    for gate in gru.weight_hh_l0.chunk(3):
        torch.testing.assert_close(gate @ gate.t(), torch.eye(6))
    for gate in gru.weight_ih_l0.chunk(3):
        torch.testing.assert_close(gate.t() @ gate, torch.eye(4))
    assert not any(p.any() for m in (wide, narrow, gru) for name, p in m.named_parameters() if "bias" in name)


def test_orthogonal_weights_have_no_preferred_direction():
    """Every entry of a matrix drawn uniformly has mean 0; a bare QR factorisation has not."""
    first = [drawn("orthogonal", seed)[0].weight[0, 0].item() for seed in range(300)]
    assert abs(np.mean(first)) < 5 * np.std(first) / len(first) ** 0.5


def test_uniform_weights_have_torch_s_bounds():
    wide, _, gru = drawn("uniform")
    for p, bound in (
        (wide.weight, 5**-0.5),
        (wide.bias, 5**-0.5),
        (gru.weight_ih_l0, 6**-0.5),
        (gru.bias_hh_l0, 6**-0.5),
    ):
        assert 0.6 * bound < p.abs().max() <= bound


@pytest.mark.parametrize("kind", ["uniform", "orthogonal"])
@pytest.mark.parametrize("algorithm", [Qmix, Coma], ids=lambda it: it.__name__)
def test_the_seed_alone_decides(spec, algorithm, kind):
    one, same, other = (algorithm(spec, init=kind, seed=seed).params() for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_each_kind_is_what_was_asked_for(spec):
    assert not np.array_equal(Qmix(spec, init="orthogonal").params(), Qmix(spec).params())
    np.testing.assert_array_equal(Qmix(spec, init="uniform").params(), Qmix(spec).params())
