"""The event loop of replays."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import orchestra
from orchestra.replay.event_loop import QuietLoop, current_line


def finish(loop: QuietLoop, main: Any) -> Any:
    task = loop.create_task(main)
    loop.run_ready()
    while not task.done():
        loop.fire_timer()
        loop.run_ready()
    return task.result()


def test_time_passes_only_from_timer_to_timer() -> None:
    loop = QuietLoop()

    async def main() -> list[float]:
        times = [loop.time()]
        for delay in (5.0, 0.0, 2.5):
            await asyncio.sleep(delay)
            times.append(loop.time())
        return times

    assert finish(loop, main()) == [0.0, 5.0, 5.0, 7.5]


def test_timeouts_gather_and_tasks_work_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = QuietLoop()
    unhandled: list[dict[str, Any]] = []
    monkeypatch.setattr(loop, "call_exception_handler", unhandled.append)
    order: list[str] = []

    async def one(name: str, delay: float) -> str:
        await asyncio.sleep(delay)
        order.append(name)
        return name

    async def main() -> list[str]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await asyncio.sleep(9.0)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(one("grouped", 0.5))
        return [*await asyncio.gather(one("slow", 3.0), one("quick", 1.0)), task.result()]

    assert finish(loop, main()) == ["slow", "quick", "grouped"]
    assert order == ["grouped", "quick", "slow"]
    assert loop.time() == 4.5
    assert loop.next_timer == 9.0 or loop.next_timer is None
    assert not unhandled


def test_the_loop_runs_inside_another_loop_as_in_a_notebook() -> None:
    async def outside() -> str:
        loop = QuietLoop()

        async def main() -> str:
            assert asyncio.get_running_loop() is loop
            await asyncio.sleep(1.0)
            return "inside"

        said: str = finish(loop, main())
        assert asyncio.get_running_loop() is not loop
        return said

    assert asyncio.run(outside()) == "inside"


def test_the_loop_has_no_threads() -> None:
    with pytest.raises(NotImplementedError, match=r"self\.offload"):
        finish(QuietLoop(), asyncio.to_thread(print))


@pytest.mark.parametrize(("module", "found"), [("experiment_x", True), ("orchestra.x", False), ("asyncio.x", False)])
def test_the_runtime_is_recognised_by_the_names_of_its_modules(module: str, found: bool) -> None:
    """An experiment may lie in the folder of the package, as those in the wheel do."""
    file = Path(orchestra.__file__).parent / "experiments" / "x.py"
    namespace: dict[str, Any] = {"__name__": module, "current_line": current_line, "lines": []}
    exec(compile("def act():\n    lines.append(current_line())\n", str(file), "exec"), namespace)
    loop = QuietLoop()
    loop.call_soon(namespace["act"])
    loop.run_ready()
    (line,) = namespace["lines"]
    assert line.endswith("x.py:2 in act") == found


@pytest.mark.parametrize("reverse", [False, True])
def test_a_set_of_tasks_and_futures_has_the_order_of_their_creation_or_the_reverse(
    monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    monkeypatch.setattr(QuietLoop, "reverse", reverse)
    loop = QuietLoop()

    async def number(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def main() -> tuple[list[int], list[int]]:
        done, _ = await asyncio.wait([asyncio.create_task(number(n)) for n in range(20)])
        futures = [asyncio.get_running_loop().create_future() for _ in range(20)]
        return [task.result() for task in done], [futures.index(future) for future in set(futures)]

    for order in finish(loop, main()):
        assert order == (list(reversed(range(20))) if reverse else list(range(20)))
