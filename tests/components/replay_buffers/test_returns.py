"""Every return against a plain recursion, one number at a time, and against what is known in closed form."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import returns as returns_module
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.returns import (
    AdvantageScale,
    extend_lambda_returns,
    gae,
    n_step_returns,
    v_trace,
)

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=5)
unit = st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0])
seeds = st.integers(0, 2**32 - 1)


def td_lambda_reference(reward, value, terminated, gammas, lam):
    """One episode, (T, D), from its end backwards."""
    q = np.zeros(reward.shape)
    q[-1] = reward[-1] if terminated else value[-1]
    for t in reversed(range(len(reward) - 1)):
        for j, gamma in enumerate(gammas):
            q[t, j] = reward[t, j] + gamma * (lam * q[t + 1, j] + (1 - lam) * value[t + 1, j])
    return q


def apart(lengths, *arrays):
    stops = np.cumsum(lengths)
    for stop, n in zip(stops, lengths, strict=True):
        yield tuple(array[stop - n : stop] for array in arrays)


def td_lambda_returns(reward, value, lengths, terminated, *, discount, td_lambda):
    """The λ-returns of whole episodes, each made in one go."""
    returns = np.full_like(reward, np.nan)
    for i, (r, v, q) in enumerate(apart(lengths, reward, value, returns)):
        extend_lambda_returns(
            q, r, v, fresh=len(r), terminated=bool(terminated[i]), discount=discount, td_lambda=td_lambda
        )
    return returns


@settings(max_examples=80, deadline=None)
@given(lengths=lengths_of, lam=unit, gammas=st.lists(unit, min_size=1, max_size=3), seed=seeds)
def test_td_lambda_is_the_recursion_in_every_episode_and_dimension(lengths, lam, gammas, seed):
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, sum(lengths), len(gammas)))
    terminated = rng.random(len(lengths)) < 0.5
    got = td_lambda_returns(reward, value, np.array(lengths), terminated, discount=np.array(gammas), td_lambda=lam)
    for i, (r, v, q) in enumerate(apart(lengths, reward, value, got)):
        np.testing.assert_allclose(q, td_lambda_reference(r, v, terminated[i], gammas, lam), atol=1e-12)


def test_td_lambda_in_closed_form():
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=(2, 6, 1))
    q = {
        lam: td_lambda_returns(reward, value, np.array([6]), np.array([True]), discount=0.9, td_lambda=lam)[:, 0]
        for lam in (0.0, 0.5, 1.0)
    }
    r, v = reward[:, 0], value[:, 0]
    for t in range(6):
        monte_carlo = sum(0.9 ** (k - t) * r[k] for k in range(t, 6))
        one_step = r[t] + (0.9 * v[t + 1] if t < 5 else 0.0)
        delta = r + 0.9 * np.append(v[1:], 0.0) - v
        mixed = v[t] + sum(0.45 ** (k - t) * delta[k] for k in range(t, 6))
        np.testing.assert_allclose([q[1.0][t], q[0.0][t], q[0.5][t]], [monte_carlo, one_step, mixed], rtol=1e-12)


def test_a_cut_and_its_continuation_give_the_numbers_that_were_observed():
    value, reward = np.array([[10.0], [11.0], [12.0]]), np.ones((3, 1))
    got = td_lambda_returns(reward, value, np.array([3]), np.array([False]), discount=0.9, td_lambda=0.5)
    np.testing.assert_allclose(got[:, 0], [11.26, 11.80, 12.00], rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(chunks=lengths_of, lam=unit, gamma=unit, seed=seeds, terminated=st.booleans(), block=st.sampled_from([1, 3, 32]))
def test_an_episode_that_comes_in_pieces_ends_up_as_if_it_came_whole(chunks, lam, gamma, seed, terminated, block):
    rng = np.random.default_rng(seed)
    n, gammas = sum(chunks), np.array([gamma, 0.5])
    reward, value = rng.normal(size=(2, n, 2))
    got = np.full((n, 2), np.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns_module, "FIRST_TRACE", block)
        stop = 0
        for chunk in chunks:
            stop += chunk
            ended = terminated and stop == n
            assert extend_lambda_returns(
                got[:stop], reward[:stop], value[:stop], fresh=chunk, terminated=ended, discount=gammas, td_lambda=lam,
                threshold=0.0,
            ) == (0, 0)  # fmt: skip
            np.testing.assert_allclose(
                got[:stop], td_lambda_reference(reward[:stop], value[:stop], ended, gammas, lam), atol=1e-12
            )


@settings(max_examples=80, deadline=None)
@given(
    old=st.integers(1, 150), fresh=st.integers(1, 20), lam=unit, gamma=unit, seed=seeds,
    threshold=st.sampled_from([1e-3, 0.1, 1.0, 1e6]), block=st.sampled_from([1, 5, 32]),
)  # fmt: skip
def test_tracing_back_stops_at_the_first_step_that_hardly_changes(old, fresh, lam, gamma, seed, threshold, block):
    rng = np.random.default_rng(seed)
    n, c = old + fresh, np.array([1.0, -2.0])
    reward, value = rng.normal(size=(2, n, 2))
    before = np.concatenate([rng.normal(size=(old, 2)), np.zeros((fresh, 2))])
    q, first, first_priority = before.copy(), 0, 0
    q[n - 1] = value[n - 1]
    for t in reversed(range(n - 1)):
        q[t] = reward[t] + gamma * (lam * q[t + 1] + (1 - lam) * value[t + 1])
        if t < old and (np.abs(c) * np.abs(q[t] - before[t])).sum() < threshold:
            first, first_priority = t, t + 1
            break
    got = before.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(returns_module, "FIRST_TRACE", block)
        assert extend_lambda_returns(
            got, reward, value, fresh=fresh, terminated=False, discount=gamma, td_lambda=lam, coefficients=c,
            threshold=threshold,
        ) == (first, first_priority)  # fmt: skip
    np.testing.assert_allclose(got, q, atol=1e-12)
    np.testing.assert_array_equal(got[:first], before[:first])


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 30), exponent=st.sampled_from([0.0, 0.6, 1.0]), seed=seeds)
def test_priorities_follow_the_mixed_advantage_and_its_running_scale(n, exponent, seed):
    rng = np.random.default_rng(seed)
    q, v = rng.normal(size=(2, n, 2)) * 1000
    v[0] = q[0]
    scale, mean_square, c = AdvantageScale(), 1.0, np.array([1.0, 2.0])
    for _ in range(3):
        advantage = [sum(c[j] * (q[t, j] - v[t, j]) for j in range(2)) for t in range(n)]
        expected = [(abs(a) / (mean_square / 2) ** 0.5) ** exponent for a in advantage]
        np.testing.assert_allclose(
            scale.priorities(q, v, coefficients=c, exponent=exponent), np.float32(expected), rtol=1e-5
        )
        mean_square = max(mean_square + 1e-8 * sum(a * a - mean_square for a in advantage), 1e-6)
        assert scale.mean_square == pytest.approx(mean_square)


def test_opposite_advantages_cancel_and_exponent_zero_is_uniform():
    q, v = np.array([[3.0, -3.0], [1.0, 1.0]]), np.zeros((2, 2))
    assert AdvantageScale().priorities(q, v, exponent=1.0)[0] == 0.0
    assert AdvantageScale().priorities(q, v, exponent=0.0).tolist() == [1.0, 1.0]


def test_the_running_scale_stays_above_its_floor():
    scale = AdvantageScale(1e-6)
    zeros = np.zeros((1000, 1))
    scale.priorities(zeros, zeros, exponent=0.5)
    assert scale.mean_square == AdvantageScale.FLOOR
    with pytest.raises(ValueError, match="mean_square: expected a finite number above 0, got 0"):
        AdvantageScale(0.0)


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of, n=st.integers(1, 50), gamma=unit, seed=seeds)
def test_n_steps_end_with_their_episode(lengths, n, gamma, seed):
    reward = np.random.default_rng(seed).normal(size=sum(lengths))
    got = n_step_returns(reward, np.array(lengths), n=n, gamma=gamma)
    start = 0
    for length in lengths:
        for t in range(start, start + length):
            m = min(n, start + length - t)
            assert got.returns[t] == pytest.approx(sum(gamma**k * reward[t + k] for k in range(m)), abs=1e-12)
            assert got.last[t] == t + m - 1
            assert got.discount[t] == pytest.approx(gamma**m)
        start += length


def v_trace_reference(r, v, v_tp1, ratio, gamma, lam, rho_max, c_max):
    targets, advantages = v.copy(), np.zeros(len(r))
    for t in reversed(range(len(r))):
        rho, c = min(rho_max, ratio[t]), lam * min(c_max, ratio[t])
        last = t == len(r) - 1
        targets[t] += rho * (r[t] + gamma * v_tp1[t] - v[t])
        targets[t] += 0.0 if last else gamma * c * (targets[t + 1] - v_tp1[t])
        after = v_tp1[t] if last else lam * targets[t + 1] + (1 - lam) * v_tp1[t]
        advantages[t] = rho * (r[t] + gamma * after - v[t])
    return targets, advantages


def episodes_with_values(lengths, seed):
    """Return rewards, values and the values arrived at, which are the next step's within an episode."""
    rng = np.random.default_rng(seed)
    reward, value = rng.normal(size=(2, sum(lengths)))
    value_tp1 = np.append(value[1:], 0.0)
    last = np.cumsum(lengths) - 1
    value_tp1[last] = rng.normal(size=len(lengths)) * (rng.random(len(lengths)) < 0.5)
    return reward, value, value_tp1, rng.normal(size=sum(lengths))


