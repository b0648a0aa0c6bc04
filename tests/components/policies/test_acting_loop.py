"""The loop of acting computes what the network's definition says; plain NumPy in float64 is the reference."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.policies.acting import RecurrentActing, epsilon_greedy

SEEDS = st.integers(0, 1000)


def acting_in(n_agents: int, n_actions: int, obs_size: int, hidden_size: int, seed: int) -> RecurrentActing:
    spec = EnvSpec("random", n_agents, n_actions, obs_size, state_size=4, episode_limit=9)
    acting = RecurrentActing(spec, epsilon_greedy, hidden_size=hidden_size)
    acting.load(np.random.default_rng(seed).uniform(-0.5, 0.5, acting.params().shape).astype(np.float32))
    return acting


def defined(acting: RecurrentActing, obs, last_actions, hidden):
    """The network one row at a time: q and h' of PyMARL's agent, in torch's order of parameters and gates."""
    size, n_actions, n_agents = acting.hidden_size, acting.spec.n_actions, acting.spec.n_agents
    rest = acting.params().astype(np.float64)
    parts = []
    inputs = acting.spec.obs_size + n_actions + n_agents
    of_gru = [(3 * size, size), (3 * size, size), (3 * size,), (3 * size,)]
    for shape in [(size, inputs), (size,), *of_gru, (n_actions, size), (n_actions,)]:
        part, rest = np.split(rest, [int(np.prod(shape))])
        parts.append(part.reshape(shape))
    w, b, w_x, w_h, b_x, b_h, head, b_q = parts
    q, after = np.empty((*last_actions.shape, n_actions)), np.empty(hidden.shape)
    for i in np.ndindex(last_actions.shape):
        one_hot_action, one_hot_agent = np.zeros(n_actions), np.zeros(n_agents)
        if last_actions[i] >= 0:
            one_hot_action[last_actions[i]] = 1.0
        one_hot_agent[i[1]] = 1.0
        x = np.maximum(w @ np.concatenate([obs[i], one_hot_action, one_hot_agent]) + b, 0.0)
        x_r, x_z, x_n = np.split(w_x @ x + b_x, 3)
        h_r, h_z, h_n = np.split(w_h @ hidden[i].astype(np.float64) + b_h, 3)
        r, z = 1.0 / (1.0 + np.exp(-x_r - h_r)), 1.0 / (1.0 + np.exp(-x_z - h_z))
        n = np.tanh(x_n + r * h_n)
        after[i] = (1.0 - z) * n + z * hidden[i]
        q[i] = head @ after[i] + b_q
    return q, after


def inputs_of(acting: RecurrentActing, copies: int, seed: int):
    spec, rng = acting.spec, np.random.default_rng(seed)
    obs = rng.standard_normal((copies, spec.n_agents, spec.obs_size), dtype=np.float32)
    obs[rng.random((copies, spec.n_agents)) < 0.3] = 0.0  # dead units
    last = rng.integers(-1, spec.n_actions, (copies, spec.n_agents))
    hidden = rng.uniform(-1.0, 1.0, (copies, spec.n_agents, acting.hidden_size)).astype(np.float32)
    return obs, last, hidden


@settings(deadline=None, max_examples=40)
@given(
    copies=st.integers(1, 40),
    n_agents=st.integers(1, 5),
    n_actions=st.integers(1, 40),
    obs_size=st.integers(1, 40),
    hidden_size=st.integers(1, 40),
    seed=SEEDS,
)
def test_outputs_and_states_are_those_of_the_definition(
    copies, n_agents, n_actions, obs_size, hidden_size, seed
) -> None:
    acting = acting_in(n_agents, n_actions, obs_size, hidden_size, seed)
    given_ = inputs_of(acting, copies, seed)
    for ours, expected in zip(acting.values(*given_), defined(acting, *given_), strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, expected, rtol=0, atol=2e-5)


def test_actions_that_are_not_available_have_the_value_minus_infinity() -> None:
    acting = acting_in(3, 7, 5, 8, seed=1)
    given_ = inputs_of(acting, 30, seed=1)
    available = np.random.default_rng(1).random((30, 3, 7)) < 0.5
    values = acting.values(*given_)[0]
    np.testing.assert_array_equal(acting.values(*given_, available)[0], np.where(available, values, -np.inf))


