"""A GRU over many steps."""

import warnings
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Frames = TypeVar("Frames", Tensor, PackedSequence)


def unrolled(gru: nn.GRU, x: Frames, hidden: Tensor | None = None) -> tuple[Frames, Tensor]:
    """Return the result of `gru`: the hidden states after each step of `x`, and those after the last step.

    Args:
        gru: one layer, whose weights lie in one tensor with those of other layers. So cuDNN copies them at each call,
            which takes microseconds; this function suppresses torch's warning about it.
        x: (T, B, I), or packed.
        hidden: (1, B, H) before the first step; None for zeros.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        found: tuple[Frames, Tensor] = gru(x, hidden)
    return found
