"""A policy as an ONNX graph that acts greedily, and the check that it acts as the policy does.

    inputs   obs (B, A, O) float32, available (B, A, U) bool, last_actions (B, A) int64, hidden (B, A, H) float32
    outputs  actions (B, A) int64, next_hidden (B, A, H) float32

`last_actions` is -1 and `hidden` zeros where an episode begins. B is free.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from components.envs.base import Env, EnvSpec
from components.playing import play
from components.policies.acting import ActingPolicy
from components.policies.base import Policy
from components.policies.dqn import Dqn
from components.policies.recurrent import RecurrentPolicy
from orchestra import UsageError, replacing

OPSET = 17
CLOSE = 1e-4
"""By how much hidden states of ONNX and of the policy may differ."""

Arrays = Mapping[str, NDArray[np.float32]]


class _Graph:
    """Collects nodes and constants; each operation returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: NDArray[Any]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        named = list(outputs) or [f"n{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), named, **attributes))
        return named[0]

    def linear(self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        return self.op("Add", self.op("MatMul", x, self.constant(weight.T)), self.constant(bias))

    def greedy(self, values: str) -> None:
        masked = self.op("Where", "available", values, self.constant(np.array(-np.inf, np.float32)))
        self.op("ArgMax", masked, axis=-1, keepdims=0, outputs=["actions"])


def write_onnx(path: Path, policy: Policy) -> None:
    """Write the policy, acting greedily, as an ONNX file.

    Raises:
        UsageError: the policy is of a kind of which this knows no graph.
        OSError: the file cannot be written.
    """
    graph = _Graph()
    if isinstance(policy, RecurrentPolicy):
        _recurrent(graph, policy.named_params(), policy.spec)
    elif isinstance(policy, Dqn):
        _dqn(graph, policy.named_params(), policy.layers)
    else:
        raise UsageError(
            f"{type(policy).__name__} has no ONNX graph: those of QMIX, VDN, QPLEX, IQL, COMA and DQN are known; "
            "export it as .safetensors"
        )
    spec = policy.spec
    n_hidden = policy.initial_hidden(1).shape[-1]
    agents, actions = spec.n_agents, spec.n_actions
    of = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            spec.name,
            [
                of("obs", TensorProto.FLOAT, ["B", agents, spec.obs_size]),
                of("available", TensorProto.BOOL, ["B", agents, actions]),
                of("last_actions", TensorProto.INT64, ["B", agents]),
                of("hidden", TensorProto.FLOAT, ["B", agents, n_hidden]),
            ],
            [
                of("actions", TensorProto.INT64, ["B", agents]),
                of("next_hidden", TensorProto.FLOAT, ["B", agents, n_hidden]),
            ],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="orchestra",
    )
    onnx.checker.check_model(model, full_check=True)
    with replacing(path) as file:
        file.write(model.SerializeToString())


def _recurrent(graph: _Graph, arrays: Arrays, spec: EnvSpec) -> None:
    """Add the agents' network: linear, ReLU, GRU, linear."""
    own = {name.rpartition("agent.")[2]: array for name, array in arrays.items()}
    embed, n_obs = own["embed.weight"], spec.obs_size
    size = len(own["embed.bias"])
    # A row for each last action; the first, of zeros, for none.
    of_action = np.vstack([np.zeros((1, size), np.float32), embed[:, n_obs : n_obs + spec.n_actions].T])
    of_agent = embed[:, n_obs + spec.n_actions :].T + own["embed.bias"]
    place = graph.op("Add", "last_actions", graph.constant(np.array(1, np.int64)))
    x = graph.op("Add", graph.op("Gather", graph.constant(of_action), place), graph.constant(of_agent))
    x = graph.op("Relu", graph.op("Add", graph.op("MatMul", "obs", graph.constant(embed[:, :n_obs].T)), x))
    thirds = graph.constant(np.array([size] * 3, np.int64))
    of_x, of_h = [f"x_{gate}" for gate in "rzn"], [f"h_{gate}" for gate in "rzn"]
    graph.op("Split", graph.linear(x, own["gru.weight_ih_l0"], own["gru.bias_ih_l0"]), thirds, axis=-1, outputs=of_x)
    graph.op(
        "Split", graph.linear("hidden", own["gru.weight_hh_l0"], own["gru.bias_hh_l0"]), thirds, axis=-1, outputs=of_h
    )
    r, z = (graph.op("Sigmoid", graph.op("Add", of_x[gate], of_h[gate])) for gate in (0, 1))
    n = graph.op("Tanh", graph.op("Add", of_x[2], graph.op("Mul", r, of_h[2])))
    kept = graph.op("Mul", z, graph.op("Sub", "hidden", n))
    graph.op("Add", n, kept, outputs=["next_hidden"])
    graph.greedy(graph.linear("next_hidden", own["head.weight"], own["head.bias"]))


def _dqn(graph: _Graph, arrays: Arrays, layers: int) -> None:
    """Add linear layers with ReLU between them, and no memory."""
    x, weights = "obs", [array for array in arrays.values() if array.ndim == 2]
    biases = [array for array in arrays.values() if array.ndim == 1]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = graph.linear(x, weight, bias)
        x = graph.op("Relu", x) if number < layers else x
    graph.greedy(x)
    graph.op("Identity", "last_actions", outputs=["_last"])  # an input that such a policy does without
    graph.op("Identity", "hidden", outputs=["next_hidden"])


class _Twins(ActingPolicy):
    """Acts as a policy, and has an ONNX file act beside it on the same frames."""

    def __init__(self, policy: ActingPolicy, path: Path) -> None:
        self._policy = policy
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.actions = self.other = 0
        """How many actions were compared, and how many were others."""
        self.apart = 0.0
        """The largest difference of two hidden states."""

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return self._policy.initial_hidden(n_envs)

    def act(
        self,
        obs: NDArray[np.float32],
        available: NDArray[np.bool_],
        last_actions: NDArray[np.int64],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        frame = {"obs": obs, "available": available, "last_actions": last_actions, "hidden": hidden}
        actions, after = self._policy.act(obs, available, last_actions, hidden, epsilon=epsilon, rng=rng)
        theirs, memory = self._session.run(
            ["actions", "next_hidden"], {k: np.ascontiguousarray(v) for k, v in frame.items()}
        )
        self.actions += actions.size
        self.other += int((theirs != actions).sum())
        self.apart = max(self.apart, float(np.abs(memory - after).max()))
        return actions, after

    def params(self) -> NDArray[np.float32]:
        return self._policy.params()

    def load(self, params: NDArray[np.float32]) -> None:
        self._policy.load(params)


def check_onnx(path: Path, policy: ActingPolicy, env: Env, episodes: int) -> int:
    """Play greedy episodes and compare every action of an ONNX file with the policy's; return how many there were.

    Raises:
        UsageError: it acted otherwise.
    """
    twins = _Twins(policy, path)
    play(env, twins, episodes, np.random.default_rng(0))
    if twins.other or not twins.apart <= CLOSE:
        raise UsageError(
            f"{str(path)!r} does not act as the policy: {twins.other} of {twins.actions} actions are others, and "
            f"hidden states are up to {twins.apart:.2g} apart"
        )
    return twins.actions
