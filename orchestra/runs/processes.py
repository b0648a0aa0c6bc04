"""The processes of a run on this host: one for each node but the root, restarted within limits when it dies."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from orchestra import log
from orchestra.actors import supervision
from orchestra.actors.statistics import ProcessStatistics
from orchestra.actors.supervision import Restart
from orchestra.errors import OrchestraError, UsageError
from orchestra.nodes.node import Node
from orchestra.trace.recording.settings import NO_TRACE, TraceSettings
from orchestra.wire import arena
from orchestra.wire.transports.registry import transport_for

SECRET_VARIABLE = "ORCHESTRA_SECRET"  # noqa: S105 (the variable's name, not a secret)
"""The environment variable that gives a launched process the run's secret, in hexadecimal. A command line is public."""


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
    shared_memory: int = arena.CAPACITY
    """Bytes of shared memory in each direction of a link within this host."""

    def command(self, node: str, join: str, listen: str, *, again: bool = False) -> list[str]:
        """Return the command line of the process of `node`. One that is started `again` loads no saved state."""
        plan = replace(
            self,
            run_directory=self.run_directory.absolute(),
            resume_from=None if again else self.resume_from,
        )
        text = TypeAdapter(Launch).dump_json(plan).decode()
        return [sys.executable, "-m", "orchestra", "node", node, "--join", join, "--listen", listen, "--plan", text]

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the plan that `command` wrote.

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
    deaths within `policy.within` seconds its node is given up. When all nodes are given up, the run fails.
    """

    def __init__(self, root: Node, launch: Launch, nodes: Sequence[str], policy: Restart | None = None) -> None:
        self._root = root
        self._launch = launch
        self._nodes = list(nodes)
        self._policy = policy or Restart(limit=3, within=60.0, backoff=0.5, backoff_max=10.0)
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._restarts = dict.fromkeys(nodes, 0)
        self._given_up: set[str] = set()
        self._starting: set[asyncio.Task[asyncio.subprocess.Process]] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._log = log.get(actor=f"{root.name}/launcher")

    async def run(self) -> None:
        """Keep all nodes running until `stop`. The root fails with `AllNodesLost` once every node is given up."""
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
        for node, process in self._processes.items():
            if node not in asked and process.returncode is None:
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
            await self._clear(node)

    @property
    def _over(self) -> bool:
        """True once the run ends, and dead processes are not restarted."""
        return self._stopping.is_set() or self._root.stopping

    async def _keep(self, node: str) -> None:
        failures: list[float] = []
        while not self._over:
            pid, died = await self._run_process(node)
            if self._over:
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
        return process.pid, f"killed by signal {-code}" if code < 0 else f"exited with code {code}"

    async def _clear(self, node: str) -> None:
        """Remove the socket file of a process that was killed."""
        address = _listen_beside(self._root.listening, node)
        with contextlib.suppress(UsageError):  # another process listens there
            await transport_for(address).clear(address)

    async def _start(self, node: str) -> asyncio.subprocess.Process:
        listen = _listen_beside(self._root.listening, node)
        command = self._launch.command(node, self._root.listening, listen, again=node in self._processes)
        environment = {**os.environ, SECRET_VARIABLE: self._root.secret.hex()}
        # A session of its own: the terminal sends Ctrl-C to the root alone, which stops the others in order.
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

    def _give_up(self, node: str, died: str, deaths: int) -> None:
        self._given_up.add(node)
        self._log.error("process died too often and is given up", process=node, how=died, deaths=deaths)
        self._root.directory.give_up(node, f"its process {died}, {deaths} times")
        if len(self._given_up) == len(self._nodes):
            self._root.escalate(AllNodesLost(f"every node died too often; the last, {node}, {died}"))


class AllNodesLost(OrchestraError):
    """Every node of a run was given up."""


async def _relay(output: asyncio.StreamReader) -> None:
    """Copy the output of a process to `sys.stderr`, looked up for each line: a live display replaces it."""
    while True:
        try:
            line = await output.readline()
        except ValueError:  # a line longer than the reader's limit: asyncio has dropped it
            continue
        if not line:
            return
        sys.stderr.write(log.fitted(line.decode(errors="replace").rstrip() + "\n", sys.stderr))
        sys.stderr.flush()


def _listen_beside(address: str, node: str) -> str:
    """Return the address at which `node` listens, derived from the root's."""
    if address.startswith("unix://"):
        return f"{address}.{node}"
    return f"{address.rpartition(':')[0]}:0"
