"""The server of the dashboard: a page, and a stream of events for it. It only reads.

Its page and its data are only for the user who started it:

- It listens on the loopback interface.
- Data needs the token, which is in the address that `orchestra dashboard` prints.
- `Host` must be a name of the loopback interface with our port, against other sites whose names lead there.
  `Origin` must be ours if a browser sends one.
- The page loads nothing from elsewhere, and may not be framed.
"""

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestra.dashboard.figures import Figures
from orchestra.dashboard.live import statuses
from orchestra.dashboard.log_lines import LogLines
from orchestra.dashboard.shown_runs import ShownRuns, details
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.run_list import is_running

PAGE = Path(__file__).with_name("page")
FILES = {
    "/": "index.html",
    "/app.js": "app.js",
    "/charts.js": "charts.js",
    "/actors.js": "actors.js",
    "/style.css": "style.css",
    "/uPlot.iife.min.js": "uPlot.iife.min.js",
    "/uPlot.min.css": "uPlot.min.css",
}
"""The files of the page, by their addresses. There are no others."""
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
Event = tuple[str, Any]
"""Name and data of an event of a page's stream. A page has one stream: a browser allows six connections to a server."""
EVERY_S = 2.0
"""Seconds between two looks at the files and actors of a run."""


def serve(runs: ShownRuns, *, token: str, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM, which is raised again once all streams have ended.

    Args:
        runs: the runs that it shows, and no others.
        token: the value that requests for data must have as the parameter `token`.
        listening: a socket that listens on the loopback interface.
    """
    ending = asyncio.Event()
    app = application(runs, token=token, port=listening.getsockname()[1], ending=ending)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=5)
    _Server(config, ending).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends the streams of open pages before it waits for connections to close: a stream has no end of its own."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending.set()
        await super().shutdown(sockets)


def application(
    runs: ShownRuns, *, token: str, port: int, ending: asyncio.Event | None = None, every_s: float = EVERY_S
) -> Starlette:
    """Return the server as an ASGI application.

    Args:
        runs: the runs that it shows, and no others.
        token: the value that requests for data must have as the parameter `token`.
        port: the port at which it is reached, for the check of `Host`.
        ending: ends all streams once it is set.
        every_s: seconds between two looks at runs.
    """
    ends = asyncio.Event() if ending is None else ending

    async def page(request: Request) -> Response:
        return FileResponse(PAGE / FILES[request.url.path])

    async def all_runs(request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(runs.rows))

    async def one_run(request: Request) -> Response:
        run = runs.by_id().get(request.path_params["run"])
        if run is None:
            return PlainTextResponse("no such run\n", 404)
        return JSONResponse(await asyncio.to_thread(details, run))

    async def events(request: Request) -> Response:
        known, asked = runs.by_id(), request.query_params
        chosen = {name: known[name] for name in asked.get("runs", "").split(",") if name in known}
        focus = known.get(asked.get("focus", ""))
        live = () if focus is None else (_live(focus, every_s),)
        return _stream(ends, _figures(chosen, every_s), *live)

    return Starlette(
        routes=[
            *(Route(address, page, methods=["GET"]) for address in FILES),
            Route("/api/runs", all_runs, methods=["GET"]),
            Route("/api/runs/{run}", one_run, methods=["GET"]),
            Route("/api/events", events, methods=["GET"]),
        ],
        middleware=[Middleware(_Guard, token=token, port=port)],
    )


class _Guard:
    """Refuses requests of other users and sites, and adds the headers that keep other sites out."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.decode().title() not in HEADERS]
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*kept, *own]
            await send(message)

        refusal = self._refusal(Request(scope))
        answer = self._app if refusal is None else refusal
        await answer(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        if request.headers.get("host", "") not in self._hosts:
            return PlainTextResponse("the name of the host is not allowed\n", 421)
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            return PlainTextResponse("the origin is not allowed\n", 403)
        given = request.query_params.get("token", "").encode()
        if request.url.path.startswith("/api/") and not secrets.compare_digest(given, self._token):
            return PlainTextResponse("the token is missing or wrong: use the address that the command printed\n", 401)
        return None


def _stream(ending: asyncio.Event, *sources: AsyncGenerator[Event]) -> StreamingResponse:
    async def lines() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(_until(ending, *sources)) as shown:
            async for name, value in shown:
                yield f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n".encode()

    return StreamingResponse(lines(), media_type="text/event-stream")


async def _until(ending: asyncio.Event, *sources: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Yield the events of all sources as they come, until `ending` is set, also while the next one is waited for."""

    async def following(source: AsyncGenerator[Event]) -> Event | None:
        return await anext(source, None)

    ended = asyncio.create_task(ending.wait())
    waited = {asyncio.create_task(following(source)): source for source in sources}
    try:
        while waited and not ended.done():
            await asyncio.wait({ended, *waited}, return_when=asyncio.FIRST_COMPLETED)
            for task in [each for each in waited if each.done()]:
                source = waited.pop(task)
                if (event := task.result()) is not None:
                    yield event
                    waited[asyncio.create_task(following(source))] = source
    finally:
        for each in (ended, *waited):
            each.cancel()
        await asyncio.gather(ended, *waited, return_exceptions=True)
        for source in sources:
            await source.aclose()


async def _figures(chosen: dict[str, RunDirectory], every_s: float) -> AsyncGenerator[Event]:
    readers = {name: Figures(run) for name, run in chosen.items()}
    while True:
        for name, reader in readers.items():
            if columns := await asyncio.to_thread(reader.new):
                yield "figures", {"run": name, "columns": columns, "anew": reader.anew}
        yield "looked", {}
        await asyncio.sleep(every_s)


async def _live(run: RunDirectory, every_s: float) -> AsyncGenerator[Event]:
    """Yield the status and the log of a run; at its end, the last lines of the log. If it is resumed, begin again."""
    lines, over = LogLines(run), None
    while True:
        async with contextlib.aclosing(statuses(run, every_s)) as seen:
            async for status in seen:
                if new := await asyncio.to_thread(lines.new):
                    yield "log", new
                before, over = over, status.get("over")
                if over is None or over != before:
                    yield "status", status
        resumed = False
        while not resumed:
            await asyncio.sleep(every_s)
            if new := await asyncio.to_thread(lines.new):
                yield "log", new
            resumed = await asyncio.to_thread(is_running, run)