@settings(max_examples=60, deadline=None)
@given(lengths=lengths_of, gamma=unit, lam=unit, seed=seeds, limits=st.sampled_from([(1.0, 1.0), (2.0, 0.5)]))
def test_gae_and_v_trace_are_their_recursions(lengths, gamma, lam, seed, limits):
    reward, value, value_tp1, log_ratio = episodes_with_values(lengths, seed)
    advantages = gae(reward, value, value_tp1, np.array(lengths), gamma=gamma, td_lambda=lam)
    traced = v_trace(
        reward, value, value_tp1, log_ratio, np.array(lengths), gamma=gamma, td_lambda=lam, rho_max=limits[0],
        c_max=limits[1],
    )  # fmt: skip
    for r, v, v1, logs, a, target, pg in apart(lengths, reward, value, value_tp1, log_ratio, advantages, *traced):
        expected, running = np.zeros(len(r)), 0.0
        for t in reversed(range(len(r))):
            running = r[t] + gamma * v1[t] - v[t] + gamma * lam * running
            expected[t] = running
        np.testing.assert_allclose(a, expected, atol=1e-12)
        wanted = v_trace_reference(r, v, v1, np.exp(logs), gamma, lam, *limits)
        np.testing.assert_allclose((target, pg), wanted, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.5, 1.0])
