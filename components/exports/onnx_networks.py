"""The graphs of the policies' networks of acting, for `onnx_policy`.

Each function adds operations from `obs` and other inputs to `actions` and `next_hidden`. Letters in shapes: B copies of
the environment, A agents, O observation size, U actions.
"""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from components.envs.base import EnvSpec
from components.exports.onnx_graph import Graph, Weights
from components.policies.ppo_options import Interface
from components.policies.pqn_acting import QSizes

Arrays = Mapping[str, NDArray[np.float32]]


def recurrent(graph: Graph, arrays: Arrays, spec: EnvSpec) -> None:
    """Add the agents' network of QMIX and others: linear, ReLU, GRU, linear."""
    own = {name.rpartition("agent.")[2]: array for name, array in arrays.items()}
    embed, n_obs = own["embed.weight"], spec.obs_size
    size = len(own["embed.bias"])
    # A row for each last action; the first, of zeros, is for no action.
    of_action = np.vstack([np.zeros((1, size), np.float32), embed[:, n_obs : n_obs + spec.n_actions].T])
    of_agent = embed[:, n_obs + spec.n_actions :].T + own["embed.bias"]
    place = graph.op("Add", "last_actions", graph.constant(np.array(1, np.int64)))
    x = graph.op("Add", graph.op("Gather", graph.constant(of_action), place), graph.constant(of_agent))
    x = graph.op("Relu", graph.op("Add", graph.op("MatMul", "obs", graph.constant(embed[:, :n_obs].T)), x))
    after = graph.gru(x, "hidden", *_gates(own))
    graph.greedy(graph.linear(after, own["head.weight"], own["head.bias"]), "available", outputs=["actions"])


def dqn(graph: Graph, arrays: Arrays, layers: int) -> None:
    """Add linear layers with ReLU between them, and no memory."""
    x, weights = "obs", [array for array in arrays.values() if array.ndim == 2]
    biases = [array for array in arrays.values() if array.ndim == 1]
    for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x = graph.linear(x, weight, bias)
        x = graph.op("Relu", x) if number < layers else x
    graph.greedy(x, "available", outputs=["actions"])
    graph.op("Identity", "hidden", outputs=["next_hidden"])


def pqn(graph: Graph, arrays: Arrays, sizes: QSizes) -> None:
    """Add layers, each linear, LayerNorm, ReLU; a GRU if there is one; and a head of action values."""
    spec, seen = sizes.spec, ["obs"]
    if spec.n_agents > 1:
        seen.append(graph.agent_numbers(spec.n_agents))
    if sizes.recurrent:
        seen.append(graph.one_hot("last_actions", spec.n_actions))
    x = graph.joined(*seen)
    for k in range(sizes.layers):
        x = graph.linear(x, arrays[f"layers.{k}.0.weight"], arrays[f"layers.{k}.0.bias"])
        x = graph.op("Relu", graph.layer_norm(x, arrays[f"layers.{k}.1.weight"], arrays[f"layers.{k}.1.bias"]))
    if sizes.recurrent:
        x = graph.gru(x, "hidden", *_gates(arrays))
    else:
        graph.op("Identity", "hidden", outputs=["next_hidden"])
    graph.greedy(graph.linear(x, arrays["head.weight"], arrays["head.bias"]), "available", outputs=["actions"])


def ppo(graph: Graph, arrays: Arrays, on: Interface) -> None:
    """Add the actor of PPO, IPPO and MAPPO, which takes the most probable action. There is no critic."""
    net, own = on.networks, {name.removeprefix("actor."): array for name, array in arrays.items()}

    def normed(x: str, name: str) -> str:
        return graph.layer_norm(x, own[f"{name}.weight"], own[f"{name}.bias"]) if net.layer_norm else x

    x = normed(_seen_by_actor(graph, arrays, on), "norm")
    for k in range(net.layers):
        x = graph.linear(x, own[f"layers.{2 * k}.weight"], own[f"layers.{2 * k}.bias"])
        x = normed(graph.op("Tanh" if net.activation == "tanh" else "Relu", x), f"layers.{2 * k + 1}")
    if net.recurrent:
        x = normed(graph.gru(x, "hidden", *_gates(own)), "after")
    else:
        graph.op("Identity", "hidden", outputs=["next_hidden"])
    said = graph.linear(x, own["head.weight"], own["head.bias"])
    if on.continuous:
        if net.squash:
            said = graph.op("Mul", graph.op("Tanh", said), graph.constant(on.scale))
            said = graph.op("Add", said, graph.constant(on.centre))
        graph.op("Identity", said, outputs=["actions"])
    elif not on.spec.schema.by_name["actions"].shape:
        graph.greedy(said, "available" if on.masked else None, outputs=["actions"])
    else:
        _several_choices(graph, said, on)


def _several_choices(graph: Graph, said: str, on: Interface) -> None:
    """Add the greedy action of each of K choices, whose logits are side by side: `actions` is (B, A, K)."""
    if on.masked:
        flat = graph.op("Reshape", "available", graph.op("Shape", said))
        said = graph.op("Where", flat, said, graph.constant(np.array(-np.inf, np.float32)))
    picked = []
    for start, end in pairwise(np.cumsum([0, *on.n_values]).tolist()):
        bounds = [graph.constant(np.array([place], np.int64)) for place in (start, end, -1)]
        chosen = graph.greedy(graph.op("Slice", said, *bounds), None)
        picked.append(graph.op("Unsqueeze", chosen, graph.constant(np.array([-1], np.int64))))
    graph.op("Concat", *picked, axis=-1, outputs=["actions"])


def _seen_by_actor(graph: Graph, arrays: Arrays, on: Interface) -> str:
    """Add the inputs of the actor, as `Interface.inputs` makes them."""
    x = "obs"
    if on.networks.normalise_obs:
        sd = np.sqrt(arrays["obs_var"] + np.float32(1e-8))
        x = graph.op("Div", graph.op("Sub", x, graph.constant(arrays["obs_mean"])), graph.constant(sd))
        x = graph.op("Clip", x, *(graph.constant(np.array(bound, np.float32)) for bound in (-10, 10)))
    seen = [x, graph.one_hot("last_actions", sum(on.n_values))] if on.knows_last else [x]
    if sees_the_dead(on):
        dead = graph.op("Unsqueeze", graph.op("Not", "alive"), graph.constant(np.array([-1], np.int64)))
        nothing = graph.constant(np.array(0, np.float32))
        seen = [graph.op("Where", dead, nothing, each) for each in seen]
    if on.n_agents > 1:
        seen.append(graph.agent_numbers(on.n_agents))
    return graph.joined(*seen)


def sees_the_dead(on: Interface) -> bool:
    """Return whether the actor gets `alive`, so that dead agents see only their numbers."""
    return on.networks.death_masking and on.has_alive and on.n_agents > 1


def _gates(own: Arrays) -> tuple[tuple[Weights, Weights], tuple[Weights, Weights]]:
    return (own["gru.weight_ih_l0"], own["gru.bias_ih_l0"]), (own["gru.weight_hh_l0"], own["gru.bias_hh_l0"])
