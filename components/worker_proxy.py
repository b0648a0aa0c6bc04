"""WorkerProxy: one per host; passes the experience of its workers on, and sends parameters to them."""

from typing import ClassVar

from components.downstream import Downstream, send_downstream
from messages import (
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
    WorkerCountMsg,
)
from orchestra import Actor, Escalate, Ref, State, Supervision, TerminatedMsg, on


class WorkerProxy(
    Actor[JoinMsg | InsertTransitionMsg | LoadParamsMsg | SetCollectingMsg | SaveStateMsg | StateSavedMsg]
):
    """Stands for the workers of a host, so that parameters cross the network once for all of them.

    On one host it copies neither parameters nor experience: their arrays stay in shared memory where they were written.

    It keeps the newest parameters and the last `SetCollectingMsg`, so that a worker that joins late or again starts at
    once. A failure ends its process: a restarted proxy would not know its workers, nor they that they must join again.

    Args:
        to: the Orchestrator.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, to: Ref[JoinMsg | InsertTransitionMsg | WorkerCountMsg]) -> None:
        self._to = to
        self._workers = Downstream()
        self._params: LoadParamsMsg | None = None
        self._collecting: SetCollectingMsg | None = None
        self._saving: SaveStateMsg | None = None
        self._unsaved: set[str] = set()
        self._save_error = ""

    async def started(self) -> None:
        await self._to.tell(JoinMsg(role="proxy", ref=self.me))

    def snapshot(self) -> State:
        return {
            "workers": self._workers.refs,
            "params": self._params,
            "collecting": self._collecting,
            "saving": self._saving,
            "unsaved": self._unsaved,
            "save_error": self._save_error,
        }

    def restore(self, state: State) -> None:
        for worker in state["workers"].values():
            self._workers.join(worker, 1)
        self._params = LoadParamsMsg.model_validate(state["params"]) if state["params"] else None
        collecting = state["collecting"]
        self._collecting = SetCollectingMsg.model_validate(collecting) if collecting else None
        self._saving = SaveStateMsg.model_validate(state["saving"]) if state["saving"] else None
        self._unsaved, self._save_error = set(state["unsaved"]), state["save_error"]

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        self._workers.join(msg.ref, 1)
        self.watch(msg.ref)
        for latest in (self._params, self._collecting):
            if latest is not None:
                await send_downstream(msg.ref, latest)
        # A restarted worker does not know the checkpoint of its earlier incarnation.
        await self._recount(msg.ref.address)

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if self._workers.leave(msg.address):
            self.log.info("worker left", worker=msg.address, reason=msg.reason)
            await self._recount(msg.address)

    async def _recount(self, worker: str) -> None:
        """Report the number of workers, and stop waiting for the state of `worker`."""
        await self._to.tell(WorkerCountMsg(proxy=self.me, workers=self._workers.workers))
        await self._mark_saved(worker)

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        await self._to.tell(msg)  # the arrays stay where the worker has written them

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        self._params = msg
        await self._workers.tell(msg)

    @on(SetCollectingMsg)
    async def set_collecting(self, msg: SetCollectingMsg) -> None:
        self._collecting = msg
        await self._workers.tell(msg)

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._saving, self._save_error = msg, ""
        self._unsaved = set(self._workers.refs)
        self._collecting = None  # a worker that joins meanwhile waits like the others
        await self._workers.tell(msg.model_copy(update={"reply_to": Ref(self.me.address)}))
        await self._save_if_ready()

    @on(StateSavedMsg)
    async def saved(self, msg: StateSavedMsg) -> None:
        self._save_error = self._save_error or msg.error
        await self._mark_saved(msg.ref.address)

    async def _mark_saved(self, worker: str) -> None:
        """Stop waiting for the state of a worker: it has saved, or it is gone."""
        self._unsaved.discard(worker)
        await self._save_if_ready()

    async def _save_if_ready(self) -> None:
        """Answer `SaveStateMsg` once all workers have saved or are gone."""
        if self._saving is None or self._unsaved:
            return
        await self._saving.reply_to.tell(StateSavedMsg(ref=self.me, error=self._save_error))
        self._saving = None