def test_on_policy_all_three_are_one(lam):
    lengths = np.array([7, 1, 4])
    reward, value, value_tp1, _ = episodes_with_values(lengths, 3)
    value_tp1[np.cumsum(lengths) - 1] = 0.0
    options = {"gamma": 0.9, "td_lambda": lam}
    from_gae = value + gae(reward, value, value_tp1, lengths, **options)
    from_v_trace, advantages = v_trace(reward, value, value_tp1, np.zeros(12), lengths, **options)
    np.testing.assert_allclose(value + advantages, from_gae, atol=1e-12)
    from_td = td_lambda_returns(
        reward[:, None], value[:, None], lengths, np.ones(3, bool), discount=0.9, td_lambda=lam
    )[:, 0]
    np.testing.assert_allclose(from_gae, from_td, atol=1e-12)
    np.testing.assert_allclose(from_v_trace, from_td, atol=1e-12)


def test_a_ratio_beyond_every_float_is_clipped_rather_than_infinite():
    got = v_trace(np.ones(1), np.zeros(1), np.zeros(1), np.array([1000.0]), np.array([1]), gamma=0.9, rho_max=2.0)
    assert got.targets.tolist() == [2.0]


def test_returns_keep_the_dtype_of_the_reward():
    ones, lengths = np.ones(3, np.float32), np.array([3])
    assert gae(ones, ones, ones, lengths, gamma=0.9, td_lambda=0.5).dtype == np.float32
    assert {a.dtype for a in v_trace(ones, ones, ones, ones, lengths, gamma=0.9)} == {np.dtype(np.float32)}
    steps = n_step_returns(ones, lengths, n=2, gamma=0.9)
    assert (steps.returns.dtype, steps.last.dtype, steps.discount.dtype) == (np.float32, np.int64, np.float32)
    pair = ones[:, None]
    assert td_lambda_returns(pair, pair, lengths, np.array([True]), discount=0.9, td_lambda=1).dtype == np.float32


