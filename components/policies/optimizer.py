"""Gradient descent on one flat tensor: clip, check, step, and state for checkpoints."""

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerKind = Literal["rmsprop", "adam"]
_MOMENTS = {"rmsprop": {"square_avg"}, "adam": {"exp_avg", "exp_avg_sq"}}


class FlatOptimizer:
    """Steps the parameters of `modules`, all at once.

    Args:
        flat: where the parameters lie, (P,), which is changed in place.
        modules: whose they are, in order.
        kind: "rmsprop" with alpha 0.99 and ε 1e-5 (Rashid et al. 2018), or "adam" with ε 1e-5 (Hu et al. 2021).
        learning_rate: of either.
        clip: the norm that gradients are cut to.
    """

    def __init__(
        self, flat: Tensor, modules: Iterable[nn.Module], kind: OptimizerKind, learning_rate: float, clip: float
    ) -> None:
        self._flat = flat.detach()
        self._parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        self._learned = [p for p in self._parameters if p.requires_grad]
        self.kind, self._learning_rate, self._clip = kind, learning_rate, clip

    @property
    def learning_rate(self) -> float:
        """Of the next step; it may be changed at any time, and no checkpoint holds it."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._learning_rate = rate
        if "_optimizer" in vars(self):
            self._optimizer.param_groups[0]["lr"] = rate

    def prepare(self) -> None:
        """Make the optimiser now rather than at the first step."""
        _ = self._optimizer

    @cached_property
    def _optimizer(self) -> torch.optim.Optimizer:
        # Made when it is needed: the first optimiser of a process imports torch's compiler, which takes a second, and
        # workers only act.
        self._flat.grad = torch.zeros_like(self._flat)
        if self.kind == "rmsprop":
            return torch.optim.RMSprop([self._flat], lr=self._learning_rate, alpha=0.99, eps=1e-5)
        return torch.optim.Adam([self._flat], lr=self._learning_rate, eps=1e-5, fused=True)

    @property
    def learns_all(self) -> bool:
        """True unless a parameter is frozen."""
        return len(self._learned) == len(self._parameters)

    def step(self, loss: Tensor, what: str) -> float:
        """Make a step along the gradient of `loss`; return its norm before it was cut.

        Args:
            loss: a scalar.
            what: what failed, if it fails: "update 12".

        Raises:
            FloatingPointError: the norm is not finite; nothing has changed then.
        """
        found = iter(torch.autograd.grad(loss, self._learned, allow_unused=True))
        gradients = [(p, next(found) if p.requires_grad else None) for p in self._parameters]
        # A parameter that is frozen, or that the loss does not depend on, has a gradient of 0.
        whole = [p.new_zeros(p.numel()) if g is None else g.reshape(-1) for p, g in gradients]
        torch.cat(whole, out=self.gradient)
        return self.descend(what)

    @property
    def gradient(self) -> Tensor:
        """The memory (P,) of the gradient along which `descend` goes."""
        self.prepare()
        assert self._flat.grad is not None
        return self._flat.grad

    def descend(self, what: str) -> float:
        """Make a step along `gradient`, which is cut in place; otherwise as `step`."""
        gradient = self.gradient
        norm = float(gradient.norm())
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient of {what} has norm {norm}")
        if norm > self._clip:
            gradient *= self._clip / norm
        self._optimizer.step()
        return norm

    def state(self) -> dict[str, Any]:
        """Return a copy of its kind and its moments."""
        moments = self._optimizer.state.get(self._flat, {}) if "_optimizer" in vars(self) else {}
        return {"kind": self.kind, **{key: value.to("cpu", copy=True) for key, value in moments.items()}}

    def check(self, what: str, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` unless `state` is what an equal optimiser's `state` returned."""
        moments = {key: value for key, value in state.items() if key != "kind"}
        same(what, self.kind, state.get("kind"))
        shapes = {**{name: tuple(self._flat.shape) for name in _MOMENTS[self.kind]}, "step": ()} if moments else {}
        same(what, shapes, shapes_of(moments))

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `check` has found to fit; the settings stay the constructor's."""
        moments = {key: value.clone() for key, value in state.items() if key != "kind"}
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": {0: moments} if moments else {}, "param_groups": groups})


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def same(what: str, expected: object, got: object) -> None:
    """Raise a `ValueError` that names both, unless they are equal."""
    if got != expected:
        raise ValueError(f"{what}: expected {expected}, got {got}")
