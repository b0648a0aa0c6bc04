"""WorkerProxy: one per host. Gathers what its workers tell into fewer messages, and fans out what they are sent."""

from typing import Any, ClassVar

from components.checkpoints import run_state
from components.downstream import send_downstream
from components.evaluation_queue import EvaluationQueue
from components.rollout import concatenated
from messages import (
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
    WorkerCountMsg,
)
from orchestra import Actor, ActorStopped, Escalate, MailboxFull, Message, Ref, State, Supervision, TerminatedMsg, on


class FlushMsg(Message):
    """Send on what has gathered. Told to itself behind whatever was waiting, so that all of that is gathered too."""


class WorkerProxy(
    Actor[
        JoinMsg
        | InsertTransitionMsg
        | FlushMsg
        | LoadParamsMsg
        | SetCollectingMsg
        | EvaluateMsg
        | EvaluationResultMsg
        | SaveStateMsg
        | StateSavedMsg
    ]
):
    """Stands for the workers of a host: parameters cross the network once for all of them.

    It keeps the newest parameters and the pace, so that a worker that joins late, or again, starts at once.

    A failure ends its process: one started anew in the same place would not know its workers, and they would not know
    that they have to join again.

    Args:
        to: the Orchestrator.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, to: Ref[JoinMsg | InsertTransitionMsg | WorkerCountMsg]) -> None:
        self._to = to
        self._workers: dict[str, Ref[LoadParamsMsg | SetCollectingMsg | EvaluateMsg | SaveStateMsg]] = {}
        self._params: LoadParamsMsg | None = None
        self._pace: SetCollectingMsg | None = None
        self._gathered: list[InsertTransitionMsg] = []
        self._evaluations = EvaluationQueue()
        self._saving: SaveStateMsg | None = None
        self._unsaved: set[str] = set()

    async def started(self) -> None:
        saved = None if self.resume_from is None else run_state.find(self.resume_from, self.me.address)
        if saved is not None:
            self._evaluations.turn = saved[0]["turn"]
        await self._to.tell(JoinMsg(role="proxy", ref=self.me))

    async def stopped(self) -> None:
        """Send on what has gathered: a reminder to do so finds no way into a mailbox that is closed."""
        await self._send_on()

    def snapshot(self) -> State:
        return {
            "workers": self._workers,
            "params": self._params,
            "pace": self._pace,
            "gathered": self._gathered,
            "evaluations": self._evaluations.state(),
            "saving": self._saving,
            "unsaved": sorted(self._unsaved),
        }

    def restore(self, state: State) -> None:
        self._workers = dict(state["workers"])
        self._params = LoadParamsMsg.model_validate(state["params"]) if state["params"] else None
        self._pace = SetCollectingMsg.model_validate(state["pace"]) if state["pace"] else None
        self._gathered = [InsertTransitionMsg.model_validate(each) for each in state["gathered"]]
        self._evaluations.restore(state["evaluations"])
        self._saving = SaveStateMsg.model_validate(state["saving"]) if state["saving"] else None
        self._unsaved = set(state["unsaved"])

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        worker: Ref[Any] = msg.ref
        self._workers[worker.address] = worker
        self.watch(worker)
        if self._params is not None:
            await send_downstream(worker, self._params)
        if self._pace is not None:
            await send_downstream(worker, self._pace)
        self._evaluations.lost(worker.address)  # started anew, it knows nothing of what it was asked before
        await self._hand_out_evaluations()
        await self._to.tell(WorkerCountMsg(proxy=self.me, workers=len(self._workers)))
        await self._saved(worker.address)  # nor of a moment to save: the one before it was asked, and is gone

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if self._workers.pop(msg.address, None) is not None:
            self._evaluations.lost(msg.address)
            await self._hand_out_evaluations()
            self.log.info("worker left", worker=msg.address, reason=msg.reason)
            await self._to.tell(WorkerCountMsg(proxy=self.me, workers=len(self._workers)))
            await self._saved(msg.address)

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        self._gathered.append(msg)
        if len(self._gathered) > 1:
            return
        try:
            self.me.tell_nowait(FlushMsg())
        except MailboxFull:  # to wait for room in one's own mailbox is to wait for ever
            await self._send_on()
        except ActorStopped:
            return  # `stopped` will send it on

    @on(FlushMsg)
    async def flush(self, msg: FlushMsg) -> None:
        await self._send_on()

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._params = msg
        for worker in self._workers.values():
            await send_downstream(worker, msg)

    @on(SetCollectingMsg)
    async def pace(self, msg: SetCollectingMsg) -> None:
        self._pace = msg
        for worker in self._workers.values():
            await send_downstream(worker, msg)

    @on(EvaluateMsg)
    async def evaluate(self, msg: EvaluateMsg) -> None:
        self._evaluations.add(msg)
        await self._hand_out_evaluations()

    @on(EvaluationResultMsg)
    async def evaluated(self, msg: EvaluationResultMsg) -> None:
        asked = self._evaluations.finished(msg.env_steps)
        if asked is not None:
            await asked.reply_to.tell(msg)

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._saving = msg
        self._unsaved = set(self._workers)
        self._pace = None  # who joins meanwhile waits like all others
        for worker in self._workers.values():
            await send_downstream(worker, msg.model_copy(update={"reply_to": Ref(self.me.address)}))
        await self._saved("")

    @on(StateSavedMsg)
    async def saved(self, msg: StateSavedMsg) -> None:
        await self._saved(msg.ref.address)

    async def _saved(self, worker: str) -> None:
        """Take note that one of the workers has saved, or is gone; answer once that is true of all."""
        self._unsaved.discard(worker)
        if self._saving is None or self._unsaved:
            return
        await self._send_on()  # what is told before the answer is part of what is saved
        if self.run_directory is not None:
            values = {"turn": self._evaluations.turn}
            run_state.write(self.run_directory, self._saving.env_steps, self.me.address, values)
        await self._saving.reply_to.tell(StateSavedMsg(ref=self.me))
        self._saving = None

    async def _hand_out_evaluations(self) -> None:
        """Have each test that waits played by one of the workers, and hear of its end."""
        for worker, message in self._evaluations.assign(list(self._workers.values())):
            await send_downstream(worker, message.model_copy(update={"reply_to": Ref(self.me.address)}))

    async def _send_on(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            await self._to.tell(concatenated(gathered))
