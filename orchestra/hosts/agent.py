"""The agent of a host: a small process that joins a run, keeps the run's nodes on its host, and leaves nothing behind.

It imports neither the experiment nor what the experiment needs.
"""

import asyncio
import os
import secrets
import signal
import sys
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from orchestra.actors.actor import Actor, on
from orchestra.actors.addresses import AGENT as PREFIX
from orchestra.actors.ref import Ref
from orchestra.actors.supervision import Escalate, Supervision
from orchestra.clock import RealClock
from orchestra.errors import (
    AskFailed,
    AuthenticationFailed,
    NobodyListens,
    OrchestraError,
    Unreachable,
    VersionMismatch,
)
from orchestra.hosts.descendants import adopt_orphans, kill_orphans
from orchestra.hosts.fingerprint import fingerprint
from orchestra.hosts.host_work import HostWork
from orchestra.hosts.messages import (
    AGENT,
    HEAD,
    AdmittedMsg,
    AskHostMsg,
    CodeKnownMsg,
    CodeMsg,
    HostMsg,
    LeaveMsg,
    LeavingMsg,
    PlaceMsg,
    PlanMsg,
    SignalMsg,
)
from orchestra.hosts.output import OutputBuffer, OutputMsg
from orchestra.hosts.reach import DialMsg, ListenMsg
from orchestra.hosts.scratch import Scratch
from orchestra.hosts.shape import this_machine
from orchestra.hosts.token import JoinToken
from orchestra.nodes.node import Node
from orchestra.wire.transports.tunnel import remove_dead_tunnels, tunnel_path

FINISHED = 0
START_AGAIN = 75
"""The exit code that asks the engine for another agent."""
JOIN_S = 600.0
"""Seconds for which a new agent looks for the head."""
ORPHAN_S = 20.0
"""Seconds for which it looks for a head once its own starter is gone."""
REFUSALS = 4
"""The head counts as dead if no process listens at its last known address this many times in a row."""
PAUSE_S = 0.02
PAUSE_MAX_S = 2.0
"""The pause between two attempts to join: doubled each time, and jittered."""
OVER_S = 0.5
"""The pause after the refusal of a head that is about to end."""
LAST_TRIES = 200
TUNNEL_FOLDER = Path("/tmp")  # noqa: S108 (launchers choose names that cannot be guessed)
"""The folder in which launchers have ssh make the sockets of tunnels. Killed agents leave theirs there."""


class AgentActor(Actor[CodeMsg | PlanMsg | PlaceMsg | SignalMsg | AskHostMsg | ListenMsg | DialMsg | LeaveMsg]):
    """Carries out the orders of the head.

    Args:
        work: the work on this host.
        told: takes the order to end.
    """

    recorded: ClassVar[bool] = False
    supervision: ClassVar[Supervision] = Escalate()

    def __init__(self, work: HostWork, told: "asyncio.Future[LeaveMsg]") -> None:
        self._work = work
        self._told = told

    @on(CodeMsg)
    def code(self, msg: CodeMsg) -> CodeKnownMsg:
        return self._work.code(msg)

    @on(PlanMsg)
    def begin(self, msg: PlanMsg) -> None:
        self._work.begin(msg)

    @on(AskHostMsg)
    def statistics(self, msg: AskHostMsg) -> Any:
        return asyncio.create_task(self._work.statistics(msg))

    @on(ListenMsg)
    def listen(self, msg: ListenMsg) -> Any:
        return asyncio.create_task(self._work.reach.listen(msg))

    @on(DialMsg)
    def dial(self, msg: DialMsg) -> Any:
        return asyncio.create_task(self._work.reach.dial(msg))  # it takes seconds where nothing answers

    @on(PlaceMsg)
    def place(self, msg: PlaceMsg) -> None:
        self._work.place(msg)

    @on(SignalMsg)
    def signal(self, msg: SignalMsg) -> None:
        self._work.signal(signal.Signals(msg.number), msg.nodes)

    @on(LeaveMsg)
    def leave(self, msg: LeaveMsg) -> None:
        if not self._told.done():
            self._told.set_result(msg)


