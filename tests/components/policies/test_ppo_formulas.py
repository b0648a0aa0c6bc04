"""Advantages, losses, normalised values and distributions of PPO, against numbers by hand and slow references."""

import numpy as np
import pytest
import torch

from components.policies.advantages import (
    corrected_advantages,
    generalised_advantages,
    normalised,
    segment_advantages,
)
from components.policies.chunks import Chunks
from components.policies.clipped import divergence, policy_loss, shares, value_loss
from components.policies.distributions import Categorical, Gaussian, Squashed
from components.policies.value_norm import ValueNorm

R, V, NO = np.array([1.0, 0.0, 2.0]), np.array([0.5, 1.0, 1.5]), np.zeros(3, bool)
SECOND = np.array([False, True, False])
DISCOUNTS = {"gamma": 0.99, "gae_lambda": 0.95}


@pytest.mark.parametrize(
    ("terminated", "truncated", "behind", "time_limit", "expected"),
    [
        (NO, NO, 1.5, "bootstrap", [4.139802, 2.817440, 2.48]),
        (SECOND, NO, 1.5, "bootstrap", [0.549500, -1.0, 2.48]),
        (NO, SECOND, 3.0, "bootstrap", [3.342785, 1.97, 2.48]),
        (NO, SECOND, 3.0, "terminal", [0.549500, -1.0, 2.48]),
    ],
)
def test_advantages_are_those_by_hand_for_each_end_of_an_episode(
    terminated, truncated, behind, time_limit, expected
) -> None:
    successor = np.array([1.0, behind, 2.0])
    found = generalised_advantages(R, V, successor, terminated, truncated, **DISCOUNTS, time_limit=time_limit)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_advantages_are_the_sums_of_discounted_errors_up_to_the_end_of_the_episode() -> None:
    rng = np.random.default_rng(7)
    for _ in range(1000):
        n = int(rng.integers(1, 12))
        reward, value, successor = rng.normal(size=(3, n))
        terminated, truncated = rng.random((2, n)) < 0.2
        gamma, lam = rng.random(2)
        found = generalised_advantages(reward, value, successor, terminated, truncated, gamma=gamma, gae_lambda=lam)
        for t in range(n):
            total = 0.0
            for k in range(t, n):
                follows = 0.0 if terminated[k] else successor[k]
                total += (gamma * lam) ** (k - t) * (reward[k] + gamma * follows - value[k])
                if terminated[k] or truncated[k]:
                    break
            assert abs(found[t] - total) < 1e-5


def test_returns_are_monte_carlo_ones_with_lambda_1_and_one_step_ones_with_lambda_0() -> None:
    over = np.array([False, False, True])
    successor = np.array([V[1], V[2], 9.0])
    whole = generalised_advantages(R, V, successor, over, NO, gamma=0.9, gae_lambda=1.0) + V
    np.testing.assert_allclose(whole, [1.0 + 0.81 * 2.0, 1.8, 2.0])
    one = generalised_advantages(R, V, successor, over, NO, gamma=0.9, gae_lambda=0.0) + V
    np.testing.assert_allclose(one, [1.0 + 0.9 * V[1], 0.9 * V[2], 2.0])


