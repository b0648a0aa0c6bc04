"""`orchestra top`: the table of `orchestra ps`, live."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestra.cli.ps import add_run, looking_into, which_run
from orchestra.errors import UsageError
from orchestra.monitoring import view
from orchestra.monitoring.observer import ClusterStatus, connected
from orchestra.monitoring.view import Order
from orchestra.runs import join_file
from orchestra.runs.flags import FlagParser
from orchestra.runs.runner import run_loop

_ORDERS: dict[str, Order] = {"t": "tree", "d": "depth", "b": "busy", "r": "rate"}
_KEYS = "q quit   sort: t tree  d queue  b busy  r rate   a all actors"


def command(arguments: list[str]) -> int:
    """Watch the actors of a running run, live."""
    parser = FlagParser(
        prog="orchestra top",
        description=f"Watch the actors of a running run; `orchestra ps` prints the same table once.\n\nKeys: {_KEYS}.",
    )
    add_run(parser)
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="time between updates (default: 1)")
    options = parser.parse_strictly(arguments)
    if options.seconds <= 0:
        raise UsageError(f"--seconds: {options.seconds:g} is not allowed: it must be more than 0")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("orchestra top needs a terminal; `orchestra ps` prints the same once")
    run = which_run(options.run, options.runs_dir)
    info = join_file.find(run)
    with looking_into(run):
        reason = run_loop(_Screen(str(run.path)).watch(info, options.seconds))
    print(reason)
    return 0


class _Screen:
    """The screen: the newest table, and the order that the keys chose."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._order: Order = "tree"
        self._own = False
        self._shown: list[view.NodeRow] = []
        self._console = Console(highlight=False)
        self._quit = asyncio.Event()

    async def watch(self, info: join_file.JoinInfo, seconds: float) -> str:
        """Show the run until it ends or `q` is pressed; return a sentence that says which."""
        before: ClusterStatus | None = None
        async with connected(info) as observer:
            quit_pressed = asyncio.create_task(self._quit.wait())
            ends: set[asyncio.Future[Any]] = {quit_pressed, observer.left}
            # This task draws each update: rich starts no thread that could write in between.
            with Live(console=self._console, screen=True, auto_refresh=False) as live, _keys(self._press(live)):
                while not (self._quit.is_set() or observer.left.done()):
                    now = await observer.status()
                    self._shown = view.rows(before, now)
                    before = now
                    self._draw(live)
                    await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            quit_pressed.cancel()
            return f"the run in {self._title!r} is over" if observer.left.done() else f"left {self._title!r} to itself"

    def _press(self, live: Live) -> Callable[[str], None]:
        def pressed(key: str) -> None:
            if key in ("q", "\x03"):
                self._quit.set()
            elif key == "a":
                self._own = not self._own
            else:
                self._order = _ORDERS.get(key, self._order)
            self._draw(live)

        return pressed

    def _draw(self, live: Live) -> None:
        width, height = self._console.size
        body = view.lines(self._shown, width, self._order, own=self._own)
        room = height - 2
        if len(body) > room:
            body = [*body[: room - 1], Text(f"… {len(body) - room + 1} lines more in a taller window", style="dim")]
        keys = Text(_KEYS, style="dim", no_wrap=True, overflow="ellipsis")
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
