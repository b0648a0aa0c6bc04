"""Worker: steps environments with the newest parameters, and sends episodes that have ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from components.checkpoints import run_state
from components.preloading import preload
from components.rollout import ActingFactory, EnvFactory, Rollout
from components.schedule import LinearSchedule
from components.synchronization import ALWAYS, Synchronizer, SyncRule
from components.threads import with_threads
from messages import (
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProbesMsg,
    PullParamsMsg,
    SaveStateMsg,
    StateSavedMsg,
    SyncMsg,
    VersionMsg,
)
from messages.control import PAUSE
from orchestra import Actor, Message, Preloads, Ref, State, TerminatedMsg, Unreachable, UsageError, freeze, on

REJOIN_S = 5.0
"""Delay in seconds before a worker rejoins after its upstream stopped. Usually the run ends first."""
RETRY_S = 0.5
"""Delay in seconds before each attempt of a worker to join again after its upstream was lost."""
QUIET_TURNS = 50
"""Turns without a new version of the parameters after which a worker takes it that the learner does not learn."""
PATIENCE_S = 10.0
"""Seconds after which a worker fails if its upstream is lost and has no successor."""


class StepMsg(Message):
    """Make the next steps; a worker sends it to itself, so that other messages are handled between steps."""


class JoinAgainMsg(Message):
    """Join the upstream again; a worker sends it to itself some time after the upstream has ended."""


class UpstreamLost(Unreachable):
    """The upstream of this worker is gone and has no successor."""


@dataclass(kw_only=True, eq=False, repr=False)
class Worker(
    Preloads,
    Actor[StepMsg | JoinAgainMsg | LoadParamsMsg | ProbesMsg | VersionMsg | CollectMsg | SaveStateMsg],
):
    """Collects experience while it may collect, has parameters, and has credits for episodes.

    It stops after the step in which it has used its last credit. All episodes that end in this step are sent, at most
    one for each of its environments. If credits are for steps, all segments end with the last step.

    If its upstream is lost, it joins the successor, and its current episodes continue. It fails after `PATIENCE_S`
    seconds without a successor.

    Args:
        env: makes its environments.
        policy: makes its policy.
        to: upstream, which receives the experience: a WorkerProxy, or without one the Orchestrator.
        n_envs: copies of the environment, stepped together.
        exploration: ε by the environment steps of the whole run.
        segment_length: steps after which it sends its part of an episode; credits are then for segments. None for whole
            episodes.
        steps_per_turn: steps of every copy for each `StepMsg`. It loads parameters between turns, and sends the
            segments that have ended after each.
        quiet_steps_per_turn: the same while no new version of the parameters has come for `QUIET_TURNS` turns: then the
            learner does not learn, and fewer, larger messages cost less.
        threads: threads that NumPy, or torch, may use for acting.
        sync: rule by which it loads parameters. It waits for parameters that it has requested.
    """

    env: EnvFactory
    policy: ActingFactory
    to: Ref[JoinMsg | InsertTransitionMsg | PullParamsMsg | SyncMsg]
    n_envs: int
    exploration: LinearSchedule
    segment_length: int | None = None
    steps_per_turn: int = 8
    quiet_steps_per_turn: int = 32
    threads: int = 1
    sync: SyncRule = ALWAYS

    @classmethod
    def preload(cls, *, env: EnvFactory, policy: ActingFactory, **others: Any) -> None:
        """Load the code of its environments and of its policy."""
        preload(env, policy)

    def __post_init__(self) -> None:
        own = self.env(self.n_envs, seed=self._seed())
        self._policy = with_threads(self.threads, self.policy, own.spec, seed=0)
        self._rollout = Rollout(
            own, self._policy, self.rng, segment_length=self.segment_length, lend=self.message_memory
        )
        self._env_steps = 0
        self._sync = Synchronizer(self.sync)
        self._collecting = PAUSE
        self._unit: Literal["segments", "steps"] = "segments"  # of credits; a pause names none
        self._sent = 0  # segments or steps since it joined
        self._quiet = 0  # turns since it heard of a new version
        self._heard: int | None = None  # the newest version of which it has heard
        self._stepping = False
        self._lost_at: float | None = None  # time of the upstream's loss; None after a message from it
        self._rejoining = False

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
            "sync": self._sync.state(),
            "collecting": self._collecting,
            "unit": self._unit,
            "sent": self._sent,
            "quiet": self._quiet,
            "heard": self._heard,
            "stepping": self._stepping,
            "lost_at": self._lost_at,
            "rejoining": self._rejoining,
        }

    def restore(self, state: State) -> None:
        self._rollout.restore(state["rollout"])
        self._rollout.load(state["params"], state["version"])
        self._env_steps = state["env_steps"]
        self._sync.load(state["sync"])
        self._unit, self._sent, self._stepping = state["unit"], state["sent"], state["stepping"]
        self._quiet, self._heard = state["quiet"], state["heard"]
        self._collecting = CollectMsg.model_validate(state["collecting"])
        self._lost_at, self._rejoining = state["lost_at"], state["rejoining"]

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._note_version(msg.version)
        if self._sync.loaded(msg):
            self._rollout.load(msg.params, msg.version)
        await self._hear_of(msg.env_steps)

    @on(VersionMsg)
    async def announced(self, msg: VersionMsg) -> None:
        self._note_version(msg.version)
        await self._hear_of(msg.env_steps, msg)

    @on(ProbesMsg)
    async def take_probes(self, msg: ProbesMsg) -> None:
        self._sync.take_probes(msg)
        await self._hear_of(None)

    def _note_version(self, version: int) -> None:
        """Note that the learner learns, if a version is new. After a checkpoint the same one comes again."""
        if version != self._heard:
            self._quiet, self._heard = 0, version

    async def _hear_of(self, env_steps: int | None, news: VersionMsg | None = None) -> None:
        """Decide about the newest version, take over the run's environment steps, and continue stepping."""
        self._lost_at = None
        if env_steps is not None:
            self._env_steps = env_steps
        if news is not None or self._sync.undecided:
            asks = await self.offload(with_threads, self.threads, self._sync.decide, self._policy, news)
            if asks:
                await self._tell_upstream(self._sync.pull(self.me))
                await self._report_decisions()
        await self._step_on()

    @on(CollectMsg)
    async def set_collecting(self, msg: CollectMsg) -> None:
        self._collecting, self._lost_at = msg, None
        if msg != PAUSE:
            self._unit = msg.unit
        await self._step_on()

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        self._stepping = False
        credit = self._collecting.credit(self._sent)
        if credit == 0 or not self._sync.ready:  # paused meanwhile, or sent by an earlier incarnation
            await self._step_on()
            return
        self._quiet += 1
        steps = self.steps_per_turn if self._quiet <= QUIET_TURNS else self.quiet_steps_per_turn
        turn = (steps, self.exploration(self._env_steps), credit, self._unit)
        collected = await self.offload(with_threads, self.threads, self._rollout.collect, *turn)
        if collected is None or await self._send(collected):
            await self._step_on()

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._collecting = PAUSE
        await self._step_on()
        await self._report_decisions()
        state, error = self._rollout.state(), ""
        if state is None:
            self.log.info("the environment takes no snapshots: a resumed run begins new episodes")
        elif self.run_directory is not None:
            values = {"rng": self.rng.bit_generator.state, "quiet": self._quiet, "heard": self._heard}
            place = (self.run_directory, msg.env_steps, self.me.address)
            error = await self.offload(run_state.attempt, run_state.write, *place, values, state)
        await msg.reply_to.tell(StateSavedMsg(ref=self.me, error=error))

    @on(TerminatedMsg)
    def upstream_lost(self, msg: TerminatedMsg) -> None:
        if msg.graceful:  # usually the run and this process end
            self._join_after(REJOIN_S)
        else:
            self._join_successor(f"{msg.address}: {msg.reason}")

    @on(JoinAgainMsg)
    async def join_again(self, msg: JoinAgainMsg) -> None:
        self._rejoining = False
        try:
            await self._join()
        except Unreachable as error:
            self._join_successor(str(error))

    def _join_successor(self, reason: str) -> None:
        now = self.clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            self.log.warning("the upstream is lost", reason=reason)
        if now - self._lost_at >= PATIENCE_S:
            raise UpstreamLost(reason)
        self._join_after(RETRY_S)

    def _join_after(self, delay: float) -> None:
        self._collecting = PAUSE
        if not self._rejoining:
            self._rejoining = True
            self.after(delay, JoinAgainMsg())

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
        self._quiet, self._heard = values.get("quiet", 0), values.get("heard")  # earlier versions did not save them

    async def _tell_upstream(self, message: InsertTransitionMsg | PullParamsMsg | SyncMsg) -> bool:
        """Send to the upstream; return False if it is lost. The message is lost too, and the watch reports the end."""
        try:
            await self.to.tell(message)
        except Unreachable:
            return False
        return True

    async def _send(self, collected: InsertTransitionMsg) -> bool:
        """Send experience to the upstream; return False if that is lost."""
        self._sent += collected.steps if self._unit == "steps" else collected.segments
        await self._report_decisions()
        return await self._tell_upstream(collected.model_copy(update={"sender": self.me.address}))

    async def _report_decisions(self) -> None:
        if (report := self._sync.report(self.me.address)) is not None:
            await self._tell_upstream(report)

    async def _join(self) -> None:
        self.watch(self.to)
        self._sent = 0
        self._sync.forget_request()
        await self.to.tell(JoinMsg(role="worker", ref=self.me, environments=self.n_envs))

    async def _step_on(self) -> None:
        """Make the next turn if it may."""
        if not self._stepping and self._sync.ready and self._collecting.credit(self._sent) != 0:
            self._stepping = True
            await self.me.tell(StepMsg())

    def _seed(self) -> int:
        return int(self.rng.integers(1 << 62))
