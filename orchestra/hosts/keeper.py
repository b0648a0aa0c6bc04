"""Keeps the processes of a run on one host: one for each node, restarted within limits when it dies."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from orchestra import log
from orchestra.actors import supervision
from orchestra.actors.statistics import ProcessStatistics
from orchestra.actors.supervision import Restart
from orchestra.actors.system_messages import SYSTEM, StopNodeMsg
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.fork_server import LONGEST_LINE, LOST, Base, ForkedProcess, ForkServer
from orchestra.hosts.output import LastWords, failure_in
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.token import JoinToken
from orchestra.nodes.node import Node
from orchestra.wire.addresses import candidates_of
from orchestra.wire.transports.registry import transport_for

LAST_OUTPUT_S = 1.0
"""Time for the last output of a dead process to arrive."""
LAST_LOG_NBYTES = 1 << 18
"""Bytes at the end of a log in which the last error is looked for."""


Process = asyncio.subprocess.Process | ForkedProcess


class Keeper:
    """Starts a process for each node of one host, and restarts it when it dies.

    A process that ends by itself during the run has died, whatever its exit code. After more than `policy.limit`
    deaths within `policy.within` seconds its node is given up.

    Args:
        owner: the node of this process.
        plan: of the run.
        logs: the folder of the logs that the processes write.
        join: returns the address at which the processes join the run.
        given_up: called with the name of a node that is given up, and with how its process died.
        policy: how often a process is started again.
        forks: whether processes are forked from a template where the system allows it.
        sink: called with the node and the text of each line that a process prints.
        listen: returns the address at which a node listens; by default it follows from that of the root.
        environment: returns variables of the process of a node, beside those of this process.
        base: what the processes have in common.
        changed: called with the name of a node whose process was started, or has ended with its process id.
    """

    def __init__(
        self,
        owner: Node,
        plan: RunPlan,
        logs: Path,
        join: Callable[[], str],
        given_up: Callable[[str, str], object],
        policy: Restart | None = None,
        *,
        forks: bool = False,
        sink: Callable[[str, str], object] = lambda _, text: show(text),
        listen: Callable[[str], str] | None = None,
        beyond: Callable[[str], str] = lambda node: "",
        environment: Callable[[str], Mapping[str, str]] = lambda node: {},
        changed: Callable[[str], object] = lambda node: None,
        base: Base = Base(),  # noqa: B008 (it is frozen)
    ) -> None:
        self._base = base
        self._owner = owner
        self._sink = sink
        self._listen_here = listen or (lambda node: _listen_beside(join(), node))
        self._beyond = beyond
        self._environment = environment
        self._changed = changed
        self._plan = plan
        self._join = join
        self._report = given_up
        self._nodes: list[str] = []
        self._policy = policy or Restart(limit=3, within=60.0, backoff=0.5, backoff_max=10.0)
        self._processes: dict[str, Process] = {}
        self._restarts: dict[str, int] = {}
        self._given_up: dict[str, str] = {}
        self._logs = logs
        self._log_begins: dict[str, int] = {}
        self._words: dict[str, LastWords] = {}
        self._starting: set[asyncio.Task[Process]] = set()
        self._lifelines: dict[str, int] = {}
        """This process's ends of the pipes on the standard input of the others, by node."""
        self._relays: dict[str, asyncio.Task[None]] = {}
        self._fork_server = ForkServer(self._relay_template, join, base) if forks else None
        self._stopping = asyncio.Event()
        self._keeping: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        """Nodes whose next process loads no saved state: an earlier one has, or the run began without them."""
        self._log = log.get(actor=f"{owner.name}/launcher")

    async def run(self, nodes: Sequence[str]) -> None:
        """Keep `nodes`, and those that are added later, running until `stop`."""
        async with asyncio.TaskGroup() as self._group:
            self.add(nodes)
            await self._stopping.wait()  # more nodes may be added until then

    async def prepare(self) -> str:
        """Do once what all processes would otherwise wait for, such as compiling; return why that failed, if it did."""
        reading, writing = os.pipe()
        try:
            process = await self._execute(self._plan.preparation(), reading, self._environment(""))
        finally:
            os.close(reading)
        self._processes["prepare"], self._lifelines["prepare"] = process, writing
        last = LastWords()
        assert process.stdout is not None
        await self._relay("prepare", process.stdout, last)
        code = await process.wait()
        self._let_go("prepare")
        del self._processes["prepare"]
        return "" if code == 0 or self._stopping.is_set() else "; ".join([f"exit code {code}", *last.lines][-3:])

    def add(self, nodes: Sequence[str], *, again: bool = False) -> None:
        """Start more nodes, and again those of them that were given up.

        Args:
            nodes: their names.
            again: whether their actors begin without a saved state.
        """
        for node in nodes:
            self._given_up.pop(node, None)
            if again:
                self._again.add(node)
            self._prepare(node)
            self._begin(node)

    async def remove(self, nodes: Sequence[str], deadline: float = 10.0, asked: Collection[str] | None = None) -> None:
        """Stop some nodes in order, and expect them no longer. Returns once their processes have ended.

        Args:
            nodes: their names.
            deadline: seconds to wait before a process is terminated, and then before it is killed.
            asked: those that were asked to stop; by default those that have joined this process are asked now.
        """
        self._nodes = [node for node in self._nodes if node not in nodes]
        if self._starting:
            await asyncio.wait(self._starting)
        if asked is None:
            asked = [node for node in self._owner.peers.names if node in nodes]
            for node in asked:
                with contextlib.suppress(OrchestraError):  # it has died meanwhile
                    self._owner.ref(f"{node}/{SYSTEM}").tell_nowait(StopNodeMsg())
        await self._end([node for node in nodes if node in self._processes], asked, deadline)
        for node in nodes:
            self._keeping.pop(node).cancel()  # it may wait before the next start
            self._given_up.pop(node, None)
            self._processes.pop(node, None)
            self._let_go(node)
            await self._clear(node)
            self._log.info("node removed", process=node)

    def gone(self, node: str) -> bool:
        """Return whether `node` was given up: its process has died too often."""
        return node in self._given_up

    def statistics(self) -> tuple[ProcessStatistics, ...]:
        """Return the state of each process."""
        return tuple(map(self.state, self._nodes))

    def state(self, node: str) -> ProcessStatistics:
        """Return the state of the process of a node."""
        process = self._processes.get(node)
        return ProcessStatistics(
            node=node,
            pid=process.pid if process is not None else 0,
            running=process is not None and process.returncode is None,
            restarts=self._restarts[node],
            given_up=node in self._given_up,
        )

    def signal(self, number: signal.Signals, joined: Collection[str] | None = None) -> None:
        """Send a signal to each process that has joined. One that has not may not handle the signal yet.

        Args:
            number: the signal.
            joined: the nodes that have joined; by default those that this process sees.
        """
        joined = self._owner.peers.names if joined is None else joined
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
            self._let_go(node)
            await self._clear(node)

    async def _end(self, nodes: Sequence[str], asked: Collection[str], deadline: float) -> None:
        """Wait for the processes of `nodes` to end; see `stop`."""
        processes = {node: self._processes[node] for node in nodes}
        for node, process in processes.items():
            if node not in asked and process.returncode is None:
                self._end_at_once(node, process)
        for step in ("", "it loses its starter", "it is killed"):
            alive = {node: process for node, process in processes.items() if process.returncode is None}
            if not alive:
                break
            for node, process in alive.items():
                if step:
                    self._log.warning("process did not end in time", process=node, pid=process.pid, now=step)
                if step == "it loses its starter":
                    self._end_at_once(node, process)
                elif step:
                    self._send(process, signal.SIGKILL)
            await asyncio.wait([asyncio.create_task(each.wait()) for each in alive.values()], timeout=deadline)

    def _end_at_once(self, node: str, process: Process) -> None:
        """End a process that was not asked to stop, or does not: a node by its lifeline, its children by SIGTERM."""
        self._let_go(node)
        self._send(process, signal.SIGTERM)

    def _send(self, process: Process, number: int) -> None:
        """Send a signal to a process and to its group."""
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it leads no group yet, or has ended
            os.killpg(process.pid, number)

    def _prepare(self, node: str) -> None:
        if node not in self._nodes:
            self._nodes.append(node)
        self._restarts[node] = 0
        self._log_begins[node] = self._log_nbytes(node)
        self._words[node] = LastWords()

    def _begin(self, node: str) -> None:
        self._keeping[node] = self._group.create_task(self._keep(node), name=f"launcher: {node}")

    def _over(self, node: str) -> bool:
        """Return whether a dead process of `node` is not restarted: the run ends, or the node was removed."""
        return self._stopping.is_set() or self._owner.stopping or node not in self._nodes

    async def _keep(self, node: str) -> None:
        failures: list[float] = []
        while not self._over(node):
            pid, died = await self._run_process(node)
            if self._over(node):
                return
            await self._clear(node)
            failures.append(self._owner.clock.monotonic())
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
        self._let_go(node)
        self._changed(node)
        await asyncio.wait({self._relays[node]}, timeout=LAST_OUTPUT_S)  # a process that it started may keep the pipe
        if code == LOST:
            return process.pid, "ended, and its exit code was lost with the template that had forked it"
        return process.pid, f"killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _clear(self, node: str) -> None:
        """Remove the socket file of a process that was killed."""
        address = self._listen_here(node)
        with contextlib.suppress(UsageError):  # another process listens there
            await transport_for(address).clear(address)

    async def _start(self, node: str) -> Process:
        listen = ",".join(filter(None, (self._listen_here(node), self._beyond(node))))
        again = node in self._again
        command = self._plan.command(node, listen, again=again)
        lifeline = self._lifeline(node)
        process: Process | None = None
        try:
            if self._fork_server is not None:
                text, environment = self._plan.text(again=again), self._environment(node)
                process = await self._fork_server.start(node, command, text, lifeline, environment)
            if process is None:
                process = await self._execute(command, lifeline, self._environment(node))
        finally:
            os.close(lifeline)
        assert process.stdout is not None
        relay = self._relay(node, process.stdout, self._words[node])
        self._relays[node] = asyncio.create_task(relay, name=f"launcher: output of {node}")
        self._processes[node] = process
        self._again.add(node)
        self._log.info("process started", process=node, pid=process.pid)
        self._changed(node)
        return process

    def _lifeline(self, node: str) -> int:
        """Return the file descriptor of a new standard input for a process of `node`: a pipe that holds its token.

        Its other end is kept while the process lives, and belongs to this process alone. So its end means that this
        process is dead.
        """
        owner = self._owner
        token = JoinToken.new(
            self._plan.run_directory.name, candidates_of(self._join()), tls=owner.tls, secret=owner.secret
        )
        lifeline, ours = os.pipe()
        self._let_go(node)
        self._lifelines[node] = ours
        os.write(ours, token.line().encode())
        return lifeline

    def _let_go(self, node: str) -> None:
        """Close the pipe to a process of `node`, if there is one."""
        if (lifeline := self._lifelines.pop(node, None)) is not None:
            os.close(lifeline)

    async def _execute(
        self, command: Sequence[str], lifeline: int, environment: Mapping[str, str]
    ) -> asyncio.subprocess.Process:
        # A session of its own: the terminal sends Ctrl-C to the root alone, which stops the others in order.
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            limit=LONGEST_LINE,
            env={**(self._base.environment or os.environ), **environment},
            cwd=self._base.folder,
            start_new_session=True,
        )

    async def _relay_template(self, output: asyncio.StreamReader) -> None:
        await self._relay("template", output, LastWords())

    async def _relay(self, node: str, output: asyncio.StreamReader, last: LastWords) -> None:
        """Pass on the lines of a process, and keep the last ones in `last`."""
        while True:
            try:
                line = await output.readline()
            except ValueError:  # a line longer than the reader's limit: asyncio has dropped it
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            last.add(text)
            self._sink(node, text)

    def _give_up(self, node: str, died: str, deaths: int) -> None:
        self._given_up[node] = how = f"its process {died}, {deaths} times"
        self._log.error("process died too often and is given up", process=node, how=died, deaths=deaths)
        self._report(node, how)

    def last_words(self, node: str) -> Iterator[str]:
        """Yield the last error that a node has logged, and the last lines that its process has printed."""
        words = self._words[node]
        words.error = words.error or self._last_error(node)
        yield from words.of(node)

    def _last_error(self, node: str) -> str:
        try:
            with (self._logs / f"{node}.jsonl").open("rb") as file:
                file.seek(max(self._log_begins[node], self._log_nbytes(node) - LAST_LOG_NBYTES))
                lines = file.read().split(b"\n")
        except OSError:
            return ""
        return next(filter(None, map(failure_in, reversed(lines))), "")

    def _log_nbytes(self, node: str) -> int:
        try:
            return (self._logs / f"{node}.jsonl").stat().st_size
        except OSError:
            return 0


def show(text: str) -> None:
    """Print a line on `sys.stderr`, looked up each time: a live display replaces it."""
    sys.stderr.write(log.fitted(text + "\n", sys.stderr))
    sys.stderr.flush()


def _listen_beside(address: str, node: str) -> str:
    """Return the address at which `node` listens, derived from the first one at which it joins the run."""
    address = candidates_of(address)[0]
    if address.startswith("unix://"):
        return f"{address}.{node}"
    return f"{address.rpartition(':')[0]}:0"
