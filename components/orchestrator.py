"""Orchestrator: starts, stops and paces the other actors. It counts and routes, and holds no data."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from components.checkpoints import run_state
from components.counters import Phase, RunCounters
from components.deadlines import INTERRUPTED_S, LAST_EVALUATION_S, RETURN_S, TimeoutMsg
from components.downstream import Downstream, rejected
from components.published import PassesParameters, Published, SyncMessages
from components.replay_buffers.limiter import SampleToInsertRatio
from components.rounds import Rounds
from components.run_checkpoint import RunCheckpoint, ask_to_save
from components.run_evaluations import RunEvaluations
from components.save_point import SavePoint
from components.synchronization import ALWAYS, SyncRule
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    StateSavedMsg,
    TrainResultMsg,
    WorkerCountMsg,
)
from orchestra import (
    Actor,
    Escalate,
    InterruptMsg,
    PlayedMsg,
    Ref,
    State,
    Supervision,
    TerminatedMsg,
    Unreachable,
    UsageError,
    on,
)

REPORT_S = 0.1
"""Least number of seconds between two reports of the counts, which the Monitor shows twice a second."""


class TrainerLost(Unreachable):
    """The Trainer is gone, and with it everything that it had learned."""


@dataclass(kw_only=True, eq=False, repr=False)
class Orchestrator(
    PassesParameters,
    Actor[
        JoinMsg
        | ClaimRoleMsg
        | WorkerCountMsg
        | InsertTransitionMsg
        | LoadParamsMsg
        | TrainResultMsg
        | EvaluationResultMsg
        | StateSavedMsg
        | TimeoutMsg
        | SyncMessages
    ],
):
    """Paces collecting and learning, so that neither runs too far ahead of the other.

    Episodes are inserted as soon as they arrive. A batch is requested whenever `limiter` allows it and fewer than
    `batches_in_flight` are on their way. The limiter counts episodes as inserts and batches as samples. Workers need
    credits to send episodes: as many are granted in advance as the limiter allows inserts.

    A checkpoint of the whole run is taken every `checkpoint_interval` steps and at the end. The run pauses for it.
    Workers and proxies save first; their answers arrive after all their earlier messages. Once nothing is in flight,
    the other actors save, and all continue. A resumed run begins there, when its workers have joined. An interrupted
    run takes a checkpoint and ends.

    The Evaluator plays the evaluations while all other actors continue. Checkpoints do not wait for it, but keep the
    evaluations without a result. At the end the best evaluated parameters play the final evaluation, on new episodes
    that had no part in their selection.

    Args:
        trajectories: the TrajectoryManager.
        monitor: shows and keeps progress.
        limiter: ratio of batches to episodes; or the rounds of on-policy learning, each of which is one batch.
        buffer_per_environment: batches of the limiter's error buffer for each environment that plays, at least
            `LEAST_BUFFER` in all; None to keep the limiter's own for any number of environments.
        batch_size: episodes of a batch.
        goal_steps: environment steps after which the run ends.
        batches_in_flight: batches that may be on their way to the Trainer; with two, it never has to wait for a batch.
        eval_interval: environment steps between two evaluations.
        eval_episodes: episodes of an evaluation.
        final_eval_episodes: episodes of the final evaluation.
        checkpoint_interval: environment steps between two checkpoints; a killed run loses at most that many.
        drop_stale: policy lag in versions above which an episode is dropped and counted; None to drop none.
        workers: workers that the run starts with; a resumed run waits for them. None to wait for as many as were saved.
        sync: rule by which workers load parameters: all are sent to them, or they ask.

    Raises:
        UsageError: sampling would begin before there are enough episodes for a batch.
    """

    supervision: ClassVar[Supervision] = Escalate()

    trajectories: Ref[InsertTransitionMsg | SampleBatchMsg | SaveCheckpointMsg]
    monitor: Ref[ProgressMsg | PlayedMsg | EvaluationResultMsg | SaveCheckpointMsg]
    limiter: SampleToInsertRatio | Rounds
    batch_size: int
    goal_steps: int
    buffer_per_environment: float | None = None
    batches_in_flight: int = 2
    eval_interval: int = 10_000
    eval_episodes: int = 32
    final_eval_episodes: int = 256
    checkpoint_interval: int = 100_000
    drop_stale: int | None = None
    workers: int | None = None
    sync: SyncRule = ALWAYS

    def __post_init__(self) -> None:
        if self.limiter.min_size < self.batch_size:
            raise UsageError(
                f"a batch is {self.batch_size} episodes, but sampling would begin at {self.limiter.min_size}; "
                f"begin at {self.batch_size} or later"
            )
        self._trainer: Ref[BatchTrainingDataMsg | SaveCheckpointMsg] | None = None
        self._downstream = Downstream("steps" if isinstance(self.limiter, Rounds) else "segments")
        intervals = (self.eval_interval, self.checkpoint_interval)
        self._counters = RunCounters(self.limiter, *intervals, drop_stale=self.drop_stale)
        self._published = Published(self._downstream, pulls=self.sync.pulls, counters=self._counters.sync)
        self._evaluations = RunEvaluations()
        place = (self.run_directory, self.me.address, (self.trajectories, self.monitor))
        self._checkpoint = RunCheckpoint(*place, keep=self.resume_from)
        self._finishing = self._interrupted = False
        self._ending: Phase = "failed"  # until the goal is reached or the run is interrupted
        self._evaluated = False  # the final evaluation has its result
        self._returning = 0  # workers that a resumed run waits for
        self._next_report = -math.inf  # the time before which no counts are reported

    async def started(self) -> None:
        if self.resume_from is not None:
            values, arrays = run_state.read(self.resume_from, self.me.address)
            self.rng.bit_generator.state = values["rng"]
            self._counters.load(values)
            self._evaluations.load(values, arrays)
            # Workers that had died before the save count too: otherwise a short run would end before they join.
            self._returning = max(self.workers or values["workers"], 1)
            self.after(RETURN_S, TimeoutMsg(waited_for="workers"))
        await self._report("starting")

    def snapshot(self) -> State | None:
        if self._returning:
            return None  # `restore` could not restore the timer
        return {
            **self._values(),
            "trainer": self._trainer,
            "published": self._published.state(),
            "flags": [self._finishing, self._interrupted, self._evaluated, self._ending, self._next_report],
            "requested": self._counters.requested,
            "evaluations": vars(self._evaluations),
            "save_point": vars(self._checkpoint.point),
        }

    def restore(self, state: State) -> None:
        self._counters.load(state)
        self._trainer = state["trainer"]
        self._published.load(state["published"])
        self._finishing, self._interrupted, self._evaluated, self._ending, self._next_report = state["flags"]
        self._counters.requested = state["requested"]
        self._evaluations = RunEvaluations(**state["evaluations"])
        self._checkpoint.point = SavePoint(**state["save_point"])

    async def stopped(self) -> None:
        """Save the policy and the best parameters, unless a checkpoint has them. A failing run saves what it can."""
        await self._downstream.pause()
        await self._report("saving")
        steps = self._counters.env_steps
        if self._trainer is not None and self.run_directory is not None and self._checkpoint.point.committed != steps:
            if self._ending == "failed":
                await self._save_what_is_left(self._trainer)
            elif error := await self._save_best() or await ask_to_save(self._trainer, steps):
                raise self._checkpoint.cannot_save(error)
        await self._report(self._ending)

    # Joining and leaving --------------------------------------------------------------------------------------------

    @on(ClaimRoleMsg)
    async def claim_role(self, msg: ClaimRoleMsg) -> str:
        holder = self._trainer if msg.role == "trainer" else self._evaluations.evaluator
        if rejection := rejected(msg, holder, self.me):
            return rejection
        self.watch(msg.ref)
        if msg.role == "trainer":
            self._trainer = msg.ref
        else:
            await self._evaluations.join(msg.ref)
        return ""

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        self.watch(msg.ref)
        self._downstream.join(msg.ref, 1 if msg.role == "worker" else 0, msg.environments)
        if not self._returning:  # `_continue` sends to all at once
            await self._published.welcome(msg.ref)
        # A restarted actor does not know the checkpoint of its earlier incarnation.
        await self._mark_saved(msg.ref.address)
        await self._count_environments()

    @on(WorkerCountMsg)
    async def count_workers(self, msg: WorkerCountMsg) -> None:
        self._downstream.resize(msg.proxy.address, msg.workers, msg.environments)
        await self._count_environments()

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if self._trainer is not None and msg.address == self._trainer.address:
            raise TrainerLost(f"{msg.address}: {msg.reason}")
        below = self._published.leave(msg.address)
        if below or self._evaluations.leave(msg.address):
            (self.log.info if msg.graceful else self.log.warning)("lost", address=msg.address, reason=msg.reason)
        if below:
            await self._mark_saved(msg.address)
            await self._count_environments()

    async def _count_environments(self) -> None:
        """Adapt the error buffer to the number of environments, and grant credits again."""
        self._counters.set_error_buffer(self.buffer_per_environment, self._downstream.environments)
        await self._continue_if_all_returned()
        await self._drive()
        await self._report(at_once=True)

    async def _mark_saved(self, address: str, error: str = "") -> None:
        """Stop waiting for the state of the actor at `address`: it is saved, or lost, or cannot be written."""
        self._checkpoint.point.mark_saved(address, error)
        await self._save_if_ready()

    # Collecting, learning, evaluating -------------------------------------------------------------------------------

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        self._downstream.receive(msg.sender, self._downstream.counted(msg))
        if (fresh := self._counters.count(msg, self._published.params)) is not None:
            await self.trajectories.tell(fresh)
        await self._drive()
        if not self._paused:  # an actor that has saved must not get another request
            await self._begin_due()
        await self._report()

    @on(TrainResultMsg)
    async def trained(self, msg: TrainResultMsg) -> None:
        self._counters.updates += 1
        self._counters.metrics = (*msg.metrics, ("learner_s", msg.seconds))
        await self._drive()
        await self._save_if_ready()
        await self._report()
        self._stop_if_complete()

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        await self._published.publish(msg, env_steps=self._counters.env_steps)
        await self._continue_if_all_returned()

    @on(EvaluationResultMsg)
    async def evaluated(self, msg: EvaluationResultMsg) -> None:
        if not await self._evaluations.finished(msg):
            return
        await self._report(at_once=True)  # the record of a test has the present counts
        await self.monitor.tell(msg)
        if msg.final:
            self._evaluated = True
        elif self._finishing and not self._evaluations.pending:
            await self._evaluate_best()
        await self._save_if_ready()
        self._stop_if_complete()

    async def _begin_due(self) -> None:
        """Begin the end of the run, an evaluation or a checkpoint, if its number of steps is reached."""
        steps = self._counters.env_steps
        if steps >= self.goal_steps:
            await self._finish()
        elif self._counters.evaluation_due.due(steps):
            self._counters.evaluation_due.advance(steps)
            await self._evaluate()
        if self._counters.checkpoint_due.due(steps) and not self._finishing:
            await self._begin_save()

    async def _drive(self) -> None:
        """Request the batches that may be requested now, and grant credits for the episodes that may be inserted."""
        if self._finishing or self._interrupted or self._paused:
            return
        while self._trainer and (due := self._counters.request_batch(self.batches_in_flight, self.batch_size)):
            await self.trajectories.tell(SampleBatchMsg(number=due[0], batch_size=due[1], trainer=self._trainer))
        await self._downstream.grant(self._counters.insertable(self._downstream.environments))

    async def _evaluate(self, *, final: bool = False) -> bool:
        """Request an evaluation of the newest parameters, or the final one of the best; False if there are none."""
        if (newest := self._published.params) is None:
            return False
        episodes = self.final_eval_episodes if final else self.eval_episodes
        place = (self._counters.env_steps, episodes, int(self.rng.integers(1 << 62)))
        skipped = await self._evaluations.request(newest, *place, final=final)
        if skipped is not None:
            self.log.info("evaluations take longer than their interval; one is skipped", env_steps=skipped.env_steps)
        return True

    async def _evaluate_best(self) -> None:
        await self._evaluate(final=True)
        seconds = LAST_EVALUATION_S * max(1.0, self.final_eval_episodes / self.eval_episodes)
        self.after(seconds, TimeoutMsg(waited_for="final evaluation"))

    @property
    def _paused(self) -> bool:
        """True while nothing new may begin: during a checkpoint, and until a resumed run has its workers."""
        return self._checkpoint.point.active or self._returning > 0

    # Checkpoints ----------------------------------------------------------------------------------------------------

    @on(StateSavedMsg)
    async def saved(self, msg: StateSavedMsg) -> None:
        await self._mark_saved(msg.ref.address, msg.error)

    @on(InterruptMsg)
    async def interrupt(self, msg: InterruptMsg) -> None:
        self._interrupted, self._ending = True, msg.state
        self.after(INTERRUPTED_S, TimeoutMsg(waited_for="checkpoint"))
        if self._checkpoint.point.committed != self._counters.env_steps:
            await self._begin_save()
        if not self._checkpoint.point.active:  # nothing new to save, not ready to save, or no run directory
            self.stop()

    async def _begin_save(self) -> None:
        if self._paused or self._trainer is None or self.run_directory is None:
            return
        steps = self._counters.env_steps
        self._counters.checkpoint_due.advance(steps)
        self._checkpoint.begin(steps, self._downstream.refs)
        await self._downstream.tell(SaveStateMsg(env_steps=steps, reply_to=Ref(self.me.address)))
        await self._save_if_ready()

    async def _save_if_ready(self) -> None:
        """Once all actors below have saved and nothing is in flight, let the other actors save, and continue."""
        point = self._checkpoint.point
        evaluating = self._finishing and not (self._evaluated or self._interrupted)
        if not point.ready(in_flight=self._counters.in_flight > 0 or evaluating) or self._trainer is None:
            return
        await self._report("saving")
        if error := point.error or await self._complete_checkpoint(self._trainer):
            needed = self._interrupted or self._finishing or point.failed
            failure = self._checkpoint.abandon(self._counters.env_steps, error)
            if needed:
                await self._report("failed")
                raise failure
            self.log.error("no checkpoint; the run fails if the next one cannot be saved either", error=error)
        if self._interrupted:
            self.stop()
        elif self._finishing:
            self._stop_if_complete()
        else:
            await self._continue()

    async def _complete_checkpoint(self, trainer: Ref[SaveCheckpointMsg]) -> str:
        """Complete the checkpoint; return the error in words, or an empty text."""
        state = ({**self._values(), "rng": self.rng.bit_generator.state}, self._evaluations.arrays())
        return await self._save_best() or await self._checkpoint.complete(trainer, self._counters.env_steps, *state)

    async def _save_best(self) -> str:
        return await self.offload(run_state.attempt, self._evaluations.save_best, self.run_directory)

    async def _save_what_is_left(self, trainer: Ref[SaveCheckpointMsg]) -> None:
        """Save a checkpoint without the workers, or only the policy if that fails. Workers are not resumed from it."""
        if self._returning:  # the checkpoint that the run continues from is better
            return
        save = partial(self._complete_checkpoint, trainer)
        if error := await self._checkpoint.save_without_workers(self._counters.env_steps, save):
            self.log.warning("no checkpoint of the failed run can be saved", error=error)

    def _values(self) -> dict[str, Any]:
        return self._counters.values() | self._evaluations.values() | {"workers": self._downstream.workers}

    # Continuing and ending ------------------------------------------------------------------------------------------

    @on(TimeoutMsg)
    async def timed_out(self, msg: TimeoutMsg) -> None:
        if msg.waited_for == "workers":
            if self._returning:
                self.log.warning("continues without workers that have not joined again", seconds=RETURN_S)
                await self._continue()
            return
        if msg.waited_for == "evaluation" and any(each.final for each in self._evaluations.pending):
            return  # the final evaluation has its own time limit
        if msg.waited_for in ("evaluation", "final evaluation"):
            joined = self._evaluations.evaluator is not None
            self.log.warning("the last evaluation or batch did not come back in time", evaluator_joined=joined)
            self._ending, self._evaluated = "done", True
            await self._save_if_ready()
        elif self._checkpoint.point.active:
            late = {"unsaved": sorted(self._checkpoint.point.unsaved), "batches": self._counters.in_flight}
            self.log.warning("only the policy is saved: not all actors answered in time", seconds=INTERRUPTED_S, **late)
        self.stop()

    async def _continue_if_all_returned(self) -> None:
        if self._returning and self._published.params is not None and self._downstream.workers >= self._returning:
            await self._continue()

    async def _continue(self) -> None:
        """Let all actors continue, with the same parameters whether or not the run was resumed."""
        self._returning = 0
        if self._published.params is not None:
            await self._published.publish(self._published.params, env_steps=self._counters.env_steps, required=True)
        self._downstream.revoke()
        if (steps := self._counters.env_steps) < self.goal_steps or self._evaluations.requested != steps:
            await self._drive()  # unless it had ended before it was saved
        if steps >= self.goal_steps:
            await self._finish()

    async def _finish(self) -> None:
        if self._finishing:
            return
        self._finishing = True
        await self._downstream.pause()
        if self._evaluations.requested != self._counters.env_steps:
            self._evaluated = not await self._evaluate()
        elif not self._evaluations.pending:  # it has a result: requested before a checkpoint, or before resuming
            await self._evaluate_best()
        await self._begin_save()
        self.after(LAST_EVALUATION_S, TimeoutMsg(waited_for="evaluation"))
        self._stop_if_complete()

    def _stop_if_complete(self) -> None:
        """Stop once the last evaluation, all batches and the checkpoint are complete."""
        if self._evaluated and self._counters.in_flight == 0 and not self._paused:
            self._ending = "done"
            self.stop()

    async def _report(self, phase: Phase | None = None, *, at_once: bool = False) -> None:
        """Report the progress to the Monitor; without `phase` and `at_once` only if `REPORT_S` have passed."""
        now = self.clock.monotonic()
        if phase is None and not at_once and now < self._next_report:
            return
        self._next_report = now + REPORT_S
        if (played := self._counters.played(now=phase is not None)) is not None:
            await self.monitor.tell(played)
        await self.monitor.tell(self._counters.progress(phase, self.goal_steps, self._downstream.workers))
