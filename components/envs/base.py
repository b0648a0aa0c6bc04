"""The interface of an environment: B copies of one game, stepped together, with results in preallocated arrays.

Shapes, here and in every environment: B copies, A agents, O observation size, S state size, U actions.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from time import monotonic, sleep
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from components.experience import ExperienceSchema, Fields, team_fields


@dataclass(frozen=True, slots=True)
class Subtask:
    """A named subset of an agent's actions, for algorithms that choose actions on two levels."""

    name: str
    actions: tuple[int, ...]
    """Ascending."""


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """The sizes and declared fields of an environment, as policies and replay buffers need them."""

    name: str
    """The name of the scenario, such as `3m`."""
    n_agents: int
    n_actions: int
    obs_size: int
    state_size: int
    episode_limit: int
    """Steps after which an episode is cut."""
    fields: Fields = ()
    """The fields per frame and per step that the environment fills, and `actions`. Empty stands for `team_fields`,
    those of a cooperative team with discrete actions."""
    can_be_won: bool = True
    """False if episodes only have returns, or if nothing tells in advance whether they can be won."""
    reward_threshold: float | None = None
    """Mean return at which Gymnasium counts the environment as solved; None if it names none."""
    subtasks: tuple[Subtask, ...] = ()
    """Sub-tasks of the agents; empty if the environment names none."""
    action_grid: tuple[int, ...] = ()
    """The shape of a grid in which an action is the row-major index, such as `(courses, commands)`; empty if an action
    has no parts."""

    @property
    def schema(self) -> ExperienceSchema:
        """The fields of the environment; a policy adds its own."""
        return _schema(self)


@cache
def _schema(spec: EnvSpec) -> ExperienceSchema:
    sizes = (spec.n_agents, spec.n_actions, spec.obs_size, spec.state_size)
    return ExperienceSchema(spec.n_agents, spec.episode_limit, spec.fields or team_fields(*sizes))


Copies: TypeAlias = NDArray[np.int64] | slice
"""Indices of copies (n,), ascending; or `slice(None)` for all of them: indexing with it copies no data."""
ALL = slice(None)