def test_arrays_of_any_layout_and_float64_give_the_same_and_are_left_as_they_are() -> None:
    acting = acting_in(3, 7, 5, 8, seed=2)
    obs, last, hidden = inputs_of(acting, 12, seed=2)
    expected = acting.values(obs[::2], last[::2], hidden[::2])
    assert obs.flags.writeable
    assert hidden.flags.writeable
    locked = [array[::2].copy() for array in (obs, last, hidden)]
    for array in locked:
        array.flags.writeable = False
    for given_ in (
        [array[::2] for array in (obs, last, hidden)],
        [np.asfortranarray(array[::2]) for array in (obs, last, hidden)],
        [obs[::2].astype(np.float64), last[::2].astype(np.int32), hidden[::2].astype(np.float64)],
        locked,
    ):
        for ours, theirs in zip(acting.values(*given_), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("wrong", ["obs", "last_actions", "hidden", "available"])
def test_arrays_of_another_shape_are_refused(wrong: str) -> None:
    acting = acting_in(3, 7, 5, 8, seed=2)
    named = dict(zip(("obs", "last_actions", "hidden"), inputs_of(acting, 12, seed=2), strict=True))
    named["available"] = np.ones((12, 3, 7), np.bool_)
    for less in (named[wrong][:-1], named[wrong][:, :-1], named[wrong][..., :-1]):
        with pytest.raises(ValueError, match="<RecurrentActing random>: expected arrays"):
            acting.values(**named | {wrong: less})


def test_a_last_action_out_of_range_counts_as_the_nearest_one() -> None:
    acting = acting_in(3, 7, 5, 8, seed=2)
    obs, last, hidden = inputs_of(acting, 12, seed=2)
    for beyond, nearest in ((7, 6), (10**12, 6), (-2, -1), (-(10**12), -1)):
        ours, theirs = (acting.values(obs, np.full_like(last, it), hidden)[0] for it in (beyond, nearest))
        np.testing.assert_array_equal(ours, theirs)


def test_parameters_that_are_loaded_after_a_step_are_used_by_the_next() -> None:
    acting, other = acting_in(3, 7, 5, 8, seed=3), acting_in(3, 7, 5, 8, seed=4)
    given_ = inputs_of(acting, 4, seed=3)
    before = acting.values(*given_)[0]
    acting.load(other.params())
    np.testing.assert_array_equal(acting.values(*given_)[0], other.values(*given_)[0])
    assert not np.array_equal(acting.values(*given_)[0], before)


def test_a_nan_in_the_parameters_stays_one() -> None:
    acting = acting_in(2, 3, 4, 8, seed=5)
    acting.load(np.full_like(acting.params(), np.nan))
    assert np.isnan(acting.values(*inputs_of(acting, 2, seed=5))[0]).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_epsilon_greedy_is_the_rule_with_the_same_random_numbers(epsilon: float) -> None:
    rng = np.random.default_rng(6)
    values, available = rng.standard_normal((50, 4, 9)), rng.random((50, 4, 9)) < 0.4
    available[..., 3] = True
    values[~available] = -np.inf
    actions = epsilon_greedy(values, available, epsilon, np.random.default_rng(7))
    explores, which = np.random.default_rng(7).random((2, 50, 4))
    for i in np.ndindex(50, 4):
        allowed = np.flatnonzero(available[i])
        explored = allowed[int(which[i] * len(allowed))]
        assert actions[i] == (explored if explores[i] < epsilon else values[i].argmax())


MADE_AND_USED = """
import sys
import numpy as np
from components.envs.base import EnvSpec
from components.policies import ALGORITHMS
acting = ALGORITHMS["qmix"].acting(EnvSpec("random", 2, 3, 4, state_size=4, episode_limit=9), seed=0)
acting.load(acting.params())
print("numba" in sys.modules)
acting.values(np.zeros((1, 2, 4), np.float32), np.zeros((1, 2), np.int64), acting.initial_hidden(1))
print("numba" in sys.modules, "torch" in sys.modules)
"""


def test_numba_is_imported_by_the_first_step_and_not_by_making_or_loading_a_policy() -> None:
    run = subprocess.run([sys.executable, "-c", MADE_AND_USED], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]
