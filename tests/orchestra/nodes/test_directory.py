"""The directory: who asks for a node is answered, now, later, or with an error."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestra import Unreachable
from orchestra.nodes.directory import Directory, NodeEntry


def entry(node: str, address: str, incarnation: bytes = b"1") -> NodeEntry:
    return NodeEntry(node=node, address=address, incarnation=incarnation, host="here")


def register(directory: Directory, node: str, address: str) -> None:
    directory.register(entry(node, address), via=node)


async def address_of(directory: Directory, node: str) -> str:
    return (await directory.lookup(node)).address


def test_a_registered_node_is_found_at_once(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        register(directory, "leaf", "tcp://127.0.0.1:1")
        assert await address_of(directory, "leaf") == "tcp://127.0.0.1:1"

    run(main())


def test_who_asks_early_is_answered_when_the_node_registers(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.expect(["leaf"])
        asking = [directory.lookup("leaf") for _ in range(2)]
        assert not any(future.done() for future in asking)
        register(directory, "leaf", "here")
        assert [each.address for each in await asyncio.gather(*asking)] == ["here", "here"]

    run(main())


def test_a_node_that_went_away_is_waited_for_again(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        register(directory, "leaf", "old")
        directory.unregister("leaf", via="leaf")
        asking = directory.lookup("leaf")
        register(directory, "leaf", "new")
        assert (await asking).address == "new"

    run(main())


def test_a_node_that_is_given_up_fails_who_waits_and_who_asks_later(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.expect(["leaf", "root"])
        asking = directory.lookup("leaf")
        directory.give_up("leaf", "died four times")
        with pytest.raises(Unreachable, match="node 'leaf' is gone: died four times"):
            await asking
        with pytest.raises(Unreachable, match="there is no node 'leaf'; the nodes of this run are root"):
            await directory.lookup("leaf")

    run(main())


def test_a_node_that_nobody_expects_is_an_error_at_once(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.expect(["root"])
        with pytest.raises(Unreachable, match="there is no node 'moon'; the nodes of this run are root"):
            await directory.lookup("moon")

    run(main())


def test_a_closed_directory_lets_nobody_wait(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.expect(["root", "leaf"])
        register(directory, "root", "here")
        asking = directory.lookup("leaf")
        directory.close()
        with pytest.raises(Unreachable, match="node 'leaf' is gone: the run is over"):
            await asking
        with pytest.raises(Unreachable, match="there is no node 'leaf'"):
            await directory.lookup("leaf")
        assert await address_of(directory, "root") == "here"

    run(main())


def test_who_gave_up_waiting_is_passed_over(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        first, second = directory.lookup("leaf"), directory.lookup("leaf")
        first.cancel()
        register(directory, "leaf", "here")
        assert (await second).address == "here"

    run(main())


def test_an_entry_is_removed_by_whoever_announced_it_and_for_the_incarnation_it_names() -> None:
    directory = Directory()
    directory.register(entry("leaf", "there", b"2"), via="agent-1")
    directory.unregister("leaf", via="agent-2")
    directory.unregister("leaf", via="agent-1", incarnation=b"1")
    assert directory.entries["leaf"].incarnation == b"2"
    assert not directory.has_ended("leaf", b"2")
    directory.unregister_all(via="agent-1")
    assert directory.entries == {}
    assert directory.has_ended("leaf", b"2")


def test_changes_name_the_entry_before_and_who_announced_them() -> None:
    directory, heard = Directory(), []
    directory.on_change = lambda node, before, via, gone: heard.append((node, before and before.incarnation, via, gone))
    directory.register(entry("leaf", "there", b"1"), via="a")
    directory.register(entry("leaf", "there", b"2"), via="b")
    directory.unregister("leaf", via="b")
    directory.give_up("leaf", "died")
    assert heard == [
        ("leaf", None, "a", ""),
        ("leaf", b"1", "b", ""),
        ("leaf", b"2", "b", ""),
        ("leaf", None, "", "node 'leaf' is gone: died"),
    ]
    assert directory.has_ended("leaf", b"2")
