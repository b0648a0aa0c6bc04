"""One step of the agents' network for acting, a group of rows at a time, which fits into the cache."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.compiling import ACTING, compiled_for_acting
from components.policies.kernel.product import GROUP, add, any_nonzero, panels_of, room
from components.policies.kernel.scalars import ONE, TWO, ZERO, sigmoid

Floats = NDArray[np.floating[Any]]


@compiled_for_acting
def step(
    obs: Floats,
    last_actions: NDArray[np.int64],
    hidden: Floats,
    table: Floats,
    obs_panels: Floats,
    x_panels: Floats,
    bias: Floats,
    h_panels: Floats,
    h_bias: Floats,
    head_panels: Floats,
    head_bias: Floats,
    available: NDArray[np.bool_],
    q: Floats,
    after: Floats,
) -> None:
    """Fill `q` and `after` with the values of all actions and the next hidden states, as `unroll` computes them.

    The first layer is not computed for observations of zeros, which dead units have.

    Args:
        obs: (R, O), read-only.
        last_actions: (R,), of agents 0 to A - 1 of one copy after another, read-only; -1 for none.
        hidden: (R, H), read-only.
        table: (P, H), the first layer's bias plus its weights of each pair: agents of no action, of action 0, ….
        obs_panels: panels of the first layer's weights (O, H) of observations.
        x_panels: panels of the GRU's weights (H, 3H) of its input, for r, z and n.
        bias: (3H,), the sum of both biases for r and z, and the input's bias for n.
        h_panels: panels of the GRU's weights (H, 3H) of hidden states, for r, z and g.
        h_bias: (H,), bias of g.
        head_panels: panels of the weights (H, U) of the last layer.
        head_bias: (U,).
        available: (R, U), read-only: actions with a value; others get -inf. (0, U) if all have one.
        q: (R, U), filled.
        after: (R, H), filled.
    """
    n_rows, size, n_obs, n_actions = len(obs), hidden.shape[1], obs.shape[1], len(head_bias)
    n_agents = len(table) // (n_actions + 1)
    most = min(GROUP, n_rows)
    seen, whose, of_seen = room(most, n_obs, after), np.empty(most, np.int64), room(most, size, after)
    x, h, out = room(most, size, after), room(most, size, after), room(most, size, after)
    of_x, of_h, said = room(most, 3 * size, after), room(most, 3 * size, after), room(most, n_actions, after)
    for start in range(0, n_rows, GROUP):
        rows = min(GROUP, n_rows - start)
        n_living = 0
        # Loops and not slices, which numba copies through temporary views: they take a quarter of the time.
        for i in range(rows):
            row, before, of_pair = obs[start + i], hidden[start + i], x[i]
            last = min(max(last_actions[start + i], -1), n_actions - 1)  # never a row beside the table
            pair = table[(last + 1) * n_agents + (start + i) % n_agents]
            a, b, c, o = of_x[i], of_h[i], h[i], said[i]
            for j in range(size):
                of_pair[j] = pair[j]
                c[j] = before[j]
                b[2 * size + j] = h_bias[j]
            for j in range(2 * size):
                b[j] = ZERO
            for j in range(3 * size):
                a[j] = bias[j]
            for j in range(n_actions):
                o[j] = head_bias[j]
            if any_nonzero(row):
                to = seen[n_living]
                for j in range(n_obs):
                    to[j] = row[j]
                whose[n_living] = i
                n_living += 1
        if n_living > 0:
            of_seen[:n_living] = ZERO
            add(seen, 0, n_living, obs_panels, of_seen, 0)
        for k in range(n_living):
            of_pair, of_row = x[whose[k]], of_seen[k]
            for j in range(size):
                of_pair[j] += of_row[j]
        for i in range(rows):
            row = x[i]
            for j in range(size):
                row[j] = max(row[j], ZERO)
        add(x, 0, rows, x_panels, of_x, 0)
        add(h, 0, rows, h_panels, of_h, 0)
        for i in range(rows):
            a, b, c, o, to = of_x[i], of_h[i], h[i], out[i], after[start + i]
            for j in range(size):
                r = sigmoid(a[j] + b[j])
                z = sigmoid(a[size + j] + b[size + j])
                n = TWO * sigmoid(TWO * (a[2 * size + j] + r * b[2 * size + j])) - ONE
                o[j] = n + z * (c[j] - n)
            for j in range(size):
                to[j] = o[j]
        add(out, 0, rows, head_panels, said, 0)
        for i in range(rows):
            o, to = said[i], q[start + i]
            for j in range(n_actions):
                to[j] = o[j]
            if len(available) > 0:
                allowed = available[start + i]
                for j in range(n_actions):
                    to[j] = o[j] if allowed[j] else -np.float32(np.inf)


def prepare() -> None:
    """Compile `step` for float32, or load it from the cache."""
    ACTING.compile_once("the network that acts", {"step": _call})


def load() -> None:
    """Load `step` and what it needs into this process, compiled at need."""
    prepare()
    _call()


def _call() -> None:
    """Call `step` for one row: one agent with one observation, one action and one hidden unit."""
    one, three, vector = np.zeros((1, 1), np.float32), np.zeros((1, 3), np.float32), np.zeros(1, np.float32)
    row, last, allowed = one.copy(), np.zeros(1, np.int64), np.zeros((0, 1), np.bool_)
    for array in (row, last, allowed):
        array.flags.writeable = False
    panels, wide = panels_of(one), panels_of(three)
    step(
        row,
        last,
        row,
        np.zeros((2, 1), np.float32),
        panels,
        wide,
        three[0],
        wide,
        vector,
        panels,
        vector,
        allowed,
        one,
        one,
    )
