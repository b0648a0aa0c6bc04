"""The head's side of a run over several hosts: lets agents in, tells each what to run, and tracks the hosts."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from orchestra.actors.addresses import node_of
from orchestra.actors.ref import Ref
from orchestra.actors.statistics import NodeStatistics, ProcessStatistics
from orchestra.errors import HostsMissing, OrchestraError, Unreachable
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.fingerprint import Fingerprint, fingerprint, missing_import, refusal, warning
from orchestra.hosts.messages import (
    HEAD,
    AdmittedMsg,
    HostedNode,
    HostFailedMsg,
    HostMsg,
    HostUseMsg,
    LeaveMsg,
    NodeStateMsg,
    PlaceMsg,
    PlayedMsg,
    SignalMsg,
)
from orchestra.hosts.output import HostLogs, OutputMsg
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HostShape
from orchestra.launch.protocol import HostEvent, Launcher
from orchestra.nodes.dialling import cancel_all
from orchestra.nodes.node import Node
from orchestra.runs.equipment import equip
from orchestra.runs.host_figures import HostFigures
from orchestra.runs.host_slots import (
    AGENT_END_S,
    ARRIVAL_S,
    CANNOT_WRITE,
    CONNECTION_S,
    TOGETHER_S,
    Hosted,
    HostSlot,
    hosts_missing,
    note_played,
)
from orchestra.runs.hosts_options import HostsOptions
from orchestra.runs.hosts_record import HostsRecord
from orchestra.runs.runner import Stopping

START_AGAIN = 75
OTHER_VERSION = 76
UNFIT = 2
"""Exit codes of agents."""


class Head:
    """The hosts of a run, from the request to an engine until the last agent has ended.

    Args:
        root: the node of this process.
        run: the name of the run.
        options: what was asked for.
        launcher: has the engine start agents.
        addresses: returns where agents reach the head, for people.
        logs: writes what the processes of other hosts print and log.
        code: of the run.
        stopping: stops the run.
    """

    def __init__(
        self,
        root: Node,
        run: str,
        options: HostsOptions,
        launcher: Launcher,
        addresses: Callable[[], str],
        logs: HostLogs,
        code: Bundle,
        stopping: Stopping,
    ) -> None:
        self._stopping = stopping
        self._logs = logs
        self._code = code
        self._root = root
        self._run = run
        self._options = options
        self._launcher = launcher
        self._addresses = addresses
        now = root.clock.monotonic()
        self._record = HostsRecord(root.run_directory, root.clock)
        self.slots = {host.slot: HostSlot(host.slot, host, now, self._record) for host in options.hosts}
        """The state of each host with an agent, by slot."""
        self.here = HostFigures()
        """The figures of the head itself."""
        self._agents: dict[str, HostSlot] = {}
        """The slot of each agent that is let in, by the name of its node."""
        self._hosted: Hosted | None = None
        self._changed = asyncio.Event()
        self._own: Fingerprint = fingerprint()
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: LeaveMsg | None = None  # the order that agents have had, once the run is over
        self._arrived_at = 0.0
        """The time at which a piece of a file came last, in seconds of the node's clock."""
        self._log = root.log.bind(actor=f"{root.name}/{HEAD}")

    # The beginning of a run

    async def rendezvous(self) -> list[HostShape]:
        """Wait for the hosts, and return the shapes of those that came in time.

        Raises:
            HostsMissing: too few came. The text says what is known of each that did not.
        """
        timeout = self._options.join_timeout
        while True:
            self._changed.clear()
            now = self._root.clock.monotonic()
            missing = [slot for slot in self.slots.values() if not slot.present]
            if all(slot.overdue(now, timeout) for slot in missing):
                break
            due = [slot.asked_at + timeout - now for slot in missing if slot.state != "queued"]
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), max(min(due), 0.01) if due else None)
        present = [slot for slot in self.slots.values() if slot.present]
        if len(present) < self._options.min_hosts:
            raise HostsMissing(hosts_missing(missing, len(self.slots), timeout, self._addresses()))
        if missing:
            self._log.warning(hosts_missing(missing, len(self.slots), timeout, self._addresses()))
        return [slot.shape for slot in present if slot.shape is not None]

    @property
    def agents(self) -> list[str]:
        """The nodes of the agents that are let in."""
        return list(self._agents)

    def begin(self, hosted: Hosted) -> None:
        """Tell each host that has come what it runs; from now on, also each host that comes later."""
        self._hosted = hosted
        for slot in self.slots.values():
            if not slot.present:
                self._ask_again(slot)
            elif text := self._play(slot):  # it came after the topology had been laid out
                self._tell(slot, LeaveMsg(code=UNFIT, reason=text, deadline=0.1))

    async def follow(self) -> None:
        """Note the events of the engine until it is stopped."""
        async for event in self._launcher.events():
            self.engine_said(event)

    # What agents say

    def admit(self, msg: HostMsg) -> AdmittedMsg:
        """Let an agent in, or refuse it with a reason."""
        if (end := self._end) is not None:
            return AdmittedMsg(refusal=f"{self._run} is over", code=end.code, rejoin=end.rejoin)
        mixed_python, installed = self._options.allow_mixed_python, self._options.code == "installed"
        if text := refusal(self._own, msg.fingerprint, mixed_python=mixed_python, installed=installed):
            return AdmittedMsg(refusal=f"host {msg.name} is not let in: {text}", code=OTHER_VERSION)
        slot = self._slot_for(msg)
        if isinstance(slot, str):
            return AdmittedMsg(refusal=slot, code=START_AGAIN)
        if msg.incarnation in slot.superseded:
            return AdmittedMsg(refusal=f"another agent has taken slot {slot.slot}", code=START_AGAIN)
        if text := warning(self._own, msg.fingerprint):
            self._log.warning(text, host=msg.name)
        if slot.present:
            self._replace(slot, msg)
        slot.take(msg, self._root.clock.now().timestamp())
        self._agents[node_of(msg.agent.address)] = slot
        self._changed.set()
        if self._hosted is not None and (text := self._play(slot)):
            self._agents.pop(node_of(msg.agent.address))
            slot.agent = None
            return AdmittedMsg(refusal=f"host {slot.name} is not let in: {text}", code=UNFIT)
        self._log.info("host joined", slot=slot.slot, host=slot.name, pid=msg.pid)
        return AdmittedMsg(slot=slot.slot, grace=self._options.grace, orphan_timeout=self._options.orphan_timeout)

    def node_changed(self, msg: NodeStateMsg) -> None:
        """Note an agent's report on the process of a node."""
        slot = self._agents.get(msg.agent)
        if slot is None or self._hosted is None:
            return  # an agent whose place another one has taken
        slot.nodes[msg.node] = ProcessStatistics(
            node=msg.node, pid=msg.pid, running=msg.running, restarts=msg.restarts, given_up=bool(msg.given_up)
        )
        if msg.removed:
            del slot.nodes[msg.node]
        if msg.given_up:
            slot.last_words[msg.node] = msg.last_words
            lacking = missing_import(msg.last_words, self._own, slot.fingerprint) if slot.fingerprint else ""
            self._hosted.given_up(msg.node, f"{lacking or msg.given_up} (on {slot.name})")
        self._changed.set()

    def piece_arrived(self) -> None:
        """Note that a piece of a file has come from a host."""
        self._arrived_at = self._root.clock.monotonic()

    def output(self, msg: OutputMsg) -> None:
        """Write what processes of a host have printed and logged."""
        if (slot := self._agents.get(msg.agent)) is not None:
            self._logs.write(slot.slot, slot.name, slot.incarnation, msg)

    def host_used(self, msg: HostUseMsg) -> None:
        """Note an agent's report on the use of its host."""
        if (slot := self._agents.get(msg.agent)) is not None:
            slot.use = msg

    def host_failed(self, msg: HostFailedMsg) -> None:
        """Note why a host cannot take part; its agent is about to end."""
        if (slot := self._agents.get(msg.agent)) is not None:
            assert slot.fingerprint is not None
            why = missing_import(msg.reason.split("; "), self._own, slot.fingerprint) or msg.reason
            self._log.warning("a host cannot take part", slot=slot.slot, host=slot.name, reason=why)
            slot.failed, slot.code, slot.hopeless = why, msg.code, msg.code != CANNOT_WRITE

    def played(self, msg: PlayedMsg) -> None:
        """Note what the nodes of each host have played."""
        if self._hosted is not None:
            note_played(msg, self._hosted, self.slots, self.here, self._record)

    def agent_leaves(self, agent: str, grace: float) -> None:
        """Have a host leave in order, because its agent was told to end; but if all hosts go, save and stop the run."""
        if (slot := self._agents.get(agent)) is not None and slot.state != "leaving":
            slot.told_to_end = True
            self._start(self._leave_alone(slot, agent, grace))

    def agent_lost(self, agent: str, reason: str) -> None:
        """Note that the node of an agent is gone."""
        if (slot := self._agents.pop(agent, None)) is None:
            return
        leaving, slot.agent = slot.state == "leaving", None
        slot.move("left" if leaving else "gone", slot.failed or reason)
        slot.nodes.clear()
        self._changed.set()
        if self._end is not None or self._root.stopping:
            return
        if leaving:
            self._log.info("host left", slot=slot.slot, host=slot.name)
            if slot.told_to_end and self._launcher.replaces:
                self._start(self._bring_back(slot, 0.0))
            else:
                self._lose(slot, f"its host {slot.name} has left")
            return
        self._log.warning("host gone", slot=slot.slot, host=slot.name, reason=slot.reason)
        if self._hosted is not None:  # else `rendezvous` does so
            self._ask_again(slot)

    # What the engine says

    def engine_said(self, event: HostEvent) -> None:
        """Note an event of the engine for a slot."""
        slot = self.slots.get(event.slot)
        if slot is None:
            return
        slot.heard(event, self._root.clock.monotonic())
        self._changed.set()
        if event.state == "ended" and slot.agent is not None and self._end is None:
            self._root.loop.create_task(self._check_alive(slot, slot.incarnation, event))

    async def _check_alive(self, slot: HostSlot, incarnation: str, event: HostEvent) -> None:
        """End the session with an agent that the engine reports as ended, unless its connection is open."""
        assert slot.agent is not None
        node = node_of(slot.agent.address)
        link = self._root.peers.find(node)
        if link is None or slot.incarnation != incarnation:
            return
        await asyncio.sleep(CONNECTION_S)  # the system closes the connections of a process a moment after it has ended
        slot.hopeless = slot.hopeless and not link.connected  # else the engine has lost sight of an agent that lives
        if link is self._root.peers.find(node) and not link.connected:
            link.end(Unreachable(f"its agent has ended: {event.reason or event.code}"))

    # Hosts that leave, and those that do not come back

    async def leave(self, number: int) -> str:
        """Have a host leave; return why that is not possible, or an empty text once its agent has ended."""
        slot = self.slots.get(number)
        if slot is None or not slot.present:
            known = ", ".join(str(slot.slot) for slot in self.slots.values() if slot.present) or "none"
            return f"no host has slot {number}; the slots of hosts with an agent are {known}"
        await self._leave(slot, "the user asked for it", self._options.grace)
        return ""

    async def end(self, code: int, reason: str, deadline: float) -> None:
        """Have all agents end, and wait for them; then the engine has nothing left of this run.

        An agent may take its time as long as pieces of its files arrive: traces are large.

        Args:
            code: their exit code.
            reason: for their logs.
            deadline: seconds for the nodes to stop.
        """
        self._end = LeaveMsg(code=code, reason=reason, deadline=deadline, rejoin=code == START_AGAIN)
        for slot in self.slots.values():
            if slot.agent is not None:
                self._tell(slot, self._end)
        ends_at = self._root.clock.monotonic() + 3 * deadline + AGENT_END_S
        while self._agents and (left := max(ends_at, self._arrived_at + ARRIVAL_S) - self._root.clock.monotonic()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        await cancel_all(*self._tasks)
        await self._launcher.stop(AGENT_END_S)
        self._record.write()

    def start_nodes(self, number: int, nodes: Sequence[HostedNode]) -> None:
        """Start nodes of a host that is playing; the plan of any other has them when it comes."""
        slot = self.slots[number]
        if slot.state == "playing":
            self._tell(slot, PlaceMsg(start=tuple(nodes)))

    async def statistics(self, nodes: Collection[str] = (), *, final: bool = False) -> list[NodeStatistics]:
        """Return the statistics of nodes of all hosts, one question to each; those that do not answer are left out."""
        which = frozenset(nodes)
        asked = [slot.nodes_statistics(self._root, which, final=final) for slot in self.slots.values() if slot.agent]
        return [each for some in await asyncio.gather(*asked) for each in some]

    def stop_nodes(self, nodes: Collection[str]) -> None:
        """Stop nodes on whatever hosts they run."""
        for slot in self.slots.values():
            if mine := tuple(node for node in slot.nodes if node in nodes):
                self._tell(slot, PlaceMsg(stop=mine))

    async def until_ended(self, nodes: Collection[str]) -> None:
        """Wait until no host has a process of `nodes`."""
        while any(node in slot.nodes for slot in self.slots.values() for node in nodes):
            self._changed.clear()
            await self._changed.wait()

    def signal(self, number: int, joined: Collection[str]) -> None:
        """Pass a signal on to the processes of nodes that have joined."""
        for slot in self.slots.values():
            if nodes := tuple(node for node in slot.nodes if node in joined):
                self._tell(slot, SignalMsg(number=number, nodes=nodes))

    # Inside

    def _slot_for(self, msg: HostMsg) -> HostSlot | str:
        """Return the slot of an agent, a new one if there is none yet, or why it gets none."""
        number = msg.slot
        if number is None:
            number = max(self.slots, default=0) + 1
        elif number in self.slots:
            return self.slots[number]
        elif number < 1:
            return f"slot {number} is not allowed: hosts have slots from 1 on"
        if sum(slot.state != "left" for slot in self.slots.values()) >= self._options.max_hosts:
            return f"the run has {len(self.slots)} hosts, and --max-hosts allows {self._options.max_hosts}"
        slot = self.slots[number] = HostSlot(number, HostSettings(number), self._root.clock.monotonic(), self._record)
        return slot

    def _replace(self, slot: HostSlot, msg: HostMsg) -> None:
        """Have the agent of a slot end because a later one has come; or forget a lost session of the same agent."""
        assert slot.agent is not None
        self._agents.pop(node_of(slot.agent.address), None)
        if msg.incarnation != slot.incarnation:
            self._log.warning("another agent has taken a slot", slot=slot.slot, host=slot.name)
            reason = f"another agent has taken slot {slot.slot}"
            slot.move("gone", reason)
            self._tell(slot, LeaveMsg(code=START_AGAIN, reason=reason, deadline=0.1))

    def _play(self, slot: HostSlot) -> str:
        """Have a host that has come play; return an empty text. If it cannot, count it as left and return why."""
        assert self._hosted is not None
        assert slot.shape is not None
        if text := self._hosted.host_joined(slot.shape):
            self._log.warning("a host cannot take part", slot=slot.slot, host=slot.name, reason=text)
            slot.hopeless, slot.failed = True, "; ".join(line.strip() for line in text.splitlines())
            slot.move("left", slot.failed)
            return text
        slot.move("playing")
        self._start(equip(self._root, self._run, self._code, self._hosted, slot, lambda: self._end is not None))
        return ""

    def _ask_again(self, slot: HostSlot) -> None:
        """Ask the engine for another agent of a slot, or give the host up."""
        now = self._root.clock.monotonic()
        delay = slot.lost(now)
        if delay is None or slot.hopeless:
            slot.hopeless = True
            self._lose(slot, f"its host {slot.name} is gone: {slot.reason}")
            return
        self._start(self._bring_back(slot, delay))

    def _lose(self, slot: HostSlot, how: str) -> None:
        """Count the nodes of a host as lost; end the run if too few hosts are left."""
        if self._hosted is None:
            return
        cause = slot.cause(how)
        self._hosted.host_lost(slot.slot, how, cause)
        left = sum(not each.hopeless and each.state != "left" for each in self.slots.values())
        if left < self._options.min_hosts:
            least = self._options.min_hosts
            self._hosted.fail(
                f"{left} of {len(self.slots)} hosts are left, and --min-hosts requires {least}; {how}", cause
            )

    async def _bring_back(self, slot: HostSlot, delay: float) -> None:
        await asyncio.sleep(delay)
        slot.asked_at = self._root.clock.monotonic()
        slot.move("asked")
        try:
            await self._launcher.again(slot.slot)
        except OrchestraError as error:
            slot.reason, slot.hopeless = str(error), True
        while not slot.present:
            self._changed.clear()
            now = self._root.clock.monotonic()
            if slot.overdue(now, self._options.join_timeout):
                self._ask_again(slot)
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), slot.asked_at + self._options.join_timeout - now)

    async def _leave_alone(self, slot: HostSlot, agent: str, grace: float) -> None:
        """Have a host leave, unless the run goes with it: an engine that ends a job tells the agents and the head."""
        await asyncio.sleep(TOGETHER_S)
        if all(each.told_to_end for each in self._agents.values()):
            self._stopping.request("stopped")
        if not self._stopping.requested and agent in self._agents:  # else `end` tells them
            await self._leave(slot, "its agent was told to end", grace)

    async def _leave(self, slot: HostSlot, reason: str, grace: float) -> None:
        assert slot.agent is not None
        agent = node_of(slot.agent.address)
        slot.move("leaving", reason)
        if self._hosted is not None:
            self._hosted.host_leaves(slot.slot)
        self._tell(slot, LeaveMsg(code=START_AGAIN, reason=reason, deadline=grace / 3))
        while agent in self._agents:
            self._changed.clear()
            await self._changed.wait()

    def _tell(self, slot: HostSlot, msg: Any) -> None:
        assert slot.agent is not None
        agent: Ref[Any] = self._root.ref(slot.agent.address)
        try:
            agent.tell_nowait(msg)
        except OrchestraError as error:
            self._log.info("an agent was not told", slot=slot.slot, type=type(msg).__name__, reason=str(error))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._root.escalate(error if isinstance(error, Exception) else RuntimeError(repr(error)))