def test_advantages_of_segments_are_those_of_each_alone() -> None:
    """Three segments: one goes on, one terminates, one is truncated; padding holds numbers that must not matter."""
    lengths = np.array([3, 2, 1])
    reward, value = np.full((3, 3, 1), 50.0), np.full((3, 4, 1), -70.0)
    reward[0, :, 0], value[0, :, 0] = R, [*V, 2.0]
    reward[1, :2, 0], value[1, :3, 0] = R[:2], [0.5, 1.0, 30.0]
    reward[2, :1, 0], value[2, :2, 0] = 0.0, [1.0, 3.0]
    ends = np.array([[False, True, False], [False, False, True]])
    found = segment_advantages(reward, value, lengths, *ends, **DISCOUNTS)
    np.testing.assert_allclose(found[0, :, 0], [4.139802, 2.817440, 2.48], atol=1e-6)
    np.testing.assert_allclose(found[1, :, 0], [0.5495, -1.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(found[2, :, 0], [1.97, 0.0, 0.0], atol=1e-6)
    found = segment_advantages(reward, value, lengths, *ends, **DISCOUNTS, time_limit="terminal")
    np.testing.assert_allclose(found[2, :, 0], [-1.0, 0.0, 0.0], atol=1e-6)


def test_v_trace_has_the_targets_and_advantages_by_hand() -> None:
    """One agent, gamma 0.5, weights 1/2, 3 cut at 1, and 1; the episode goes on after its last frame, of value 4.

    Errors are 1 + .5 * 2 - 1 = 1, 0 + .5 * 3 - 2 = -.5 and 2 + .5 * 4 - 3 = 1. Backwards, targets are 3 + 1 = 4,
    2 - .5 + .5 * (4 - 3) = 2, and 1 + .5 * 1 + .5 * .5 * (2 - 2) = 1.5. Advantages are 1/2 * (1 + .5 * 2 - 1) = .5,
    0 + .5 * 4 - 2 = 0 and 2 + .5 * 4 - 3 = 1.
    """
    reward, value = np.array([1.0, 0.0, 2.0]), np.array([1.0, 2.0, 3.0, 4.0])
    ratio = np.log([0.5, 3.0, 1.0])
    no = np.array([False])
    advantage, target = corrected_advantages(
        *(each[None, :, None] for each in (reward, value, ratio)),
        np.array([3]), no, no, gamma=0.5, gae_lambda=1.0, rho_max=1.0, c_max=1.0,
    )  # fmt: skip
    np.testing.assert_allclose(target[0, :, 0], [1.5, 2.0, 4.0], atol=1e-12)
    np.testing.assert_allclose(advantage[0, :, 0], [0.5, 0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize("time_limit", ["bootstrap", "terminal"])
@pytest.mark.parametrize("on_policy", [False, True])
def test_v_trace_of_segments_and_agents_is_the_papers_sum_of_each_alone(time_limit, on_policy) -> None:
    """v_s - V_s = Σ_t gamma^(t-s) (Π_{s≤i<t} c_i) rho_t δ_t, term by term as it is printed; padding must not matter."""
    rng = np.random.default_rng(5)
    lengths = np.array([6, 3, 1, 4])
    reward, log_ratio = rng.normal(size=(2, 4, 6, 2))
    value = rng.normal(size=(4, 7, 2))
    if on_policy:
        log_ratio[:] = 0.0
    ends = np.array([[False, True, False, False], [False, False, True, True]])
    limits = {"rho_max": 1.5, "c_max": 1.1}
    advantage, target = corrected_advantages(
        reward, value, log_ratio, lengths, *ends, **DISCOUNTS, **limits, time_limit=time_limit
    )
    if on_policy:
        found = segment_advantages(reward, value, lengths, *ends, **DISCOUNTS, time_limit=time_limit)
        np.testing.assert_allclose(advantage, found, atol=1e-12)
    gamma, lam = DISCOUNTS.values()
    for e, n in enumerate(lengths):
        over = ends[0, e] or (time_limit == "terminal" and ends[1, e])
        for a in range(2):
            v, ratio = value[e, : n + 1, a].copy(), np.exp(log_ratio[e, :n, a])
            v[n] = 0.0 if over else v[n]
            rho, c = np.minimum(ratio, 1.5), lam * np.minimum(ratio, 1.1)
            error = rho * (reward[e, :n, a] + gamma * v[1:] - v[:n])
            traced = [v[s] + sum(gamma ** (t - s) * c[s:t].prod() * error[t] for t in range(s, n)) for s in range(n)]
            np.testing.assert_allclose(target[e, :n, a], traced, atol=1e-12)
            after = lam * np.array([*traced[1:], v[n]]) + (1 - lam) * v[1:]
            np.testing.assert_allclose(
                advantage[e, :n, a], rho * (reward[e, :n, a] + gamma * after - v[:n]), atol=1e-12
            )
        assert not advantage[e, n:].any()
        assert not target[e, n:].any()


def test_normalised_advantages_have_mean_0_and_deviation_1_over_the_living() -> None:
    rng = np.random.default_rng(1)
    advantage, living = rng.normal(3.0, 7.0, (400, 3)), rng.random((400, 3)) < 0.6
    advantage[~living] = 1e6
    found = normalised(advantage, living)
    assert abs(found[living].mean()) < 1e-5
    assert abs(found[living].std() - 1.0) < 1e-3
    constants = (found[~living] - found[living][0]) / (advantage[~living] - advantage[living][0])
    np.testing.assert_allclose(constants, constants[0], err_msg="one constant scales all")


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "moves"),
    [(1.3, 2.0, -2.4, False), (1.3, -2.0, 2.6, True), (0.7, 2.0, -1.4, True), (0.7, -2.0, 1.6, False)],
)
def test_the_policy_loss_is_clipped_on_the_side_that_would_gain(ratio, advantage, loss, moves) -> None:
    log_prob = torch.tensor([ratio]).log().requires_grad_()
    found = policy_loss(log_prob, torch.zeros(1), torch.tensor([advantage]), 0.2)
    found.sum().backward()
    assert found.item() == pytest.approx(loss, abs=1e-6)
    assert (log_prob.grad.item() != 0.0) == moves


@pytest.mark.parametrize(("target", "loss", "moves"), [(2.0, 0.32, False), (1.0, 0.125, True)])
def test_the_value_loss_takes_the_worse_of_both_errors(target, loss, moves) -> None:
    value = torch.tensor([1.5], requires_grad=True)
    found = value_loss(value, torch.ones(1), torch.tensor([target]), 0.2, None)
    found.sum().backward()
    assert found.item() == pytest.approx(loss)
    assert (value.grad.item() != 0.0) == moves


def test_hubers_loss_is_linear_beyond_its_limit() -> None:
    zero = torch.zeros(2)
    np.testing.assert_allclose(value_loss(zero, zero, torch.tensor([12.0, 3.0]), None, 10.0), [70.0, 4.5])
    errors = torch.linspace(-30, 30, 61)
    everywhere = value_loss(torch.zeros(61), torch.zeros(61), errors, None, float("inf"))
    torch.testing.assert_close(everywhere, value_loss(torch.zeros(61), torch.zeros(61), errors, None, None))


def test_means_are_over_the_weights_and_the_divergence_is_of_the_new_policy_from_the_old() -> None:
    weights = shares(torch.tensor([1.0, 1.0, 0.0]))
    assert (torch.tensor([1.0, 5.0, 9.0]) * weights).sum().item() == 3.0
    assert shares(torch.zeros(2)).tolist() == [0.0, 0.0]
    kl, clipped = divergence(torch.tensor([1.5, 1.0, 7.0]).log(), torch.zeros(3), weights, 0.2).tolist()
    assert kl == pytest.approx((0.5 - np.log(1.5)) / 2)
    assert clipped == 0.5


# Normalised values --------------------------------------------------------------------------------------------------


def test_statistics_of_values_are_those_by_hand() -> None:
    norm = ValueNorm()
    assert norm.denormalise(torch.tensor([2.0])).item() == pytest.approx(0.2), "before any return the deviation is 0.1"
    norm.update(torch.tensor([1.0, 3.0]))
    assert norm.statistics() == pytest.approx((2.0, 1.0), abs=1e-4)
    np.testing.assert_allclose(norm.normalise(torch.tensor([1.0, 3.0])), [-1.0, 1.0], atol=1e-4)
    norm.update(torch.tensor([5.0, 7.0]))
    assert norm.statistics() == pytest.approx((4.00001, 5.0**0.5), abs=1e-3)


def test_values_come_back_and_the_variance_has_a_floor() -> None:
    norm = ValueNorm()
    norm.update(torch.full((50,), 3.0))
    assert norm.statistics()[1] ** 2 == pytest.approx(0.01)
    norm.update(torch.randn(500, generator=torch.Generator().manual_seed(0)) * 40 - 7)
    x = torch.linspace(-100, 100, 41)
    torch.testing.assert_close(norm.denormalise(norm.normalise(x)), x, atol=1e-4, rtol=0)
    real = ValueNorm("real")
    real.update(torch.tensor([5.0, 9.0]))
    torch.testing.assert_close(real.normalise(x), x)


def test_popart_moves_no_value_in_real_units_while_the_scale_of_returns_grows() -> None:
    torch.manual_seed(0)
    norm, head, inputs = ValueNorm("popart"), torch.nn.Linear(4, 1), torch.randn(20, 4)
    weight = head.weight
    for k in range(100):
        before = norm.denormalise(head(inputs))
        norm.update(torch.randn(64) * 1000 ** (k / 99) + 5.0, head)
        after = norm.denormalise(head(inputs))
        assert (before - after).abs().max() < 1e-4 * max(1.0, before.abs().max().item())
    assert head.weight is weight, "the optimiser steps this very parameter"


# Distributions ------------------------------------------------------------------------------------------------------


def test_an_action_that_is_not_available_has_no_chance_and_no_gradient() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [9.0, 1.0, 1.0]], requires_grad=True)
    available = torch.tensor([[True, True, False], [False, True, False]])
    found = Categorical(logits, (3,), available)
    assert found.log_probs[0].exp()[~available].tolist() == [0.0, 0.0, 0.0]
    log_prob, entropy = found.log_prob(torch.tensor([1, 1])), found.entropy()
    (log_prob.sum() + entropy.sum()).backward()
    assert logits.grad[~available].tolist() == [0.0, 0.0, 0.0]
    assert torch.isfinite(logits.grad).all()
    assert (log_prob[1].item(), entropy[1].item()) == (0.0, 0.0), "one action is left"
    p = 1 / (1 + np.e)
    assert entropy[0].item() == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p))


