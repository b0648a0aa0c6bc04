"""The agents' network over a packed batch: linear → ReLU → GRU → linear, with its own backward pass.

`torch.nn.GRU` unrolled on a CPU records a dozen small operations per time step, each with memory of its own. It also
computes padding or, on a `PackedSequence`, cuts the batch at every step. Here the loop over the time steps of some
episodes is one compiled call (`kernel/agent.py`) that computes its matrix products itself (`kernel/product.py`). It
handles a group of rows at a time, which stays in the cache until its gates are done, in memory that every call reuses.
The loop covers fewer rows as episodes end, and threads share the parts of a batch. On a GPU cuDNN does all of this.
`benchmarks/learner.py` has the figures.

Sizes: R rows (agents of all frames) in blocks, one block per time step; P pairs of last action and agent; L living rows
of a part; O inputs; H hidden units; U actions.
"""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear
from torch.nn.utils.rnn import PackedSequence

from components.policies import kernel
from components.policies.gru import unrolled
from components.policies.inputs import AgentInputs
from components.policies.kernel.product import padded
from components.policies.kernel.tile import ROWS
from components.policies.parallel import run_parts, summed
from components.policies.scratch import Scratch

APART = 16
"""Columns of padding after each row of 4H: of rows a power of two bytes apart, few of one column fit into a cache."""


class _AgentValues(torch.autograd.Function):
    """r, z = sigmoid(x W + h U + b); g = h U_n + c_n; n = tanh(x W_n + b_n + r g); h' = n + z (h - n).

    The gated unit of Cho et al. (2014) in the form of cuDNN and torch: r acts after the product with U_n.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: AgentInputs, n_agents: int, scratch: Scratch, keeps: bool, *weights: Tensor
    ) -> Tensor:
        head = weights[-2]
        (n_actions, size), rows = head.shape, len(inputs.picks)
        q, n_pairs = head.new_empty(rows, n_actions), (n_actions + 1) * n_agents
        if keeps:
            scratch, ctx.lease = scratch.leased()
        elif scratch.taken:
            scratch = Scratch()
        # A pass without a backward pass keeps nothing.
        gates = scratch.take("gates", (rows if keeps else 1, 4 * size + APART), head.dtype)
        hidden = scratch.take("hidden", (rows if keeps else 2 * int(inputs.blocks[0]), size), head.dtype)
        arrays, parts, of_parts = [w.detach().numpy() for w in weights], [], []
        w, b, w_x, w_h, b_x, b_h, last, last_bias = arrays
        panels = kernel.packed(w, w_x, w_h, last, w.shape[1] - n_actions - n_agents)
        used = (panels, w, b, b_x, b_h, last, last_bias, np.empty(0, np.int64))
        for p, (living, ends) in enumerate(zip(inputs.living, pairwise(inputs.bounds), strict=True)):
            n_rows = n_pairs + len(living.obs) + ROWS
            x, of_x = (
                scratch.take(f"{name} {p}", (n_rows, padded(columns, arrays[0])), head.dtype)
                for name, columns in (("x", size), ("of_x", 3 * size))
            )
            rows_of_part = _numpy(living.obs, living.pairs, inputs.picks)
            common: list[Any] = [*rows_of_part, inputs.blocks, inputs.asked, *ends, n_agents]
            arguments: list[Any] = [*common, *used, *_numpy(x, of_x, hidden, gates), keeps, q.detach().numpy()]
            parts.append(partial(kernel.forward, *arguments))
            of_parts.append((common, x))
        run_parts(parts)
        scratch.passes += 1
        ctx.save_for_backward(*weights)
        ctx.of_parts, ctx.hidden, ctx.gates, ctx.scratch, ctx.number = of_parts, hidden, gates, scratch, scratch.passes
        return q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor) -> tuple[Tensor | None, ...]:
        weights, scratch = ctx.saved_tensors, ctx.scratch
        if scratch.passes != ctx.number:
            raise RuntimeError("this pass has gone back already, and what it needs is overwritten: make another pass")
        scratch.passes += 1  # this pass overwrites the gates
        _, _, w_x, w_h, _, _, head, _ = weights
        told, parts, shares = d_q.contiguous().numpy(), [], []
        panels = kernel.packed_back(*_numpy(w_x, w_h))
        for p, (common, x) in enumerate(ctx.of_parts):
            d_of_x = scratch.take(f"d_of_x {p}", (len(x), len(w_x)), x.dtype)
            share = [torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights]
            arrays = _numpy(head, x, ctx.hidden, ctx.gates, d_of_x, *share)
            arguments: list[Any] = [told, np.empty(0, np.int64), *common, panels, *arrays]
            parts.append(partial(kernel.backward, *arguments))
            shares.append(share)
        run_parts(parts)
        ctx.lease = None
        return None, None, None, None, *summed(shares)


def agent_values(
    inputs: AgentInputs, n_agents: int, embed: nn.Linear, gru: nn.GRU, head: nn.Linear, scratch: Scratch
) -> Tensor:
    """Return the output (R, U) of the network of these three layers for every row, from a hidden state of zeros.

    A pass has one backward pass; a second one raises `RuntimeError`. A pass keeps the memory of `scratch` until its
    backward pass; passes in between use memory of their own. Rows whose outputs are not used (`AgentInputs.asked`) must
    have no gradient.

    Args:
        inputs: inputs of a packed batch.
        n_agents: A.
        embed: the first layer, of observation, last action and agent's number, the latter two one-hot.
        gru: one layer.
        head: the last layer.
        scratch: memory to reuse.
    """
    if inputs.picks.is_cuda or not inputs.compiled:
        return agent_values_by_torch(inputs, n_agents, embed, gru, head)
    weights = (*embed.parameters(), *gru.parameters(), *head.parameters())
    keeps = torch.is_grad_enabled()
    q: Tensor = _AgentValues.apply(inputs, n_agents, scratch, keeps, *weights)  # type: ignore[no-untyped-call]  # torch's
    return q


def agent_values_by_torch(inputs: AgentInputs, n_agents: int, embed: nn.Linear, gru: nn.GRU, head: nn.Linear) -> Tensor:
    """Return what `agent_values` returns, for inputs of one part, by operations of torch (cuDNN on a GPU).

    This is the reference for the compiled loops. Rows whose outputs are not used (`asked`) have other values here.
    """
    (living,) = inputs.living
    w, table = pair_table(embed, living.obs.shape[1], n_agents)
    x = torch.cat([table, torch.addmm(embedding(living.pairs, table), living.obs, w.t())]).relu()
    packed, _ = unrolled(gru, PackedSequence(embedding(inputs.picks, x), torch.from_numpy(inputs.blocks)))
    return linear(packed.data, head.weight, head.bias)


def pair_table(embed: nn.Linear, obs_size: int, n_agents: int) -> tuple[Tensor, Tensor]:
    """Return the weights of the observation (H, O), and a row for each pair of last action and agent (P, H).

    A product with a one-hot vector picks a column of the weights. So columns are picked here: one for each pair of last
    action (first -1, for none) and agent, agents innermost, with the bias included.
    """
    of_obs, of_action, of_agent = embed.weight.tensor_split([obs_size, embed.in_features - n_agents], dim=1)
    of_action = torch.nn.functional.pad(of_action, (1, 0)).t()
    table = of_action.unsqueeze(1) + (of_agent.t() + embed.bias)  # (U + 1, A, H)
    return of_obs, table.flatten(0, 1)


def _numpy(*tensors: Tensor) -> list[Any]:
    return [tensor.detach().numpy() for tensor in tensors]
