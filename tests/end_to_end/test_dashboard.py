"""The dashboard shows a run while it runs: over HTTP, and on its page in a browser."""

import contextlib
import itertools
import json
import shutil
import signal
import urllib.parse
from collections.abc import Iterable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Dashboard:
    """A dashboard that has been started, and its address."""

    def __init__(self, launched: Any) -> None:
        self.launched = launched
        launched.until(lambda: "Ctrl-C" in launched.out)
        self.address = launched.out.split()[1]
        parts = urllib.parse.urlsplit(self.address)
        self.place, self.token = parts.netloc, urllib.parse.parse_qs(parts.query)["token"][0]

    @contextlib.contextmanager
    def asked(self, path: str, **params: str) -> Iterator[Any]:
        connection = HTTPConnection(self.place, timeout=60)
        connection.request("GET", f"{path}?{urllib.parse.urlencode({'token': self.token, **params})}")
        with contextlib.closing(connection), connection.getresponse() as answer:
            yield answer

    def runs(self) -> list[dict[str, Any]]:
        with self.asked("/api/runs") as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    @contextlib.contextmanager
    def events(self, path: str, **params: str) -> Iterator[Iterator[tuple[str, Any]]]:
        with self.asked(path, **params) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            yield self._events(answer)

    @staticmethod
    def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
        name = ""
        for line in lines:
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)


def test_a_run_is_shown_from_its_beginning_to_its_end(launch: Any) -> None:
    run = launch("--steps", "1000000")
    run.until_playing()
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    (row,) = dashboard.runs()
    assert row["state"] == "running"

    with dashboard.events("/api/figures", runs=row["id"]) as figures:
        first, later = itertools.islice((value for name, value in figures if name == "figures"), 2)
    assert max(first["columns"]["env_steps"]) < max(later["columns"]["env_steps"])

    with dashboard.events(f"/api/runs/{row['id']}/live") as live:
        begun = list(itertools.islice(live, 3))
        assert [name for name, _ in begun][:2] == ["log", "status"]
        status = next(value for name, value in itertools.chain(begun[2:], live) if name == "status")
        run.process.send_signal(signal.SIGTERM)
        assert any("over" in value for name, value in live if name == "status")
    actors = {actor["address"]: actor for node in status["nodes"] for actor in node["actors"]}
    assert actors["learner/trainer"]["kind"] == "Trainer"
    flows = {(flow["from"], flow["type"], flow["to"]) for flow in status["flows"]}
    assert ("worker-0-0/worker", "InsertTransitionMsg", "host-0/proxy") in flows
    assert any(flow["per_s"] for flow in status["flows"])

    assert run.ends() == 75
    (row,) = dashboard.runs()
    assert row["state"] == "stopped"

    dashboard.launched.process.send_signal(signal.SIGINT)
    assert dashboard.launched.ends() == 0, dashboard.launched.story("failed")


@pytest.mark.skipif(BROWSER is None, reason="NOT TESTED HERE: there is no chromium")
def test_the_page_works_in_a_browser(launch: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    for name, state in (("good", "done"), ("bad", "failed")):
        folder = launch.folder / "runs" / "maze" / name
        (folder / "logs").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"flags": {"size": 3}, "seed": 1}))
        lines = [{"env_steps": 10 * n, "elapsed_s": n, "goal_steps": 100, "test_return": n} for n in range(11)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "summary.json").write_text(json.dumps({"state": state, "reason": "ValueError: no way out"}))
        line = {"timestamp": "2026-01-01T10:00:00+00:00", "level": "error", "node": "a", "event": "it hit a wall"}
        (folder / "logs" / "a.jsonl").write_text(json.dumps(line) + "\n")
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    wrong: list[str] = []
    asked: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.add(urllib.parse.urlsplit(request.url).netloc))
        page.goto(dashboard.address)
        page.get_by_text("2 runs, 0 running").wait_for()
        page.locator("#runs li", has_text="bad").click()
        page.locator("#problem", has_text="failed: ValueError: no way out").wait_for()
        page.locator(".chart canvas").first.wait_for()
        assert page.locator(".chart h3").first.inner_text().split("\n")[0].startswith("return of tests")
        page.get_by_role("tab", name="Log").click()
        page.get_by_text("it hit a wall").wait_for()
        page.get_by_role("tab", name="Configuration").click()
        page.locator("#configuration").get_by_text("size").wait_for()
        page.locator("#runs li", has_text="good").locator("input").check()
        page.wait_for_function("document.querySelectorAll('#runs input:checked').length === 2")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        browser.close()
    assert wrong == []
    assert asked == {dashboard.place}
