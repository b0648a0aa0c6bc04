"""The dashboard shows its runs to who has the token, on this machine, and to nobody else."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from orchestra.cli.main import main
from orchestra.dashboard import server
from orchestra.dashboard.server import FILES, PAGE, application
from orchestra.dashboard.shown_runs import ShownRuns

TOKEN = "a-token"


@pytest.fixture
def client(make_run: Any, tmp_path: Path) -> TestClient:
    make_run("one")
    app = application(ShownRuns(tmp_path / "runs"), token=TOKEN, port=8123, every_s=0.01)
    return TestClient(app, base_url="http://127.0.0.1:8123")


def test_the_page_and_its_files_need_no_token_and_hold_no_data(client: TestClient) -> None:
    for address in FILES:
        answer = client.get(address)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert len(answer.headers.get_list("cache-control")) == 1
    assert "maze" not in client.get("/").text


def test_data_need_the_token(client: TestClient) -> None:
    (row,) = client.get("/api/runs", params={"token": TOKEN}).json()
    addresses = ["/api/runs", "/api/events", f"/api/runs/{row['id']}"]
    for address in addresses:
        for params in ({}, {"token": ""}, {"token": TOKEN[:-1]}, {"token": "ä"}):
            answer = client.get(address, params=params)
            assert answer.status_code == 401
            assert "maze" not in answer.text
    assert client.get(addresses[2], params={"token": TOKEN}).json()["flags"] == {}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", "0.0.0.0:8123", ""])
def test_another_name_of_the_host_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/api/runs", params={"token": TOKEN}, headers={"Host": host}).status_code == 421
    assert client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:8123", "null"])
def test_another_site_is_refused(client: TestClient, origin: str) -> None:
    assert client.get("/api/runs", params={"token": TOKEN}, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "[::1]:8123"])
def test_the_page_s_own_requests_are_answered(client: TestClient, host: str) -> None:
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert client.get("/api/runs", params={"token": TOKEN}, headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_changed(client: TestClient, method: str) -> None:
    for address in ("/", "/api/runs"):
        assert client.request(method, address, params={"token": TOKEN}).status_code == 405


@pytest.mark.parametrize(
    "address", ["/server.py", "/page/app.js", "/%2e%2e/server.py", "/..%2fserver.py", "/etc/passwd"]
)
def test_no_other_file_is_served(client: TestClient, address: str) -> None:
    assert client.get(address, params={"token": TOKEN}).status_code == 404


@pytest.mark.parametrize("run", ["0123456789ab", "..", "%2e%2e%2f", "one"])
def test_no_other_run_is_shown(client: TestClient, run: str) -> None:
    assert client.get(f"/api/runs/{run}", params={"token": TOKEN}).status_code in (401, 404)


def test_a_run_that_is_resumed_is_live_again_in_the_same_stream(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    directory = make_run("one")
    lives = [[{"nodes": [1]}, {"over": "it is over"}], [{"over": "it is over"}], [{"nodes": [2]}]]
    running = iter([False, True, True])

    async def statuses(*_: Any) -> AsyncGenerator[dict[str, Any]]:
        for status in lives.pop(0):
            yield status

    async def seen() -> list[Any]:
        async with contextlib.aclosing(server._live(directory, 0.0)) as events:
            return [(await anext(events))[1] for _ in range(4)]

    monkeypatch.setattr(server, "statuses", statuses)
    monkeypatch.setattr(server, "is_running", lambda _: next(running))
    log, *told = run(seen())
    assert "it broke" in log[0]["text"]
    assert told == [{"nodes": [1]}, {"over": "it is over"}, {"nodes": [2]}]


def test_the_events_of_a_page_come_from_all_sources_until_the_server_ends(run: Any) -> None:
    ended: list[str] = []

    async def source(name: str, count: int) -> AsyncGenerator[server.Event]:
        try:
            for n in range(count):
                yield name, n
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def seen() -> list[Any]:
        ending, found = asyncio.Event(), []
        async with contextlib.aclosing(server._until(ending, source("a", 2), source("b", 3))) as events:
            async for event in events:
                found.append(event)
                if len(found) == 5:
                    ending.set()
        return found

    found = run(seen())
    assert sorted(found) == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]
    assert sorted(ended) == ["a", "b"]


def test_the_page_loads_nothing_from_elsewhere() -> None:
    for path in PAGE.iterdir():
        if not path.name.startswith("uPlot"):
            found = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]+", path.read_text())
            assert [address for address in found if "www.w3.org" not in address] == [], (
                path.name
            )  # a name, not an address
    assert "MIT" in (PAGE / "uPlot.LICENSE.txt").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "--port: 70000 is not allowed: it must be from 0 to 65535"),
        (["--runs-dir", "nowhere"], "there is no folder 'nowhere'; name a run's directory, or --runs-dir"),
        (["no-run"], "'no-run'"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dashboard", *words]) == 2
    assert said in capsys.readouterr().err
