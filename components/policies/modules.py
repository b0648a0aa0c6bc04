"""Policies made of torch modules: parameters in flat memory, target networks, publication and checkpoints."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.acting import Acted, ActingPolicy
from components.policies.base import Policy
from components.policies.devices import opened
from components.policies.initial import InitKind, initialise
from components.policies.networks import flatten_parameters
from components.policies.optimizer import FlatOptimizer, same, shapes_of


class ModulePolicy(Policy):
    """A policy made of torch modules of any kind, buffers included.

    A subclass implements `_make_networks`, makes its `_optimizers`, and implements `act_on` (or `act`), `learn` and
    `initial_hidden`. The parameters of all networks that learn lie in one tensor, those of acting first. Workers
    receive the parameters and the floating-point buffers of the first network.

    Args:
        spec: sizes of the environment.
        seed: seed of the initial parameters; torch's global generator is neither read nor advanced.
        device: "cpu", "cuda" or "cuda:N".
        dtype: dtype of all parameters.
        init: initial parameters of linear, convolutional and recurrent layers; other modules keep those of their
            constructor.
    """

    _optimizers: Mapping[str, FlatOptimizer]
    """The optimisers by name; a subclass makes them."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        seed: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        init: InitKind = "uniform",
    ) -> None:
        self.spec = spec
        self.updates = 0
        """Batches learnt from so far."""
        self._device, self._dtype = opened(device), dtype
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._online, self._target = self._make_networks()
        online, target = list(self._online.values()), list(self._target.values())
        for module in (*online, *target):
            module.to(self._device, dtype)
        self._flat = flatten_parameters(online, self._device, dtype)
        self._target_flat = flatten_parameters(target, self._device, dtype)
        initialise(online, init, torch.Generator().manual_seed(seed))
        self._n_acting = sum(p.numel() for p in online[0].parameters())
        self._acting_buffers = [each for each in online[0].buffers() if each.is_floating_point()]
        self.update_targets()

    @abstractmethod
    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        """Return the online networks, the acting one first, and the target networks, both by name.

        The target networks are copies of the last online networks, in the same order.
        """

    def prepare(self) -> None:
        for optimizer in self._optimizers.values():
            optimizer.prepare()

    def update_targets(self) -> None:
        """Copy the online networks to the target networks."""
        followed = list(self._online.values())[len(self._online) - len(self._target) :]
        with torch.no_grad():
            self._target_flat.copy_(self._flat[len(self._flat) - len(self._target_flat) :])
            for mine, theirs in zip(_buffers(self._target.values()), _buffers(followed), strict=True):
                mine.copy_(theirs)

    def params(self) -> NDArray[np.float32]:
        pieces = [self._flat[: self._n_acting], *(buffer.reshape(-1) for buffer in self._acting_buffers)]
        copy = torch.cat([piece.detach().to("cpu", torch.float32) for piece in pieces]).numpy()
        copy.flags.writeable = False
        return copy

    def load(self, params: NDArray[np.float32]) -> None:
        sizes = [self._n_acting, *(buffer.numel() for buffer in self._acting_buffers)]
        if params.shape != (sum(sizes),):
            raise ValueError(f"params: expected shape ({sum(sizes)},) for {self!r}, got {params.shape}")
        ends = np.cumsum(sizes)[:-1].tolist()
        acting, *buffers = torch.from_numpy(np.array(params)).to(self._device, self._dtype).tensor_split(ends)
        self._flat[: self._n_acting] = acting
        for buffer, loaded in zip(self._acting_buffers, buffers, strict=True):
            buffer.copy_(loaded.view(buffer.shape))

    def named_params(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the parameters of acting, as in `params`, by their names in the acting network."""
        network = next(iter(self._online.values()))
        buffers = ((name, each) for name, each in network.named_buffers() if each.is_floating_point())
        named = chain(network.named_parameters(), buffers)
        return {name: each.detach().to("cpu", torch.float32, copy=True).numpy() for name, each in named}

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            **{part: {name: p.to("cpu", copy=True) for name, p in own.items()} for part, own in self._parts().items()},
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        optimizers, parts = self._optimizers, self._parts()
        same("state", {"online", "target", "optimizers", "updates"}, set(state))
        same("optimizers", set(optimizers), set(state["optimizers"]))
        for part, own in parts.items():
            same(part, shapes_of(own), shapes_of(state[part]))
        for name, optimizer in optimizers.items():
            optimizer.check(f"optimizer {name!r}", state["optimizers"][name])

        for part, own in parts.items():
            for name, p in own.items():
                p.copy_(state[part][name])
        for name, optimizer in optimizers.items():
            optimizer.load(state["optimizers"][name])
        self.updates = int(state["updates"])

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        """Return the parameters and buffers of the online and of the target networks, by name."""
        parts = {"online": self._online, "target": self._target}
        return {
            part: {
                name: p.detach()
                for top, network in networks.items()
                for name, p in chain(network.named_parameters(top), network.named_buffers(top))
            }
            for part, networks in parts.items()
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} after {self.updates} updates>"


class TwoSidedPolicy(ModulePolicy):
    """A `ModulePolicy` that acts with its acting side, which needs no torch: with the same numbers as workers.

    A subclass implements `_make_acting`, and calls `_learned` after each update.
    """

    _acts: ActingPolicy | None = None

    @abstractmethod
    def _make_acting(self) -> ActingPolicy:
        """Return the acting side; its parameters are loaded later."""

    @property
    def acting(self) -> ActingPolicy:
        """The acting side, with the present parameters."""
        if self._acts is None:
            self._acts = self._make_acting()
            self._acts.load(self.params())
        return self._acts

    @property
    def probe_frames(self) -> int:  # type: ignore[override]  # it depends on the networks
        return self.acting.probe_frames

    def load(self, params: NDArray[np.float32]) -> None:
        super().load(params)
        self._acts = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._acts = None

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return self.acting.initial_hidden(n_envs)

    def act_on(
        self,
        frames: Mapping[str, NDArray[Any]],
        last_actions: NDArray[Any],
        hidden: NDArray[np.float32],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> Acted:
        return self.acting.act_on(frames, last_actions, hidden, epsilon=epsilon, rng=rng)

    def last_frame(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> Mapping[str, NDArray[Any]]:
        return self.acting.last_frame(frames, last_actions, hidden)

    def outputs(
        self, frames: Mapping[str, NDArray[Any]], last_actions: NDArray[Any], hidden: NDArray[np.float32]
    ) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.float32]]:
        return self.acting.outputs(frames, last_actions, hidden)

    def _learned(self) -> None:
        """Count an update, and drop the acting side, whose parameters are now older."""
        self.updates += 1
        self._acts = None


def _buffers(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    for module in modules:
        yield from module.buffers()
