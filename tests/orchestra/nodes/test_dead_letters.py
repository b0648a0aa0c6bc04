"""Dead letters: all are counted; what is remembered and logged of them is bounded, whatever names peers make up."""

from collections.abc import Callable
from typing import Any

from orchestra import Message, Node
from orchestra.nodes.rejections import KINDS, LOGGED, DeadLetters
from orchestra.testing import settle

Run = Callable[..., Any]


class NoteMsg(Message):
    n: int


def test_the_first_of_each_kind_for_each_recipient_are_logged() -> None:
    letters = DeadLetters()
    for recipient, kind in (("a/x", "OneMsg"), ("a/x", "OtherMsg"), ("a/y", "OneMsg")):
        assert [letters.count(recipient, kind) for _ in range(LOGGED + 2)] == [True] * LOGGED + [False] * 2
    assert (letters.total, len(letters.counts.counted())) == (3 * (LOGGED + 2), 3)


def test_however_many_names_there_are_few_are_remembered_and_few_are_logged() -> None:
    letters = DeadLetters()
    logged = sum(letters.count(f"a/{number}", "OneMsg") for number in range(100_000))
    assert (letters.total, len(letters.counts.counted())) == (100_000, KINDS + 1)
    assert logged == KINDS + LOGGED
    assert letters.count("a/0", "OneMsg")  # those that were known before are told apart as ever


def test_a_peer_that_makes_up_names_fills_neither_the_memory_nor_the_log_of_a_node(run: Run, address_of: Any) -> None:
    async def main() -> None:
        async with (
            Node("root", listen=address_of("memory")).running() as root,
            Node("leaf", join=root.listening, secret=root.secret).running() as leaf,
        ):
            for number in range(2 * KINDS):
                await leaf.ref(f"root/nobody-{number}").tell(NoteMsg(n=number))
            await settle(root, leaf)
            assert root.statistics().dead_letters == 2 * KINDS
            assert len(root.accounts.dead_letters.counts.counted()) == KINDS + 1

    run(main())
