"""Gradient descent on one flat tensor: clip, check, step, and state for checkpoints.

The steps are those of torch's optimisers. These are not used, because the first one in a process imports torch's
compiler, which takes a second and 70 MB before a run begins.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerKind = Literal["rmsprop", "adam", "radam"]
_MOMENTS = {"rmsprop": {"square_avg"}, "adam": {"exp_avg", "exp_avg_sq"}, "radam": {"exp_avg", "exp_avg_sq"}}


class FlatOptimizer:
    """Steps the parameters of `modules`, all at once.

    Args:
        flat: (P,), the memory of the parameters; it is changed in place.
        modules: the modules of the parameters, in order.
        kind: "rmsprop" with alpha 0.99 and ε 1e-5 (Rashid et al. 2018), "adam" with ε 1e-5 (Hu et al. 2021), or
            "radam" with ε 1e-8 (Liu et al. 2020).
        learning_rate: learning rate of each step.
        clip: largest norm of a gradient; larger gradients are scaled down to it.
    """

    def __init__(
        self, flat: Tensor, modules: Iterable[nn.Module], kind: OptimizerKind, learning_rate: float, clip: float
    ) -> None:
        # `data` counts no changes. Otherwise a step of one network would forbid the backward pass of its neighbours.
        self._flat = flat.data
        self._parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
        self._learned = [p for p in self._parameters if p.requires_grad]
        self.kind, self._clip = kind, clip
        self.learning_rate = learning_rate
        """Learning rate of the next step; it may be changed at any time, and is not in checkpoints."""
        self._moments: dict[str, Tensor] = {}  # none before the first step

    def prepare(self) -> None:
        """Allocate the memory of the gradient now, not at the first step."""
        _ = self.gradient

    @property
    def learns_all(self) -> bool:
        """True unless a parameter is frozen."""
        return len(self._learned) == len(self._parameters)

    def step(self, loss: Tensor, what: str) -> float:
        """Make a step along the gradient of `loss`; return its norm before clipping.

        Args:
            loss: a scalar.
            what: name of the step in errors: "update 12".

        Raises:
            FloatingPointError: the norm is not finite; nothing has changed then.
        """
        torch.cat(self._gradients_of(loss), out=self.gradient)
        return self.descend(what)

    def gradient_of(self, loss: Tensor) -> Tensor:
        """Return the gradient (P,) of a scalar `loss`; threads may call this at the same time."""
        return torch.cat(self._gradients_of(loss))

    def _gradients_of(self, loss: Tensor) -> list[Tensor]:
        found = iter(torch.autograd.grad(loss, self._learned, allow_unused=True))
        gradients = [(p, next(found) if p.requires_grad else None) for p in self._parameters]
        # A parameter that is frozen, or that the loss does not depend on, has a gradient of 0.
        return [p.new_zeros(p.numel()) if g is None else g.reshape(-1) for p, g in gradients]

    @cached_property
    def gradient(self) -> Tensor:
        """Memory (P,) of the gradient for `descend`."""
        return torch.zeros_like(self._flat)

    def descend(self, what: str) -> float:
        """Make a step along `gradient`, which is clipped in place; otherwise as `step`."""
        gradient = self.gradient
        norm = float(gradient.norm())
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient of {what} has norm {norm}")
        if norm > self._clip:
            gradient *= self._clip / norm
        moments = self._moments
        if not moments:
            moments |= {name: torch.zeros_like(self._flat) for name in _MOMENTS[self.kind]} | {"step": torch.zeros(())}
        moments["step"] += 1
        if self.kind == "rmsprop":
            _rmsprop(self._flat, gradient, moments["square_avg"], self.learning_rate)
        else:
            rule = _adam if self.kind == "adam" else _radam
            rule(self._flat, gradient, moments["exp_avg"], moments["exp_avg_sq"], self.learning_rate, moments["step"])
        return norm

    def state(self) -> dict[str, Any]:
        """Return a copy of its kind and its moments."""
        return {"kind": self.kind, **{key: value.to("cpu", copy=True) for key, value in self._moments.items()}}

    def check(self, what: str, state: Mapping[str, Any]) -> None:
        """Raise `ValueError` unless `state` is from the method `state` of an equal optimiser."""
        moments = {key: value for key, value in state.items() if key != "kind"}
        same(what, self.kind, state.get("kind"))
        shapes = {**{name: tuple(self._flat.shape) for name in _MOMENTS[self.kind]}, "step": ()} if moments else {}
        same(what, shapes, shapes_of(moments))

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a state that has passed `check`; the settings stay those of the constructor."""
        self._moments = {
            key: value.to("cpu" if key == "step" else self._flat.device, copy=True)
            for key, value in state.items()
            if key != "kind"
        }


def _rmsprop(flat: Tensor, gradient: Tensor, square_avg: Tensor, learning_rate: float) -> None:
    """Step as `torch.optim.RMSprop` does, with alpha 0.99 and ε 1e-5."""
    square_avg.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
    flat.addcdiv_(gradient, square_avg.sqrt().add_(1e-5), value=-learning_rate)


def _adam(
    flat: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, learning_rate: float, step: Tensor
) -> None:
    """Step as `torch.optim.Adam` does, with betas 0.9 and 0.999 and ε 1e-5; `step` is 1 at the first."""
    exp_avg.lerp_(gradient, 0.1)
    exp_avg_sq.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    root = exp_avg_sq.sqrt().div_(math.sqrt(1.0 - 0.999 ** float(step))).add_(1e-5)
    flat.addcdiv_(exp_avg, root, value=-learning_rate / (1.0 - 0.9 ** float(step)))


def _radam(
    flat: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, learning_rate: float, step: Tensor
) -> None:
    """Step as `torch.optim.RAdam` does, with betas 0.9 and 0.999 and ε 1e-8; `step` is 1 at the first."""
    exp_avg.lerp_(gradient, 0.1)
    exp_avg_sq.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    t, most = float(step), 2.0 / (1.0 - 0.999) - 1.0
    unbiased = 1.0 - 0.999**t
    length = most - 2.0 * t * 0.999**t / unbiased  # length of the average that has the same variance
    rate = learning_rate / (1.0 - 0.9**t)
    if length <= 5.0:  # the variance of the second moment is not finite yet
        flat.add_(exp_avg, alpha=-rate)
        return
    rectified = (length - 4.0) * (length - 2.0) * most / ((most - 4.0) * (most - 2.0) * length)
    flat.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(1e-8), value=-rate * math.sqrt(rectified * unbiased))


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def same(what: str, expected: object, got: object) -> None:
    """Raise a `ValueError` that names both, unless they are equal."""
    if got != expected:
        raise ValueError(f"{what}: expected {expected}, got {got}")