def test_several_choices_are_independent() -> None:
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    first, second = Categorical(logits[:, :3], (3,)), Categorical(logits[:, 3:], (4,))
    actions = torch.tensor([[0, 3], [2, 0], [1, 1], [2, 2], [0, 0]])
    both = Categorical(logits, (3, 4))
    torch.testing.assert_close(both.log_prob(actions), first.log_prob(actions[:, 0]) + second.log_prob(actions[:, 1]))
    torch.testing.assert_close(both.entropy(), first.entropy() + second.entropy())


def test_normal_densities_and_entropies_are_sums_over_dimensions() -> None:
    mean, log_sd, at = torch.tensor([[1.0, -2.0]]), torch.tensor([0.3, -0.5]), torch.tensor([[0.0, -1.0]])
    reference = torch.distributions.Normal(mean, log_sd.exp())
    found = Gaussian(mean, log_sd)
    torch.testing.assert_close(found.log_prob(at), reference.log_prob(at).sum(-1))
    torch.testing.assert_close(found.entropy(), reference.entropy().sum(-1))


def test_the_density_of_squashed_actions_integrates_to_1_and_is_finite_far_out() -> None:
    scale = torch.tensor([2.0])
    a = torch.linspace(-2.0, 2.0, 200_001, dtype=torch.float64)[1:-1, None]
    u = torch.atanh(a / 2.0)
    found = Squashed(torch.full_like(u, 0.4), torch.tensor([-0.2], dtype=torch.float64), scale)
    total = found.log_prob(u).exp().sum() * (a[1, 0] - a[0, 0])
    assert total.item() == pytest.approx(1.0, abs=1e-3)
    far = Squashed(torch.zeros(2, 1), torch.zeros(1), scale).log_prob(torch.tensor([[20.0], [-20.0]]))
    assert torch.isfinite(far).all()


# Chunks -------------------------------------------------------------------------------------------------------------


def test_every_step_of_every_agent_is_in_one_chunk_in_order() -> None:
    lengths = np.array([7, 3, 10])
    chunks = Chunks.of(lengths, 2, 4)
    real = chunks.rows[chunks.real]
    assert sorted(real.tolist()) == list(range(lengths.sum() * 2))
    for c in range(chunks.rows.shape[1]):
        rows = chunks.rows[:, c][chunks.real[:, c]]
        assert (np.diff(rows) == 2).all(), "the same agent, one step after the other"
        begin = (np.cumsum(lengths) - lengths)[chunks.segment[c]]
        assert begin <= rows[0] // 2, "of its own segment"
        assert rows[-1] // 2 < begin + lengths[chunks.segment[c]]
        assert rows[0] % 2 == chunks.agent[c]
    assert chunks.bounds.tolist() == [0, 6, 10, 12]
