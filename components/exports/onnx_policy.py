"""A policy as an ONNX graph that acts greedily, and the check that it acts like the policy.

    inputs   obs (B, A, O) float32, last_actions (B, A, …), hidden (B, A, H) float32, and where the policy sees them
             available (B, A, …) bool, alive (B, A) bool
    outputs  actions (B, A, …), next_hidden (B, A, H) float32

Actions are int64, or float32 where they are continuous. `last_actions` is -1 (0 where actions are continuous) and
`hidden` zeros where an episode begins. B is free.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from components.envs.base import Env, EnvSpec
from components.exports import onnx_networks
from components.exports.onnx_graph import Graph
from components.playing import play
from components.policies.acting import Acted, ActingPolicy
from components.policies.base import Policy
from components.policies.dqn import Dqn
from components.policies.on_policy import OnPolicy
from components.policies.pqn_learning import PqnLearner
from components.policies.recurrent import RecurrentPolicy
from components.policies.wrapped import WrappedPolicy
from orchestra import UsageError, replacing

OPSET = 17
CLOSE = 1e-4
"""Largest allowed difference of hidden states and continuous actions between ONNX and the policy."""
_TYPES = {"f": TensorProto.FLOAT, "b": TensorProto.BOOL, "i": TensorProto.INT64}
_DTYPES = {"f": np.float32, "b": np.bool_, "i": np.int64, "u": np.int64}


def write_onnx(path: Path, policy: Policy) -> None:
    """Write the policy, acting greedily, as an ONNX file.

    Raises:
        UsageError: there is no graph for this kind of policy.
        OSError: the file cannot be written.
    """
    graph = Graph()
    spec, n_hidden, seen = _added(graph, policy)
    item, dtype = spec.schema.items["actions"]
    shape, kind = list(item), "f" if dtype.kind == "f" else "i"
    if "last_actions" not in {name for node in graph.nodes for name in node.input}:
        graph.op("Identity", "last_actions", outputs=["_last"])  # keeps the input, which such a policy does not use

    def of(name: str, shape: Sequence[str | int], kind: str) -> Any:
        return helper.make_tensor_value_info(name, _TYPES[kind], ["B", *shape])

    inputs = [of(name, spec.schema.items[name][0], "f" if name == "obs" else "b") for name in seen]
    memory = [spec.n_agents, n_hidden]
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            spec.name,
            [*inputs, of("last_actions", shape, kind), of("hidden", memory, "f")],
            [of("actions", shape, kind), of("next_hidden", memory, "f")],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="orchestra",
    )
    onnx.checker.check_model(model, full_check=True)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def _added(graph: Graph, policy: Policy) -> tuple[EnvSpec, int, list[str]]:
    """Add the policy's network of acting; return its environment, the size of its memory, and its input fields."""
    inner = policy.learner if isinstance(policy, WrappedPolicy) else policy
    usual = ["obs", "available"]
    if isinstance(inner, RecurrentPolicy):
        onnx_networks.recurrent(graph, inner.named_params(), inner.spec)
        return inner.spec, inner.initial_hidden(1).shape[-1], usual
    if isinstance(inner, Dqn):
        onnx_networks.dqn(graph, inner.named_params(), inner.layers)
        return inner.spec, inner.initial_hidden(1).shape[-1], usual
    if isinstance(inner, PqnLearner):
        onnx_networks.pqn(graph, inner.named_params(), inner.sizes)
        return inner.spec, inner.initial_hidden(1).shape[-1], usual
    if isinstance(inner, OnPolicy):
        on = inner.interface
        onnx_networks.ppo(graph, inner.named_params(), on)
        seen = ["obs", *(["available"] if on.masked else []), *(["alive"] if onnx_networks.sees_the_dead(on) else [])]
        # The memory is the actor's; the critic has another one.
        return inner.spec, on.networks.hidden_size if on.networks.recurrent else 1, seen
    raise UsageError(
        f"{type(policy).__name__} has no ONNX graph: those of QMIX, VDN, QPLEX, IQL, COMA, DQN, PPO, IPPO, MAPPO and "
        "PQN are known; export it as .safetensors"
    )


class _Twins(ActingPolicy):
    """Acts as a policy, and runs an ONNX file on the same frames for comparison."""

    def __init__(self, policy: ActingPolicy, path: Path) -> None:
        self._policy = policy
        self.fields, self.probe_frames = policy.fields, policy.probe_frames
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        inputs = {each.name: each.shape for each in self._session.get_inputs()}
        self._seen = [name for name in inputs if name not in ("last_actions", "hidden")]
        self._n_hidden = inputs["hidden"][-1]
        self.actions = self.other = 0
        """Number of compared actions, and number of different ones."""
        self.apart = 0.0
        """Largest difference of two hidden states."""

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return self._policy.initial_hidden(n_envs)

    def act_on(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        memory = hidden[..., : self._n_hidden]  # that of the actor; the rest is the critic's
        given = {name: frames[name] for name in self._seen} | {"last_actions": last_actions, "hidden": memory}
        arrays: dict[str, Any] = {
            name: np.ascontiguousarray(array, _DTYPES[array.dtype.kind]) for name, array in given.items()
        }
        arrays["obs"] = np.ascontiguousarray(frames["obs"], np.float32)
        theirs, after = self._session.run(["actions", "next_hidden"], arrays)
        acted = self._policy.act_on(frames, last_actions, hidden, epsilon=epsilon, rng=rng)
        mine = acted.actions
        same = np.isclose(theirs, mine, rtol=0.0, atol=CLOSE) if mine.dtype.kind == "f" else theirs == mine
        self.actions += mine.size
        self.other += int((~same).sum())
        self.apart = max(self.apart, float(np.abs(after - acted.hidden[..., : self._n_hidden]).max()))
        return acted

    def params(self) -> NDArray[np.float32]:
        return self._policy.params()

    def load(self, params: NDArray[np.float32]) -> None:
        self._policy.load(params)


def check_onnx(path: Path, policy: ActingPolicy, env: Env, episodes: int) -> int:
    """Play greedy episodes and compare every action of an ONNX file with the policy's; return their number.

    Raises:
        UsageError: an action or a hidden state differs.
    """
    twins = _Twins(policy, path)
    play(env, twins, episodes, np.random.default_rng(0))
    if twins.other or not twins.apart <= CLOSE:
        raise UsageError(
            f"{str(path)!r} does not act as the policy: {twins.other} of {twins.actions} actions are others, and "
            f"hidden states are up to {twins.apart:.2g} apart"
        )
    return twins.actions
