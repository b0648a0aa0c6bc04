"""The gradient of IQL, VDN and QMIX on a GPU: a CUDA graph for each size of batch.

A gradient step of such small networks has hundreds of operations, and a GPU finishes each before Python starts the
next. A CUDA graph records them once and starts them all in one call. A graph has fixed shapes, so batches are padded to
one of a few sizes, and a mask excludes the padding from every sum. `Iql.td_loss` computes the same without padding.

Sizes: E episodes, T steps of the longest, A agents, U actions, M values of a step (1, or A if nothing is mixed).
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch
from components.policies.chunks import real_rows
from components.policies.gru import unrolled
from components.policies.networks import RecurrentAgent
from components.policies.packing import check_lengths
from components.policies.td_parts import TdSums

STEPS_OF_A_SIZE = 8
"""T of a graph is a multiple of this: a smaller number means more graphs, a larger one more padding."""
METRICS = ("loss", "q_taken", "target", "td_error")


class TdGraph:
    """Computes gradients of the weighted mean squared TD error. On a CPU, for tests, it uses no graphs.

    Args:
        spec: sizes of the environment.
        agents: the online network of the agents, and the target network.
        mixers: the online mixer, and the target mixer.
        parameters: parameters of the online networks, in the order of the gradient.
        out: (P,), to which every gradient is written.
        double_q: as for `Iql`.
        gamma: the discount.
        td_lambda: λ of the returns.
    """

    def __init__(
        self,
        spec: EnvSpec,
        agents: tuple[RecurrentAgent, RecurrentAgent],
        mixers: tuple[nn.Module, nn.Module],
        parameters: Sequence[Tensor],
        out: Tensor,
        *,
        double_q: bool,
        gamma: float,
        td_lambda: float,
    ) -> None:
        self.spec, self.agents, self.mixers, self._parameters, self._out = spec, agents, mixers, parameters, out
        self.double_q, self.gamma, self.td_lambda = double_q, gamma, td_lambda
        self._memory: dict[tuple[int, int], _Memory] = {}
        self._computing: dict[tuple[int, int], tuple[_Batch, Callable[[], Tensor]]] = {}
        self._pool: Any = None  # memory of the graphs, which never run at the same time

    def gradient(self, batch: EpisodeBatch) -> TdSums:
        """Fill `out` with the gradient of a valid batch.

        Raises:
            ValueError: a length is not in 1 … T.
        """
        check_lengths(batch.lengths)
        n_episodes, longest = len(batch), int(batch.lengths.max())
        size = 1 << (n_episodes - 1).bit_length(), -(-longest // STEPS_OF_A_SIZE) * STEPS_OF_A_SIZE
        # A graph is captured and replayed on the current device.
        with torch.cuda.device_of(self._out):  # type: ignore[no-untyped-call]  # torch's
            if size not in self._computing:
                self._computing[size] = self._prepared(*size, batch)
            held, compute = self._computing[size]
            held.fill(batch)
            told = compute().numpy(force=True)
        metrics = dict(zip(METRICS, told[:4].tolist(), strict=True))
        errors = told[4:].reshape(size[1], size[0]).T[:n_episodes, :longest]
        return TdSums(metrics, real_rows(errors, batch.lengths))

    def _prepared(self, n_episodes: int, n_steps: int, batch: EpisodeBatch) -> "tuple[_Batch, Callable[[], Tensor]]":
        """Return the memory for batches of a size, and the function that computes their gradient."""
        most = max(n_steps, -(-self.spec.episode_limit // STEPS_OF_A_SIZE) * STEPS_OF_A_SIZE)
        device = self._out.device
        memory = self._memory.get((n_episodes, most))
        if memory is None:
            size = _Batch.size(self.spec, n_episodes, most)
            memory = self._memory[n_episodes, most] = _Memory(size, device)
        held = _Batch(self.spec, n_episodes, n_steps, memory)
        if device.type != "cuda":
            return held, lambda: self._computed(held.arrays)
        held.fill(batch)
        # The libraries allocate memory in the first passes, which a graph must not record.
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._computed(held.arrays)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            told = self._computed(held.arrays)
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return told

        return held, replay

    def _computed(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Fill `out`; return the metrics and the mean |TD error| of each step, (4 + T * E,)."""
        spec, dtype, device = self.spec, self._out.dtype, self._out.device
        lengths, terminated = batch["lengths"], batch["terminated"]
        n_steps = len(batch["actions"]) // len(lengths)
        time = torch.arange(n_steps + 1, device=device).unsqueeze(1)
        seen, real = (time <= lengths) & (lengths > 0), (time < lengths)[:-1]  # (T+1, E) and (T, E)
        frames, steps = _rows(seen), _rows(real)
        # Padding may hold any values, NaN too, so it is replaced and not multiplied by 0.
        obs = torch.where(seen[..., None, None], batch["obs"][frames], 0.0).to(dtype)
        state = torch.where(seen[..., None], batch["state"][frames], 0.0).to(dtype)
        available = batch["available"][frames]
        reward = torch.where(real, batch["reward"][steps], 0.0).to(dtype).unsqueeze(2)
        # A comparison, and a product below: the backward pass of a gather would sum in an undefined order.
        chosen = batch["actions"][steps].unsqueeze(3) == torch.arange(spec.n_actions, device=device)
        chosen = (chosen & real[..., None, None]).to(dtype)
        last = torch.cat([torch.zeros_like(chosen[:1]), chosen])
        number = torch.eye(spec.n_agents, device=device, dtype=dtype).expand(*seen.shape, -1, -1)
        inputs = torch.cat([obs, last, number], 3).flatten(1, 2)

        (agent, target_agent), (mixer, target_mixer) = self.agents, self.mixers
        with torch.no_grad():
            q_target = self._values(target_agent, inputs)
        q = self._values(agent, inputs)
        with torch.no_grad():
            best = torch.where(available, q if self.double_q else q_target, -torch.inf).argmax(3, keepdim=True)
            values = q_target.gather(3, best).squeeze(3)[1:]
            value_tp1 = target_mixer(values.flatten(0, 1), state[1:].flatten(0, 1)).view(*real.shape, -1)
            goes_on = time[1:] < lengths
            value_tp1 = torch.where((goes_on | ~terminated).unsqueeze(2), value_tp1, 0.0)
            target = self._returns(reward, value_tp1, goes_on)
        q_taken = mixer((q[:-1] * chosen).sum(3).flatten(0, 1), state[:-1].flatten(0, 1)).view(*real.shape, -1)
        is_real, n_values = real.unsqueeze(2), lengths.sum() * q_taken.shape[2]
        error = torch.where(is_real, q_taken - target, 0.0)
        loss = (batch["weights"].to(dtype).unsqueeze(1) * error.square()).sum() / n_values
        gradients = torch.autograd.grad(loss, self._parameters)
        torch.cat([each.reshape(-1) for each in gradients], out=self._out)
        with torch.no_grad():
            error = error.abs()
            sums = [torch.where(is_real, each, 0.0).sum() for each in (q_taken, target, error)]
            metrics = torch.stack([loss, *(each / n_values for each in sums)])
            return torch.cat([metrics, error.mean(2).flatten()]).double()

    def _values(self, agent: RecurrentAgent, inputs: Tensor) -> Tensor:
        """Return the action values (T+1, E, A, U) of `inputs` (T+1, E * A, ·)."""
        hidden, _ = unrolled(agent.gru, agent.embed(inputs).relu())
        q: Tensor = agent.head(hidden)
        return q.view(len(q), -1, self.spec.n_agents, self.spec.n_actions)

    def _returns(self, reward: Tensor, value_tp1: Tensor, goes_on: Tensor) -> Tensor:
        """Return λ-returns as `lambda_returns` does, for steps (T, E, M); `goes_on` (T, E): the episode continues."""
        returns = reward + self.gamma * value_tp1
        if self.td_lambda == 0.0:
            return returns
        for t in range(len(returns) - 2, -1, -1):
            more = self.gamma * self.td_lambda * (returns[t + 1] - value_tp1[t])
            returns[t] += torch.where(goes_on[t].unsqueeze(1), more, 0.0)
        return returns


