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
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    StateSavedMsg,
)
from messages.control import PAUSE
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
class Worker(Preloads, Actor[StepMsg | JoinAgainMsg | LoadParamsMsg | CollectMsg | SaveStateMsg]):
    """Collects experience while it is told to, has parameters, and has credits for the episodes.

    It stops after the step in which it has used its last credit. All episodes that end in this step are sent, at most
    one for each of its environments.

    Args:
        env: makes its environments.
        policy: makes its policy.
        to: upstream, which takes the experience: a WorkerProxy, or without one the Orchestrator.
        n_envs: copies of the environment, stepped together.
        exploration: ε by the environment steps of the whole run.
        segment_length: steps after which it sends what it has of an episode; None for whole episodes. Credits then are
            for segments.
        steps_per_turn: steps of every copy for each `StepMsg`.
        threads: threads that NumPy, or torch, may use for acting.
    """

    env: EnvFactory
    policy: ActingFactory
    to: Ref[JoinMsg | InsertTransitionMsg]
    n_envs: int
    exploration: LinearSchedule
    segment_length: int | None = None
    steps_per_turn: int = 8
    threads: int = 1

    @classmethod
    def preload(cls, *, env: EnvFactory, **others: Any) -> None:
        """Load what its environments run."""
        preload(env)

    def __post_init__(self) -> None:
        own = self.env(self.n_envs, seed=self._seed())
        self._policy = with_threads(self.threads, self.policy, own.spec, seed=0)
        self._rollout = Rollout(own, self._policy, self.rng, segment_length=self.segment_length)
        self._env_steps = 0
        self._loaded = False
        self._collecting = PAUSE
        self._sent = 0  # segments since it joined
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
            "sent": self._sent,
            "stepping": self._stepping,
        }

    def restore(self, state: State) -> None:
        self._rollout.restore(state["rollout"])
        self._rollout.load(state["params"], state["version"])
        self._env_steps = state["env_steps"]
        self._loaded, self._sent, self._stepping = state["loaded"], state["sent"], state["stepping"]
        self._collecting = CollectMsg.model_validate(state["collecting"])

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._rollout.load(msg.params, msg.version)
        if msg.env_steps is not None:
            self._env_steps = msg.env_steps
        self._loaded = True
        await self._step_on()

    @on(CollectMsg)
    async def set_collecting(self, msg: CollectMsg) -> None:
        self._collecting = msg
        await self._step_on()

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        self._stepping = False
        credit = self._collecting.credit(self._sent)
        if credit == 0 or not self._loaded:  # paused since; or an earlier incarnation sent it
            return
        turn = (self.steps_per_turn, self.exploration(self._env_steps), credit)
        collected = await self.offload(with_threads, self.threads, self._rollout.collect, *turn)
        if collected is not None:
            self._sent += collected.segments
            await self.to.tell(collected.model_copy(update={"sender": self.me.address}))
        await self._step_on()

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._collecting = PAUSE
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
            self._collecting = PAUSE
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
        self._sent = 0
        await self.to.tell(JoinMsg(role="worker", ref=self.me, environments=self.n_envs))

    async def _step_on(self) -> None:
        if self._collecting.credit(self._sent) != 0 and self._loaded and not self._stepping:
            self._stepping = True
            await self.me.tell(StepMsg())

    def _seed(self) -> int:
        return int(self.rng.integers(1 << 62))