class Env(ABC):
    """A batch of B copies of one environment. Each copy plays its own episode.

    The arrays below are the environment's own memory: `step` and `reset` overwrite them, so copy values to keep.
    Resets are explicit: a copy whose episode has ended keeps its last observation until it is reset. Stepping it
    earlier raises `ValueError`. With the same seed, copy i of B behaves exactly as it does alone.

    A batched simulator runs in lock-step: `step` makes one step in all copies. Copies that become ready one by one are
    driven by `send`, `send_reset` and `recv`. In lock-step, all copies are ready at once.
    """

    lock_step: ClassVar[bool] = True
    """True if `send` steps all copies together, and `send_reset` returns only once its copies are reset."""

    spec: EnvSpec
    n_envs: int
    obs: NDArray[np.float32]  # (B, A, O)
    state: NDArray[np.float32]  # (B, S)
    available: NDArray[np.bool_]  # (B, A, U): at least one action of each agent is available
    reward: NDArray[np.float32]  # (B,): the team's reward for the step just made
    terminated: NDArray[np.bool_]  # (B,): the episode reached its end: there is nothing to bootstrap from
    truncated: NDArray[np.bool_]  # (B,): the episode was cut at `episode_limit`: its last observation has a value
    won: NDArray[np.bool_]  # (B,): the episode ended with a win

    def _allocate(self) -> None:
        """Make the arrays above, all zero, of the sizes in `spec`."""
        spec, copies = self.spec, self.n_envs
        self.obs = np.zeros((copies, spec.n_agents, spec.obs_size), np.float32)
        self.state = np.zeros((copies, spec.state_size), np.float32)
        self.available = np.zeros((copies, spec.n_agents, spec.n_actions), np.bool_)
        self.reward = np.zeros(copies, np.float32)
        self.terminated, self.truncated, self.won = np.zeros((3, copies), np.bool_)

    def fields(self) -> Mapping[str, NDArray[Any]]:
        """Return the arrays (B, …) of the declared fields except `actions`, by name: the environment's own memory.

        The default returns the attributes with these names. An environment whose fields have other names overrides it.
        """
        return {name: getattr(self, name) for name in self._shown_names}

    @cached_property
    def _shown_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.spec.schema.by_name if name != "actions")

    def prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Do slow work that is needed once per machine, such as compiling.

        The first process of a run calls this before it starts others. It may block for as long as compiling takes.
        """

    def preload(self) -> None:  # noqa: B027  # most have nothing to load
        """Load what every copy uses, such as compiled code. Processes that are forked from this one then share it."""

    @abstractmethod
    def reset(self, which: NDArray[np.bool_] | None = None) -> None:
        """Start a new episode in the copies selected by the mask `which` (B,), or in all copies if it is None.

        Write `obs`, `state` and `available` of these copies, and clear their `reward`, `terminated`, `truncated`
        and `won`.
        """

    @abstractmethod
    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every copy; `actions` has shape (B, A). Write all arrays above.

        Raises:
            ValueError: an action that is not available, an action array of another shape, or a copy whose episode
                is over; nothing has been stepped then.
        """

    def send(self, actions: NDArray[np.int64], copies: Copies) -> None:
        """Begin a step in these copies, with `actions` (n, A). A copy's arrays are valid again once `recv` returns it.

        Raises:
            ValueError: as `step`.
        """
        self.step(actions)

    def send_reset(self, copies: Copies) -> None:
        """Begin a new episode in these copies."""
        which = np.zeros(self.n_envs, np.bool_)
        which[copies] = True
        self.reset(which)

    def recv(self) -> Copies:
        """Wait for copies whose step or reset is done, and return their indices.

        After a while it may return none, so that slow copies do not block the caller.
        """
        return ALL

    def snapshot(self) -> dict[str, NDArray[Any]] | None:
        """Return a copy of the whole state, including random generators, for `restore`; None if that is not possible.

        The default returns None, for games that run elsewhere and do not give their state.
        """
        return None

    def restore(self, snapshot: dict[str, NDArray[Any]]) -> None:
        """Continue from a snapshot of an environment that was made with the same arguments.

        Raises:
            ValueError: the snapshot is of something else; nothing has been changed then.
        """
        raise ValueError(f"{self!r} takes no snapshots")

    def failed_copies(self) -> NDArray[np.bool_] | None:
        """Return which copies (B,) lost their episode in the last step by a crash; they are at the start of a new one.

        The default is None: no copy ever fails.
        """
        return None

    def close(self) -> None:  # noqa: B027 (most environments hold nothing, and need not say so)
        """Release processes, sockets and files. The default holds none."""


class TimedEnv(Env):
    """An environment that makes a step at once and shows it later, so that one thread can wait for many of them."""

    @abstractmethod
    def begin_step(self, actions: NDArray[np.int64]) -> float:
        """Make one step in every copy, `actions` (B, A); return the time from which its arrays may be read.

        The time is that of `time.monotonic`, in seconds.

        Raises:
            ValueError: as `step`.
        """

    def step(self, actions: NDArray[np.int64]) -> None:
        """Make one step in every copy, `actions` (B, A), and wait until its time has passed.

        The wait neither uses the processor nor holds the GIL.

        Raises:
            ValueError: as the environment; nothing has been stepped then.
        """
        left = self.begin_step(actions) - monotonic()
        if left > 0.0:
            sleep(left)


def preload(make: Callable[..., Env]) -> EnvSpec | None:
    """Call `Env.preload` for a factory that is a class which overrides it, or a partial function of such a class.

    Return the spec of its environment; None for an environment that is a process, or starts processes, which has
    nothing to load here.
    """
    kind = make.func if isinstance(make, partial) else make
    if not (isinstance(kind, type) and issubclass(kind, Env) and kind.preload is not Env.preload):
        return None
    one = make(1, seed=0)
    one.preload()
    one.close()
    return one.spec
