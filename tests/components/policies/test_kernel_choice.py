"""Compiled loops and plain operations of torch agree, whatever computes a gradient step."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from components.policies import Coma, EpisodeBatch, Iql, Qmix, Qplex, Vdn
from components.policies.acting import RecurrentActing
from components.policies.inputs import AgentInputs
from components.policies.packing import Packing

ALGORITHMS = pytest.mark.parametrize("algorithm", [Iql, Vdn, Qmix, Qplex, Coma], ids=lambda it: it.__name__)
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Of the largest number of an array: what the options promise."""
PRECISIONS = pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])


def agree(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> None:
    largest = float(other.abs().max())
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCES[dtype] * max(largest, 1e-3))


@PRECISIONS
@pytest.mark.parametrize("algorithm", [Iql, Vdn, Qmix, Qplex], ids=lambda it: it.__name__)
def test_loss_values_and_gradients_agree(spec, make_batch, algorithm, dtype) -> None:
    found = []
    for kernels in ("numba", "torch"):
        policy = algorithm(spec, hidden_size=20, dtype=dtype, kernels=kernels, td_lambda=0.6)
        batch = make_batch((9, 4, 7, 7, 2, 9) * 4)
        batch.obs[::3, 2:5, 1] = 0.0  # of agents that see nothing
        td = policy.td_loss(batch)
        parameters = [p for network in policy._online.values() for p in network.parameters()]
        found.append([td.loss.detach(), td.q_taken.detach(), td.target, *torch.autograd.grad(td.loss, parameters)])
    for ours, theirs in zip(*found, strict=True):
        agree(ours, theirs, dtype)


@PRECISIONS
def test_the_actors_chances_and_their_gradients_agree(spec, make_batch, dtype) -> None:
    found = []
    for kernels in ("numba", "torch"):
        policy = Coma(spec, hidden_size=20, dtype=dtype, kernels=kernels)
        data = policy.counterfactuals(make_batch((9, 4, 7, 7, 2) * 4))
        chances = policy.chances(data)
        loss = policy.actor_loss(data, chances, data.target)
        found.append([chances.detach(), data.target, *torch.autograd.grad(loss, list(policy.agent.parameters()))])
    for ours, theirs in zip(*found, strict=True):
        agree(ours, theirs, dtype)


@ALGORITHMS
def test_either_learns_from_the_same_batches(spec, make_batch, algorithm) -> None:
    results = []
    for kernels in ("numba", "torch"):
        policy = algorithm(spec, dtype=torch.float64, kernels=kernels, seed=1)
        for seed in range(3):
            learned = policy.learn(make_batch((9, 4, 7), seed=seed))
        results.append((policy.params(), learned.metrics["loss"], learned.priorities))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@PRECISIONS
def test_workers_act_as_either_says(spec, make_batch, dtype) -> None:
    batch: EpisodeBatch = make_batch((6,) * 8)
    rng, policy = np.random.default_rng(0), Qmix(spec, hidden_size=16, kernels="torch", dtype=dtype, seed=2)
    acting = RecurrentActing(spec, Qmix.choose, hidden_size=16)
    acting.load(policy.params())
    last, hidden, after = np.full((8, 3), -1), policy.initial_hidden(8), acting.initial_hidden(8)
    for t in range(6):
        given = batch.obs[:, t], batch.available[:, t], last
        actions, hidden = policy.act(*given, hidden, epsilon=0.0, rng=rng)
        again, after = acting.act(*given, after, epsilon=0.0, rng=rng)
        np.testing.assert_array_equal(actions, again)
        np.testing.assert_allclose(hidden, after, rtol=0, atol=1e-5)
        last = actions


def test_inputs_gathered_by_numpy_are_those_gathered_by_the_loops(spec, make_batch) -> None:
    batch = make_batch((3, 9, 1, 6))
    batch.obs[1, :, 2] = 0.0
    packing = Packing.of(batch.lengths, batch.terminated)
    last = np.random.default_rng(0).integers(-1, spec.n_actions, (len(packing.frames), spec.n_agents))
    loops, plain = (
        AgentInputs.of(batch.frames("obs"), packing, last, n_actions=spec.n_actions, compiled=compiled)
        for compiled in (True, False)
    )
    assert torch.equal(loops.picks, plain.picks)
    assert torch.equal(loops.living[0].obs, plain.living[0].obs)
    assert torch.equal(loops.living[0].pairs, plain.living[0].pairs)
    assert (loops.bounds, loops.blocks.tolist(), loops.asked.tolist()) == (
        plain.bounds,
        plain.blocks.tolist(),
        plain.asked.tolist(),
    )


def test_torch_alone_calls_no_loop(spec, make_batch, monkeypatch) -> None:
    from components.policies import kernel

    for name in ("forward", "backward", "collect", "mix", "mix_back", "td_part", "prepare"):
        monkeypatch.setattr(kernel, name, None)
    policy = Qmix(spec, kernels="torch")
    policy.prepare()
    assert np.isfinite(policy.learn(make_batch()).metrics["loss"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kernels": "cython"}, "kernels must be 'auto', 'numba' or 'torch', got 'cython'"),
        ({"kernels": "numba", "device": "cuda"}, "kernels must be 'auto' or 'torch' on cuda"),
    ],
)
def test_a_choice_that_there_is_not_is_refused(spec, options, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        Qmix(spec, **options)


INTERPRETED = """
import numpy as np, torch
from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qmix, kernel
spec = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=3)
rng = np.random.default_rng(0)
batch = EpisodeBatch(
    obs=rng.standard_normal((3, 4, 2, 4), np.float32), state=rng.standard_normal((3, 4, 5), np.float32),
    available=np.ones((3, 4, 2, 3), np.bool_), actions=rng.integers(0, 3, (3, 3, 2)),
    reward=rng.standard_normal((3, 3), np.float32), lengths=np.array([3, 1, 2], np.int32),
    terminated=np.array([True, False, True]), weights=np.ones(3, np.float32),
)
assert not hasattr(kernel.forward, "py_func"), "it is compiled"
assert not Qmix(spec).options.compiled, "auto must be torch where numba does not compile"
found = []
for kernels in ("numba", "torch"):
    policy = Qmix(spec, kernels=kernels, hidden_size=3, mixer_embed=2, hypernet_size=3, dtype=torch.float64)
    policy.prepare()
    loss = policy.td_loss(batch).loss
    found.append([loss, *torch.autograd.grad(loss, [*policy.agent.parameters(), *policy.mixer.parameters()])])
    policy.learn(batch)
    found[-1].append(policy._optimizers["all"].gradient)
torch.testing.assert_close(*found, rtol=1e-9, atol=1e-9)
"""


def test_the_loops_run_interpreted_without_a_compiler() -> None:
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(root)}
    ended = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
