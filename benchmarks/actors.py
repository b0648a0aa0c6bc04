"""What actors cost in one process: telling, spawning, doing nothing.

    python benchmarks/actors.py

- tell:        a handler sends an existing message to another actor of its node; timed until all are handled.
  Baselines:   an unbounded `asyncio.Queue` between two tasks, `put_nowait` and `await get()`; the same bounded, with
               `await put()`; and a bare deque whose reader waits on a future.
- spawn:       from the spawning of the first actor until all actors have started; no baseline.
- idle:        processor time that a node with idle actors uses while nothing happens.

There are two messages: one of six plain fields as in training, two of them texts, which a mailbox weighs; and one of a
single number. Each measurement alternates with its baselines several times, and medians are printed. The first two are
measured in processor time, which other load on the machine affects less, but still affects.
"""

import argparse
import asyncio
import statistics
import time
from collections import deque
from collections.abc import Awaitable, Callable

from orchestra import Actor, Message, Node, Ref, Request, on
from orchestra.runs.runner import run_loop, tuned_gc
from orchestra.testing import settle


class StepMsg(Message):
    """A small message like those of training."""

    agent_id: str
    step: int
    reward: float
    done: bool
    policy: str
    ts: float


class NumberMsg(Message):
    """The smallest message."""

    n: int


class EchoMsg(Request[int]):
    """Answered with its number."""

    n: int


class TellMsg(Request[float]):
    """Request to send `count` messages to the sink; answered with the seconds until all were handled."""

    count: int
    numbers: bool


STEP = StepMsg(agent_id="agent-3", step=1, reward=0.5, done=False, policy="qmix", ts=1e9)
NUMBER = NumberMsg(n=1)


class Sink(Actor[StepMsg | NumberMsg | EchoMsg]):
    """Handles every message, and answers requests."""

    @on(StepMsg)
    def step(self, msg: StepMsg) -> None:
        """Do nothing."""

    @on(NumberMsg)
    def number(self, msg: NumberMsg) -> None:
        """Do nothing."""

    @on(EchoMsg)
    def echo(self, msg: EchoMsg) -> int:
        return msg.n


class Source(Actor[TellMsg]):
    """Sends messages to a sink, from within its handler."""

    def __init__(self, sink: Ref[StepMsg | NumberMsg | EchoMsg]) -> None:
        self._sink = sink

    @on(TellMsg)
    async def tell(self, msg: TellMsg) -> float:
        sink, message = self._sink, NUMBER if msg.numbers else STEP
        since = time.process_time()
        for _ in range(msg.count):
            await sink.tell(message)
        await sink.ask(EchoMsg(n=0))  # arrives behind all others
        return time.process_time() - since


async def queued(count: int) -> float:
    """Return messages per second through an unbounded queue."""
    queue: asyncio.Queue[StepMsg | None] = asyncio.Queue()

    async def put() -> None:
        for _ in range(count):
            queue.put_nowait(STEP)
        queue.put_nowait(None)

    since = time.process_time()
    putting = asyncio.create_task(put())
    while await queue.get() is not None:
        pass
    await putting
    return count / (time.process_time() - since)


async def queued_within_bounds(count: int) -> float:
    """Return messages per second through a queue with the capacity of a mailbox."""
    queue: asyncio.Queue[StepMsg | None] = asyncio.Queue(4096)

    async def put() -> None:
        for _ in range(count):
            await queue.put(STEP)
        await queue.put(None)

    since = time.process_time()
    putting = asyncio.create_task(put())
    while await queue.get() is not None:
        pass
    await putting
    return count / (time.process_time() - since)


async def through_a_deque(count: int) -> float:
    """Return messages per second through a deque, whose reader waits on a future when it is empty."""
    items: deque[StepMsg] = deque()
    loop = asyncio.get_running_loop()
    news: asyncio.Future[None] | None = None

    async def put() -> None:
        nonlocal news
        for _ in range(count):
            items.append(STEP)
            if news is not None:
                news.set_result(None)
                news = None

    since = time.process_time()
    putting = asyncio.create_task(put())
    taken = 0
    while taken < count:
        if not items:
            news = loop.create_future()
            await news
        items.popleft()
        taken += 1
    await putting
    return count / (time.process_time() - since)


async def tells(count: int, repeats: int) -> None:
    """Measure telling, and print a line for each message and baseline."""
    async with Node("here").running() as node:
        source = node.spawn("source", Source, node.spawn("sink", Sink))

        async def told(numbers: bool) -> float:
            return count / await source.ask(TellMsg(count=count, numbers=numbers))

        async def steps() -> float:
            return await told(False)

        async def numbers() -> float:
            return await told(True)

        ways: dict[str, Callable[[], Awaitable[float]]] = {
            "tell, six fields": steps,
            "tell, one number": numbers,
            "asyncio.Queue, unbounded": lambda: queued(count),
            "asyncio.Queue, bounded": lambda: queued_within_bounds(count),
            "deque and future": lambda: through_a_deque(count),
        }
        measured: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(repeats + 1):
            for name, way in ways.items():
                rate = await way()
                if repeat:  # the first is to warm up
                    measured[name].append(rate)
    medians = {name: statistics.median(rates) for name, rates in measured.items()}
    for name, rate in medians.items():
        print(f"{name:28} {rate:>12,.0f} /s {rate / medians['asyncio.Queue, unbounded']:>8.2f} of the unbounded queue")


async def spawns(count: int, idle_s: float) -> None:
    """Measure spawning and idling, and print a line for each."""
    async with Node("here").running() as node:
        since = time.process_time()
        for n in range(count):
            node.spawn(f"sink-{n}", Sink)
        await settle(node)
        print(f"{f'spawn {count:,} actors':28} {time.process_time() - since:>12.2f} s")
        since = time.process_time()
        await asyncio.sleep(idle_s)
        used = time.process_time() - since
        print(f"{f'{count:,} idle actors, {idle_s:g} s':28} {used * 1e3:>12.2f} ms of processor time")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300_000, help="messages of each measurement")
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each")
    parser.add_argument("--actors", type=int, default=10_000, help="actors to spawn")
    parser.add_argument("--idle", type=float, default=2.0, help="seconds to do nothing")
    options = parser.parse_args()
    with tuned_gc():
        run_loop(tells(options.count, options.repeats))
        run_loop(spawns(options.actors, options.idle))


if __name__ == "__main__":
    main()
