"""WorkerProxy: one per host; passes the experience of its workers on, and sends parameters to them."""

from typing import ClassVar

from components.downstream import Downstream
from components.published import PassesParameters, Published, SyncMessages
from messages import (
    CollectMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    PullParamsMsg,
    SaveStateMsg,
    StateSavedMsg,
    SyncMsg,
    WorkerCountMsg,
)
from messages.control import PAUSE
from orchestra import Actor, Escalate, Message, Ref, State, Supervision, TerminatedMsg, Unreachable, on

STOPPED_S = 5.0
"""Seconds after which a proxy ends if its upstream has stopped gracefully. Usually the run ends first."""
LOST_S = 1.0
"""Seconds after which a proxy ends if its upstream is lost. If the root is lost, its node ends earlier."""


class UpstreamLostMsg(Message):
    """The upstream has been gone for some time; a proxy sends it to itself."""

    reason: str


class ProxyLost(Unreachable):
    """The upstream of this proxy is gone. The next process of this node joins its replacement."""


class WorkerProxy(
    PassesParameters,
    Actor[
        JoinMsg
        | WorkerCountMsg
        | InsertTransitionMsg
        | LoadParamsMsg
        | CollectMsg
        | SaveStateMsg
        | StateSavedMsg
        | UpstreamLostMsg
        | SyncMessages
    ],
):
    """Represents the workers of a host, so that parameters cross the network once for all of them.

    On one host it copies neither parameters nor experience: their arrays stay in shared memory where they were written.

    It divides its own credits among its workers; the credits of a dead worker go to the others. It keeps the newest
    parameters, so that a worker that joins late or again starts as soon as it has a credit. If workers request
    parameters, it requests them once for all. A failure ends its process: a restarted proxy would not know its workers,
    and they would not know that they must join again.

    Proxies form a tree: a proxy may join another, and represents all workers below it. So the Orchestrator communicates
    with a few proxies, for any number of hosts. A proxy whose upstream is lost fails, and its workers join again.

    Args:
        to: the Orchestrator, or another proxy.
        shard: keeps the experience of this host; only its counts go to `to` then. None to pass all of it on.
    """

    supervision: ClassVar[Supervision] = Escalate()

    def __init__(
        self,
        *,
        to: Ref[JoinMsg | InsertTransitionMsg | WorkerCountMsg | PullParamsMsg | SyncMsg],
        shard: Ref[InsertTransitionMsg] | None = None,
    ) -> None:
        self._to = to
        self._shard = shard
        self._workers = Downstream()
        self._published = Published(self._workers, to)
        self._collecting = PAUSE
        self._sent = 0
        self._saving: SaveStateMsg | None = None
        self._unsaved: set[str] = set()
        self._save_error = ""

    async def started(self) -> None:
        self.watch(self._to)
        await self._to.tell(JoinMsg(role="proxy", ref=self.me, environments=0))

    def snapshot(self) -> State:
        return {
            "published": self._published.state(),
            "collecting": self._collecting,
            "sent": self._sent,
            "saving": self._saving,
            "unsaved": self._unsaved,
            "save_error": self._save_error,
        }

    def restore(self, state: State) -> None:
        self._published.load(state["published"])
        self._collecting = CollectMsg.model_validate(state["collecting"])
        self._sent = state["sent"]
        self._saving = SaveStateMsg.model_validate(state["saving"]) if state["saving"] else None
        self._unsaved, self._save_error = set(state["unsaved"]), state["save_error"]

    @on(JoinMsg)
    async def join(self, msg: JoinMsg) -> None:
        self._workers.join(msg.ref, 1 if msg.role == "worker" else 0, msg.environments)
        self.watch(msg.ref)
        await self._published.welcome(msg.ref)
        # A restarted worker does not know the checkpoint of its earlier incarnation.
        await self._recount()
        await self._mark_saved(msg.ref.address)

    @on(WorkerCountMsg)
    async def count_workers(self, msg: WorkerCountMsg) -> None:
        self._workers.resize(msg.proxy.address, msg.workers, msg.environments)
        await self._recount()

    @on(UpstreamLostMsg)
    def end(self, msg: UpstreamLostMsg) -> None:
        raise ProxyLost(f"{self._to.address}: {msg.reason}")

    @on(TerminatedMsg)
    async def leave(self, msg: TerminatedMsg) -> None:
        if msg.address == self._to.address:
            self.after(STOPPED_S if msg.graceful else LOST_S, UpstreamLostMsg(reason=msg.reason))
        if self._published.leave(msg.address):
            self.log.info("worker left", worker=msg.address, reason=msg.reason)
            await self._recount()
            await self._mark_saved(msg.address)

    async def _recount(self) -> None:
        """Report the number of workers, and divide the credits again."""
        counts = {"workers": self._workers.workers, "environments": self._workers.environments}
        await self._to.tell(WorkerCountMsg(proxy=self.me, **counts))
        if not self._workers.environments:  # the upstream takes the credits back
            self._collecting = PAUSE
        await self._grant()

    async def _grant(self) -> None:
        await self._workers.grant(self._collecting.credit(self._sent))

    @on(InsertTransitionMsg)
    async def insert(self, msg: InsertTransitionMsg) -> None:
        self._workers.receive(msg.sender, self._workers.counted(msg))
        self._sent += self._workers.counted(msg)
        if self._shard is not None:
            await self._shard.tell(msg)
            msg = msg.summary()
        # The arrays stay where the worker has written them.
        mine = self.me.address
        await self._to.tell(msg.model_copy(update={"sender": mine, "source": msg.source or mine}))
        await self._grant()

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        await self._published.publish(msg)

    @on(CollectMsg)
    async def set_collecting(self, msg: CollectMsg) -> None:
        if msg == PAUSE:
            await self._workers.pause()
        else:
            self._workers.unit = msg.unit
        if self._workers.environments:  # otherwise the upstream takes the credits back
            self._collecting = msg
            await self._grant()

    @on(SaveStateMsg)
    async def save(self, msg: SaveStateMsg) -> None:
        self._saving, self._save_error = msg, ""
        self._unsaved = set(self._workers.refs)
        self._collecting = PAUSE  # a worker that joins now waits like the others
        self._workers.revoke()
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
