"""Processes on this host: one for each node of a topology but the root, watched and started again within limits."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestra import log
from orchestra.actors import supervision
from orchestra.actors.supervision import Restart
from orchestra.actors.system_messages import ProcessStatistics
from orchestra.clock import Clock
from orchestra.errors import UsageError
from orchestra.nodes.node import Node
from orchestra.trace.recording.settings import NO_TRACE, TraceSettings
from orchestra.wire.transports.registry import transport_for

SECRET_VARIABLE = "ORCHESTRA_SECRET"  # noqa: S105 (the variable's name, not a secret)
"""Where a launched process finds the run's secret, as hexadecimal digits. Never on a command line."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What every process of a run is told: it builds the same topology from it."""

    experiment: Path
    flags: Sequence[str]
    """The experiment's flags, as on a command line."""
    seed: int
    run_directory: Path
    log_level: str = "info"
    trace: TraceSettings = NO_TRACE
    resume_from: Path | None = None
    """What the run saved, if it goes on from there."""

    def command(self, node: str, join: str, listen: str, *, again: bool = False) -> list[str]:
        """Return the command line of the process of `node`; one that is started `again` begins anew."""
        own = ["--node", node, "--join", join, "--listen", listen, "--seed", str(self.seed)]
        own += ["--run-directory", str(self.run_directory), "--log-level", self.log_level, *self.trace.to_argv()]
        if self.resume_from is not None and not again:
            own += ["--resume-from", str(self.resume_from)]
        return [sys.executable, "-m", "orchestra", "node", str(self.experiment), *own, "--", *self.flags]


class LocalLauncher:
    """Starts a process for each node and starts it again when it dies.

    A process that ends by itself while the run goes on has died, whatever its exit code. After more than
    `policy.limit` deaths within `policy.within` seconds its node is given up; when all are, the run fails.
    """

    def __init__(self, root: Node, launch: Launch, nodes: Sequence[str], policy: Restart | None = None) -> None:
        self._root = root
        self._launch = launch
        self._nodes = list(nodes)
        self._policy = policy or Restart(limit=3, within=60.0, backoff=0.5, backoff_max=10.0)
        self._clock: Clock = root.clock
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._restarts = dict.fromkeys(nodes, 0)
        self._given_up: set[str] = set()
        self._starting: set[asyncio.Task[asyncio.subprocess.Process]] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._log = log.get(actor=f"{root.name}/launcher")

    async def run(self) -> None:
        """Keep all nodes running until `stop`. The root fails with `AllNodesLost` when every node was given up."""
        async with asyncio.TaskGroup() as group:
            for node in self._nodes:
                group.create_task(self._keep(node), name=f"launcher: {node}")

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
        """Send a signal to each process that has joined; one that has not may not know yet what to do with it."""
        joined = self._root.peers.names
        for node, process in self._processes.items():
            if node in joined and process.returncode is None:
                process.send_signal(number)

    async def stop(self, told: Collection[str] = (), deadline: float = 10.0) -> None:
        """Wait for all processes to end; terminate, then kill those that do not.

        Args:
            told: the nodes that were asked to stop. The others have not come so far that they could be asked, and are
                terminated at once.
            deadline: seconds to wait before each step.
        """
        self._stopping.set()
        if self._starting:
            await asyncio.wait(self._starting)
        for node, process in self._processes.items():
            if node not in told and process.returncode is None:
                process.terminate()
        for send in ("", "terminate", "kill"):
            alive = [process for process in self._processes.values() if process.returncode is None]
            if not alive:
                break
            for process in alive:
                if send:
                    self._log.warning("process did not end in time", pid=process.pid, now=send)
                    getattr(process, send)()
            await asyncio.wait([asyncio.create_task(process.wait()) for process in alive], timeout=deadline)
        for node in self._nodes:
            await self._tidy_up_after(node)

    @property
    def _over(self) -> bool:
        """Whether no process is needed any more: the root winds up, if it has not told the others to stop yet."""
        return self._stopping.is_set() or self._root.stopping

    async def _keep(self, node: str) -> None:
        failures: list[float] = []
        while not self._over:
            pid, died = await self._live(node)
            if self._over:
                return
            await self._tidy_up_after(node)
            failures.append(self._clock.monotonic())
            match supervision.decide(self._policy, failures, failures[-1]):
                case supervision.RestartAfter(delay):
                    self._restarts[node] += 1
                    self._log.warning("process died and is started again", process=node, pid=pid, how=died)
                    await self._pause(delay)
                case _:
                    self._give_up(node, died, len(failures))
                    return

    async def _live(self, node: str) -> tuple[int, str]:
        """Run a process of `node` to its end; return its number and how it ended."""
        start = asyncio.create_task(self._start(node), name=f"launcher: start of {node}")
        self._starting.add(start)
        start.add_done_callback(self._starting.discard)
        try:
            process = await start
        except OSError as error:  # no memory, no more processes: it may go better next time
            return 0, f"could not be started: {error.strerror or error}"
        code = await process.wait()
        return process.pid, f"killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _tidy_up_after(self, node: str) -> None:
        """Remove the socket file that a process leaves behind if it could not do so itself."""
        address = _listen_beside(self._root.listening, node)
        with contextlib.suppress(UsageError):  # it lives on, in a process that is not the one we started
            await transport_for(address).clear(address)

    async def _start(self, node: str) -> asyncio.subprocess.Process:
        listen = _listen_beside(self._root.listening, node)
        command = self._launch.command(node, self._root.listening, listen, again=node in self._processes)
        environment = {**os.environ, SECRET_VARIABLE: self._root.secret.hex()}
        # A session of its own: Ctrl-C is the root's to hear, and its to pass on.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        self._relays.add(relay := asyncio.create_task(_relay(process.stdout), name=f"launcher: output of {node}"))
        relay.add_done_callback(self._relays.discard)
        self._processes[node] = process
        self._log.info("process started", process=node, pid=process.pid)
        return process

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _give_up(self, node: str, died: str, deaths: int) -> None:
        self._given_up.add(node)
        self._log.error("process died too often and is given up", process=node, how=died, deaths=deaths)
        self._root.directory.give_up(node, f"its process {died}, {deaths} times")
        if len(self._given_up) == len(self._nodes):
            self._root.escalate(AllNodesLost(f"every node died too often; the last, {node}, {died}"))


class AllNodesLost(Exception):
    """There is no process left to work."""


async def _relay(output: asyncio.StreamReader) -> None:
    """Pass on what a process prints: to whatever stands for stderr now, which a live display may have taken over."""
    while True:
        try:
            line = await output.readline()
        except ValueError:  # a line longer than the reader's limit; it has been dropped
            continue
        if not line:
            return
        sys.stderr.write(log.fitted(line.decode(errors="replace").rstrip() + "\n", sys.stderr))
        sys.stderr.flush()


def _listen_beside(address: str, node: str) -> str:
    """Return where `node` shall listen, given where the root does."""
    if address.startswith("unix://"):
        return f"{address}.{node}"
    return f"{address.rpartition(':')[0]}:0"
