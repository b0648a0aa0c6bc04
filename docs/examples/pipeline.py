"""A pipeline: a source, a stage that fails at each unreadable line and is started again, and a sum.

orchestra run docs/examples/pipeline.py --lines 1000
"""

from typing import Annotated, ClassVar

from pydantic import Field

from orchestra import Actor, Message, Ref, Restart, Supervision, Topology, on


class LineMsg(Message):
    """A line of text."""

    text: str


class NumberMsg(Message):
    """The number of a line."""

    value: float


class EndMsg(Message):
    """The end: no more messages follow."""


class NextMsg(Message):
    """Send the next line; the source sends it to itself."""


class Source(Actor[NextMsg]):
    """Sends lines; every tenth line is not a number."""

    def __init__(self, lines: int, to: Ref[LineMsg | EndMsg]) -> None:
        self._lines = lines
        self._to = to
        self._told = 0

    async def started(self) -> None:
        await self.me.tell(NextMsg())

    @on(NextMsg)
    async def go_on(self, msg: NextMsg) -> None:
        if self._told == self._lines:
            await self._to.tell(EndMsg())
            return
        self._told += 1
        await self._to.tell(LineMsg(text="oops" if self._told % 10 == 0 else str(self._told)))
        await self.me.tell(NextMsg())


class Parser(Actor[LineMsg | EndMsg]):
    """Reads lines. It does not catch what goes wrong: its supervision says what follows."""

    supervision: ClassVar[Supervision] = Restart(limit=10_000, within=60.0, backoff=0.001, backoff_max=0.001)

    def __init__(self, to: Ref[NumberMsg | EndMsg]) -> None:
        self._to = to

    @on(LineMsg)
    async def parse(self, msg: LineMsg) -> None:
        await self._to.tell(NumberMsg(value=float(msg.text)))

    @on(EndMsg)
    async def end(self, msg: EndMsg) -> None:
        await self._to.tell(msg)


class Total(Actor[NumberMsg | EndMsg]):
    """Adds the numbers, and prints the sum at the end."""

    def __init__(self) -> None:
        self._numbers = 0
        self._sum = 0.0

    @on(NumberMsg)
    def add(self, msg: NumberMsg) -> None:
        self._numbers += 1
        self._sum += msg.value

    @on(EndMsg)
    def end(self, msg: EndMsg) -> None:
        print(f"{self._numbers} numbers, {self._sum:g} together")
        self.stop()


def experiment(*, lines: Annotated[int, Field(ge=0, description="lines to read")] = 50) -> Topology:
    """Lay out the pipeline, from its end to its beginning: each stage is handed the next one's ref."""
    topology = Topology("pipeline")
    here = topology.node("here")
    total = here.spawn("total", Total)
    parser = here.spawn("parser", Parser, to=total)
    here.spawn("source", Source, lines, to=parser)
    topology.until(total)
    return topology
