"""What a type checker says: telling an actor what it does not understand is refused before anything runs."""

import re
import textwrap
from pathlib import Path

import pytest
from mypy import api

SNIPPET = '''
import asyncio
from pathlib import Path

from orchestra import Actor, Message, Node, Ref, Request, on


class NoteMsg(Message):
    n: int


class OtherMsg(Message):
    n: int


class TotalMsg(Request[int]):
    """How much is it?"""


class Book(Actor[NoteMsg | TotalMsg]):
    def __init__(self, start: int) -> None:
        self.total = start

    @on(NoteMsg)
    async def note(self, msg: NoteMsg) -> None:
        self.total += msg.n
        await self.me.tell(OtherMsg(n=1))  # E: Argument 1 to "tell" of "Ref" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"
        self.after(1.0, OtherMsg(n=1))  # E: Argument 2 to "after" of "Actor" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"
        self.after(1.0, NoteMsg(n=1))

    @on(TotalMsg)
    def tell_total(self, msg: TotalMsg) -> int:
        return self.total


class Writer(Actor[NoteMsg]):
    def __init__(self, book: Ref[NoteMsg]) -> None:
        self.book = book

    @on(NoteMsg)
    async def write(self, msg: NoteMsg) -> None:
        await self.book.tell(msg)
        await self.book.tell(TotalMsg())  # E: Argument 1 to "tell" of "Ref" has incompatible type "TotalMsg"; expected "NoteMsg"
        child = self.spawn("child", Book, 1)
        await child.tell(OtherMsg(n=1))  # E: Argument 1 to "tell" of "Ref" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"
        far = await self.spawn_on("host-1", "far", Book, "one")  # E: Argument 4 to "spawn_on" of "Actor" has incompatible type "str"; expected "int"
        await far.tell(OtherMsg(n=1))  # E: Argument 1 to "tell" of "Ref" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"


class Wrong(Actor[NoteMsg]):
    @on(NoteMsg)
    def note(self, msg: OtherMsg) -> None: ...  # E@-1: Argument 1 has incompatible type "Callable[[Wrong, OtherMsg], None]"; expected "Callable[[Wrong, NoteMsg], None]"


async def main() -> None:
    async with Node("here").running() as node:
        book = node.spawn("book", Book, 0)
        await book.tell(NoteMsg(n=1))
        await book.tell(OtherMsg(n=1))  # E: Argument 1 to "tell" of "Ref" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"
        book.tell_nowait(OtherMsg(n=1))  # E: Argument 1 to "tell_nowait" of "Ref" has incompatible type "OtherMsg"; expected "NoteMsg | TotalMsg"
        total: int = await book.ask(TotalMsg())
        text: str = await book.ask(TotalMsg())  # E: Argument 1 to "ask" of "Ref" has incompatible type "TotalMsg"; expected "Request[str]"
        await book.ask(NoteMsg(n=1))  # E: Argument 1 to "ask" of "Ref" has incompatible type "NoteMsg"; expected "Request[Never]"
        node.spawn("writer", Writer, book)  # who understands more will do
        node.spawn("other", Book, "zero")  # E: Argument 3 to "spawn" of "Node" has incompatible type "str"; expected "int"
        less: Ref[NoteMsg] = book
        more: Ref[NoteMsg | TotalMsg] = less  # E: Incompatible types in assignment (expression has type "Ref[NoteMsg]", variable has type "Ref[NoteMsg | TotalMsg]")


asyncio.run(main())
'''  # noqa: E501 (an error belongs on its line)


@pytest.mark.slow
def test_mypy_refuses_exactly_what_an_actor_does_not_understand(tmp_path: Path) -> None:
    file = tmp_path / "snippet.py"
    file.write_text(textwrap.dedent(SNIPPET))
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nplugins = pydantic.mypy\nfollow_imports = silent\n")
    said, trouble, _ = api.run(
        [str(file), f"--config-file={tmp_path}/mypy.ini", f"--cache-dir={tmp_path}/cache", "--no-error-summary"]
    )
    assert not trouble
    got = {}
    for line in said.splitlines():
        match = re.fullmatch(r".*snippet\.py:(\d+): error: (.*?)  \[[\w-]+\]", line)
        if match:
            got[int(match[1])] = match[2].replace("snippet.", "")
    expected = {}
    for number, line in enumerate(SNIPPET.splitlines(), start=1):
        if match := re.search(r"# E(@-1)?: (.*)$", line):
            expected[number - (match[1] is not None)] = match[2]
    assert got == expected
