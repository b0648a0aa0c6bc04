"""Distributions of actions by torch: log-probabilities of the actions of a batch, and entropies.

`Choice` draws actions by NumPy. Letters in shapes: R rows, U logits, D dimensions of a continuous action.
"""

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

MASKED = -1e10
"""The logit of an action that is not available."""


class Distribution(Protocol):
    """A distribution of the actions of R rows."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability, or log-density, of each row's action, (R,)."""
        ...

    def entropy(self) -> Tensor:
        """Return the entropy of each row's action, (R,)."""
        ...


class Categorical:
    """One or several independent choices among numbers.

    Args:
        logits: (R, U), of all choices side by side.
        n_values: number of values of each choice.
        available: (R, U), for a single choice: unavailable actions have probability 0, and their logits no gradient.
    """

    def __init__(self, logits: Tensor, n_values: tuple[int, ...], available: Tensor | None = None) -> None:
        if available is not None:
            logits = logits.masked_fill(~available, MASKED)
        self.log_probs = [each.log_softmax(-1) for each in torch.split(logits, list(n_values), dim=-1)]

    def log_prob(self, actions: Tensor) -> Tensor:
        columns = actions.view(len(actions), len(self.log_probs), 1).unbind(1)
        return torch.stack(
            [each.gather(1, column)[:, 0] for each, column in zip(self.log_probs, columns, strict=True)]
        ).sum(0)

    def entropy(self) -> Tensor:
        return -torch.stack([(each.exp() * each).sum(-1) for each in self.log_probs]).sum(0)


class Gaussian:
    """Independent normal distributions; the environment clips the drawn actions, the learner uses them unclipped.

    Args:
        mean: (R, D).
        log_sd: (D,).
    """

    def __init__(self, mean: Tensor, log_sd: Tensor) -> None:
        self.mean, self.log_sd = mean, log_sd

    def log_prob(self, actions: Tensor) -> Tensor:
        z = (actions - self.mean) * (-self.log_sd).exp()
        return (-0.5 * z.square() - self.log_sd - 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        return (0.5 + 0.5 * math.log(2.0 * math.pi) + self.log_sd).sum().expand(len(self.mean))


class Squashed:
    """Normal distributions of u; the action is tanh(u), scaled. The learner uses u, so that no digit is lost.

    Args:
        mean: (R, D), mean of u.
        log_sd: (D,).
        scale: (D,), half the width of each action's range.
    """

    def __init__(self, mean: Tensor, log_sd: Tensor, scale: Tensor) -> None:
        self._normal, self._scale = Gaussian(mean, log_sd), scale

    def log_prob(self, actions: Tensor) -> Tensor:
        slope = 2.0 * (math.log(2.0) - actions - softplus(-2.0 * actions)) + self._scale.log()
        return self._normal.log_prob(actions) - slope.sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of u, an upper bound up to the scale: the entropy of tanh(u) has no closed form."""
        return self._normal.entropy()
