"""Worker: steps its environments with the newest parameters at hand, and tells the episodes that ended."""

from pathlib import Path

from components.checkpoints import run_state
from components.rollout import EnvFactory, PolicyFactory, Rollout, play_once
from components.schedule import LinearSchedule
from components.threads import with_threads
from messages import (
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
)
from orchestra import Actor, Message, Ref, State, TerminatedMsg, Unreachable, UsageError, freeze, on

TEST_ENVS = 32
REJOIN_S = 5.0
"""A worker that is still there so long after its upstream stopped takes it that the run goes on."""


class StepMsg(Message):
    """Go on: told by a worker to itself, so that everything else gets its turn between steps."""


class JoinAgainMsg(Message):
    """Join whoever has taken the upstream's place: told to itself, some time after the upstream stopped."""


class UpstreamLost(Unreachable):
    """Whoever took this worker's experience is gone; a worker started anew finds the one that took its place."""


class Worker(Actor[StepMsg | JoinAgainMsg | LoadParamsMsg | SetCollectingMsg | EvaluateMsg | SaveStateMsg]):
    """Plays and reports. It collects while it was told to run, and has parameters to act with.

    Args:
        env: makes its environments.
        policy: makes its policy.
        to: who takes its experience; a WorkerProxy, or the Orchestrator where there is none.
        n_envs: copies of the environment, stepped together.
        exploration: ε by the environment steps of the whole run.
        steps_per_turn: steps of every copy between two looks into the mailbox.
        threads: threads that torch may use for acting.
    """

    def __init__(
        self,
        *,
        env: EnvFactory,
        policy: PolicyFactory,
        to: Ref[JoinMsg | InsertTransitionMsg],
        n_envs: int,
        exploration: LinearSchedule,
        steps_per_turn: int = 8,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        self._env = env
        self._to = to
        self._exploration = exploration
        self._steps_per_turn = steps_per_turn
        own = env(n_envs, seed=self._seed())
        self._policy = with_threads(threads, policy, own.spec, seed=0)
        self._rollout = Rollout(own, self._policy, self.rng)
        self._env_steps = 0
        self._loaded = False
        self._collecting = False
        self._stepping = False
        self._tests: list[EvaluateMsg] = []  # that came before any parameters

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
            "tests": self._tests,
        }

    def restore(self, state: State) -> None:
        self._rollout.restore(state["rollout"])
        self._rollout.load(state["params"], state["version"])
        self._env_steps = state["env_steps"]
        self._loaded, self._collecting, self._stepping = state["loaded"], state["collecting"], state["stepping"]
        self._tests = [EvaluateMsg.model_validate(test) for test in state["tests"]]

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._rollout.load(msg.params, msg.version)
        if msg.env_steps is not None:
            self._env_steps = msg.env_steps
        self._loaded = True
        tests, self._tests = self._tests, []
        for test in tests:
            await self.me.tell(test)
        await self._go_on()

    @on(SetCollectingMsg)
    async def pace(self, msg: SetCollectingMsg) -> None:
        self._collecting = msg.collecting
        await self._go_on()

    @on(StepMsg)
    async def step(self, msg: StepMsg) -> None:
        self._stepping = False
        if not (
            self._collecting and self._loaded
        ):  # it may be a step that an incarnation before this one meant to make
            return
        epsilon = self._exploration(self._env_steps)
        episodes = await self.offload(with_threads, self._threads, self._rollout.collect, self._steps_per_turn, epsilon)
        if episodes is not None:
            await self._to.tell(episodes)
        await self._go_on()

    @on(EvaluateMsg)
    async def evaluate(self, msg: EvaluateMsg) -> None:
        if not self._loaded:
            self._tests.append(msg)  # whoever asked waits for it, so it is played with the first parameters
            return
        n_envs, seed = min(TEST_ENVS, msg.episodes), self._seed()
        factory = (self._env, n_envs, seed, self._policy, msg.episodes, self.rng)
        played = await self.offload(with_threads, self._threads, play_once, *factory)
        await msg.reply_to.tell(
            EvaluationResultMsg(
                version=self._rollout.version,
                env_steps=msg.env_steps,
                episodes=msg.episodes,
                win_rate=float(played.won.mean()),
                mean_return=float(played.returns.mean()),
                mean_length=float(played.lengths.mean()),
            )
        )

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._collecting = False
        state = self._rollout.state()
        if state is None:
            self.log.info("the environment takes no snapshots: a resumed run begins new episodes")
        elif self.run_directory is not None:
            values = {"rng": self.rng.bit_generator.state}
            await self.offload(run_state.write, self.run_directory, msg.env_steps, self.me.address, values, state)
        await msg.reply_to.tell(StateSavedMsg(ref=self.me))

    @on(TerminatedMsg)
    def upstream_lost(self, msg: TerminatedMsg) -> None:
        if msg.graceful:  # as a rule the run ends, and this process with it
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
            raise UsageError(f"what {self.me.address} saved does not fit this run: {error}") from error
        self.rng.bit_generator.state = values["rng"]

    async def _join(self) -> None:
        self.watch(self._to)
        await self._to.tell(JoinMsg(role="worker", ref=self.me))

    async def _go_on(self) -> None:
        if self._collecting and self._loaded and not self._stepping:
            self._stepping = True
            await self.me.tell(StepMsg())

    def _seed(self) -> int:
        return int(self.rng.integers(1 << 62))
