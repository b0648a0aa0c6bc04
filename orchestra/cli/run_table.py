"""The tables of `orchestra ps` and `orchestra top` on a terminal: once, or live.

The commands import this module when they have parsed their flags: to connect to a run takes the whole runtime, and
`--help` does without.
"""

import asyncio
import contextlib
import json
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestra import log
from orchestra.errors import OrchestraError, UsageError
from orchestra.monitoring import view
from orchestra.monitoring.hosts_view import HostRow, host_rows
from orchestra.monitoring.observer import ClusterStatus, connected
from orchestra.monitoring.view import Order
from orchestra.runs.join_file import JoinInfo
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.runner import run_loop
from orchestra.runs.scaling import ScaledMsg

PIPED_COLUMNS = 160
"""Width of the lines where stdout is no terminal."""

_ORDERS: dict[str, Order] = {"t": "tree", "d": "depth", "b": "busy", "r": "rate"}


def print_once(
    run: RunDirectory, info: JoinInfo, seconds: float, *, slot: int | None, as_json: bool, own: bool
) -> None:
    """Print the table, with rates measured over `seconds`, as JSON with the nodes of all hosts.

    Args:
        run: the run.
        info: how to join it.
        seconds: time between two looks at the run.
        slot: the only host whose nodes are shown; None for the nodes of a few hosts.
        as_json: print JSON.
        own: include the actors of the runtime itself.
    """
    with looking_into(run):
        shown, hosts, left_out = run_loop(_measured_rows(info, seconds, slot, all_hosts=as_json and slot is None))
    if as_json:
        print(json.dumps(view.as_json(str(run.path), shown, hosts), indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if console.is_terminal else PIPED_COLUMNS
    console.print(Text(str(run.path), style="dim"))
    for line in view.lines(shown, width, own=own, hosts=hosts):
        console.print(line)
    if left_out:
        console.print(Text(f"the nodes of {left_out} more hosts: --host SLOT", style="dim"))


def watch(run: RunDirectory, info: JoinInfo, seconds: float, keys: str) -> str:
    """Show the table live, updated every `seconds`, above a line about the keys; return how it ended, in a sentence."""
    with looking_into(run):
        return run_loop(_Screen(str(run.path), keys).watch(info, seconds))


def scale_run(run: RunDirectory, info: JoinInfo, group: str, replicas: int) -> str:
    """Change the number of replicas of a group, and return in words what has changed."""

    async def scaled() -> ScaledMsg:
        async with connected(info) as observer:
            return await observer.scale(group, replicas)

    with looking_into(run):
        answer = run_loop(scaled())
    if not (answer.started or answer.stopped):
        return f"{answer.group}: {replicas} already"
    changes = [f"{verb} {', '.join(n)}" for verb, n in (("started", answer.started), ("stopped", answer.stopped)) if n]
    return f"{answer.group}: {answer.before} -> {replicas}; {'; '.join(changes)}"


def leave_run(run: RunDirectory, info: JoinInfo, slot: int) -> None:
    """Have a host leave a run, and wait until its agent has ended."""

    async def left() -> None:
        async with connected(info) as observer:
            await observer.leave(slot)

    with looking_into(run):
        run_loop(left())


@contextlib.contextmanager
def looking_into(run: RunDirectory) -> Iterator[None]:
    """While the block runs, discard logs, and name the run in an error. A `UsageError` stays as it is."""
    with log.configured(None, node="observer", level="critical"):
        try:
            yield
        except UsageError:
            raise
        except OrchestraError as error:
            raise OrchestraError(f"cannot look into the run in {str(run.path)!r}: {error}") from None


async def _measured_rows(
    info: JoinInfo, seconds: float, slot: int | None, *, all_hosts: bool
) -> tuple[list[view.NodeRow], list[HostRow], int]:
    async with connected(info) as observer:
        before = await observer.status(slot=slot, all_hosts=all_hosts)
        await asyncio.wait({observer.left}, timeout=seconds)
        after = before if observer.left.done() else await observer.status(slot=slot, all_hosts=all_hosts)
        return view.rows(before, after), _hosts_of(after), after.hosts_left_out


def _hosts_of(status: ClusterStatus) -> list[HostRow]:
    root = next(iter(status.nodes.values()))
    return [] if isinstance(root, str) else host_rows(root)


class _Screen:
    """The screen: the newest table, and the order that the keys chose."""

    def __init__(self, title: str, keys: str) -> None:
        self._title = title
        self._keys = keys
        self._order: Order = "tree"
        self._own = False
        self._shown: list[view.NodeRow] = []
        self._hosts: list[HostRow] = []
        self._console = Console(highlight=False)
        self._quit = asyncio.Event()

    async def watch(self, info: JoinInfo, seconds: float) -> str:
        """Show the run until it ends or `q` is pressed; return a sentence that says which."""
        before: ClusterStatus | None = None
        async with connected(info) as observer:
            quit_pressed = asyncio.create_task(self._quit.wait())
            ends: set[asyncio.Future[Any]] = {quit_pressed, observer.left}
            # This task draws each update: rich starts no thread that could write in between.
            with (
                Live(console=self._console, screen=True, auto_refresh=False) as live,
                _keys(partial(self._press, live)),
            ):
                while not (self._quit.is_set() or observer.left.done()):
                    now = await observer.status()
                    self._shown = view.rows(before, now)
                    self._hosts = _hosts_of(now)
                    before = now
                    self._draw(live)
                    await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            quit_pressed.cancel()
            return f"the run in {self._title!r} is over" if observer.left.done() else f"left {self._title!r} to itself"

    def _press(self, live: Live, key: str) -> None:
        if key in ("q", "\x03"):
            self._quit.set()
        elif key == "a":
            self._own = not self._own
        else:
            self._order = _ORDERS.get(key, self._order)
        self._draw(live)

    def _draw(self, live: Live) -> None:
        width, height = self._console.size
        body = view.lines(self._shown, width, self._order, own=self._own, hosts=self._hosts)
        room = height - 2
        if len(body) > room:
            body = [*body[: room - 1], Text(f"… {len(body) - room + 1} lines more in a taller window", style="dim")]
        keys = Text(self._keys, style="dim", no_wrap=True, overflow="ellipsis")
        title = Text(self._title, style="dim", no_wrap=True, overflow="ellipsis")
        live.update(Group(title, *body, *[Text()] * (room - len(body)), keys), refresh=True)


@contextlib.contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call `pressed` with each key while the block runs; restore the terminal afterwards."""
    # A new descriptor: the loop makes it non-blocking, and stdin usually shares its description with stdout.
    descriptor = os.open(os.ttyname(sys.stdin.fileno()), os.O_RDONLY | os.O_NOCTTY)
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        for key in os.read(descriptor, 64).decode(errors="replace"):
            pressed(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        os.close(descriptor)
