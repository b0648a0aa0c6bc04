"""A gradient step of IQL, VDN and QMIX in one compiled call for each part is that which torch records."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from td_batches import drawn, recorded

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Iql, Qmix, Vdn, kernel
from components.policies.kernel.td import best_of
from components.policies.qmix import MonotonicMixer
from components.policies.scratch import Scratch
from components.policies.td_parts import TdParts

ALGORITHMS = (Iql, Vdn, Qmix)


def weights_of(policy: Iql) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    online, target = ([p for m in each.values() for p in m.parameters()] for each in (policy._online, policy._target))
    return online, target


def both(policy: Iql, batch: EpisodeBatch, n_parts: int) -> list[list[object]]:
    """Return the gradient, metrics and errors in parts, and those of the loss that torch records."""
    policy._target_flat += 0.1 * torch.randn(policy._target_flat.shape, generator=torch.Generator().manual_seed(7))
    online, target = weights_of(policy)
    gradient, parts = torch.empty_like(policy._flat), policy._td_parts
    assert isinstance(parts, TdParts)
    sums = parts.gradient(batch, n_parts, online, target, out=gradient)
    return [[gradient, sums.metrics, sums.errors], [*recorded(policy, batch)]]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    n_agents=st.integers(1, 4),
    n_parts=st.integers(1, 4),
    algorithm=st.sampled_from(ALGORITHMS),
    double_q=st.booleans(),
    td_lambda=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_gradient_metrics_and_errors_are_those_of_the_recorded_loss(
    lengths, n_agents, n_parts, algorithm, double_q, td_lambda, seed
):
    spec = EnvSpec("tiny", n_agents=n_agents, n_actions=4, obs_size=5, state_size=6, episode_limit=7)
    options = {
        "hidden_size": 9,
        "double_q": double_q,
        "td_lambda": td_lambda,
        "dtype": torch.float64,
        "kernels": "numba",
    }
    (gradient, metrics, errors), wanted = both(algorithm(spec, **options), drawn(spec, lengths, seed), n_parts)
    torch.testing.assert_close(gradient, wanted[0], rtol=1e-9, atol=1e-10)
    assert metrics == pytest.approx(wanted[1], rel=1e-9, abs=1e-10)
    np.testing.assert_allclose(errors, wanted[2], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda it: it.__name__)
def test_single_precision_is_right_to_five_digits(spec, algorithm):
    gradient, expected = (
        found[0] for found in both(algorithm(spec, kernels="numba"), drawn(spec, [9, 4, 7, 7, 2, 9] * 4, 1), 3)
    )
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("values", "allowed", "best"),
    [([1, 3, 2, 3], [1, 1, 1, 1], 1), ([9, 1, 2, 2], [0, 1, 1, 1], 2), ([1, 2], [0, 0], 0)],
)
def test_the_best_action_is_the_first_allowed_one_of_the_largest_value(values, allowed, best):
    assert best_of(np.array(values, np.float32), np.array(allowed, np.bool_)) == best


def test_arrays_of_one_memory_are_apart_and_begin_with_lines_of_the_cache():
    shapes = [(3, 5), (1,), (16,), (2, 1)]
    arrays = Scratch().take_arrays("some", shapes, torch.float32)
    assert [array.shape for array in arrays] == shapes
    first = arrays[0].ctypes.data
    assert first % 64 == 0
    assert [array.ctypes.data - first for array in arrays] == [0, 64, 128, 192]


def test_what_is_compiled_beforehand_is_what_learning_calls(spec, make_batch):
    kernel.prepare()
    signatures = getattr(kernel.td_part, "signatures", None)  # there are none under NUMBA_DISABLE_JIT=1
    before = signatures and list(signatures)
    for algorithm in ALGORITHMS:
        algorithm(spec, kernels="numba").learn(make_batch())
    assert (signatures and list(kernel.td_part.signatures)) == before


class Halved(Qmix):
    def td_loss(self, batch):
        td = super().td_loss(batch)
        return type(td)(td.loss * 0.5, td.q_taken, td.target, td.packing)


class Doubled(MonotonicMixer):
    def forward(self, q, state):
        return 2.0 * super().forward(q, state)


class OwnMixer(Qmix):
    def _make_mixer(self):
        return Doubled(self.spec.n_agents, self.spec.state_size, self.mixer_embed, self.hypernet_size)


@pytest.mark.parametrize("own", [Halved, OwnMixer])
def test_a_subclass_learns_by_its_own_loss_and_mixer(spec, make_batch, own):
    policy, batch = own(spec, kernels="numba"), make_batch()
    expected = policy.td_loss(batch).loss.item()
    assert policy.learn(batch).metrics["loss"] == expected != Qmix(spec, kernels="numba").learn(batch).metrics["loss"]


class Frozen(Qmix):
    def _make_networks(self):
        self.agent.head.weight.requires_grad_(requires_grad=False)
        return super()._make_networks()


def test_a_frozen_parameter_stays_as_it_is(spec, make_batch):
    policy = Frozen(spec, kernels="numba")
    weights = policy.agent.head.weight, policy.agent.embed.weight
    before = [w.detach().clone() for w in weights]
    policy.learn(make_batch())
    assert [torch.equal(w, old) for w, old in zip(weights, before, strict=True)] == [True, False]


def test_memory_that_is_written_again_leaves_no_trace(spec, make_batch):
    fresh, used = Qmix(spec, kernels="numba"), Qmix(spec, kernels="numba")
    start = {name: p.clone() for name, p in used.state_dict()["online"].items()}
    used.learn(make_batch((9, 9, 8, 9), seed=5))
    with torch.no_grad():
        used._flat.copy_(torch.cat([p.reshape(-1) for p in start.values()]))
    used.update_targets()
    found = []
    for policy in (fresh, used):
        gradient = torch.empty_like(policy._flat)
        policy._td_parts.gradient(make_batch((4, 2)), 1, *weights_of(policy), out=gradient)
        found.append(gradient)
    assert torch.equal(*found)
