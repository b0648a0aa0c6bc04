"""WorkerProxy: one per host. Gathers what its workers tell into fewer messages, and fans out what they are sent."""

from typing import Any, ClassVar

from components.rollout import concatenated
from messages import EvaluateMsg, InsertTransitionMsg, JoinMsg, LoadParamsMsg, MembersMsg, PaceMsg
from orchestra import Actor, ActorStopped, Escalate, MailboxFull, Message, Ref, Supervision, TerminatedMsg, on


class FlushMsg(Message):
    """Send on what has gathered. Told to itself behind whatever was waiting, so that all of that is gathered too."""


class WorkerProxy(Actor[JoinMsg | InsertTransitionMsg | FlushMsg | LoadParamsMsg | PaceMsg | EvaluateMsg]):
    """Stands for the workers of a host: parameters cross the network once for all of them.

    It keeps the newest parameters and the pace, so that a worker that joins late, or again, starts at once.

    A failure ends its process: one started anew in the same place would not know its workers, and they would not know
    that they have to join again.

    Args:
        to: the Orchestrator.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, *, to: Ref[JoinMsg | InsertTransitionMsg | MembersMsg]) -> None:
        self._to = to
        self._workers: dict[str, Ref[LoadParamsMsg | PaceMsg | EvaluateMsg]] = {}
        self._params: LoadParamsMsg | None = None
        self._pace: PaceMsg | None = None
        self._gathered: list[InsertTransitionMsg] = []
        self._next_to_evaluate = 0

    async def started(self) -> None:
        await self._to.tell(JoinMsg(role="proxy", ref=self.me))

    async def stopped(self) -> None:
        """Send on what has gathered: a reminder to do so finds no way into a mailbox that is closed."""
        await self._send_on()

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        worker: Ref[Any] = msg.ref
        self._workers[worker.address] = worker
        self.watch(worker)
        if self._params is not None:
            await worker.tell(self._params)
        if self._pace is not None:
            await worker.tell(self._pace)
        await self._to.tell(MembersMsg(proxy=self.me, workers=len(self._workers)))

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if self._workers.pop(msg.address, None) is not None:
            self.log.info("worker left", worker=msg.address, reason=msg.reason)
            await self._to.tell(MembersMsg(proxy=self.me, workers=len(self._workers)))

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
            await worker.tell(msg)

    @on(PaceMsg)
    async def pace(self, msg: PaceMsg) -> None:
        self._pace = msg
        for worker in self._workers.values():
            await worker.tell(msg)

    @on(EvaluateMsg)
    async def evaluate(self, msg: EvaluateMsg) -> None:
        workers = list(self._workers.values())
        if workers:
            self._next_to_evaluate += 1
            await workers[self._next_to_evaluate % len(workers)].tell(msg)

    async def _send_on(self) -> None:
        gathered, self._gathered = self._gathered, []
        if gathered:
            await self._to.tell(concatenated(gathered))
