"""Workers act by NumPy as the learner acts by torch: the same actions, from the same random numbers."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.policies import ALGORITHMS, Algorithm
from components.policies.qmix import Qmix

RECURRENT = ("coma", "iql", "qmix", "qplex", "vdn")
TOLERANCE = 1e-5
"""Of hidden states and values, both of a size around one."""


@pytest.fixture(params=RECURRENT)
def algorithm(request) -> Algorithm:
    return ALGORITHMS[request.param]


def pair(algorithm: Algorithm, spec: EnvSpec, hidden_size: int, init: str = "uniform", seed: int = 3):
    """The policy that learns, with the numbers of a network that has learnt, and one that acts with its parameters."""
    configured = algorithm.configured(hidden_size=hidden_size, init=init)
    learner, acting = configured.learner(spec, seed=seed), configured.acting(spec, seed=seed)
    acting.load(learner.params())
    return learner, acting


def situation(spec: EnvSpec, n_envs: int, hidden_size: int, seed: int, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    available = rng.random((n_envs, spec.n_agents, spec.n_actions)) < 0.5
    available[..., 0] = True
    return {
        "obs": scale * rng.standard_normal((n_envs, spec.n_agents, spec.obs_size), dtype=np.float32),
        "available": available,
        "last_actions": rng.integers(-1, spec.n_actions, (n_envs, spec.n_agents)),
        "hidden": rng.uniform(-1.0, 1.0, (n_envs, spec.n_agents, hidden_size)).astype(np.float32),
    }


sizes = st.integers(1, 9)


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(RECURRENT),
    n_envs=sizes,
    n_agents=sizes,
    n_actions=sizes,
    obs_size=sizes,
    hidden_size=sizes,
    init=st.sampled_from(["uniform", "orthogonal"]),
    scale=st.sampled_from([1.0, 30.0]),
    epsilon=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_it_does_what_the_learner_s_network_does(
    name, n_envs, n_agents, n_actions, obs_size, hidden_size, init, scale, epsilon, seed
) -> None:
    spec = EnvSpec("random", n_agents, n_actions, obs_size, state_size=4, episode_limit=9)
    learner, acting = pair(ALGORITHMS[name], spec, hidden_size, init, seed)
    now = situation(spec, n_envs, hidden_size, seed, scale)
    random = [np.random.default_rng(seed) for _ in range(2)]
    actions, hidden = learner.act(**now, epsilon=epsilon, rng=random[0])
    own_actions, own_hidden = acting.act(**now, epsilon=epsilon, rng=random[1])
    np.testing.assert_allclose(own_hidden, hidden, atol=TOLERANCE)
    assert (own_actions.shape, own_actions.dtype) == (actions.shape, np.int64)
    # Values closer to each other than the tolerance may come in another order, so actions are compared below.
    assert np.take_along_axis(now["available"], own_actions[..., None], -1).all()
    assert random[0].bit_generator.state == random[1].bit_generator.state


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_episodes_played_with_one_seed_are_the_same_by_numpy_and_by_torch(algorithm, spec, epsilon) -> None:
    learner, acting = pair(algorithm, spec, 16, "orthogonal")
    random = [np.random.default_rng(5) for _ in range(2)]
    states = [policy.initial_hidden(20) for policy in (learner, acting)]
    lasts = [np.full((20, spec.n_agents), -1) for _ in range(2)]
    for t in range(30):
        now = situation(spec, 20, 16, seed=t)
        for i, policy in enumerate((learner, acting)):
            lasts[i], states[i] = policy.act(
                now["obs"], now["available"], lasts[i], states[i], epsilon=epsilon, rng=random[i]
            )
        np.testing.assert_array_equal(*lasts)
        np.testing.assert_allclose(*states, atol=TOLERANCE)


def test_numbers_of_copies_may_change_between_steps_and_read_only_arrays_are_taken(spec) -> None:
    _, acting = pair(ALGORITHMS["qmix"], spec, 64)
    now = situation(spec, 8, 64, seed=1)
    for array in now.values():
        array.flags.writeable = False
    act = partial(acting.act, epsilon=0.0, rng=np.random.default_rng(0))
    actions, hidden = act(**now)
    kept = hidden.copy()
    for rows in (slice(2, 3), slice(0, 8), slice(1, 5)):
        some_actions, some_hidden = act(**{name: array[rows] for name, array in now.items()})
        np.testing.assert_array_equal(some_actions, actions[rows])
        np.testing.assert_allclose(some_hidden, hidden[rows], atol=1e-6)
        assert some_hidden.flags.writeable
    np.testing.assert_array_equal(hidden, kept)  # it lies in no memory that later steps reuse


def test_parameters_are_copied_and_returned(spec) -> None:
    learner, acting = pair(ALGORITHMS["qmix"], spec, 8)
    lent = learner.params().copy()
    acting.load(lent)
    now = situation(spec, 3, 8, seed=2)
    before = acting.act(**now, epsilon=0.0, rng=np.random.default_rng(0))[1]
    lent[:] = np.nan  # as a block of shared memory that gets the next version
    after = acting.act(**now, epsilon=0.0, rng=np.random.default_rng(0))[1]
    np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(acting.params(), learner.params())
    assert not acting.params().flags.writeable
    with pytest.raises(ValueError, match=r"params: expected shape \(\d+,\) for <RecurrentActing tiny>, got \(7,\)"):
        acting.load(np.zeros(7, np.float32))
    np.testing.assert_array_equal(acting.params(), learner.params())


def test_an_algorithm_of_one_s_own_acts_as_it_learns_unless_it_has_an_acting_side(spec) -> None:
    own = Algorithm(Qmix).configured(hidden_size=8).configured(gamma=0.5)
    acting = own.acting(spec, seed=4)
    assert isinstance(acting, Qmix)
    assert (acting.options.hidden_size, acting.options.gamma, acting.options.seed) == (8, 0.5, 4)
    assert own.learner.keywords == {"hidden_size": 8, "gamma": 0.5}
