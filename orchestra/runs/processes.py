"""The processes of a run on this host: one for each node but the root, restarted within limits when it dies."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from orchestra import log
from orchestra.actors import supervision
from orchestra.actors.addresses import node_of
from orchestra.actors.statistics import ProcessStatistics
from orchestra.actors.supervision import Restart
from orchestra.actors.system_messages import SYSTEM, StopNodeMsg
from orchestra.errors import OrchestraError, UsageError
from orchestra.nodes.node import Node
from orchestra.runs.fork_server import LOST, ForkedProcess, ForkServer
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Requirement
from orchestra.trace.recording.settings import NO_TRACE, TraceSettings
from orchestra.wire import blocks
from orchestra.wire.transports.registry import transport_for

SECRET_VARIABLE = "ORCHESTRA_SECRET"  # noqa: S105 (the variable's name, not a secret)
"""The environment variable that gives a launched process the run's secret, in hexadecimal. A command line is public."""
OUTPUT_LINES = 10
"""Lines of a dead process that the message about a failed run quotes."""
LAST_OUTPUT_S = 1.0
"""Time for the last output of a dead process to arrive."""
LAST_LOG_NBYTES = 1 << 18
"""Bytes at the end of a log in which the last error is looked for."""


Process = asyncio.subprocess.Process | ForkedProcess


@dataclass(frozen=True, slots=True)
class Launch:
    """The plan by which every process of a run builds the same topology and opens its node."""

    experiment: Path | None
    """The file that each process imports; None for a topology that no file describes, which runs in one process."""
    flags: Sequence[str]
    """The experiment's flags, as on a command line."""
    seed: int
    run_directory: Path
    function: str = "experiment"
    """The function of the file that returns the topology."""
    log_level: str = "info"
    quiet: bool = False
    """True if nothing is printed while the run goes on."""
    trace: TraceSettings = NO_TRACE
    resume_from: Path | None = None
    """The folder of the state that the actors of a resumed run load."""
    tls_dir: Path | None = None
    """The folder of the run's certificates, if it goes over TLS."""
    shared_memory: int = blocks.CAPACITY
    """Bytes of an arena of shared memory."""
    unencrypted: bool = False
    """True if plain TCP beyond this host is allowed."""

    def command(self, node: str, join: str, listen: str, *, again: bool = False) -> list[str]:
        """Return the command line of the process of `node`. One that is started `again` loads no saved state."""
        text = self.text(again=again)
        return [sys.executable, "-m", "orchestra", "node", node, "--join", join, "--listen", listen, "--plan", text]

    def text(self, *, again: bool = False) -> str:
        """Return the plan as JSON, for a process that is started, or started `again` and loads no saved state."""
        plan = replace(
            self,
            run_directory=self.run_directory.absolute(),
            resume_from=None if again else self.resume_from,
        )
        return TypeAdapter(Launch).dump_json(plan).decode()

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the plan that `text` wrote.

        Raises:
            UsageError: the text is no such plan.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"--plan: not the plan of a run: {where}: {first['msg']}") from None


