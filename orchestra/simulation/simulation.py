"""A simulation: nodes, a network and time, all in one process, and all decided by one number."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog
from structlog.typing import EventDict, WrappedLogger

from orchestra.errors import UsageError
from orchestra.simulation.dice import Dice
from orchestra.simulation.loop import SimulatedLoop, where
from orchestra.simulation.network import PREFIX, Network
from orchestra.simulation.process import Process, Setup

T = TypeVar("T")

LOG_LINES = 1000
LOOK_S = 0.1
"""How often `until` looks."""
HEALED_S = 6.0
"""How long a random partition lasts, at most."""
STILL_S = 4.0
"""How long a process stands still at random, at most."""


class Simulation:
    """A seeded world for nodes: `Simulation(7).run(main())`.

    Everything that processes, threads, clocks and networks leave open is decided by the seed: who runs next, how long
    each byte takes, what breaks when. The same seed does the same again, on every machine.

    Args:
        seed: decides.
        limit: virtual seconds after which a run that has not come to an end has failed.
    """

    def __init__(self, seed: int, *, limit: float = 3600.0) -> None:
        self.seed = seed
        self.dice = Dice(seed)
        self.loop = SimulatedLoop(self.dice)
        self.network = Network(self.loop, self.dice)
        self.processes: dict[str, Process] = {}
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        """The last lines that the nodes logged."""
        self._secret = self.dice.bytes(32)
        self.loop.report = self.report
        self.loop.until = limit

    @property
    def digest(self) -> str:
        """A fingerprint of all that has happened: every callback, every byte, and their order."""
        return self.loop.digest

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, in no time, and return its result. What still runs then vanishes. Once only.

        Raises:
            SimulationStuck: it waits for what will never happen.
            Exception: `main` raised it, or a process that must not fail did, or a callback.
        """
        before = structlog.get_config() if structlog.is_configured() else None
        structlog.configure(
            processors=[self._keep],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
            cache_logger_on_first_use=False,
        )
        try:
            task = self.loop.create_task(main, name="main", context=self.loop.outside.context.copy())
            result = self.loop.run_until_complete(task)
            self.loop.check()
            return result
        finally:
            self.loop.bury()
            self.loop.close()
            if before is None:
                structlog.reset_defaults()
            else:
                structlog.configure(**before)

    # Its processes

    def node(
        self,
        name: str,
        setup: Setup | None = None,
        *,
        may_fail: bool = False,
        kept: bool = False,
        **options: Any,
    ) -> Process:
        """Plan a process that hosts the node `name`; the first is the root, which the others join.

        Args:
            name: the node's.
            setup: spawns its actors, each time that it starts.
            may_fail: whether the simulation goes on when the node fails, as a process of a run does.
            kept: whether it is started again, about a second later, when it has died or failed, as a launcher does.
            options: other arguments of `Node`.

        Raises:
            UsageError: the name is taken.
        """
        if name in self.processes:
            raise UsageError(f"this simulation has a node {name!r} already")
        root = next(iter(self.processes), None)
        given = {
            "listen": f"{PREFIX}{name}",
            "join": None if root is None else f"{PREFIX}{root}",
            "secret": self._secret,
            "seed": self.seed,
        }
        process = Process(self.loop, name, setup, may_fail=may_fail, kept=kept, options=given | options)
        self.processes[name] = process
        return process

    async def start(self) -> None:
        """Start the root, then all others at once; return when all are open.

        Raises:
            ProcessDied: one of them ended as it began.
        """
        root, *others = self.processes.values()
        await root.start()
        await asyncio.gather(*(process.start() for process in others))

    async def until(self, condition: Callable[[], bool], *, within: float = 60.0) -> None:
        """Wait until `condition` holds; it is looked at every now and then.

        Raises:
            SimulationStuck: it does not within so many virtual seconds; the text says who waits for what.
        """
        end = self.loop.time() + within
        while not condition():
            if self.loop.time() > end:
                raise self.loop.stuck(f"what was waited for has not come about within {within:g} s")
            await asyncio.sleep(LOOK_S)

    # Faults

    def cut(self, one: Process, other: Process) -> int:
        """Break every connection between two processes; return how many there were."""
        return self.network.cut(one.name, other.name)

    def partition(self, one: Process, other: Process, *, one_way: bool = False) -> None:
        """Let no packet through from `one` to `other`, nor, unless `one_way`, back, until `heal`."""
        self.network.block(one.name, other.name)
        if not one_way:
            self.network.block(other.name, one.name)

    def heal(self, one: Process | None = None, other: Process | None = None) -> None:
        """Let packets through again, between two processes or everywhere."""
        if one is None or other is None:
            self.network.unblock_all()
        else:
            self.network.unblock(one.name, other.name)
            self.network.unblock(other.name, one.name)

    def slow_down(self, one: Process, other: Process, seconds: float) -> None:
        """Let bytes take `seconds` between two processes, on average, each way."""
        self.network.slow_down(one.name, other.name, seconds)

    @asynccontextmanager
    async def faults(
        self,
        *,
        cuts: float = 0.0,
        partitions: float = 0.0,
        stills: float = 0.0,
        kills: float = 0.0,
    ) -> AsyncIterator[None]:
        """While the block runs, let things go wrong at random. Packets get through again when it ends.

        Args:
            cuts: connections cut per second.
            partitions: pairs of processes, per second, between which no packet gets through for up to 6 seconds, one
                way or both.
            stills: processes per second that stand still for up to 4 seconds.
            kills: processes per second, of those that are kept, that are killed, loudly or silently.
        """
        busy = [
            self.loop.create_task(self._repeat(rate, fault), name="faults")
            for rate, fault in (
                (cuts, self._cut_one),
                (partitions, self._partition_some),
                (stills, self._stop_one),
                (kills, self._kill_one),
            )
            if rate > 0
        ]
        try:
            yield
        finally:
            for task in busy:
                task.cancel()
            ends = await asyncio.gather(*busy, return_exceptions=True)
            self.heal()
            for error in ends:
                if isinstance(error, Exception):
                    raise error

    async def _repeat(self, rate: float, fault: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self.dice.exponential(1.0 / rate))
            await fault()

    async def _cut_one(self) -> None:
        if links := self.network.links:
            self.network.cut(*self.dice.choice(links))

    async def _partition_some(self) -> None:
        if not (links := self.network.links):
            return
        one, other = self.dice.choice(links)
        ways = self.dice.choice((((one, other),), ((other, one),), ((one, other), (other, one))))
        for source, target in ways:
            self.network.block(source, target)
        await asyncio.sleep(self.dice.uniform(0.0, HEALED_S))
        for source, target in ways:
            self.network.unblock(source, target)

    async def _stop_one(self) -> None:
        self.dice.choice(list(self.processes.values())).stand_still(self.dice.uniform(0.0, STILL_S))

    async def _kill_one(self) -> None:
        if mortal := [process for process in self.processes.values() if process.kept and process.running]:
            self.dice.choice(mortal).kill(silently=self.dice.chance(0.3))

    # What it looks like

    def report(self) -> str:
        """Say who waits for what, how full the mailboxes are, what was logged and what happened last."""
        lines = ["tasks:"]
        for strand, tasks in self.loop.waiting().items():
            lines += [f"  {strand}: {task.get_name()} in {where(task)}" for task in tasks]
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
            raise structlog.DropEvent  # of what never ran on; see SimulatedLoop.bury
        error = line.pop("exc_info", None)
        what = "  ".join(f"{key}={value}" for key, value in line.items() if key != "event")
        trouble = f"  {error!r}" if isinstance(error, BaseException) else ""
        self.log.append(f"{self.loop.time():.3f} {method} {line['event']}  {what}{trouble}")
        raise structlog.DropEvent
