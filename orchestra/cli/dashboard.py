"""`orchestra dashboard`: show runs on a web page."""

import contextlib
import secrets
import socket
import sys
import webbrowser
from pathlib import Path

from orchestra.errors import UsageError
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.run_directory import RunDirectory

_HELP = """Show runs on a web page of this machine: curves of one run or of many over seeds, actors and the messages
between them, hosts, logs and configurations, live. Runs that are over are shown, too. The page only reads.

Needs pip install 'orchestra-rl[dashboard]'. From another machine reach it by ssh -L PORT:127.0.0.1:PORT HOST."""


def command(arguments: list[str]) -> int:
    """Show runs on a web page, live."""
    parser = FlagParser(prog="orchestra dashboard", description=_HELP)
    parser.add_argument(
        "runs", metavar="RUN_DIR", type=Path, nargs="*", help="runs (default: the newest of --runs-dir)"
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser.add_argument("--port", type=int, default=0, help="the port of this machine (default: any that is free)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    options = parser.parse_strictly(arguments)
    if not 0 <= options.port < 1 << 16:
        raise UsageError(f"--port: {options.port} is not allowed: it must be from 0 to 65535")
    named = [RunDirectory.open(path) for path in options.runs]
    if not named and not options.runs_dir.is_dir():
        raise UsageError(f"there is no folder {str(options.runs_dir)!r}; name a run's directory, or --runs-dir")
    try:
        from orchestra.dashboard.server import serve
        from orchestra.dashboard.shown_runs import ShownRuns
    except ModuleNotFoundError as error:
        raise UsageError(f"the dashboard needs {error.name}: pip install 'orchestra-rl[dashboard]'") from error
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", options.port))
        except OSError as error:
            raise UsageError(f"--port: cannot listen at port {options.port}: {error.strerror}") from error
        listening.listen()  # a reader of the address may connect at once
        port = listening.getsockname()[1]
        token = secrets.token_urlsafe(16)
        address = f"http://127.0.0.1:{port}/?token={token}"
        print(f"dashboard: {address}   (Ctrl-C ends it)", flush=True)
        if not options.no_browser and sys.stdout.isatty():
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            serve(ShownRuns(options.runs_dir, named), token=token, listening=listening)
    return 0
