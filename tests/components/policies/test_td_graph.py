"""A gradient step of IQL, VDN and QMIX on padded batches of fixed sizes is that of the loss without padding."""

import numpy as np
import pytest
import torch
from gpu import cuda
from hypothesis import given, settings
from hypothesis import strategies as st
from td_batches import drawn, recorded

from components.envs.base import EnvSpec
from components.policies import Iql, Qmix, Vdn
from components.policies.td_graph import STEPS_OF_A_SIZE

ALGORITHMS = (Iql, Vdn, Qmix)


def spec_of(n_agents=3, limit=7) -> EnvSpec:
    return EnvSpec("tiny", n_agents=n_agents, n_actions=4, obs_size=5, state_size=6, episode_limit=limit)


@settings(max_examples=30, deadline=None)
@given(
    first=st.lists(st.integers(1, 19), min_size=1, max_size=9),
    second=st.lists(st.integers(1, 19), min_size=1, max_size=9),
    n_agents=st.integers(1, 4),
    algorithm=st.sampled_from(ALGORITHMS),
    double_q=st.booleans(),
    td_lambda=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_gradient_metrics_and_errors_are_those_of_the_recorded_loss(
    first, second, n_agents, algorithm, double_q, td_lambda, seed
):
    spec = spec_of(n_agents, limit=19)
    policy = algorithm(
        spec, hidden_size=9, double_q=double_q, td_lambda=td_lambda, dtype=torch.float64, kernels="torch"
    )
    policy._target_flat += 0.1 * torch.randn(policy._target_flat.shape, generator=torch.Generator().manual_seed(7))
    graph, gradient = policy._make_td_graph(), policy._optimizers["all"].gradient
    for lengths in (first, second):  # the second finds the padding that the first has left
        batch = drawn(spec, lengths, seed)
        sums = graph.gradient(batch)
        expected, metrics, errors = recorded(policy, batch)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-10)
        assert sums.metrics == pytest.approx(metrics, rel=1e-9, abs=1e-10)
        np.testing.assert_allclose(sums.errors, errors, rtol=1e-9, atol=1e-10)


def test_sizes_are_few():
    policy = Qmix(spec_of(limit=60), kernels="torch")
    graph = policy._make_td_graph()
    rng = np.random.default_rng(0)
    for n_episodes in (5, 6, 8, 7):
        for _ in range(20):
            graph.gradient(drawn(policy.spec, rng.integers(1, 61, n_episodes).tolist(), 0))
    assert {e for e, _ in graph._computing} == {8}
    assert {t % STEPS_OF_A_SIZE for _, t in graph._computing} == {0}
    assert len(graph._memory) == 1, "all sizes of so many episodes share their memory"


@pytest.mark.parametrize("lengths", [[], [0, 3], [3, 8]])
def test_lengths_that_the_batch_cannot_have_are_refused(lengths):
    spec = spec_of()
    batch = drawn(spec, [3, 7], 0).replaced(lengths=np.array(lengths, np.int32))
    with pytest.raises(ValueError, match=r"lengths: expected at least one episode of 1 (to 7|or more) steps each"):
        Qmix(spec, kernels="torch")._make_td_graph().gradient(batch)


@cuda
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda it: it.__name__)
def test_a_gpu_replays_what_torch_computes_there_and_on_the_cpu(algorithm):
    spec, rng = spec_of(limit=60), np.random.default_rng(0)
    batches = [drawn(spec, rng.integers(1, 61, rng.integers(4, 40)).tolist(), seed) for seed in range(12)]
    params = {}
    for device, kernels in (("cuda", "auto"), ("cuda", "torch"), ("cpu", "auto")):
        # A double Q-value jumps where two actions are worth the same to all but the last digit.
        policy = algorithm(spec, device=device, kernels=kernels, optimizer="adam", double_q=False, seed=1)
        told = [policy.learn(batch) for batch in batches]
        assert (policy._td_graph is not None) == (device == "cuda" and kernels == "auto")
        params[device, kernels] = policy.params(), [each.metrics for each in told], [each.priorities for each in told]
    wanted = params.pop(("cpu", "auto"))
    for found in params.values():
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-4)
        for mine, theirs in zip(found[1], wanted[1], strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)
        for priorities, expected in zip(found[2], wanted[2], strict=True):
            np.testing.assert_allclose(priorities, expected, rtol=1e-3, atol=1e-4)
