"""The directory: who asks for a node is answered, now, later, or with an error."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestra import Unreachable
from orchestra.nodes.directory import Directory


def test_a_registered_node_is_found_at_once(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.register("leaf", "tcp://127.0.0.1:1")
        assert await directory.lookup("leaf") == "tcp://127.0.0.1:1"

    run(main())


def test_who_asks_early_is_answered_when_the_node_registers(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.expect(["leaf"])
        asking = [directory.lookup("leaf") for _ in range(2)]
        assert not any(future.done() for future in asking)
        directory.register("leaf", "here")
        assert await asyncio.gather(*asking) == ["here", "here"]

    run(main())


def test_a_node_that_went_away_is_waited_for_again(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        directory.register("leaf", "old")
        directory.unregister("leaf")
        asking = directory.lookup("leaf")
        directory.register("leaf", "new")
        assert await asking == "new"

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
        directory.register("root", "here")
        asking = directory.lookup("leaf")
        directory.close()
        with pytest.raises(Unreachable, match="node 'leaf' is gone: the run is over"):
            await asking
        with pytest.raises(Unreachable, match="there is no node 'leaf'"):
            await directory.lookup("leaf")
        assert await directory.lookup("root") == "here"

    run(main())


def test_who_gave_up_waiting_is_passed_over(run: Callable[..., Any]) -> None:
    async def main() -> None:
        directory = Directory()
        first, second = directory.lookup("leaf"), directory.lookup("leaf")
        first.cancel()
        directory.register("leaf", "here")
        assert await second == "here"

    run(main())
