"""An ONNX graph under construction: nodes, constants, and the layers of acting networks.

Layers work on the last axis of (B, A, I): copies of an environment, agents, inputs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Weights = NDArray[np.float32]


class Graph:
    """Collects nodes and constants; each operation returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, array: NDArray[Any]) -> str:
        """Add a constant."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        """Add an operation; return its first output."""
        named = list(outputs) or [f"n{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), named, **attributes))
        return named[0]

    def linear(self, x: str, weight: Weights, bias: Weights) -> str:
        """Add `torch.nn.Linear` with a weight (U, I) and a bias (U,)."""
        return self.op("Add", self.op("MatMul", x, self.constant(weight.T)), self.constant(bias))

    def layer_norm(self, x: str, scale: Weights, shift: Weights) -> str:
        """Add `torch.nn.LayerNorm` with its ε of 1e-5."""
        return self.op("LayerNormalization", x, self.constant(scale), self.constant(shift), axis=-1, epsilon=1e-5)

    def gru(self, x: str, hidden: str, of_x: tuple[Weights, Weights], of_hidden: tuple[Weights, Weights]) -> str:
        """Add a step of `torch.nn.GRU`, whose gates are r, z, n; return `next_hidden`, an output of the graph.

        Args:
            x: (B, A, I).
            hidden: (B, A, H).
            of_x: weight (3H, I) and bias (3H,).
            of_hidden: weight (3H, H) and bias (3H,).
        """
        thirds = self.constant(np.array([len(of_x[1]) // 3] * 3, np.int64))
        x_gates, h_gates = [f"x_{gate}" for gate in "rzn"], [f"h_{gate}" for gate in "rzn"]
        self.op("Split", self.linear(x, *of_x), thirds, axis=-1, outputs=x_gates)
        self.op("Split", self.linear(hidden, *of_hidden), thirds, axis=-1, outputs=h_gates)
        r, z = (self.op("Sigmoid", self.op("Add", x_gates[gate], h_gates[gate])) for gate in (0, 1))
        n = self.op("Tanh", self.op("Add", x_gates[2], self.op("Mul", r, h_gates[2])))
        kept = self.op("Mul", z, self.op("Sub", hidden, n))
        return self.op("Add", n, kept, outputs=["next_hidden"])

    def one_hot(self, last_actions: str, n_actions: int) -> str:
        """Add vectors (B, A, U) of last actions (B, A), of zeros where there is none (-1)."""
        rows = np.vstack([np.zeros((1, n_actions), np.float32), np.eye(n_actions, dtype=np.float32)])
        place = self.op("Add", last_actions, self.constant(np.array(1, np.int64)))
        return self.op("Gather", self.constant(rows), place)

    def agent_numbers(self, n_agents: int) -> str:
        """Add the agents' numbers as unit vectors (B, A, A), for as many copies as `obs` has."""
        copies = self.op("Shape", "obs", start=0, end=1)
        shape = self.op("Concat", copies, self.constant(np.array([n_agents] * 2, np.int64)), axis=0)
        return self.op("Expand", self.constant(np.eye(n_agents, dtype=np.float32)), shape)

    def joined(self, *parts: str) -> str:
        """Add parts side by side."""
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=-1)

    def greedy(self, values: str, available: str | None, **output: Any) -> str:
        """Add the action of the largest value among those that are available: (B, A, U) to (B, A)."""
        if available is not None:
            values = self.op("Where", available, values, self.constant(np.array(-np.inf, np.float32)))
        return self.op("ArgMax", values, axis=-1, keepdims=0, **output)