class Agent:
    """One agent, from its start to its exit code.

    Args:
        token: lets it into the run.
        slot: the number of its host, if the engine tells.
        name: the name of the host for people; by default that of the machine.
        scratch: the folder for the run's files; by default as the environment says.
        join_timeout: seconds for which it looks for the head.
        dial_on: True if the head may come back at one of its addresses. Then a missing listener is no sign of its end,
            and a head that ends to be started again does not end this agent.
        bound: True if the agent ends once its starter has closed its standard input, even if its session lives.
    """

    def __init__(
        self,
        token: JoinToken,
        *,
        slot: int | None = None,
        name: str = "",
        scratch: Path | None = None,
        join_timeout: float = JOIN_S,
        dial_on: bool = False,
        bound: bool = False,
    ) -> None:
        self._bound = bound
        self._token = token
        self._slot = slot
        self._shape = this_machine(0)
        self._name = name or self._shape.name
        self._scratch = scratch
        self._clock = RealClock()
        self._incarnation = secrets.token_hex(8)
        self._patience = join_timeout
        self._dial_on = dial_on
        self._admitted: AdmittedMsg | None = None
        self._joined_by = ""
        """The address of the head by which this agent was in the run last."""
        self._output = OutputBuffer(self._clock)
        self._reasons: set[str] = set()
        self.abandoned = asyncio.Event()
        """Set once the starter of this process has closed its standard input."""
        self.terminated = asyncio.Event()
        """Set once this process was told by a signal to end."""

    async def run(self) -> int:
        """Return the exit code, once nothing of the agent is left but its own process.

        Raises:
            AuthenticationFailed, VersionMismatch: the head does not let it in.
            Unreachable: it cannot be found.
            CannotWrite: the scratch folder cannot be written.
        """
        adopt_orphans()
        remove_dead_tunnels(TUNNEL_FOLDER)
        scratch = Scratch.claim(self._token.run, self._slot or 0, self._scratch)
        try:
            return await self._run(scratch)
        finally:
            scratch.close()
            for address in self._token.join:
                if address.startswith("tunnel://"):
                    with suppress(OSError):  # sshd has made the socket, and leaves it behind
                        os.unlink(tunnel_path(address))

    async def _run(self, scratch: Scratch) -> int:
        while True:
            async with AsyncExitStack() as stack:
                node = await self._join(stack, scratch)
                if node is None:
                    return START_AGAIN
                code = await self._take_part(node, scratch)
                if code is not None:
                    return code
            if self._admitted is not None:
                self._patience = self._admitted.orphan_timeout

    async def _join(self, stack: AsyncExitStack, scratch: Scratch) -> Node | None:
        """Return a node that has joined the run; None if it was told to end before, or the head has died."""
        begun, attempts, refused = time.monotonic(), 0, 0
        last: OrchestraError = Unreachable("nothing has answered in time")
        while not self.terminated.is_set():
            node = self._node(scratch)
            node.peers.joined_by = "" if self._dial_on else self._joined_by
            try:
                async with AsyncExitStack() as attempt:
                    async with asyncio.timeout(self._time_left(begun)):  # an attempt may last longer than all patience
                        await attempt.enter_async_context(node.running())
                    stack.push_async_exit(attempt.pop_all().__aexit__)
                self._joined_by = node.peers.joined_by
                return node
            except TimeoutError:
                refused = 0
            except VersionMismatch:
                raise
            except AuthenticationFailed as error:
                raise AuthenticationFailed(
                    f"the join token is that of {self._token.run}, which has ended or is elsewhere: {error}"
                ) from error
            except OrchestraError as failed:
                last, refused = failed, refused + 1 if isinstance(failed, NobodyListens) else 0
            if self._bound and self.abandoned.is_set():
                return None
            if self._admitted is not None and refused == REFUSALS and not self._dial_on:
                self._say(f"the head is dead: {last}")
                return None
            self._say(str(last))
            if self._time_left(begun) <= 0:
                if self._admitted is not None:
                    return None
                raise Unreachable(f"the head of {self._token.run} cannot be found: {last}") from last
            attempts += 1
            pause = min(PAUSE_S * 2 ** min(attempts, 20), PAUSE_MAX_S) * (0.5 + secrets.randbelow(1000) / 1000)
            await self._pause(pause)
        return None

    async def _pause(self, seconds: float) -> None:
        """Wait, but not longer than until this process is told to end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.terminated.wait(), seconds)

    def _time_left(self, begun: float) -> float:
        """Return the seconds for which this agent, which has looked for the head since `begun`, goes on to do so."""
        return begun + (ORPHAN_S if self.abandoned.is_set() else self._patience) - time.monotonic()

    def _node(self, scratch: Scratch) -> Node:
        slot = "" if self._slot is None else f"{self._slot}-"
        return Node(
            f"{PREFIX}{slot}{secrets.token_hex(2 if slot else 4)}",
            listen=scratch.socket_address(AGENT),
            join=self._token.address,
            joinable=True,
            secret=self._token.secret,
            tls=self._token.tls,
            unencrypted=self._token.tls is None,
        )

    async def _take_part(self, node: Node, scratch: Scratch) -> int | None:
        """Keep nodes until the head or a signal ends it; return the exit code, or None if the head is out of reach."""
        head: Ref[HostMsg | LeavingMsg | OutputMsg] = node.ref(f"{node.root}/{HEAD}")
        told: asyncio.Future[LeaveMsg] = asyncio.get_running_loop().create_future()
        work = HostWork(node, scratch, self._output)
        me = node.spawn(AGENT, AgentActor, work, told)
        forwarding: asyncio.Task[None] | None = None
        try:
            admitted = await head.ask(self._report(me))
            if admitted.refusal:
                self._say(admitted.refusal)
                if admitted.rejoin and self._dial_on:
                    await self._pause(OVER_S)
                    return None
                return admitted.code
            self._admitted, self._slot, self._output.agent = admitted, admitted.slot, node.name
            forwarding = asyncio.create_task(self._forward(head))
            await self._first(told, node.stop_requested, work.failed)
            if self._bound and self.abandoned.is_set() and not told.done():
                return START_AGAIN
            terminated = self.terminated.is_set()
            if terminated and not told.done():
                await self._say_goodbye(node, head, told)
            if work.failed.done():
                work.failed.result()
            if told.done():
                leave = told.result()
                await work.end(leave.deadline)
                await self._output.flush(head.ask)
                return self._code_after(leave)
            return START_AGAIN if terminated else None
        except (Unreachable, AskFailed):  # the head was lost meanwhile
            return self._code_after(told.result()) if told.done() else None
        finally:
            if forwarding is not None:
                forwarding.cancel()
            await work.end()
            await _end_descendants()

    def _code_after(self, leave: LeaveMsg) -> int | None:
        """Return the exit code after an order of the head, or None if this agent looks for the next head."""
        return None if leave.rejoin and self._dial_on and not self.terminated.is_set() else leave.code

    async def _forward(self, head: Ref[OutputMsg]) -> None:
        with suppress(Unreachable, AskFailed):  # this session is over; the next one sends again what did not arrive
            await self._output.forward(head.ask)

    async def _first(self, *futures: "asyncio.Future[Any]") -> None:
        """Wait until one of `futures` is done, or this process is told to end."""
        signs = [self.terminated, *([self.abandoned] if self._bound else [])]
        told = [asyncio.create_task(sign.wait()) for sign in signs]
        ends: set[asyncio.Future[Any]] = {*futures, *told}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in told:
            task.cancel()

    async def _say_goodbye(self, node: Node, head: Ref[LeavingMsg], told: "asyncio.Future[LeaveMsg]") -> None:
        """Tell the head that this host leaves; wait for its order to end, for at most two thirds of the grace."""
        assert self._admitted is not None
        with suppress(OrchestraError):
            await head.tell(LeavingMsg(agent=node.name, grace=self._admitted.grace))
        # The head knows how long there is; a third is left for the processes that do not end by themselves.
        waited = self._admitted.grace * 2 / 3
        ends: set[asyncio.Future[Any]] = {told, node.stop_requested}
        await asyncio.wait(ends, timeout=waited, return_when=asyncio.FIRST_COMPLETED)

    def _report(self, me: Ref[Any]) -> HostMsg:
        return HostMsg(
            agent=me,
            slot=self._slot,
            name=self._name,
            cores=self._shape.cores,
            gpus=self._shape.gpus,
            memory=self._shape.memory,
            pid=os.getpid(),
            incarnation=self._incarnation,
            fingerprint=fingerprint(),
            clock=self._clock.now().timestamp(),
        )

    def _say(self, reason: str) -> None:
        """Print a reason for not being in the run, once."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            sys.stderr.write(f"orchestra: {reason}\n")
            sys.stderr.flush()


async def _end_descendants() -> None:
    """Kill all that the nodes have left."""
    for _ in range(LAST_TRIES):
        if not kill_orphans():
            return
        await asyncio.sleep(0.01)  # a process that was killed takes a moment to end
