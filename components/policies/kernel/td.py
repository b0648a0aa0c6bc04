"""A part of a batch, from its arrays to its share of a TD gradient: one call, which waits for no other thread.

Sizes: E episodes of the batch, of F' frames and N' = F' - E steps, A agents, O observation size, S state size, U
actions, H hidden units; of the part e episodes, F frames, N = F - e steps, R = F * A rows, M = 1 team value, or A of
agents.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.policies.kernel.agent import backward, forward, packed, packed_back
from components.policies.kernel.compiling import compiled
from components.policies.kernel.inputs import collect
from components.policies.kernel.mixing import mix, mix_back, packed_mixer, packed_mixer_back
from components.policies.kernel.product import GROUP, room

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]
Arrays = Any
"""A tuple of arrays. numba knows their number, but mypy does not, so calls with them are not checked."""
_forward: Any = forward
_backward: Any = backward
_mix: Any = mix
_mix_back: Any = mix_back

UNMIXED, SUMMED, MONOTONIC = 0, 1, 2
"""Mixing of the agents' values to the learned values: unchanged, summed, or by `MonotonicMixer`."""


@compiled
def td_panels(online: Arrays, target: Arrays, n_obs: int) -> Arrays:
    """Return the panels of the parameters for `td_part`, equal for all parts of a batch.

    Args:
        online: as for `td_part`.
        target: as for `td_part`.
        n_obs: O.
    """
    return (
        packed(online[0], online[2], online[3], online[6], n_obs),
        packed_back(online[2], online[3]),
        packed_mixer(online[8], online[10], online[12]),
        packed_mixer_back(online[10], online[12]),
        packed(target[0], target[2], target[3], target[6], n_obs),
        packed_mixer(target[8], target[10], target[12]),
    )


