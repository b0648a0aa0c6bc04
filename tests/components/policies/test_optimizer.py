"""Steps on flat memory are those of torch's optimisers, without their imports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from components.policies.optimizer import FlatOptimizer

LIKE = {
    "adam": lambda p: torch.optim.Adam([p], lr=0.02, eps=1e-5),
    "radam": lambda p: torch.optim.RAdam([p], lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop([p], lr=0.02, alpha=0.99, eps=1e-5),
}


@pytest.mark.parametrize("kind", LIKE)
def test_steps_are_those_of_torch(kind):
    generator = torch.Generator().manual_seed(0)
    layer, flat = torch.nn.Linear(4, 3, bias=False, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    layer.weight.data = flat.view(3, 4)
    ours, expected = FlatOptimizer(flat, [layer], kind, 0.5, 1e9), flat.clone().requires_grad_()
    ours.learning_rate = 0.02
    theirs = LIKE[kind](expected)
    for n in range(30):
        gradient = torch.randn(12, dtype=torch.float64, generator=generator) * 10 ** (n % 5 - 2)
        ours.gradient.copy_(gradient)
        expected.grad = gradient.clone()
        norm = ours.descend("a test")
        theirs.step()
        assert norm == pytest.approx(float(gradient.norm()))
        torch.testing.assert_close(flat, expected.detach(), rtol=1e-12, atol=1e-12)
    (state,) = theirs.state_dict()["state"].values()
    moments = {name: value for name, value in ours.state().items() if name != "kind"}
    assert moments.keys() == state.keys()
    for name, value in moments.items():
        torch.testing.assert_close(value, state[name], rtol=1e-12, atol=1e-12, check_dtype=False)


LEARNS = """
import sys
import numpy as np
from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qmix
spec = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=3)
policy = Qmix(spec, optimizer="adam")
policy.prepare()
policy.learn(EpisodeBatch(
    obs=np.ones((1, 2, 2, 4), np.float32), state=np.ones((1, 2, 5), np.float32),
    available=np.ones((1, 2, 2, 3), np.bool_), actions=np.zeros((1, 1, 2), np.int64),
    reward=np.ones((1, 1), np.float32), lengths=np.ones(1, np.int32),
    terminated=np.ones(1, np.bool_), weights=np.ones(1, np.float32),
))
print(*[name for name in ("torch", "torch._dynamo", "sympy") if name in sys.modules])
"""


def test_a_learner_imports_no_compiler_of_torch():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    ended = subprocess.run([sys.executable, "-c", LEARNS], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["torch"]
