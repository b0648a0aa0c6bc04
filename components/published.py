"""Parameters that the Trainer published, at the Orchestrator and proxies: sent to all actors below, or on request."""

from typing import Any

from components.downstream import Downstream, send_downstream
from components.sync_counters import SyncCounters
from messages import LoadParamsMsg, ProbesMsg, PullParamsMsg, SyncMsg, VersionMsg
from orchestra import Arrays, Ref, State, on

SyncMessages = PullParamsMsg | ProbesMsg | VersionMsg | SyncMsg
"""The messages that `PassesParameters` handles."""
NOTHING = Arrays()


class Published:
    """The newest parameters, their announcement, and the actors below that have asked for parameters.

    If workers decide for themselves (`pulls`), each version is announced to all with its digest, and parameters are
    sent only to actors that have asked. A proxy makes one request of its own, and answers all that have asked it.
    Otherwise parameters are sent to all.

    Args:
        downstream: the actors below.
        upstream: sends parameters to a proxy; None at the Orchestrator, which gets all parameters from the Trainer.
        pulls: whether workers ask for parameters. A proxy learns it from the first announcement.
        counters: count what is sent down; new ones by default.
    """

    def __init__(
        self,
        downstream: Downstream,
        upstream: Ref[Any] | None = None,
        *,
        pulls: bool = False,
        counters: SyncCounters | None = None,
    ) -> None:
        self._downstream, self._upstream, self.pulls = downstream, upstream, pulls
        self.params: LoadParamsMsg | None = None
        """The newest parameters that have arrived."""
        self.counters = counters or SyncCounters()
        self._news: VersionMsg | None = None
        self._digest: VersionMsg | None = None  # from the Trainer; its parameters follow
        self._probes: ProbesMsg | None = None
        self._waiting: dict[str, PullParamsMsg] = {}  # requests by the address of the asking actor
        self._requested = -1  # the newest version that was asked for upstream
        self._required = -1

    async def welcome(self, ref: Ref[Any]) -> None:
        """Send an actor that has joined the newest parameters, or with `pulls` the newest probes and announcement."""
        self._waiting.pop(ref.address, None)
        if not self.pulls:
            if self.params is not None:
                self.counters.sent(self.params.params.nbytes)
                await send_downstream(ref, self.params)
            return
        for message in (self._probes, self._news):
            if message is not None:
                self.counters.announced(message)
                await send_downstream(ref, message)

    async def publish(self, params: LoadParamsMsg, *, env_steps: int | None = None, required: bool = False) -> None:
        """Take parameters from above: send them to all below, or announce them and answer pending requests.

        Args:
            params: of a version that is not older than the present one.
            env_steps: of the run, which the Orchestrator adds; None keeps those of the message.
            required: all workers must load this version, whatever they would decide. Only the Orchestrator sets this.
        """
        params = self.params = params if env_steps is None else params.model_copy(update={"env_steps": env_steps})
        if not self.pulls:
            self.counters.versions += 1
            self.counters.sent(params.params.nbytes, len(self._downstream.members))
            await self._downstream.tell(params)
            return
        if self._upstream is None:
            self._required = params.version if required else self._required
            digest = self._digest if self._digest is not None and self._digest.version == params.version else None
            news = VersionMsg(
                version=params.version,
                required=self._required,
                env_steps=params.env_steps,
                probes=None if digest is None else digest.probes,
                outputs=NOTHING if digest is None else digest.outputs,
            )
            await self._announce(news)
        for address, waiting in list(self._waiting.items()):
            if waiting.version <= params.version:
                del self._waiting[address]
                await self._send(waiting.ref)

    async def pull(self, msg: PullParamsMsg, me: Ref[Any]) -> None:
        """Send parameters of the requested version, or newer ones, once they have arrived.

        A proxy that does not have them requests them once, for all waiting actors.

        Args:
            msg: from an actor below.
            me: the actor that this belongs to.
        """
        if self.params is not None and self.params.version >= msg.version:
            await self._send(msg.ref)
            return
        self._waiting[msg.ref.address] = msg
        if self._upstream is not None and msg.version > self._requested:
            self._requested = msg.version
            await self._upstream.tell(PullParamsMsg(version=msg.version, ref=me))

    async def report(self, msg: SyncMsg) -> None:
        """Count what a worker has decided, and pass it on to the Orchestrator."""
        self.counters.count(msg)
        if self._upstream is not None:
            await self._upstream.tell(msg)

    async def announce(self, news: VersionMsg) -> None:
        """Take an announcement from above: a proxy passes it on, the Orchestrator keeps it until parameters come."""
        if self._upstream is None:
            self._digest = news
            return
        self.pulls = True
        await self._announce(news)

    async def take_probes(self, probes: ProbesMsg) -> None:
        """Pass probes on to all below, and keep them for actors that join later."""
        self._probes = probes
        self.counters.announced(probes, len(self._downstream.members))
        await self._downstream.tell(probes)

    async def _announce(self, news: VersionMsg) -> None:
        self._news = news
        self.counters.versions += 1
        self.counters.announced(news, len(self._downstream.members))
        await self._downstream.tell(news)

    async def _send(self, ref: Ref[Any]) -> None:
        assert self.params is not None
        self.counters.sent(self.params.params.nbytes)
        await send_downstream(ref, self.params)

    def leave(self, address: str) -> bool:
        """Remove the actor at `address`, and its request; return whether it had joined."""
        self._waiting.pop(address, None)
        return self._downstream.leave(address)

    def state(self) -> State:
        """Return the state as values of a message, including that of the actors below."""
        return {
            "downstream": self._downstream.state(),
            "pulls": self.pulls,
            "params": self.params,
            "news": self._news,
            "digest": self._digest,
            "probes": self._probes,
            "waiting": list(self._waiting.values()),
            "requested": self._requested,
            "required": self._required,
            "counters": self.counters.values(),
        }

    def load(self, state: State) -> None:
        """Continue from the `state` of another one."""

        def message(kind: Any, name: str) -> Any:
            return None if state[name] is None else kind.model_validate(state[name])

        self._downstream.load(state["downstream"])
        self.pulls, self._requested, self._required = state["pulls"], state["requested"], state["required"]
        self.params, self._probes = message(LoadParamsMsg, "params"), message(ProbesMsg, "probes")
        self._news, self._digest = message(VersionMsg, "news"), message(VersionMsg, "digest")
        waiting = [PullParamsMsg.model_validate(each) for each in state["waiting"]]
        self._waiting = {each.ref.address: each for each in waiting}
        self.counters.load(state["counters"])


class PassesParameters:
    """The handlers that the Orchestrator and the proxies share: a base class of both, beside `Actor`."""

    _published: Published
    me: Ref[Any]

    @on(ProbesMsg)
    async def take_probes(self, msg: ProbesMsg) -> None:
        await self._published.take_probes(msg)

    @on(VersionMsg)
    async def announce(self, msg: VersionMsg) -> None:
        await self._published.announce(msg)

    @on(PullParamsMsg)
    async def pull(self, msg: PullParamsMsg) -> None:
        await self._published.pull(msg, self.me)

    @on(SyncMsg)
    async def report_synchronization(self, msg: SyncMsg) -> None:
        await self._published.report(msg)