class LocalLauncher:
    """Starts a process for each node, and restarts it when it dies.

    A process that ends by itself during the run has died, whatever its exit code. After more than `policy.limit`
    deaths within `policy.within` seconds its node is given up. The run fails with `ActorsLost` when too few of the
    actors that one of `requirements` names are left, or all nodes are given up.

    Args:
        root: the node of this process.
        launch: the plan of the run.
        nodes: the nodes that get a process.
        policy: how often a process is started again.
        requirements: without which actors the run fails.
        forks: whether processes are forked from a template where the system allows it.
    """

    def __init__(
        self,
        root: Node,
        launch: Launch,
        nodes: Sequence[str],
        policy: Restart | None = None,
        requirements: Sequence[Requirement] = (),
        *,
        forks: bool = False,
    ) -> None:
        self._root = root
        self._launch = launch
        self._nodes: list[str] = []
        self._policy = policy or Restart(limit=3, within=60.0, backoff=0.5, backoff_max=10.0)
        self._processes: dict[str, Process] = {}
        self._restarts: dict[str, int] = {}
        self._requirements = requirements
        self._given_up: dict[str, str] = {}
        self._logs = RunDirectory(launch.run_directory).logs
        self._log_begins: dict[str, int] = {}
        self._output: dict[str, deque[str]] = {}
        self._starting: set[asyncio.Task[Process]] = set()
        self._relays: dict[str, asyncio.Task[None]] = {}
        self._fork_server = ForkServer(self._relay_template, lambda: root.listening) if forks else None
        self._stopping = asyncio.Event()
        self._failed = False
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Nodes whose next process loads no saved state: an earlier one has, or the run began without them."""
        self._log = log.get(actor=f"{root.name}/launcher")
        for node in nodes:
            self._prepare(node)

    async def run(self) -> None:
        """Keep all nodes running until `stop`."""
        async with asyncio.TaskGroup() as self._group:
            for node in self._nodes:
                self._begin(node)
            await self._stopping.wait()  # more nodes may be added until then

    def add(self, nodes: Sequence[str], requirements: Sequence[Requirement]) -> None:
        """Start more nodes, and again those of them that were given up.

        Args:
            nodes: their names.
            requirements: those that hold from now on.
        """
        self._requirements = requirements
        for node in nodes:
            self._given_up.pop(node, None)
            self._root.directory.add(node)
            self._again.add(node)
            self._prepare(node)
            self._begin(node)

    async def remove(self, nodes: Sequence[str], requirements: Sequence[Requirement], deadline: float = 10.0) -> None:
        """Stop some nodes in order, and expect them no longer. Returns once their processes have ended.

        Args:
            nodes: their names.
            requirements: those that hold from now on.
            deadline: seconds to wait before a process is terminated, and then before it is killed.
        """
        self._requirements = requirements
        self._nodes = [node for node in self._nodes if node not in nodes]
        if self._starting:
            await asyncio.wait(self._starting)
        joined = self._root.peers.names
        for node in joined:
            if node in nodes:
                with contextlib.suppress(OrchestraError):  # it has died meanwhile
                    self._root.ref(f"{node}/{SYSTEM}").tell_nowait(StopNodeMsg())
        await self._end([node for node in nodes if node in self._processes], joined, deadline)
        for node in nodes:
            self._keeping.pop(node).cancel()  # it may wait before the next start
            self._given_up.pop(node, None)
            self._processes.pop(node, None)
            self._root.directory.give_up(node, "the run has fewer replicas now")
            await self._clear(node)
            self._log.info("node removed", process=node)

    def gone(self, node: str) -> bool:
        """Return whether `node` was given up: its process has died too often."""
        return node in self._given_up

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        """Return the state of each process."""
        return tuple(
            ProcessStatistics(
                node=node,
                pid=process.pid if (process := self._processes.get(node)) else 0,
                running=process is not None and process.returncode is None,
                restarts=self._restarts[node],
                given_up=node in self._given_up,
            )
            for node in self._nodes
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to each process that has joined. One that has not may not handle the signal yet."""
        joined = self._root.peers.names
        for node, process in self._processes.items():
            if node in joined and process.returncode is None:
                process.send_signal(number)

    async def stop(self, asked: Collection[str] = (), deadline: float = 10.0) -> None:
        """Wait for all processes to end; terminate, then kill a process that does not.

        Args:
            asked: the nodes that were asked to stop. All others had not joined yet, and are terminated at once.
            deadline: seconds to wait before each step.
        """
        self._stopping.set()
        if self._starting:
            await asyncio.wait(self._starting)
        await self._end(list(self._processes), asked, deadline)
        if self._fork_server is not None:
            await self._fork_server.close()
        for node in self._nodes:
            await self._clear(node)

    async def _end(self, nodes: Sequence[str], asked: Collection[str], deadline: float) -> None:
        """Wait for the processes of `nodes` to end; see `stop`."""
        processes = {node: self._processes[node] for node in nodes}
        for node, process in processes.items():
            if node not in asked and process.returncode is None:
                process.terminate()
        for send in ("", "terminate", "kill"):
            alive = [process for process in processes.values() if process.returncode is None]
            if not alive:
                break
            for process in alive:
                if send:
                    self._log.warning("process did not end in time", pid=process.pid, now=send)
                    getattr(process, send)()
            await asyncio.wait([asyncio.create_task(process.wait()) for process in alive], timeout=deadline)

    def _prepare(self, node: str) -> None:
        if node not in self._nodes:
            self._nodes.append(node)
        self._restarts[node] = 0
        self._log_begins[node] = self._log_nbytes(node)
        self._output[node] = deque(maxlen=OUTPUT_LINES)

    def _begin(self, node: str) -> None:
        self._keeping[node] = self._group.create_task(self._keep(node), name=f"launcher: {node}")

    def _over(self, node: str) -> bool:
        """Return whether a dead process of `node` is not restarted: the run ends, or the node was removed."""
        return self._stopping.is_set() or self._root.stopping or node not in self._nodes

    async def _keep(self, node: str) -> None:
        failures: list[float] = []
        while not self._over(node):
            pid, died = await self._run_process(node)
            if self._over(node):
                return
            await self._clear(node)
            failures.append(self._root.clock.monotonic())
            match supervision.decide(self._policy, failures, failures[-1]):
                case supervision.RestartAfter(delay):
                    self._restarts[node] += 1
                    self._log.warning("process died and is started again", process=node, pid=pid, how=died)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._stopping.wait(), delay)
                case _:
                    self._give_up(node, died, len(failures))
                    return

    async def _run_process(self, node: str) -> tuple[int, str]:
        """Run a process of `node` to its end; return its process id and how it ended."""
        start = asyncio.create_task(self._start(node), name=f"launcher: start of {node}")
        self._starting.add(start)
        start.add_done_callback(self._starting.discard)
        try:
            process = await start
        except OSError as error:  # out of memory or of processes: a later attempt may succeed
            return 0, f"could not be started: {error.strerror or error}"
        code = await process.wait()
        await asyncio.wait({self._relays[node]}, timeout=LAST_OUTPUT_S)  # a process that it started may keep the pipe
        if code == LOST:
            return process.pid, "ended, and its exit code was lost with the template that had forked it"
        return process.pid, f"killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _clear(self, node: str) -> None:
        """Remove the socket file of a process that was killed."""
        address = _listen_beside(self._root.listening, node)
        with contextlib.suppress(UsageError):  # another process listens there
            await transport_for(address).clear(address)

    async def _start(self, node: str) -> Process:
        listen = _listen_beside(self._root.listening, node)
        again = node in self._again
        command = self._launch.command(node, self._root.listening, listen, again=again)
        process: Process | None = None
        if self._fork_server is not None:
            plan, secret = self._launch.text(again=again), self._root.secret.hex()
            process = await self._fork_server.start(node, command, plan, secret)
        if process is None:
            process = await self._execute(command)
        assert process.stdout is not None
        relay = _relay(process.stdout, self._output[node])
        self._relays[node] = asyncio.create_task(relay, name=f"launcher: output of {node}")
        self._processes[node] = process
        self._again.add(node)
        self._log.info("process started", process=node, pid=process.pid)
        return process

    async def _execute(self, command: Sequence[str]) -> asyncio.subprocess.Process:
        environment = {**os.environ, SECRET_VARIABLE: self._root.secret.hex()}
        # A session of its own: the terminal sends Ctrl-C to the root alone, which stops the others in order.
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    async def _relay_template(self, output: asyncio.StreamReader) -> None:
        await _relay(output, deque(maxlen=OUTPUT_LINES))

    def _give_up(self, node: str, died: str, deaths: int) -> None:
        self._given_up[node] = how = f"its process {died}, {deaths} times"
        self._log.error("process died too often and is given up", process=node, how=died, deaths=deaths)
        self._root.directory.give_up(node, how)
        lost = [each.missing(lambda address: node_of(address) in self._given_up) for each in self._requirements]
        if missing := next(filter(None, lost), ""):
            self._fail(f"{missing}; {node} was given up: {how}")
        elif len(self._given_up) == len(self._nodes):
            self._fail(f"every node was given up; the last, {node}: {how}")

    def _fail(self, text: str) -> None:
        if not self._failed:
            self._failed = True
            self._root.escalate(ActorsLost(text, [line for node in self._given_up for line in self._last_words(node)]))

    def _last_words(self, node: str) -> Iterator[str]:
        """Yield the last error that a node has logged, and the last lines that its process has printed."""
        if error := self._last_error(node):
            yield f"last error of {node}: {error}"
        if self._output[node]:
            yield f"last output of {node}:"
            yield from (f"    {line}" for line in self._output[node])

    def _last_error(self, node: str) -> str:
        try:
            with (self._logs / f"{node}.jsonl").open("rb") as file:
                file.seek(max(self._log_begins[node], self._log_nbytes(node) - LAST_LOG_NBYTES))
                lines = file.read().split(b"\n")
        except OSError:
            return ""
        for line in reversed(lines):
            with contextlib.suppress(ValueError):
                match json.loads(line):
                    case {"level": "error", "event": "actor failed", "actor": str(actor), "error": str(error)}:
                        return f"{actor} failed: {error}"
        return ""

    def _log_nbytes(self, node: str) -> int:
        try:
            return (self._logs / f"{node}.jsonl").stat().st_size
        except OSError:
            return 0


class ActorsLost(OrchestraError):
    """Too few of the actors that a run requires are left."""

    def __init__(self, text: str, details: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.details = details
        """Lines about the processes that died: the last errors and the last output."""


async def _relay(output: asyncio.StreamReader, last: deque[str]) -> None:
    """Copy the output of a process to `sys.stderr`, looked up for each line: a live display replaces it.

    Keep its last lines in `last`.
    """
    while True:
        try:
            line = await output.readline()
        except ValueError:  # a line longer than the reader's limit: asyncio has dropped it
            continue
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        if text:
            last.append(text)
        sys.stderr.write(log.fitted(text + "\n", sys.stderr))
        sys.stderr.flush()


def _listen_beside(address: str, node: str) -> str:
    """Return the address at which `node` listens, derived from the root's."""
    if address.startswith("unix://"):
        return f"{address}.{node}"
    return f"{address.rpartition(':')[0]}:0"
