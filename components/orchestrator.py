"""Orchestrator: starts, stops and paces the others. It counts and routes, and holds no data."""

from pathlib import Path
from typing import Any, ClassVar

from components.checkpoints import run_state
from components.counters import Phase, RunCounters
from components.downstream import Downstream, send_downstream
from components.evaluation_queue import EvaluationQueue
from components.replay_buffers.limiter import SampleToInsertRatio
from messages import (
    BatchTrainingDataMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
    TrainResultMsg,
    WorkerCountMsg,
)
from orchestra import (
    Actor,
    Escalate,
    InterruptMsg,
    Message,
    Ref,
    State,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    on,
)
from orchestra.clock import Handle

RETURN_S = 60.0
"""How long a resumed run waits for the workers that it had."""
INTERRUPTED_S = 20.0
"""How long an interrupted run waits for those that have to save before it ends without a moment to go on from."""
LAST_TEST_S = 60.0
"""How long the last evaluation may take before the run ends without it."""


class FinishMsg(Message):
    """End the run, whether or not the last test and batch have come back."""


class GiveUpMsg(Message):
    """End the interrupted run, whoever has not saved yet."""


class GoOnMsg(Message):
    """Go on with a resumed run, whoever of its workers has not come back yet."""


class TrainerLost(Unreachable):
    """The Trainer is gone, and with it what it had learned."""


