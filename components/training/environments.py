"""The environments of a run: the simulator, StarCraft II, or another by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from components import envs
from components.envs import simulator
from components.envs.adapted import named
from components.envs.base import EnvSpec
from components.envs.game_speed import GameSpeed
from components.envs.skirmish.scenario_file import scenario_named
from components.envs.skirmish.scenarios import SCENARIOS
from components.envs.smac import Smac
from components.rollout import EnvFactory
from orchestra import UsageError, did_you_mean

TURN, LONG_TURN = 32, 120
"""Steps of a worker's turn while the learner does not learn: of environments that may be slow, and of the simulator.

64 battles of 8m make 120 steps in 0.2 s. A worker pauses and stops after its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Settings for acting in environments that have processes of their own."""

    asynchronous: bool
    min_batch: int
    """Environments to wait for before acting."""
    max_wait: float
    """Seconds to wait after the first environment is ready."""
    envs_per_process: int

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of environments in processes."""
        return {"min_batch": self.min_batch, "max_wait_s": self.max_wait}

    def processes(self, env: str, envs_per_worker: int, *, game_speed: bool) -> int:
        """Return the number of processes of a worker that need a core each; at game speed they need none."""
        if game_speed or not (self.asynchronous or env == "smac"):
            return 0
        return -(-envs_per_worker // self.envs_per_process)

    def check(self, env: str) -> None:
        """Refuse flags that do not fit together.

        Raises:
            UsageError: they do not fit together.
        """
        if self.asynchronous and env == "smac":
            raise UsageError(
                "--asynchronous is for the simulator; games of StarCraft II always have their own processes"
            )
        waits = env != "smac" and (self.min_batch, self.max_wait) != (1, 0.002)
        if not self.asynchronous and (self.envs_per_process != 1 or waits):
            raise UsageError("--min-batch, --max-wait and --envs-per-process need --asynchronous")


@dataclass(frozen=True, slots=True)
class Environments:
    """Factories of the environments of the evaluator and of the workers, and their spec."""

    of_evaluator: EnvFactory
    of_workers: EnvFactory
    spec: EnvSpec
    prepare: Callable[[], None]
    """Compiles, or checks that requirements are installed, before processes are started."""
    quiet_steps_per_turn: int
    """As for a `Worker`."""


def environments_of_flags(
    env: str,
    *,
    scenario: str,
    simulated: Mapping[str, Any],
    env_arg: tuple[str, ...],
    episode_limit: int | None,
    rewards: named.Rewards,
    game_speed: bool,
    waiting: Waiting,
) -> Environments:
    """Return the environments of a run.

    Args:
        env: name of the environment, from `named.named`.
        scenario: scenario of SMAC.
        simulated: options of the simulator that differ from their defaults.
        env_arg: arguments of another environment, NAME=VALUE.
        episode_limit: steps after which an episode of another environment is cut.
        rewards: form of the rewards of PettingZoo's agents.
        game_speed: True if the simulator is as slow as StarCraft II.
        waiting: settings for environments in processes.

    Raises:
        UsageError: flags do not fit together, or there is no such environment.
    """
    if game_speed and env != "skirmish" and not env.startswith("air_combat:"):
        raise UsageError("--game-speed slows the simulators down; other environments take their own time")
    if env in named.OURS and (env_arg or episode_limit is not None or rewards != "each"):
        raise UsageError(f"--env-arg, --episode-limit and --rewards are for other environments than {env}")
    if simulated and env != "skirmish":
        options_given = ", ".join(simulator.flags_of_options(simulated))
        raise UsageError(f"{options_given}: for the simulator alone, and --env is {env}")
    waiting.check(env)
    make = _factory(env, scenario, simulated, waiting)
    if make is None:
        make = named.factory_of(env, named.arguments_of(env_arg), episode_limit=episode_limit, rewards=rewards)
    of_workers: EnvFactory = partial(GameSpeed, make) if game_speed else make
    if waiting.asynchronous:
        of_workers = partial(envs.AsyncEnv, of_workers, envs_per_process=waiting.envs_per_process, **waiting.options)
    planned = make(1, seed=0)
    planned.close()
    compiled = env == "skirmish" and of_workers is make
    return Environments(make, of_workers, planned.spec, planned.prepare, LONG_TURN if compiled else TURN)


def _factory(env: str, scenario: str, simulated: Mapping[str, Any], waiting: Waiting) -> EnvFactory | None:
    """Return the factory of the simulator or of StarCraft II; None for another environment."""
    if env == "skirmish":
        try:
            scenario_named(scenario)
        except ValueError as error:
            raise UsageError(f"--scenario: {error}{did_you_mean(scenario, SCENARIOS)}") from error
        return partial(envs.Skirmish, scenario, **simulated)
    return partial(Smac, scenario, **waiting.options) if env == "smac" else None
