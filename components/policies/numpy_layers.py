"""Layers of networks by NumPy, for workers, which do not import torch. Shapes: R rows, I inputs, H units."""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]


def layer_norm(x: Rows, scale: Rows, shift: Rows) -> Rows:
    """Return the result of `torch.nn.LayerNorm` for rows (R, I), with its ε of 1e-5."""
    x = x - x.mean(-1, keepdims=True)
    x *= 1.0 / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(1e-5))
    scaled: Rows = x * scale + shift
    return scaled


def gru(x: Rows, hidden: Rows, w_x: Rows, w_h: Rows, b_x: Rows, b_h: Rows) -> Rows:
    """Return the next hidden state (R, H) of `torch.nn.GRU`, whose gates are r, z, n.

    Args:
        x: (R, I).
        hidden: (R, H).
        w_x: (I, 3H).
        w_h: (H, 3H).
        b_x: (3H,).
        b_h: (3H,).
    """
    size = len(w_h)
    of_x, of_h = x @ w_x + b_x, hidden @ w_h + b_h
    # sigmoid(x) = tanh(x / 2) / 2 + 1 / 2, which never overflows.
    rz = np.tanh((of_x[:, : 2 * size] + of_h[:, : 2 * size]) * np.float32(0.5)) * np.float32(0.5)
    rz += np.float32(0.5)
    n = np.tanh(of_x[:, 2 * size :] + rz[:, :size] * of_h[:, 2 * size :])
    after: Rows = n + rz[:, size:] * (hidden - n)
    return after