@compiled
def td_part(
    batch: Arrays,
    episodes: Integers,
    mixing: int,
    double_q: bool,
    gamma: float,
    td_lambda: float,
    scale: float,
    online: Arrays,
    target: Arrays,
    panels: Arrays,
    memory: Arrays,
    share: Arrays,
    sums: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> None:
    """Fill `share` with a part's share of the gradient of `scale` times the sum of its weighted squared TD errors.

    Args:
        batch: observations (F', A, O), states (F', S), available actions (F', A, U), actions (N', A), rewards (N',),
            lengths (E,), `terminated` (E,), and weights (E,), one episode after the other.
        episodes: (e,), episodes of the part, the longest first; among equally long ones, truncated ones first.
        mixing: UNMIXED, SUMMED or MONOTONIC.
        double_q: whether the online network chooses the action whose target value is used.
        gamma: the discount.
        td_lambda: λ of the returns, as in `lambda_returns`.
        scale: scale of the loss.
        online: the eight parameters of the agents, then the eight of the mixer; of any size unless MONOTONIC.
        target: the parameters of the target networks.
        panels: from `td_panels`.
        memory: arrays to overwrite: (R, O); rows of x of the online and the target network, and their products, as in
            `forward`; hidden states (R, H) and gates of the online network, then of the target network, for the rows of
            two steps and for one; two of (R, U) and one of (R, 1); gradients of the products of x; two of (N, S), and
            four of the mixer, as in `mix`.
        share: arrays like `online`, filled. Those of the mixer are not written unless MONOTONIC.
        sums: (4,); added to it are the part's loss before scaling, its values, its targets, and its |TD errors|.
        errors: (N',), filled at the part's steps with the mean |TD error| of its M values.
    """
    obs, state, available, actions, _, lengths, terminated, _ = batch
    seen, x, x_target, of_x, hidden, gates, passing, unkept, q, q_target, d_q, d_of_x = memory[:12]
    state_t, state_tp1, hyper, w_1, w_2, mixed = memory[12:]
    of_online, of_online_back, of_mixer, of_mixer_back, of_target, of_target_mixer = panels
    w, b, _, _, b_x, b_h, head, head_bias = online[:8]
    w_target, b_target, _, _, b_x_target, b_h_target, head_target, head_bias_target = target[:8]
    n_episodes, n_agents, n_actions = len(episodes), actions.shape[1], available.shape[2]
    frames, whose, blocks, asked = _laid_out(episodes, lengths, terminated)
    n_steps = len(frames) - n_episodes
    departs = _departures(blocks, n_steps)

    last_actions = np.full(len(frames) * n_agents, -1)
    for k in range(n_steps):
        # An episode has one step fewer than frames.
        step = frames[departs[k]] - whose[departs[k]]
        for a in range(n_agents):
            last_actions[(n_episodes + k) * n_agents + a] = actions[step, a]
    pairs, picks = np.empty(len(last_actions), np.int64), np.empty(len(last_actions), np.int64)
    n_pairs = (n_actions + 1) * n_agents
    living = collect(obs, frames, blocks, asked, 0, n_episodes, last_actions, n_pairs, seen, pairs, picks)
    seen, pairs = seen[:living], pairs[:living]
    blocks, asked = blocks * n_agents, asked * n_agents
    last = n_episodes * n_agents
    rows = (seen, pairs, picks, blocks, asked, 0, last, n_agents)
    all_actions = np.empty(0, np.int64)
    _forward(*rows, of_online, w, b, b_x, b_h, head, head_bias, all_actions, x, of_x, hidden, gates, True, q)
    # The target network is asked for the values of these actions only.
    best = np.full(len(last_actions), -1) if double_q else all_actions
    if double_q:
        for k in range(n_steps):
            for a in range(n_agents):
                row = (n_episodes + k) * n_agents + a
                best[row] = best_of(q[row], available[frames[n_episodes + k], a])
    weights = (w_target, b_target, b_x_target, b_h_target, head_target, head_bias_target)
    _forward(*rows, of_target, *weights, best, x_target, of_x, passing, unkept, False, q_target)

    chosen, ahead = np.empty((n_steps, n_agents), q.dtype), np.empty((n_steps, n_agents), q.dtype)
    for k in range(n_steps):
        for a in range(n_agents):
            row = (n_episodes + k) * n_agents + a
            chosen[k, a] = q[departs[k] * n_agents + a, last_actions[row]]
            u = 0 if double_q else best_of(q_target[row], available[frames[n_episodes + k], a])
            ahead[k, a] = q_target[row, u]

    n_values = n_agents if mixing == UNMIXED else 1
    values, values_tp1 = np.empty((n_steps, n_values), q.dtype), np.empty((n_steps, n_values), q.dtype)
    if mixing == MONOTONIC:
        for k in range(n_steps):
            state_t[k] = state[frames[departs[k]]]
            state_tp1[k] = state[frames[n_episodes + k]]
        n_first, n_1, n_2 = len(online[9]), len(online[11]), len(online[13])
        by_group = (room(GROUP, n_first, q), room(GROUP, n_1, q), room(GROUP, n_2, q), room(GROUP, n_2, q))
        biases = (target[9], target[11], target[13], target[14], target[15])
        _mix(ahead, state_tp1, 0, n_steps, of_target_mixer, *biases, *by_group, False, values_tp1)
        biases = (online[9], online[11], online[13], online[14], online[15])
        _mix(chosen, state_t, 0, n_steps, of_mixer, *biases, hyper, w_1, w_2, mixed, True, values)
    elif mixing == SUMMED:
        for k in range(n_steps):
            values[k, 0] = chosen[k].sum()
            values_tp1[k, 0] = ahead[k].sum()
    else:
        values[:] = chosen
        values_tp1[:] = ahead

    _to_gradients(values, values_tp1, frames, whose, departs, batch, gamma, td_lambda, scale, sums, errors)
    d_chosen = np.empty_like(chosen)
    if mixing == MONOTONIC:
        between = (of_mixer_back, online[14], hyper, w_1, w_2, mixed)
        _mix_back(values, chosen, state_t, 0, n_steps, *between, d_chosen, *share[8:])
    elif mixing == SUMMED:
        for k in range(n_steps):
            d_chosen[k] = values[k, 0]
    else:
        d_chosen[:] = values
    taken = np.full(len(last_actions), -1)
    for k in range(n_steps):
        for a in range(n_agents):
            row = departs[k] * n_agents + a
            taken[row] = last_actions[(n_episodes + k) * n_agents + a]
            d_q[row, 0] = d_chosen[k, a]
    _backward(d_q, taken, *rows, of_online_back, head, x, hidden, gates, d_of_x, *share[:8])


@compiled
def best_of(values: Floats, allowed: NDArray[np.bool_]) -> int:
    """Return the allowed action with the largest of the `values` (U,), the first of equal ones; 0 if there is none."""
    best, most = 0, -np.inf
    for u in range(len(values)):
        if allowed[u] and values[u] > most:
            best, most = u, values[u]
    return best


@compiled
def _laid_out(
    episodes: Integers, lengths: Integers, terminated: NDArray[np.bool_]
) -> tuple[Integers, Integers, Integers, Integers]:
    """Return the layout of a part.

    It consists of its packed frames (F,) as rows of the batch, the episode (F,) of each, and its `frame_blocks` and
    `asked_blocks`.
    """
    begins = np.empty(len(lengths), np.int64)
    begin = 0
    for e in range(len(lengths)):
        begins[e] = begin
        begin += lengths[e] + 1
    n_frames = len(episodes)
    for e in episodes:
        n_frames += lengths[e]
    frames, whose = np.empty(n_frames, np.int64), np.empty(n_frames, np.int64)
    blocks = np.zeros(lengths[episodes[0]] + 1, np.int64)
    asked = np.zeros(len(blocks), np.int64)
    k = 0
    for t in range(len(blocks)):
        for e in episodes:
            if lengths[e] >= t:
                frames[k], whose[k] = begins[e] + t, e
                k += 1
                blocks[t] += 1
                if lengths[e] > t or not terminated[e]:
                    asked[t] += 1
    return frames, whose, blocks, asked


@compiled
def _departures(blocks: Integers, n_steps: int) -> Integers:
    """Return the frame (N,) that each step leaves; step k arrives at frame k + e."""
    departs = np.empty(n_steps, np.int64)
    k = start = 0
    for t in range(len(blocks) - 1):
        for rank in range(blocks[t + 1]):
            departs[k] = start + rank
            k += 1
        start += blocks[t]
    return departs


@compiled
def _to_gradients(
    values: Floats,
    values_tp1: Floats,
    frames: Integers,
    whose: Integers,
    departs: Integers,
    batch: Arrays,
    gamma: float,
    td_lambda: float,
    scale: float,
    sums: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> None:
    """Replace `values` (N, M) by their gradients and `values_tp1` (N, M) by the λ-returns; see `td_part`.

    A step is visited after the step that follows it, which leaves the frame at which it arrives.
    """
    _, _, _, _, reward, _, terminated, weights = batch
    n_steps, n_values = values.shape
    leaving = np.full(len(frames), -1)
    for k in range(n_steps):
        leaving[departs[k]] = k
    for k in range(n_steps - 1, -1, -1):
        arrived = len(frames) - n_steps + k
        following, episode = leaving[arrived], whose[arrived]
        step = frames[arrived] - episode - 1  # its number in the batch: an episode has one step fewer than frames
        error = 0.0
        for m in range(n_values):
            ahead = 0.0
            if following >= 0:
                ahead = (1.0 - td_lambda) * values_tp1[k, m] + td_lambda * values_tp1[following, m]
            elif not terminated[episode]:
                ahead = values_tp1[k, m]  # a truncated episode uses the value of its last frame
            values_tp1[k, m] = reward[step] + gamma * ahead
            off = values[k, m] - values_tp1[k, m]
            sums[0] += weights[episode] * off * off
            sums[1] += values[k, m]
            sums[2] += values_tp1[k, m]
            sums[3] += abs(off)
            error += abs(off)
            values[k, m] = 2.0 * scale * off * weights[episode]
        errors[step] = error / n_values
