"""A deterministic simulation: nodes, their network and time in one process, all decided by a seed."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import structlog
from structlog.typing import EventDict, WrappedLogger

from orchestra.errors import UsageError
from orchestra.simulation.loop import SimulatedLoop, location_of
from orchestra.simulation.network import PREFIX, Network
from orchestra.simulation.process import Main, Process, Setup
from orchestra.simulation.seeded_random import SeededRandom

T = TypeVar("T")

LOG_LINES = 1000
POLL_S = 0.1
"""Interval at which `until` checks its condition."""
MAX_PARTITION_S = 6.0
"""The longest random partition."""
MAX_PAUSE_S = 4.0
"""The longest random pause of a process."""


class Simulation:
    """A simulated world for nodes: `Simulation(7).run(main())`.

    The seed decides what processes, threads, clocks and networks leave open: which process runs next, the delay of each
    byte, every fault. The same seed gives the same run, on every machine.

    Args:
        seed: the seed.
        limit: virtual seconds after which a run fails.
    """

    def __init__(self, seed: int, *, limit: float = 3600.0) -> None:
        self.seed = seed
        self.random = SeededRandom(seed)
        self.loop = SimulatedLoop(self.random)
        self.network = Network(self.loop)
        self.processes: dict[str, Process] = {}
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        """The last log lines of the nodes."""
        self._secret = self.random.bytes(32)
        self.loop.report = self.report
        self.loop.limit = limit

    @property
    def digest(self) -> str:
        """A hash of all events: every callback and every byte, in their order."""
        return self.loop.digest

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` in virtual time, and return its result. Tasks that still run are discarded. To be called once.

        Raises:
            SimulationStuck: no callback or timer is left, or the limit is exceeded.
            Exception: raised by `main`, by a process without `may_fail`, or by a callback.
        """
        before = structlog.get_config() if structlog.is_configured() else None
        structlog.configure(
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
            cache_logger_on_first_use=False,
        )
        try:
            task = self.loop.create_task(main, name="main", context=self.loop.strands.outside.context.copy())
            result = self.loop.run_until_complete(task)
            self.loop.check()
            return result
        finally:
            self.loop.discard_tasks()
            self.loop.close()
            if before is None:
                structlog.reset_defaults()
            else:
                structlog.configure(**before)

    # Processes

    def node(
        self,
        name: str,
        setup: Setup | None = None,
        *,
        may_fail: bool = False,
        auto_restart: bool = False,
        main: Main | None = None,
        **options: Any,
    ) -> Process:
        """Plan a process that hosts the node `name`. The first is the root, which the others join.

        Args:
            name: the node's name.
            setup: spawns its actors; called at every start.
            may_fail: whether the simulation continues if the node fails.
            auto_restart: whether the process is restarted about a second after it died or failed, as by a launcher.
            main: runs in the process once its actors are spawned, and returns the reason for which the process ends.
                By default the process runs until its node is asked to stop.
            options: further arguments of `Node`.

        Raises:
            UsageError: the name is taken.
        """
        if name in self.processes:
            raise UsageError(f"this simulation already has a node {name!r}")
        root = next(iter(self.processes), None)
        given = {
            "listen": f"{PREFIX}{name}",
            "join": None if root is None else f"{PREFIX}{root}",
            "secret": self._secret,
            "seed": self.seed,
        }
        process = Process(
            self.loop,
            self.network,
            name,
            setup,
            may_fail=may_fail,
            auto_restart=auto_restart,
            main=main,
            options=given | options,
        )
        self.processes[name] = process
        return process

    async def start(self) -> None:
        """Start the root, then all other processes at once; return when all nodes are open.

        Raises:
            ProcessDied: a process ended while it started.
        """
        root, *others = self.processes.values()
        await root.start()
        await asyncio.gather(*(process.start() for process in others))

    async def until(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        """Wait until `condition` holds; it is checked every 0.1 virtual seconds.

        Raises:
            SimulationStuck: it does not hold after `within` virtual seconds.
        """
        end = self.loop.time() + within
        while not condition():
            if self.loop.time() > end:
                raise self.loop.stuck(f"the condition did not hold within {within:g} s")
            await asyncio.sleep(POLL_S)

    # Faults

    def cut(self, one: Process, other: Process) -> int:
        """Break every connection between two processes, and return their number."""
        return self.network.cut(one.name, other.name)

    def half_close(self, one: Process, other: Process) -> int:
        """End every stream from `one` to `other`, and return their number. `one` notices nothing but silence."""
        return self.network.half_close(one.name, other.name)

    def partition(self, one: Process, other: Process, *, one_way: bool = False) -> None:
        """Hold back all packets from `one` to `other`, and, unless `one_way`, back, until `heal`."""
        self.network.blocked.add((one.name, other.name))
        if not one_way:
            self.network.blocked.add((other.name, one.name))

    def heal(self, one: Process | None = None, other: Process | None = None) -> None:
        """End the partition between two processes, or all partitions."""
        if one is None or other is None:
            for link in sorted(self.network.blocked):
                self.network.unblock(*link)
        else:
            self.network.unblock(one.name, other.name)
            self.network.unblock(other.name, one.name)

    def forbid(self, one: Process, other: Process) -> None:
        """Have a firewall refuse all further connections that `one` dials to `other`, but not those back."""
        self.network.forbidden.add((one.name, other.name))

    def slow_down(self, one: Process, other: Process, seconds: float) -> None:
        """Set the mean latency between two processes, each way."""
        self.network.slow_down(one.name, other.name, seconds)

    @asynccontextmanager
    async def faults(
        self,
        *,
        cuts: float = 0.0,
        partitions: float = 0.0,
        pauses: float = 0.0,
        kills: float = 0.0,
        mortal: Collection[Process] = (),
    ) -> AsyncIterator[None]:
        """Inject random faults while the block runs. Its end heals all partitions.

        Args:
            cuts: connections cut per second.
            partitions: partitions between two processes per second, each for up to 6 seconds, one way or both.
            pauses: processes paused per second, each for up to 4 seconds.
            kills: processes killed per second, silently or not.
            mortal: the processes that may be killed, beside those with `auto_restart`.
        """
        injectors = [
            self.loop.create_task(self._repeat(rate, fault), name="faults")
            for rate, fault in (
                (cuts, self._cut_one),
                (partitions, self._partition_some),
                (pauses, self._pause_one),
                (kills, partial(self._kill_one, mortal)),
            )
            if rate > 0
        ]
        try:
            yield
        finally:
            for task in injectors:
                task.cancel()
            ends = await asyncio.gather(*injectors, return_exceptions=True)
            self.heal()
            for error in ends:
                if isinstance(error, Exception):
                    raise error

    async def _repeat(self, rate: float, fault: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self.random.exponential(1.0 / rate))
            await fault()

    async def _cut_one(self) -> None:
        if links := self.network.links:
            self.network.cut(*self.random.choice(links))

    async def _partition_some(self) -> None:
        if not (links := self.network.links):
            return
        one, other = self.random.choice(links)
        ways = self.random.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
        self.network.blocked.update(ways)
        await asyncio.sleep(self.random.uniform(0.0, MAX_PARTITION_S))
        for way in ways:
            self.network.unblock(*way)

    async def _pause_one(self) -> None:
        self.random.choice(list(self.processes.values())).pause(self.random.uniform(0.0, MAX_PAUSE_S))

    async def _kill_one(self, mortal: Collection[Process]) -> None:
        running = [process for process in self.processes.values() if process.running]
        if victims := [process for process in running if process.auto_restart or process in mortal]:
            self.random.choice(victims).kill(silently=self.random.chance(0.3))

    # Reports

    def report(self) -> str:
        """Return what each task awaits, the depth of the mailboxes, the log and the last events, as text."""
        lines = ["tasks:"]
        for strand, tasks in self.loop.waiting().items():
            lines += [f"  {strand}: {task.get_name()} in {location_of(task)}" for task in tasks]
        lines.append("mailboxes:")
        for process in self.processes.values():
            if not process.running:
                lines.append(f"  {process.name}: not running")
                continue
            for cell in process.node.statistics().cells:
                lines.append(f"  {cell.address}: {cell.mailbox.depth} messages, {cell.mailbox.waiting} senders wait")
        lines += ["log:", *(f"  {line}" for line in self.log), "last events:"]
        lines += [f"  {line}" for line in self.loop.recent]
        return "\n".join(lines)

    def _keep(self, logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        if not self.loop.is_running():
            raise structlog.DropEvent  # logged by a discarded task
        error = line.pop("exc_info", None)
        what = "  ".join(f"{key}={value}" for key, value in line.items() if key != "event")
        trouble = f"  {error!r}" if isinstance(error, BaseException) else ""
        self.log.append(f"{self.loop.time():.3f} {method} {line['event']}  {what}{trouble}")
        raise structlog.DropEvent
