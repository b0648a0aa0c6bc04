"""Contracts and handlers: a class that contradicts itself does not import."""

import subprocess
import sys
from pathlib import Path
from typing import TypeVar

import pytest

from orchestra import Actor, HandlerError, Message, TerminatedMsg, on

M = TypeVar("M", bound=Message)


class HelloMsg(Message):
    """Hello."""


class ByeMsg(Message):
    """Bye."""


def test_a_promise_without_a_handler_is_refused() -> None:
    with pytest.raises(HandlerError, match=r"Silent promises to handle ByeMsg, HelloMsg, but has no @on for it$"):

        class Silent(Actor[HelloMsg | ByeMsg]):
            pass


def test_a_handler_without_a_promise_is_refused() -> None:
    with pytest.raises(HandlerError, match=r"Eager has an @on for ByeMsg, which its contract does not list$"):

        class Eager(Actor[HelloMsg]):
            @on(HelloMsg)
            def hello(self, msg: HelloMsg) -> None: ...

            @on(ByeMsg)
            def bye(self, msg: ByeMsg) -> None: ...


def test_two_handlers_of_one_message_are_refused() -> None:
    with pytest.raises(HandlerError, match=r"Torn handles HelloMsg twice: in first and in second$"):

        class Torn(Actor[HelloMsg]):
            @on(HelloMsg)
            def first(self, msg: HelloMsg) -> None: ...

            @on(HelloMsg)
            def second(self, msg: HelloMsg) -> None: ...


def test_on_takes_message_classes_only() -> None:
    with pytest.raises(HandlerError, match=r"@on takes a message class, got 'HelloMsg'"):
        on("HelloMsg")  # type: ignore[arg-type]  # the point of the test


def test_a_contract_names_classes_not_strings() -> None:
    with pytest.raises(HandlerError, match="name the class itself"):

        class Vague(Actor["HelloMsg"]):
            @on(HelloMsg)
            def hello(self, msg: HelloMsg) -> None: ...


def test_a_contract_lists_messages_only() -> None:
    with pytest.raises(HandlerError, match=r"lists <class 'int'> among its messages, which is no message class"):

        class Numb(Actor[int]):  # type: ignore[type-var]  # the point of the test
            pass


def test_system_messages_may_be_handled_without_being_listed() -> None:
    class Mourner(Actor[HelloMsg]):
        @on(HelloMsg)
        def hello(self, msg: HelloMsg) -> None: ...

        @on(TerminatedMsg)
        def mourn(self, msg: TerminatedMsg) -> None: ...

    assert dict(Mourner.handlers) == {HelloMsg: "hello", TerminatedMsg: "mourn"}


def test_a_subclass_inherits_contract_and_handlers_and_may_override_them() -> None:
    class Polite(Actor[HelloMsg]):
        @on(HelloMsg)
        def hello(self, msg: HelloMsg) -> None: ...

    class Louder(Polite):
        @on(HelloMsg)
        def hello(self, msg: HelloMsg) -> None: ...

    assert dict(Louder.handlers) == {HelloMsg: "hello"}


def test_a_generic_actor_is_held_to_its_contract_once_it_has_one() -> None:
    class Relay(Actor[M]):
        """For any message."""

    assert dict(Relay.handlers) == {}
    with pytest.raises(HandlerError, match="Concrete promises to handle HelloMsg"):

        class Concrete(Relay[HelloMsg]):
            pass


WRONG = """
from orchestra import Actor, Message, Node, Ref, Request, on

class HelloMsg(Message):
    name: str

class CountMsg(Request[int]):
    pass

class StrangeMsg(Message):
    pass

class Greeter(Actor[HelloMsg | CountMsg]):
    def __init__(self, *, greeting: str) -> None:
        self.greeting = greeting

    @on(HelloMsg)
    def hello(self, msg: HelloMsg) -> None: ...

    @on(CountMsg)
    def count(self, msg: CountMsg) -> int:
        return 1

async def main(node: Node) -> None:
    ref = node.spawn("greeter", Greeter, greeting="hi")
    await ref.tell(HelloMsg(name="a"))
    narrow: Ref[HelloMsg] = ref
    number: int = await ref.ask(CountMsg())
    await ref.tell(StrangeMsg())  # refused: arg-type
    await narrow.tell(StrangeMsg())  # refused: arg-type
    text: str = await ref.ask(CountMsg())  # refused: arg-type
    node.spawn("other", Greeter, greetin="hi")  # refused: call-arg
    wide: Ref[HelloMsg | StrangeMsg] = ref  # refused: assignment

class Confused(Actor[HelloMsg]):
    @on(HelloMsg)  # refused: arg-type
    def hello(self, msg: StrangeMsg) -> None: ...
"""


@pytest.mark.slow
def test_the_type_checker_refuses_what_an_actor_does_not_understand(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", f"--cache-dir={tmp_path}", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = {(int(line.split(":")[1]), line.rsplit("[", 1)[1][:-1]) for line in said.splitlines() if ": error:" in line}
    lines = WRONG.splitlines()
    expected = {(n, line.split("# refused: ")[1]) for n, line in enumerate(lines, 1) if "# refused: " in line}
    assert {(n, code) for n, code in found} == expected, said
