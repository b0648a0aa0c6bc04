"""The dashboard shows a run while it runs: over HTTP, and on its page in a browser."""

import json
import shutil
import signal
import urllib.parse
from collections.abc import Iterator
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

    def get(self, path: str, **params: str) -> Any:
        connection = HTTPConnection(self.place, timeout=60)
        connection.request("GET", f"{path}?{urllib.parse.urlencode({'token': self.token, **params})}")
        return connection.getresponse()

    def events(self, path: str, **params: str) -> Iterator[tuple[str, Any]]:
        answer = self.get(path, **params)
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer:
            key, _, value = line.decode().rstrip("\n").partition(": ")
            if key == "event":
                name = value
            elif key == "data":
                yield name, json.loads(value)


def test_a_run_is_shown_from_its_beginning_to_its_end(launch: Any) -> None:
    run = launch("--steps", "1000000")
    run.until_playing()
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    (row,) = json.load(dashboard.get("/api/runs"))
    assert row["state"] == "running"

    figures = dashboard.events("/api/figures", runs=row["id"])
    first = next(value for name, value in figures if name == "figures")
    later = next(value for name, value in figures if name == "figures")
    assert max(first["columns"]["env_steps"]) < max(later["columns"]["env_steps"])

    live = dashboard.events(f"/api/runs/{row['id']}/live")
    statuses = (value for name, value in live if name == "status")
    assert "nodes" in next(statuses)
    second = next(statuses)
    actors = {actor["address"]: actor for node in second["nodes"] for actor in node["actors"]}
    assert actors["learner/trainer"]["kind"] == "Trainer"
    flows = {(flow["from"], flow["type"], flow["to"]) for flow in second["flows"]}
    assert ("worker-0-0/worker", "InsertTransitionMsg", "host-0/proxy") in flows
    assert any(flow["per_s"] for flow in second["flows"])
    assert next(value for name, value in live if name == "log")

    run.process.send_signal(signal.SIGTERM)
    assert run.ends() == 75
    assert "over" in next(status for status in statuses if "nodes" not in status)
    (row,) = json.load(dashboard.get("/api/runs"))
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
