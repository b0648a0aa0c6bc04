"""Copies of an environment that act: their hidden states and last actions, and which copies are ready.

Shapes: B copies, A agents.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs.base import ALL, Copies, Env
from components.policies.acting import Acted, ActingPolicy

_NONE = np.empty(0, np.int64)


class ActingCopies:
    """Copies of an environment that a policy plays: their hidden states, their last actions, and which are ready.

    All copies that are ready act in one forward pass. In a batched simulator all copies are always ready.
    """

    def __init__(self, env: Env, policy: ActingPolicy, rng: np.random.Generator) -> None:
        self.env, self._policy, self._rng = env, policy, rng
        self.hidden = policy.initial_hidden(env.n_envs)
        item, dtype = env.spec.schema.items["actions"]
        self._no_action = -1 if dtype.kind == "i" else 0
        self.last_actions = np.full((env.n_envs, *item), self._no_action, dtype)  # (B, A) of a team
        self.ready: Copies = _NONE
        """The copies that wait for actions."""
        self._numbers = np.arange(env.n_envs)
        self._acting = np.zeros(env.n_envs, np.bool_)  # (B,): copies that have been sent actions

    def begin(self, copies: Copies) -> None:
        """Begin episodes in these copies."""
        self.env.send_reset(copies)
        self._forget(copies)
        self.ready = ALL if self.env.lock_step else self._without(copies)

    def act(self, epsilon: float) -> Acted | None:
        """Choose the actions of the copies that are ready, and send them; None if no copy is ready."""
        env, ready = self.env, self.ready
        if not self.any_ready():
            return None
        acted = self._policy.act_on(
            self.frames(ready), self.last_actions[ready], self.hidden[ready], epsilon=epsilon, rng=self._rng
        )
        if isinstance(ready, slice):
            self.hidden, self.last_actions = acted.hidden, acted.actions
        else:
            self.hidden[ready], self.last_actions[ready] = acted.hidden, acted.actions
        env.send(acted.actions, ready)
        self._acting[ready] = True
        self.ready = _NONE
        return acted

    def frames(self, copies: Copies) -> dict[str, NDArray[Any]]:
        """Return the environment's fields per frame of these copies."""
        arrays = self.env.fields()
        return {name: arrays[name][copies] for name in self.env.spec.schema.frames}

    def last_frame(self, copies: Copies) -> Mapping[str, NDArray[Any]]:
        """Return the policy's fields per frame for the last frame of a segment in these copies."""
        return self._policy.last_frame(self.frames(copies), self.last_actions[copies], self.hidden[copies])

    def receive(self) -> tuple[Copies, NDArray[np.bool_] | None]:
        """Wait for copies. Return the copies that have made a step, and a mask (B,) of lost episodes or None.

        A copy that has made a step is ready, unless `leave` or `begin` names it.
        """
        self.ready = received = self.env.recv()
        lost = self.env.failed_copies()
        if lost is not None and lost.any():
            self._forget(lost)
            self._acting[lost] = False
        else:
            lost = None
        acted = self._acting[received]
        stepped = received if acted.all() else self._numbers[received][acted]
        self._acting[received] = False
        return stepped, lost

    def leave(self, copies: Copies) -> None:
        """Leave these copies idle: their episodes have ended."""
        self.ready = self._without(copies)

    def any_ready(self) -> bool:
        """True if a copy waits for actions."""
        return isinstance(self.ready, slice) or len(self.ready) > 0

    def _forget(self, copies: Copies | NDArray[np.bool_]) -> None:
        self.hidden[copies] = 0.0
        self.last_actions[copies] = self._no_action

    def _without(self, copies: Copies) -> NDArray[np.int64]:
        return np.setdiff1d(self._numbers[self.ready], self._numbers[copies], assume_unique=True)
