"""Where runs of one seed are to be alike, what else is sent does not change the order in which messages arrive."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from orchestra import Actor, Message, Node, Request, on
from orchestra.testing import settle


class NoteMsg(Message):
    n: int


class WhoMsg(Request[str]):
    """Somebody looks around."""


class Writer(Actor[NoteMsg]):
    def __init__(self, book: list[tuple[str, int]]) -> None:
        self._book = book

    @on(NoteMsg)
    def write(self, msg: NoteMsg) -> None:
        self._book.append((self.me.address.partition("/")[0], msg.n))


class Porter(Actor[WhoMsg]):
    @on(WhoMsg)
    def answer(self, msg: WhoMsg) -> str:
        return self.me.address


async def noted(asked: str | None) -> list[tuple[str, int]]:
    """Tell two nodes in turn, and ask one something else in the same turn of the loop; return who wrote when."""
    book: list[tuple[str, int]] = []
    secret = b"of the test alone".ljust(32)
    async with AsyncExitStack() as stack:
        nodes = [Node("root", listen="memory://inline", secret=secret, deterministic=True)]
        root = await stack.enter_async_context(nodes[0].running())
        for name in ("one", "two"):
            nodes.append(
                Node(name, listen=f"memory://{name}", join="memory://inline", secret=secret, deterministic=True)
            )
            await stack.enter_async_context(nodes[-1].running())
            nodes[-1].spawn("writer", Writer, book)
            nodes[-1].spawn("porter", Porter)
        for n in range(3):
            for name in ("one", "two"):
                root.ref(f"{name}/writer").tell_nowait(NoteMsg(n=n))
            if asked is not None:
                await root.ref(f"{asked}/porter").ask(WhoMsg())
            await settle(*nodes)
    return book


@pytest.mark.parametrize("asked", ["one", "two"])
def test_who_is_asked_something_else_hears_of_the_rest_no_sooner(run: Any, asked: str) -> None:
    assert run(noted(asked)) == run(noted(None)) == [(name, n) for n in range(3) for name in ("one", "two")]
