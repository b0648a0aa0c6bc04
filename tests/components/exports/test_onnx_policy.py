"""A policy acts as an ONNX file exactly as it does here, whatever its networks see and say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components.envs import EnvSpec, Skirmish
from components.envs.base import Env
from components.experience import FieldSpec
from components.policies import ALGORITHMS
from components.policies.base import Policy
from orchestra import UsageError

pytest.importorskip("onnxruntime")

from components.exports.onnx_policy import check_onnx, write_onnx

OBS = ("obs", FieldSpec((4,), per="frame", agents=True))
REWARD = ("reward", FieldSpec(()))


class Noise(Env):
    """Three agents that see noise, have some actions, and die now and then; an episode has 12 steps."""

    def __init__(self, actions: FieldSpec, *seen: tuple[str, FieldSpec]) -> None:
        n_actions = sum(actions.n_values) if not actions.shape else 0
        fields = (OBS, *seen, ("actions", actions), REWARD)
        self.spec, self.n_envs = EnvSpec("noise", 3, n_actions, 4, 0, 12, fields), 3
        self._rng = np.random.default_rng(7)
        self._allocate()
        self.alive = np.ones((3, 3), np.bool_)
        self.available = np.ones((3, *self.spec.schema.items.get("available", ((3, 1), None))[0]), np.bool_)
        self._steps = 0

    def reset(self, which: Any = None) -> None:
        self._steps = 0
        self.truncated[:] = False
        self._show()

    def step(self, actions: Any) -> None:
        self._steps += 1
        self.truncated[:] = self._steps == self.spec.episode_limit
        self._show()

    def _show(self) -> None:
        self.obs[:] = self._rng.normal(1.0, 2.0, self.obs.shape)
        self.alive[:] = self._rng.random(self.alive.shape) < 0.7
        self.available[:] = self._rng.random(self.available.shape) < 0.5
        self.available[..., -1] = True


def choices(*n_values: int) -> FieldSpec:
    return FieldSpec((len(n_values),), "int64", agents=True, n_values=n_values)


def noise_of(kind: str) -> Env:
    pushed = FieldSpec((2,), agents=True, low=(-2.0, 0.0), high=(2.0, 1.0))
    among = FieldSpec((), "int64", agents=True, n_values=(5,))
    available = ("available", FieldSpec((5,), "bool", per="frame", agents=True))
    alive = ("alive", FieldSpec((), "bool", per="frame", agents=True))
    return {
        "continuous": lambda: Noise(pushed),
        "several": lambda: Noise(choices(2, 4)),
        "several, masked": lambda: Noise(choices(3, 3), ("available", FieldSpec((2, 3), "bool", "frame", agents=True))),
        "masked": lambda: Noise(among, available),
        "mortal": lambda: Noise(among, available, alive),
        "unmasked": lambda: Noise(among),
    }[kind]()


def policies_of(name: str, env: Env, **options: Any) -> tuple[Policy, Any]:
    """A learner, and a policy that acts with its parameters; they are large enough that actions differ."""
    algorithm = ALGORITHMS[name].configured(**options)
    learner, acting = algorithm.learner(env.spec, seed=1), algorithm.acting(env.spec, seed=0)
    sign = np.where(np.arange(len(learner.params())) % 3, 1.0, 2.0).astype(np.float32)
    learner.load(learner.params() * 2 * sign + np.float32(0.01))
    acting.load(learner.params())
    return learner, acting


@pytest.mark.parametrize("name", ["qmix", "qplex", "coma", "dqn", "ppo", "ippo", "mappo", "pqn", "pqn-vdn"])
def test_an_onnx_policy_acts_identically(name: str, tmp_path: Path) -> None:
    env = Skirmish("3m", 4, seed=0)
    learner, acting = policies_of(name, env)
    write_onnx(tmp_path / "policy.onnx", learner)
    assert check_onnx(tmp_path / "policy.onnx", acting, env, 4) >= 4 * 3

    acting.load(-learner.params())
    with pytest.raises(UsageError, match=r"does not act as the policy: \d+ of \d+ actions are others"):
        check_onnx(tmp_path / "policy.onnx", acting, env, 4)
    env.close()


NETWORKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "continuous": ("ppo", "continuous", {}),
    "squashed": ("ppo", "continuous", {"squash": True}),
    "recurrent and continuous": ("ippo", "continuous", {}),
    "several choices": ("ppo", "several", {}),
    "several masked choices": ("ippo", "several, masked", {}),
    "dead agents": ("ippo", "mortal", {}),
    "dead agents that are seen": ("ippo", "mortal", {"death_masking": False}),
    "normalised": ("ppo", "masked", {"normalise_obs": True}),
    "all actions available": ("ppo", "unmasked", {}),
    "recurrent PQN": ("pqn", "masked", {"recurrent": True, "layers": 1}),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_network_acts_identically(kind: str, tmp_path: Path) -> None:
    name, shown, options = NETWORKS[kind]
    env = noise_of(shown)
    learner, acting = policies_of(name, env, **options)
    write_onnx(tmp_path / "policy.onnx", learner)
    per_step = 3 * int(np.prod(env.spec.schema.by_name["actions"].shape))  # three agents
    assert check_onnx(tmp_path / "policy.onnx", acting, env, 6) == 6 * 12 * per_step

    acting.load(-learner.params() if kind != "normalised" else np.abs(learner.params()))
    with pytest.raises(UsageError, match="does not act as the policy"):
        check_onnx(tmp_path / "policy.onnx", acting, env, 6)


def test_a_policy_without_a_graph_is_named(tmp_path: Path) -> None:
    learner, _ = policies_of("mappo", env := Skirmish("3m", 1, seed=0))
    env.close()

    class Own(Policy):
        fields, spec = learner.fields, env.spec

    Own.__abstractmethods__ = frozenset()
    with pytest.raises(UsageError, match=r"^Own has no ONNX graph: .* export it as \.safetensors$"):
        write_onnx(tmp_path / "policy.onnx", Own())  # type: ignore[abstract]
    assert not (tmp_path / "policy.onnx").exists()
