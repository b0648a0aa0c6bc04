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


needs_browser = pytest.mark.skipif(BROWSER is None, reason="NOT TESTED HERE: there is no chromium")


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

    with dashboard.events("/api/events", runs=row["id"]) as figures:
        first, later = itertools.islice((value for name, value in figures if name == "figures"), 2)
    assert max(first["columns"]["env_steps"]) < max(later["columns"]["env_steps"])

    with dashboard.events("/api/events", runs=row["id"], focus=row["id"]) as events:
        seen = []
        while seen.count("status") < 2:
            name, value = next(events)
            seen.append(name)
            status = value if name == "status" else None
        assert {"log", "status", "figures", "looked"} == set(seen)
        assert seen.index("log") < seen.index("status")
        run.process.send_signal(signal.SIGTERM)
        assert any("over" in value for name, value in events if name == "status")
    assert run.ends() == 75
    (row,) = dashboard.runs()
    assert row["state"] == "stopped"

    actors = {actor["address"]: actor for node in status["nodes"] for actor in node["actors"]}
    assert actors["learner/trainer"]["kind"] == "Trainer"
    flows = {(flow["from"], flow["type"], flow["to"]) for flow in status["flows"]}
    assert ("worker-0-0/worker", "InsertTransitionMsg", "host-0/proxy") in flows
    assert any(flow["per_s"] for flow in status["flows"])

    with dashboard.events("/api/events", runs=row["id"], focus=row["id"]) as events:
        next(events)
        dashboard.launched.process.send_signal(signal.SIGINT)
        assert dashboard.launched.ends() == 0, dashboard.launched.story("failed")
    assert dashboard.launched.err == ""