def _rows(there: Tensor) -> Tensor:
    """Return the rows of the frames or steps that are `there` (T, E), episode after episode; others get any row."""
    n_rows = there.sum(0)
    rows = n_rows.cumsum(0) - n_rows + torch.arange(len(there), device=there.device).unsqueeze(1)
    return rows.clamp(max=there.numel() - 1)


class _Memory:
    """`size` bytes on the host and on the device; for a GPU the host's are pinned, which doubles the copying speed."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.here = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.there = torch.empty(size, dtype=torch.uint8, device=device)


class _Batch:
    """Memory for batches of one size, E episodes of T steps, with frames and steps one after the other."""

    def __init__(self, spec: EnvSpec, n_episodes: int, n_steps: int, memory: _Memory) -> None:
        self._pairs: dict[str, tuple[Tensor, Tensor]] = {}
        start = 0
        for name, (shape, dtype) in self._layout(spec, n_episodes, n_steps).items():
            n_bytes = prod(shape) * dtype.itemsize
            here, there = (
                whole[start : start + n_bytes].view(dtype).view(shape) for whole in (memory.here, memory.there)
            )
            self._pairs[name] = here, there
            start += n_bytes

    @property
    def arrays(self) -> dict[str, Tensor]:
        """All arrays on the device. The contents after the last frame and the last step are arbitrary."""
        return {name: there for name, (_, there) in self._pairs.items()}

    @classmethod
    def size(cls, spec: EnvSpec, n_episodes: int, n_steps: int) -> int:
        """Return the number of bytes of such a batch."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in cls._layout(spec, n_episodes, n_steps).values())

    @staticmethod
    def _layout(spec: EnvSpec, n_episodes: int, n_steps: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Return shapes and dtypes by name, wide items first, so that each begins at a multiple of its own width."""
        frames, steps, a = n_episodes * (n_steps + 1), n_episodes * n_steps, spec.n_agents
        return {
            "lengths": ((n_episodes,), torch.int64),
            "actions": ((steps, a), torch.int64),
            "obs": ((frames, a, spec.obs_size), torch.float32),
            "state": ((frames, spec.state_size), torch.float32),
            "reward": ((steps,), torch.float32),
            "weights": ((n_episodes,), torch.float32),
            "available": ((frames, a, spec.n_actions), torch.bool),
            "terminated": ((n_episodes,), torch.bool),
        }

    def fill(self, batch: EpisodeBatch) -> None:
        """Copy a batch of at most E episodes of at most T steps to the device."""
        for names, rows_of in (("obs", "state", "available"), batch.frames), (("actions", "reward"), batch.steps):
            for name in names:
                rows, (here, there) = rows_of(name), self._pairs[name]
                here[: len(rows)].numpy()[:] = rows
                there[: len(rows)].copy_(here[: len(rows)], non_blocking=True)
        for name in ("lengths", "weights", "terminated"):
            here, there = self._pairs[name]
            here.numpy()[: len(batch)] = getattr(batch, name)
            here[len(batch) :] = 0  # an episode without steps has no effect
            there.copy_(here, non_blocking=True)