TD = {
    "reward": np.zeros((3, 2)), "value": np.zeros((3, 2)), "fresh": 1, "terminated": True, "discount": 0.9,
    "td_lambda": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros(3)}, "reward: expected shape (3, D), got (3,)"),
        ({"reward": np.zeros((4, 2))}, "value: expected floats of shape (4, 2), got float64 of shape (3, 2)"),
        ({"value": np.zeros((3, 1))}, "value: expected floats of shape (3, 2), got float64 of shape (3, 1)"),
        ({"value": np.zeros((3, 2), int)}, "value: expected floats of shape (3, 2), got int64"),
        ({"reward": np.array([[0, 0], [0, np.nan], [0, 0]])}, "expected finite numbers, got [ 0. nan] at step 1"),
        ({"discount": np.ones(3)}, "discount: expected a number or shape (2,), one each, got shape (3,)"),
        ({"discount": 1.5}, "discount: expected numbers in [0, 1], got 1.5"),
        ({"td_lambda": np.nan}, "td_lambda: expected a number in [0, 1], got nan"),
        ({"fresh": 0}, "fresh: expected 1 to 3, the steps of the episode, got 0"),
        ({"fresh": 4}, "fresh: expected 1 to 3, the steps of the episode, got 4"),
        ({"threshold": -1.0}, "threshold: expected at least 0, got -1.0"),
        ({"coefficients": np.array([1.0, np.inf])}, "coefficients: expected finite numbers"),
        ({"value": np.full((3, 2), np.inf)}, "value: expected finite numbers"),
    ],
)  # fmt: skip
def test_malformed_input_to_lambda_returns_is_refused_by_name_and_changes_nothing(change, message):
    got = np.full((3, 2), 7.0)
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        extend_lambda_returns(got, **(TD | change))
    assert (got == 7.0).all()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.array([3, 0]), "lengths: expected at least one episode of at least one step each, got [3 0]"),
        (np.array([], int), "lengths: expected at least one episode"),
        (np.array([3.0]), "lengths: expected integers of shape (E,), got float64 (1,)"),
        (np.array([4]), "reward: expected shape (4,), got (3,)"),
    ],
)
def test_malformed_lengths_are_refused(lengths, message):
    ones = np.ones(3)
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        gae(ones, ones, ones, lengths, gamma=0.9, td_lambda=0.5)


def test_malformed_input_to_the_others_is_refused_by_name():
    ones, lengths = np.ones(3), np.array([3])
    with pytest.raises(InvalidExperience, match="n: expected at least 1, got 0"):
        n_step_returns(ones, lengths, n=0, gamma=0.9)
    with pytest.raises(InvalidExperience, match=r"gamma: expected a number in \[0, 1\], got 2"):
        gae(ones, ones, ones, lengths, gamma=2, td_lambda=0.5)
    with pytest.raises(InvalidExperience, match="rho_max: expected above 0, got 0"):
        v_trace(ones, ones, ones, ones, lengths, gamma=0.9, rho_max=0)
    scale = AdvantageScale()
    with pytest.raises(InvalidExperience, match="exponent: expected a finite number of at least 0, got -1"):
        scale.priorities(ones[:, None], ones[:, None], exponent=-1)
    assert scale.mean_square == 1.0
