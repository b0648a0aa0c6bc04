"""Gymnasium environments in processes, stepped as they become ready (extra `gymnasium`).

`AsyncVectorEnv` is an ordinary vector environment that also has `send` and `recv`, as EnvPool has: a policy acts in the
environments that are ready while the others step. K environments.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from components.envs.asynchronous.hosted_gymnasium import ACTIONS, OBS, fields_of, read, write
from components.envs.asynchronous.pool import Outcome, Pool, Result

_FOREVER = float("inf")


class AsyncVectorEnv(VectorEnv[Any, Any, NDArray[Any]]):
    """K copies of a Gymnasium environment in processes of their own.

    `reset` and `step` wait for all environments, as in any vector environment. `send` begins steps. `recv` returns the
    environments that are done: at least `min_batch` of them, or fewer once `max_wait_s` has passed since the first; if
    `min_batch` is K, always all.

    The step after the end of an episode ignores its action, and begins the next episode (`AutoresetMode.NEXT_STEP`).

    An environment that crashes, hangs or raises is ended with all that it started, and replaced by a new one. Its
    episode is cut: `truncated` is true, with the last observation that was returned and no reward, and `infos["lost"]`
    is true, so that a learner can discard it. `restarts` and `episodes_lost` count these events. No process and no
    shared memory outlives this process, however it ends.

    Args:
        make: the name of a registered environment, or a factory: a function or class that can be imported, or a
            `functools.partial` of one with plain arguments.
        num_envs: K.
        min_batch, max_wait_s, envs_per_process, step_timeout_s, start_timeout_s: as for
            `components.envs.asynchronous.env.AsyncEnv`.

    Raises:
        ValueError: a number out of its range, or a space without a fixed size.
        UsageError: the factory cannot be used in another process.
        EnvFailed: no environment could be made.
    """

    def __init__(
        self,
        make: str | Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int = 1,
        *,
        min_batch: int = 1,
        max_wait_s: float = 0.002,
        envs_per_process: int = 1,
        step_timeout_s: float = 60.0,
        start_timeout_s: float = 180.0,
    ) -> None:
        if min_batch < 1 or not max_wait_s >= 0.0:
            raise ValueError(f"min_batch is {min_batch!r} and max_wait_s {max_wait_s!r}, must be at least 1 and 0")
        self.closed = True  # until there is something to close
        if isinstance(make, str):
            make = partial(gymnasium.make, make)
        single = make()
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.metadata = {**single.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode, self.spec = single.render_mode, single.spec
        single.close()
        fields_of(self.single_observation_space, self.single_action_space)  # raises for unsupported spaces
        self.num_envs = num_envs
        self._min_batch = min(min_batch, num_envs)
        self._max_wait_s = max_wait_s if min_batch < num_envs else _FOREVER
        self._pool = Pool(
            "gymnasium",
            make,
            num_envs,
            seeds=lambda copy, start: int(np.random.SeedSequence().generate_state(1)[0]),
            envs_per_process=envs_per_process,
            step_timeout_s=step_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._returned = {name: array.copy() for name, array in self._pool.arrays.items()}  # the rows as last returned
        self._ended = np.zeros(num_envs, np.bool_)  # the next step begins an episode
        self.closed = False

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

    @property
    def pending(self) -> int:
        """The number of environments that are stepping or beginning an episode."""
        return int(self._pool.pending.sum())

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all environments; if `seed` is a number, environment i gets the seed `seed + i`.

        Raises:
            AlreadyPendingCallError: steps have been sent and not received.
            ValueError: a list of seeds of another length.
            EnvFailed: an environment failed several times in a row.
        """
        self._check_idle(range(self.num_envs))
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed or [None] * self.num_envs
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {self.num_envs} environments")
        self._pool.reset(range(self.num_envs), [{"seed": each, "options": options} for each in seeds])
        _, infos = self._received(self.num_envs, _FOREVER)
        return self._observations(np.arange(self.num_envs)), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Make one step in all environments.

        Raises:
            AlreadyPendingCallError: steps have been sent and not received.
            ValueError: actions of another shape.
            EnvFailed: an environment failed several times in a row.
        """
        everything = np.arange(self.num_envs)
        self.send(actions, everything)
        _, infos = self._received(self.num_envs, _FOREVER)
        return (self._observations(everything), *self._outcomes(everything), infos)

    def send(self, actions: Any, env_ids: NDArray[np.int64]) -> None:
        """Begin a step in these n environments, with a batch of n actions.

        Raises:
            AlreadyPendingCallError: one of them is stepping.
            ValueError: actions of another shape.
        """
        self._check_idle(env_ids.tolist())
        arrays = self._pool.arrays
        rows = {name: np.empty_like(array[env_ids]) for name, array in arrays.items() if name.startswith(ACTIONS)}
        write(self.single_action_space, actions, rows, ACTIONS)
        for name, row in rows.items():
            arrays[name][env_ids] = row
        ended = self._ended[env_ids]
        self._pool.step(env_ids[~ended].tolist())
        if ended.any():
            self._ended[env_ids] = False
            self._pool.reset(env_ids[ended].tolist())

    def recv(
        self,
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Return the results of `step` for the environments that are ready; `infos["env_id"]` has their indices (n,).

        Raises:
            NoAsyncCallError: no environment is stepping.
            EnvFailed: an environment failed several times in a row.
        """
        copies, infos = self._received(self._min_batch, self._max_wait_s)
        return self._observations(copies), *self._outcomes(copies), {**_rows_of(infos, copies), "env_id": copies}

    def close_extras(self, **kwargs: Any) -> None:
        """End all environments and their processes; a process that does not end is killed."""
        self._pool.close()

    def _check_idle(self, copies: Any) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environments are closed")
        if self._pool.pending[copies].any():
            raise AlreadyPendingCallError("steps have been sent to some of these environments and not received", "send")

    def _received(self, at_least: int, max_wait_s: float) -> tuple[NDArray[np.int64], dict[str, Any]]:
        if not self._pool.pending.any():
            raise NoAsyncCallError("no environment is stepping: call send first", "recv")
        results = sorted(self._pool.recv(at_least, max_wait_s, _FOREVER), key=lambda result: result.copy)
        infos: dict[str, Any] = {}
        for result in results:
            infos = self._add_info(infos, result.infos, result.copy)
        self._note(results)
        lost = [result.copy for result in results if result.outcome == Outcome.LOST]
        if lost:
            infos["lost"] = infos["_lost"] = np.isin(np.arange(self.num_envs), lost)
        return np.array([result.copy for result in results], np.int64), infos

    def _note(self, results: list[Result]) -> None:
        """Copy the rows of environments that are ready; lost ones keep their rows, and their episodes end."""
        ready = [result.copy for result in results if result.outcome != Outcome.LOST]
        lost = [result.copy for result in results if result.outcome == Outcome.LOST]
        for name, array in self._pool.arrays.items():
            self._returned[name][ready] = array[ready]
        self._returned["reward"][lost] = 0.0
        self._returned["terminated"][lost], self._returned["truncated"][lost] = False, True
        ended = self._returned["terminated"] | self._returned["truncated"]
        copies = ready + lost
        self._ended[copies] = ended[copies]
        self._pool.ended([b for b in ready if ended[b]])

    def _observations(self, copies: NDArray[np.int64]) -> Any:
        rows = {name: array[copies] for name, array in self._returned.items() if name.startswith(OBS)}
        return read(self.single_observation_space, rows, OBS)

    def _outcomes(self, copies: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        returned = self._returned
        return returned["reward"][copies], returned["terminated"][copies], returned["truncated"][copies]


def _rows_of(infos: dict[str, Any], copies: NDArray[np.int64]) -> dict[str, Any]:
    return {key: _rows_of(value, copies) if isinstance(value, dict) else value[copies] for key, value in infos.items()}
