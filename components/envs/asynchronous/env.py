"""AsyncEnv: copies of an environment in processes, stepped as they become ready."""

from collections.abc import Mapping
from operator import index
from time import monotonic
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from components.envs.asynchronous.hosted import FLAGS
from components.envs.asynchronous.pool import Outcome, Pool
from components.envs.base import Copies, Env, EnvSpec
from components.envs.skirmish.checks import are_available, check_integers, check_mask, not_available

_TURN_S = 0.5
"""Seconds after which `recv` returns no copies, so that a worker with slow environments reads its messages."""
_FOREVER = float("inf")
_STEPPED, _LOST = Outcome.STEPPED, Outcome.LOST  # a look-up in the enumeration takes longer than the comparison


class MakeEnv(Protocol):
    """A factory of environments."""

    def __call__(self, n_envs: int, *, seed: int) -> Env: ...


class AsyncEnv(Env):
    """B copies of an environment, each made in another process by `make(1, seed=…)`.

    `recv` returns the copies that are ready: at least `min_batch` of them, if that many are under way, or fewer once
    `max_wait_s` has passed since the first. The others continue meanwhile. `step` and `reset` wait for all copies.

    An environment that crashes, hangs, raises or shows invalid numbers is ended with all that it started, and replaced
    by a new one with a new seed. Its episode is dropped: `failed_copies()` marks such copies, which are at the start of
    another episode. `restarts` and `episodes_lost` count these events. No process and no shared memory outlives this
    process, however it ends.

    With `min_batch` equal to B, each copy waits for all others, however long they take. Then nothing depends on time,
    and the same seeds give the same episodes.

    Args:
        make: a class or function that can be imported, or a `functools.partial` of one with plain arguments.
        n_envs: B.
        seed: seed of all copies; each environment gets its own seed from it, and another one after a restart.
        min_batch: copies to wait for, at most B.
        max_wait_s: seconds to wait for them after the first, if `min_batch` is less than B; rounded up to milliseconds.
        envs_per_process: environments in a process. They crash together. Each has its own thread; instances of
            `TimedEnv` share one. More than one suits environments that wait outside Python, such as for a game or a
            network.
        step_timeout_s: an environment whose step takes longer counts as hanging.
        start_timeout_s: the same for making an environment and for beginning an episode.

    Raises:
        ValueError: a number out of its range.
        UsageError: the factory cannot be used in another process, or there is no such environment on this system.
        EnvFailed: no environment could be made.
    """

    lock_step: ClassVar[bool] = False

    def __init__(
        self,
        make: MakeEnv,
        n_envs: int = 1,
        *,
        seed: int = 0,
        min_batch: int = 1,
        max_wait_s: float = 0.002,
        envs_per_process: int = 1,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 180.0,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed!r}, must be at least 0")
        if min_batch < 1:
            raise ValueError(f"min_batch is {min_batch!r}, must be at least 1")
        if not max_wait_s >= 0.0:
            raise ValueError(f"max_wait_s is {max_wait_s!r}, must be at least 0")
        self.n_envs = index(n_envs)
        together = min_batch >= n_envs
        self._seed, self._min_batch = seed, min(min_batch, n_envs)
        self._max_wait_s, self._turn_s = (_FOREVER, _FOREVER) if together else (max_wait_s, _TURN_S)
        self._pool = Pool(
            "env",
            make,
            self.n_envs,
            seeds=self._seed_of,
            envs_per_process=envs_per_process,
            step_timeout_s=step_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        try:
            self.spec = TypeAdapter(EnvSpec).validate_python(self._pool.about)
        except BaseException:
            self._pool.close()
            raise
        arrays = self._pool.arrays
        self._shown = {name: arrays[name] for name in self.spec.schema.by_name if name != "actions"}
        for name in ("obs", "state", "available", "reward"):
            if name in arrays:
                setattr(self, name, arrays[name])
        self.terminated, self.truncated, self.won = (arrays[name] for name in FLAGS)
        self._actions = arrays["actions"]
        self._over = np.ones(n_envs, np.bool_)  # (B,): no episode under way
        self._lost = np.zeros(n_envs, np.bool_)  # (B,): an episode was lost, and the next one is starting
        self._failed = np.zeros(n_envs, np.bool_)  # (B,): as `failed_copies` returns it

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name} x {self.n_envs}>"

    @property
    def restarts(self) -> int:
        """Environments started in place of one that failed."""
        return self._pool.restarts

    @property
    def episodes_lost(self) -> int:
        """Episodes that a failing environment cut short."""
        return self._pool.episodes_lost

    @property
    def process_ids(self) -> list[int]:
        """IDs of the environments' processes, without the one from which they are forked."""
        return self._pool.process_ids

    def failed_copies(self) -> NDArray[np.bool_]:
        """Return which copies (B,) of those last received lost their episode; they are at the start of another."""
        return self._failed

    def fields(self) -> Mapping[str, NDArray[Any]]:
        return self._shown

    def send(self, actions: NDArray[Any], copies: Copies) -> None:
        """Begin a step in these copies, with `actions` (n, A) or of the declared shape.

        Raises:
            ValueError: an action that is not available, another shape, or a copy that is under way or whose episode is
                over; nothing has been begun then.
        """
        which = np.arange(self.n_envs)[copies]
        self._check(actions, which)
        self._actions[which] = actions
        self._pool.step(which.tolist())

    def send_reset(self, copies: Copies) -> None:
        """Begin a new episode in these copies.

        Raises:
            ValueError: a copy is under way.
            EnvFailed: an environment failed several times in a row.
        """
        which = np.arange(self.n_envs)[copies]
        self._check_idle(which)
        self._over[which] = True
        self._pool.reset(which.tolist())

    def recv(self) -> NDArray[np.int64]:
        """Wait for copies to become ready; return their indices, ascending.

        Return none after half a second, unless all copies wait for each other.

        Raises:
            EnvFailed: an environment failed several times in a row.
        """
        until = monotonic() + self._turn_s
        while True:
            ready = self._received(self._min_batch, self._max_wait_s, max(until - monotonic(), 0.0))
            if len(ready) or not self._pool.pending.any() or monotonic() >= until:
                return ready

    def step(self, actions: NDArray[Any]) -> None:
        """Make one step in every copy, with `actions` (B, A) or of the declared shape.

        Raises:
            ValueError, EnvFailed: as `send` and `recv`.
        """
        everything = np.arange(self.n_envs)
        self.send(actions, everything)
        self._wait_for_all()

    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the copies selected by `which` (B,), or in all copies if it is None.

        Raises:
            ValueError: `which` is not a mask of shape (B,), or a copy is under way.
            EnvFailed: as `recv`.
        """
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        check_mask(which, self.n_envs)
        self.send_reset(np.flatnonzero(which))
        self._wait_for_all()

    def close(self) -> None:
        """End all environments and their processes; a process that does not end is killed."""
        self._pool.close()

    def _wait_for_all(self) -> None:
        failed = np.zeros(self.n_envs, np.bool_)
        while self._pool.pending.any():
            self._received(self.n_envs, _FOREVER, _FOREVER)
            failed |= self._failed
        self._failed = failed

    def _received(self, at_least: int, max_wait_s: float, timeout_s: float) -> NDArray[np.int64]:
        results = self._pool.recv(at_least, max_wait_s, timeout_s)
        self._failed[:] = False
        ready: list[int] = []
        lost: list[int] = []
        for b, outcome, _ in results:
            (lost if outcome is _LOST else ready).append(b)
            if outcome is not _STEPPED:
                self._begun(b, outcome)
        if lost:
            self._lost[lost] = True
            self._over[lost] = True
            self._pool.reset(lost)
        if ready:
            done = self.terminated[ready] | self.truncated[ready]
            self._over[ready] = done
            if done.any():
                self._pool.ended(np.array(ready)[done].tolist())
        return np.array(sorted(ready), np.int64)

    def _seed_of(self, copy: int, start: int) -> int:
        return int(np.random.SeedSequence(self._seed, spawn_key=(copy, start)).generate_state(1)[0]) >> 1

    def _begun(self, b: int, outcome: Outcome) -> None:
        """Note whether a ready copy begins an episode that replaces a lost one."""
        if outcome is Outcome.RESET:
            self._failed[b], self._lost[b] = self._lost[b], False
        elif outcome is Outcome.RENEWED:
            self._failed[b] = True

    def _check(self, actions: NDArray[Any], copies: NDArray[np.int64]) -> None:
        shape = (len(copies), *self._actions.shape[1:])
        if self._actions.dtype.kind in "iu":
            check_integers(actions, shape)
        elif actions.shape != shape or actions.dtype.kind != "f":
            raise ValueError(f"actions are {actions.dtype} {actions.shape}, must be floats {shape}")
        self._check_idle(copies)
        if self._over[copies].any():
            raise ValueError(f"copy {copies[np.argmax(self._over[copies])]} is over: reset it before stepping on")
        if "available" not in self._shown:
            return
        may = are_available(actions, self.available[copies])
        if not may.all():
            i, agent = np.argwhere(~may)[0]
            b = copies[i]
            raise not_available(f"copy {b}, agent {agent}: action {actions[i, agent]}", self.available[b, agent])

    def _check_idle(self, copies: NDArray[np.int64]) -> None:
        pending = self._pool.pending[copies] | self._lost[copies]
        if pending.any():
            raise ValueError(f"copy {copies[np.argmax(pending)]} is under way: receive it first")
