"""Worker: steps environments with the newest parameters and sends the episodes that ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.checkpoints import run_state
from components.envs.base import preload
from components.rollout import ActingFactory, EnvFactory, Rollout
from components.schedule import LinearSchedule
from components.threads import with_threads
from messages import (
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
)
from orchestra import Actor, Message, Preloads, Ref, State, TerminatedMsg, Unreachable, UsageError, freeze, on

REJOIN_S = 5.0
"""Delay in seconds before a worker rejoins after its upstream stopped. Usually the run ends first."""


class StepMsg(Message):
    """Make the next steps; a worker sends it to itself, so that other messages are handled between steps."""


class JoinAgainMsg(Message):
    """Join the upstream again; a worker sends it to itself `REJOIN_S` after the upstream stopped."""


class UpstreamLost(Unreachable):
    """The upstream of this worker is gone. A restarted worker joins its replacement."""


@dataclass(kw_only=True, eq=False, repr=False)
class Worker(Preloads, Actor[StepMsg | JoinAgainMsg | LoadParamsMsg | SetCollectingMsg | SaveStateMsg]):
    """Collects experience while it is told to and has parameters.

    Args:
        env: makes its environments.
        policy: makes its policy.
        to: upstream, which takes the experience: a WorkerProxy, or without one the Orchestrator.
        n_envs: copies of the environment, stepped together.
        exploration: ε by the environment steps of the whole run.
        steps_per_turn: steps of every copy for each `StepMsg`.
        threads: threads that NumPy, or torch, may use for acting.
    """

    env: EnvFactory
    policy: ActingFactory
    to: Ref[JoinMsg | InsertTransitionMsg]
    n_envs: int
    exploration: LinearSchedule
    steps_per_turn: int = 8
    threads: int = 1

    @classmethod
    def preload(cls, *, env: EnvFactory, **others: Any) -> None:
        """Load what its environments run."""
        preload(env)

    def __post_init__(self) -> None:
        own = self.env(self.n_envs, seed=self._seed())
        self._policy = with_threads(self.threads, self.policy, own.spec, seed=0)
        self._rollout = Rollout(own, self._policy, self.rng)
        self._env_steps = 0
        self._loaded = False
        self._collecting = False
        self._stepping = False

    async def started(self) -> None:
        if self.resume_from is not None:
            self._resume(self.resume_from)
        await self._join()

    async def stopped(self) -> None:
        await self.offload(self._rollout.close)

    def snapshot(self) -> State | None:
        rollout = self._rollout.state()
        if rollout is None:
            return None
        return {
            "rollout": {name: freeze(array) for name, array in rollout.items()},
            "params": self._policy.params(),
            "version": self._rollout.version,
            "env_steps": self._env_steps,
            "loaded": self._loaded,
            "collecting": self._collecting,
            "stepping": self._stepping,
        }

    def restore(self, state: State) -> None:
        self._rollout.restore(state["rollout"])
        self._rollout.load(state["params"], state["version"])
        self._env_steps = state["env_steps"]
        self._loaded, self._collecting, self._stepping = state["loaded"], state["collecting"], state["stepping"]

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._rollout.load(msg.params, msg.version)
        if msg.env_steps is not None:
            self._env_steps = msg.env_steps
        self._loaded = True
        await self._step_on()

    @on(SetCollectingMsg)
    async def set_collecting(self, msg: SetCollectingMsg) -> None:
        self._collecting = msg.collecting
        await self._step_on()

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        self._stepping = False
        if not (self._collecting and self._loaded):  # paused since; or an earlier incarnation sent it
            return
        epsilon = self.exploration(self._env_steps)
        episodes = await self.offload(with_threads, self.threads, self._rollout.collect, self.steps_per_turn, epsilon)
        if episodes is not None:
            await self.to.tell(episodes)
        await self._step_on()

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._collecting = False
        state, error = self._rollout.state(), ""
        if state is None:
            self.log.info("the environment takes no snapshots: a resumed run begins new episodes")
        elif self.run_directory is not None:
            values = {"rng": self.rng.bit_generator.state}
            place = (self.run_directory, msg.env_steps, self.me.address)
            error = await self.offload(run_state.attempt, run_state.write, *place, values, state)
        await msg.reply_to.tell(StateSavedMsg(ref=self.me, error=error))

    @on(TerminatedMsg)
    def upstream_lost(self, msg: TerminatedMsg) -> None:
        if msg.graceful:  # usually the run ends, and this process with it
            self._collecting = False
            self.after(REJOIN_S, JoinAgainMsg())
            return
        raise UpstreamLost(f"{msg.address}: {msg.reason}")

    @on(JoinAgainMsg)
    async def join_again(self, msg: JoinAgainMsg) -> None:
        await self._join()

    def _resume(self, folder: Path) -> None:
        saved = run_state.find(folder, self.me.address)
        if saved is None:
            return
        values, state = saved
        try:
            self._rollout.restore(state)
        except ValueError as error:
            raise UsageError(f"the state of {self.me.address} does not fit this run: {error}") from error
        self.rng.bit_generator.state = values["rng"]

    async def _join(self) -> None:
        self.watch(self.to)
        await self.to.tell(JoinMsg(role="worker", ref=self.me))

    async def _step_on(self) -> None:
        if self._collecting and self._loaded and not self._stepping:
            self._stepping = True
            await self.me.tell(StepMsg())

    def _seed(self) -> int:
        return int(self.rng.integers(1 << 62))