class Orchestrator(
    Actor[
        JoinMsg
        | WorkerCountMsg
        | InsertTransitionMsg
        | LoadParamsMsg
        | TrainResultMsg
        | EvaluationResultMsg
        | StateSavedMsg
        | GoOnMsg
        | GiveUpMsg
        | FinishMsg
    ]
):
    """Counts episodes and batches, and lets neither run too far ahead of the other.

    An episode is inserted as soon as it arrives. A batch is asked for whenever `limiter` allows it and fewer than
    `batches_in_flight` are on their way; workers are told to wait while the limiter would rather see no more
    episodes. The limiter counts episodes as inserts and batches as samples.

    Every `checkpoint_interval` steps, and at the end, the whole run is saved. For that all stand still: workers and
    proxies save what they hold and say so, behind all that they told before; once nothing is under way any more, the
    others do, and all go on. A resumed run begins where such a moment ended, when the workers that it had have joined.
    An interrupted run is saved so too, and then ends.

    Args:
        trajectories: the TrajectoryManager.
        monitor: who shows and keeps progress.
        limiter: how many batches belong to an episode.
        batch_size: episodes of a batch.
        goal_steps: environment steps after which the run ends.
        batches_in_flight: batches that may be on their way to the Trainer; with two, it never waits for one.
        eval_interval: environment steps between two evaluations.
        eval_episodes: episodes of an evaluation.
        checkpoint_interval: environment steps between two moments that are saved; what a killed run loses at most.

    Raises:
        UsageError: sampling would begin before there are enough episodes for a batch.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(
        self,
        *,
        trajectories: Ref[InsertTransitionMsg | SampleBatchMsg | SaveCheckpointMsg],
        monitor: Ref[ProgressMsg | EvaluationResultMsg | SaveCheckpointMsg],
        limiter: SampleToInsertRatio,
        batch_size: int,
        goal_steps: int,
        batches_in_flight: int = 2,
        eval_interval: int = 10_000,
        eval_episodes: int = 32,
        checkpoint_interval: int = 100_000,
    ) -> None:
        if limiter.min_size < batch_size:
            raise UsageError(
                f"a batch is {batch_size} episodes, but sampling would begin at {limiter.min_size}; "
                f"begin at {batch_size} or later"
            )
        self._trajectories = trajectories
        self._monitor = monitor
        self._limiter = limiter
        self._batch_size = batch_size
        self._goal_steps = goal_steps
        self._batches_in_flight = batches_in_flight
        self._eval_interval = eval_interval
        self._eval_episodes = eval_episodes
        self._checkpoint_interval = checkpoint_interval
        self._trainer: Ref[BatchTrainingDataMsg | SaveCheckpointMsg] | None = None
        self._below = Downstream()
        self._params: LoadParamsMsg | None = None
        self._collecting = True
        self._finishing = False
        self._interrupted = False
        self._tested = False
        self._tally = RunCounters()
        self._asked = 0
        self._next_test = 0
        self._next_checkpoint = checkpoint_interval
        self._evaluations = EvaluationQueue()
        self._saving: int | None = None  # the moment, in environment steps
        self._saved: int | None = None  # the environment steps of the last that is saved
        self._unsaved: set[str] = set()
        self._returning = 0  # workers that a resumed run waits for
        self._patience: Handle | None = None

    async def started(self) -> None:
        if self.resume_from is not None:
            self._resume(self.resume_from)
        await self._report("starting")

    def snapshot(self) -> State | None:
        if self._patience is not None:
            return None  # a timer that it could not take back
        return {
            **self._values(),
            "trainer": self._trainer,
            "below": self._below.refs,
            "each": self._below.each,
            "params": self._params,
            "flags": [self._collecting, self._finishing, self._interrupted, self._tested],
            "asked": self._asked,
            "evaluations": self._evaluations.state(),
            "moments": [self._saving, self._saved],
            "unsaved": sorted(self._unsaved),
        }

    def restore(self, state: State) -> None:
        self._hold(state)
        self._trainer = state["trainer"]
        self._below.refs, self._below.each = dict(state["below"]), dict(state["each"])
        self._params = LoadParamsMsg.model_validate(state["params"]) if state["params"] else None
        self._collecting, self._finishing, self._interrupted, self._tested = state["flags"]
        self._asked = state["asked"]
        self._evaluations.restore(state["evaluations"])
        self._saving, self._saved = state["moments"]
        self._unsaved = set(state["unsaved"])

    async def stopped(self) -> None:
        """Save what was learned, if it has not been saved with all the rest."""
        await self._pace(collecting=False)
        await self._report("saving")
        if self._trainer is not None and self.run_directory is not None and self._saved != self._tally.env_steps:
            await self._trainer.ask(SaveCheckpointMsg(env_steps=self._tally.env_steps))
        await self._report("done")

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        self.watch(msg.ref)
        if msg.role == "trainer":
            self._trainer = msg.ref
            await self._go_on_if_all_are_back()
            return
        self._below.join(msg.ref, 1 if msg.role == "worker" else 0)
        if not self._returning:  # else all are told together, once they are back
            if self._params is not None:
                await send_downstream(msg.ref, self._params)
            await send_downstream(msg.ref, SetCollectingMsg(collecting=self._collecting and not self._still))
        self._evaluations.lost(msg.ref.address)  # started anew, it knows nothing of what it was asked before
        await self._hand_out_evaluations()
        self._unsaved.discard(msg.ref.address)
        await self._save_on()
        await self._go_on_if_all_are_back()
        await self._report()

    @on(WorkerCountMsg)
    async def count_members(self, msg: WorkerCountMsg) -> None:
        self._below.each[msg.proxy.address] = msg.workers
        await self._hand_out_evaluations()
        await self._go_on_if_all_are_back()
        await self._report()

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if self._trainer is not None and msg.address == self._trainer.address:
            raise TrainerLost(f"{msg.address}: {msg.reason}")
        if self._below.leave(msg.address):
            self.log.warning("lost", address=msg.address, reason=msg.reason)
            self._evaluations.lost(msg.address)
            await self._hand_out_evaluations()
            self._unsaved.discard(msg.address)
            await self._save_on()
            await self._report()

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        await self._trajectories.tell(msg)
        self._limiter.insert(msg.episodes)
        self._tally.count(msg, None if self._params is None else self._params.version)
        await self._drive()
        if not self._still:  # else whoever has saved does nothing more
            await self._begin_what_is_due()
        await self._report()

    @on(TrainResultMsg)
    async def trained(self, msg: TrainResultMsg) -> None:
        self._tally.updates += 1
        self._tally.metrics = (*msg.metrics, ("learner_s", msg.seconds))
        await self._drive()
        await self._save_on()
        await self._report()
        self._stop_if_all_is_in()

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._params = msg.model_copy(update={"env_steps": self._tally.env_steps})
        await self._below.tell(self._params)

    @on(EvaluationResultMsg)
    async def evaluated(self, msg: EvaluationResultMsg) -> None:
        if self._evaluations.finished(msg.env_steps) is None:
            return  # one that was taken for dead has answered after all
        await self._monitor.tell(msg)
        if self._finishing and msg.env_steps >= self._goal_steps:  # and not an earlier test that took its time
            self._tested = True
        await self._save_on()
        self._stop_if_all_is_in()

    @on(StateSavedMsg)
    async def saved(self, msg: StateSavedMsg) -> None:
        self._unsaved.discard(msg.ref.address)
        await self._save_on()

    @on(InterruptMsg)
    async def interrupt(self, msg: InterruptMsg) -> None:
        self._interrupted = True
        self.after(INTERRUPTED_S, GiveUpMsg())
        if self._saved != self._tally.env_steps:
            await self._begin_save()
        if self._saving is None:  # there is nothing new, nobody to save yet, or no place
            self.stop()

    @on(GiveUpMsg)
    def give_up(self, msg: GiveUpMsg) -> None:
        if self._saving is not None:
            self.log.warning(
                "only the policy is saved, and no moment to go on from: some did not answer in time",
                seconds=INTERRUPTED_S,
                unsaved=sorted(self._unsaved),
                batches=self._asked - self._tally.updates,
                tests=not self._evaluations.idle,
            )
        self.stop()

    @on(GoOnMsg)
    async def go_on_anyway(self, msg: GoOnMsg) -> None:
        if self._returning:
            self.log.warning("goes on without workers that have not come back", seconds=RETURN_S)
            await self._go_on()

    @on(FinishMsg)
    def finish_anyway(self, msg: FinishMsg) -> None:
        self.log.warning("the last test or batch did not come back in time", seconds=LAST_TEST_S)
        self.stop()

    async def _begin_what_is_due(self) -> None:
        """Begin the end, a test, a moment to save: whatever these steps are enough for."""
        if self._tally.env_steps >= self._goal_steps:
            await self._finish()
        elif self._tally.env_steps >= self._next_test:
            self._next_test += self._eval_interval * (
                1 + (self._tally.env_steps - self._next_test) // self._eval_interval
            )
            await self._test()
        if self._tally.env_steps >= self._next_checkpoint and not self._finishing:
            await self._begin_save()

    async def _drive(self) -> None:
        """Ask for as many batches as may be asked for now, and let the workers run or wait accordingly."""
        if self._finishing or self._interrupted or self._still:
            return
        while (
            self._trainer is not None
            and self._asked - self._tally.updates < self._batches_in_flight
            and self._limiter.may_sample()
        ):
            self._limiter.sample()
            self._asked += 1
            await self._trajectories.tell(
                SampleBatchMsg(
                    number=self._asked,
                    batch_size=self._batch_size,
                    trainer=self._trainer,
                )
            )
        await self._pace(collecting=self._limiter.may_insert())

    @property
    def _still(self) -> bool:
        """Whether nothing new may begin: the run is being saved, or waits for those that it had."""
        return self._saving is not None or self._returning > 0

    async def _begin_save(self) -> None:
        if self._still or self._trainer is None or self.run_directory is None:
            return
        late = self._tally.env_steps - self._next_checkpoint  # below 0 at the end
        self._next_checkpoint += self._checkpoint_interval * (1 + late // self._checkpoint_interval)
        self._saving = self._tally.env_steps
        self._unsaved = set(self._below.refs)
        run_state.begin(self.run_directory, self._saving)
        await self._below.tell(SaveStateMsg(env_steps=self._saving, reply_to=Ref(self.me.address)))
        await self._save_on()

    async def _save_on(self) -> None:
        """Once all below have saved and nothing is under way, save the rest, and go on."""
        ready = not self._unsaved and self._asked == self._tally.updates and self._evaluations.idle
        if self._saving is None or not ready or self._trainer is None or self.run_directory is None:
            return
        if self._saving != self._tally.env_steps:  # what was on its way when this began is a part of it
            run_state.rename(self.run_directory, self._saving, self._tally.env_steps)
            self._saving = self._tally.env_steps
        moment = SaveCheckpointMsg(env_steps=self._saving)
        await self._report("saving")
        for ref in (self._trajectories, self._trainer, self._monitor):
            await ref.ask(moment)
        run_state.write(run_state.unfinished(self.run_directory, self._saving), self.me.address, self._values())
        # What this process went on from is what a replay of it begins with.
        run_state.finish(self.run_directory, self._saving, keep=self.resume_from)
        self._saved, self._saving = self._saving, None
        if self._interrupted:
            self.stop()
        elif self._finishing:
            self._stop_if_all_is_in()
        else:
            await self._go_on()

    def _values(self) -> dict[str, Any]:
        return {
            **self._tally.values(),
            "next_test": self._next_test,
            "next_checkpoint": self._next_checkpoint,
            "limiter": [self._limiter.inserted, self._limiter.sampled, self._limiter.deleted],
            "turn": self._evaluations.turn,
            "workers": self._below.workers,
        }

    def _resume(self, folder: Path) -> None:
        saved = run_state.read(folder, self.me.address)
        if saved is None:
            raise UsageError(f"{str(folder)!r} holds nothing of {self.me.address}")
        values, _ = saved
        self._hold(values)
        self._returning = max(values["workers"], 1)
        self._patience = self.after(RETURN_S, GoOnMsg())

    def _hold(self, values: State) -> None:
        """Count on from what `_values` returned."""
        self._tally.hold(values)
        self._asked = self._tally.updates
        self._next_test, self._next_checkpoint = values["next_test"], values["next_checkpoint"]
        self._limiter.inserted, self._limiter.sampled, self._limiter.deleted = values["limiter"]
        self._evaluations.turn = values["turn"]

    async def _go_on_if_all_are_back(self) -> None:
        if self._returning and self._trainer is not None and self._below.workers >= self._returning:
            await self._go_on()

    async def _go_on(self) -> None:
        """Have everybody begin again, with the same parameters at hand whether or not the run was resumed."""
        self._returning = 0
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._collecting = self._limiter.may_insert()
        pace = SetCollectingMsg(collecting=self._collecting)
        if self._params is None:
            await self._below.tell(pace)
        else:
            self._params = self._params.model_copy(update={"env_steps": self._tally.env_steps})
            await self._below.tell(self._params, pace)
        await self._drive()
        if self._tally.env_steps >= self._goal_steps:
            await self._finish()

    async def _pace(self, *, collecting: bool) -> None:
        if collecting == self._collecting or self._still:
            return
        self._collecting = collecting
        await self._below.tell(SetCollectingMsg(collecting=collecting))

    async def _test(self) -> bool:
        """Have a worker below play greedily; return whether there was one."""
        if not self._below.players:
            return False
        self._evaluations.add(
            EvaluateMsg(episodes=self._eval_episodes, env_steps=self._tally.env_steps, reply_to=Ref(self.me.address))
        )
        await self._hand_out_evaluations()
        return True

    async def _hand_out_evaluations(self) -> None:
        """Have each test that waits played below: of one that died with it, by another."""
        for player, message in self._evaluations.assign(self._below.players):
            await send_downstream(player, message)

    async def _finish(self) -> None:
        if self._finishing:
            return
        self._finishing = True
        await self._pace(collecting=False)
        self._tested = not await self._test()
        await self._begin_save()
        self.after(LAST_TEST_S, FinishMsg())
        self._stop_if_all_is_in()

    def _stop_if_all_is_in(self) -> None:
        """End once the last test, the batches on their way and what is being saved have come back."""
        if self._tested and self._asked == self._tally.updates and not self._still:
            self.stop()

    async def _report(self, phase: Phase | None = None) -> None:
        await self._monitor.tell(self._tally.progress(phase, self._goal_steps, self._below.workers))
