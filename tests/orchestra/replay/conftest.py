"""Fixtures: small recorded runs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestra import Node
from orchestra.clock import Clock
from orchestra.testing import ManualClock
from orchestra.trace.recording.settings import TraceSettings

Scene = Callable[[Node], Awaitable[Any]]
Recorded = Callable[..., Path]


@pytest.fixture
def recorded(run: Callable[..., Any], tmp_path: Path) -> Recorded:
    """Return what plays a scene on a node of its own, and returns where the trace of it is."""

    def play(
        scene: Scene,
        *,
        mode: Any = "full",
        clock: Clock | None = None,
        deterministic: bool = True,
        run_directory: Path | None = None,
        **settings: Any,
    ) -> Path:
        folder = tmp_path / f"traces-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        time = clock or ManualClock()

        async def main() -> None:
            recorder = TraceSettings(mode=mode, **settings).recorder(
                "here", folder, clock=time, seed=11, deterministic=deterministic, run_directory=run_directory
            )
            node = Node(
                "here", seed=11, clock=time, deterministic=deterministic, recorder=recorder, run_directory=run_directory
            )
            async with node.running():
                await scene(node)

        run(main())
        return folder

    return play


@pytest.fixture
def turns() -> Callable[[int], Awaitable[None]]:
    """Let so many turns of the loop pass."""

    async def pass_(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    return pass_