def two_runs(folder: Path) -> None:
    """Write the files of two runs that are over."""
    for name, state in (("good", "done"), ("bad", "failed")):
        run = folder / "runs" / "maze" / name
        (run / "logs").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"flags": {"size": 3, "word": f"{name} word"}, "seed": 1}))
        lines = [{"env_steps": 10 * n, "elapsed_s": n, "goal_steps": 100, "test_return": n} for n in range(11)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (run / "summary.json").write_text(json.dumps({"state": state, "reason": "ValueError: no way out"}))
        line = {"timestamp": "2026-01-01T10:00:00+00:00", "level": "error", "node": "a", "event": "it hit a wall"}
        (run / "logs" / "a.jsonl").write_text(json.dumps(line) + "\n")


@needs_browser
def test_the_page_works_in_a_browser(launch: Any, tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    two_runs(launch.folder)
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


@needs_browser
def test_the_page_keeps_what_belongs_to_the_run_that_was_clicked_last(launch: Any) -> None:
    """An answer about another run that comes late is not shown; curves and log outlast the server."""
    from playwright.sync_api import Route, sync_playwright

    two_runs(launch.folder)
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    bad = next(row["id"] for row in dashboard.runs() if row["name"] == "bad")
    held: list[Route] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(dashboard.address)
        page.get_by_text("2 runs, 0 running").wait_for()
        page.route(lambda address: f"/api/runs/{bad}?" in address, lambda route: held.append(route))
        with page.expect_request(lambda request: f"/api/runs/{bad}?" in request.url):
            page.locator("#runs li", has_text="bad").click()
        page.locator("#runs li", has_text="good").click()
        page.get_by_role("tab", name="Configuration").click()
        page.locator("#configuration").get_by_text("good word").wait_for()
        with page.expect_response(lambda answer: f"/api/runs/{bad}?" in answer.url):
            held[0].continue_()
        page.evaluate("() => new Promise(done => setTimeout(done))")  # what the answer sets off has happened
        assert page.locator("#configuration").get_by_text("bad word").count() == 0

        page.get_by_role("tab", name="Log").click()
        page.get_by_text("it hit a wall").wait_for()
        page.locator(".chart canvas").first.wait_for()
        with page.expect_event("requestfailed"):
            dashboard.launched.process.send_signal(signal.SIGINT)
            assert dashboard.launched.ends() == 0, dashboard.launched.story("failed")
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # asks for the streams anew
        page.locator("#note", has_text="not connected").wait_for()
        page.locator("#theme").click()  # draws anew
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert page.locator(".chart:visible canvas").count() > 0
        assert page.locator("#log pre").count() == 1
        browser.close()
    assert dashboard.launched.err == ""


@needs_browser
def test_a_page_that_cannot_be_seen_has_no_streams(launch: Any) -> None:
    from playwright.sync_api import sync_playwright

    two_runs(launch.folder)
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    noted = """
        window.streams = [];
        window.EventSource = class extends EventSource {
            constructor(address) { super(address); streams.push(this); }
        };
    """
    hide = """value => {
        Object.defineProperty(document, "hidden", { value, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    open_streams = "streams.filter(stream => stream.readyState !== EventSource.CLOSED).length"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(noted)
        page.goto(dashboard.address)
        page.locator(".chart canvas").first.wait_for()
        assert page.evaluate(open_streams) == 1
        page.evaluate(hide, True)
        assert page.evaluate(open_streams) == 0
        page.locator("#runs li", has_text="bad").click()
        assert page.evaluate(open_streams) == 0
        page.evaluate(hide, False)
        assert page.evaluate(open_streams) == 1
        page.get_by_role("tab", name="Log").click()
        page.get_by_text("it hit a wall").wait_for()
        browser.close()


@needs_browser
@pytest.mark.minutes
def test_five_windows_are_live_at_a_time(launch: Any) -> None:
    """Each has one of the six connections that a browser opens to a server, and one is left for what they ask."""
    from playwright.sync_api import sync_playwright

    two_runs(launch.folder)
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        windows = browser.new_context()
        for page in [windows.new_page() for _ in range(5)]:
            page.goto(dashboard.address)
            page.locator(".chart canvas").first.wait_for()
            page.get_by_role("tab", name="Log").click()
            page.get_by_text("it hit a wall").wait_for()
        page.get_by_text("2 runs, 0 running").wait_for()
        browser.close()


@needs_browser
@pytest.mark.minutes
def test_a_run_in_focus_that_is_resumed_is_live_again_without_a_click(launch: Any) -> None:
    from playwright.sync_api import Page, sync_playwright

    def has_actors(page: Page) -> None:
        page.locator("#actors svg text", has_text="trainer").first.wait_for(timeout=120_000)

    run = launch("--steps", "1000000")
    run.until_playing()
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    (row,) = dashboard.runs()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(dashboard.address)
        has_actors(page)
        run.process.send_signal(signal.SIGTERM)
        assert run.ends() == 75
        page.locator("#runs .state", has_text="stopped").wait_for()
        page.evaluate("document.getElementById('actors').replaceChildren()")
        resumed = launch.command("run", "--resume", row["path"], "--quiet")
        has_actors(page)
        page.locator("#runs .state", has_text="running").wait_for()
        resumed.process.send_signal(signal.SIGTERM)
        assert resumed.ends() == 75, resumed.story("failed")
        browser.close()


@needs_browser
def test_the_mean_of_seeds_has_no_jump_where_a_shorter_one_ends_and_ticks_are_exact(launch: Any) -> None:
    from playwright.sync_api import sync_playwright

    two_runs(launch.folder)
    dashboard = Dashboard(launch.command("dashboard", "--no-browser"))
    curves = [[[0, 1], [40, 1]], [[10, 3], [20, 3]], [[10, 5], [30, 5]]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(dashboard.address)
        page.get_by_text("2 runs, 0 running").wait_for()
        summed = "async ([curves, xs]) => (await import('/charts.js')).summary(curves, xs)"
        numbers = "async values => { const { number } = await import('/charts.js'); return values.map(number); }"
        assert page.evaluate(numbers, [9_000, 12_500, 20_000, 123_456]) == ["9,000", "12.5k", "20k", "123k"]
        told = page.evaluate(summed, [curves, [0, 5, 10, 20, 25, 30, 35, 40]])
        browser.close()
    assert told == {
        "counts": [1, 1, 3, 3, 2, 2, 1, 1],
        "mean": [None, None, 3, 3, None, None, None, None],
        "rest": [1, 1, None, None, 3, 3, None, 1],
        "most": [None, None, 5, 5, None, None, None, None],
        "least": [None, None, 1, 1, None, None, None, None],
    }
