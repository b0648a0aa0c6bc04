"""Every line is in the node's file; people see the warnings."""

import contextlib
import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from orchestra import log


@pytest.fixture(autouse=True)
def closed_before_and_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A node that an earlier test has abandoned may have left its block of warnings open.

    `structlog.testing.capture_logs` leaves structlog configured.
    """
    monkeypatch.setattr(log, "_warning_nodes", [])
    log.close()
    structlog.reset_defaults()
    yield
    log.close()


def lines(folder: Path, node: str = "learner") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{node}.jsonl").read_text(encoding="utf-8").splitlines()]


class Hung(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_importing_the_module_sets_nothing_up() -> None:
    script = "import structlog, logging, orchestra.log; print(structlog.is_configured(), logging.getLogger().handlers)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == "False []\n"


def test_a_line_in_the_file_names_its_node_its_actor_and_its_time(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner")
    before = datetime.now(UTC)
    log.get(actor="learner/trainer").info("published", version=3)

    (line,) = lines(tmp_path)
    assert before <= datetime.fromisoformat(line.pop("timestamp")) <= datetime.now(UTC)
    assert line == {
        "level": "info",
        "node": "learner",
        "actor": "learner/trainer",
        "event": "published",
        "version": 3,
    }


def test_a_stream_takes_the_place_of_the_file_with_a_separator_before_each_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    log.configure(tmp_path, node="worker-1", stream=stream)
    log.get(actor="worker-1/worker").warning("slow", story="first\nsecond")
    assert log.record("stacks") is None
    written = stream.getvalue().split("\n")
    assert [json.loads(line.removeprefix("\x1e"))["event"] for line in written[:-1]] == ["slow", "stacks"]
    assert all(line.startswith("\x1e") for line in written[:-1])
    assert list(tmp_path.iterdir()) == []
    assert "WARNING worker-1/worker  slow" in capsys.readouterr().err


def test_a_logger_made_before_the_set_up_obeys_it(tmp_path: Path) -> None:
    early = log.get(actor="learner/trainer")
    log.configure(tmp_path, node="learner")
    early.info("now")
    assert lines(tmp_path)[0]["node"] == "learner"


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner", level="info")
    log.get().debug("unread")
    log.configure(tmp_path, node="learner", level=logging.DEBUG)
    log.get().debug("read")
    assert [line["event"] for line in lines(tmp_path)] == ["read"]


def test_people_see_warnings_in_short_and_nothing_less(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(tmp_path, node="learner")
    logger = log.get(actor="learner/trainer")
    logger.info("quiet")
    logger.warning("slow\nupdate", seconds=3.2, story="first\nsecond", batch="x" * 100)
    log.get().error("lost")

    timed = [(line["timestamp"][11:19], line["level"]) for line in lines(tmp_path)[1:]]
    assert capsys.readouterr().err == (
        f"{timed[0][0]} WARNING learner/trainer  slow update  seconds=3.2\n{timed[1][0]} ERROR learner  lost\n"
    )
    assert lines(tmp_path)[1]["story"] == "first\nsecond"


def test_an_error_is_named_on_stderr_and_told_in_full_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.configure(tmp_path, node="learner")
    try:
        raise ValueError("no such map:\n'9m'")
    except ValueError as error:
        log.get(actor="a").exception("failed")
        log.get(actor="a").error("failed", exc_info=error)
        log.get(actor="a").error("failed", exc_info=error, error="the actor's own words")

    written = lines(tmp_path)
    assert [line["error"] for line in written] == ["ValueError: no such map:\n'9m'"] * 2 + ["the actor's own words"]
    assert all("Traceback (most recent call last)" in line["exception"] for line in written)
    printed = capsys.readouterr().err.splitlines()
    assert [line[8:] for line in printed] == [
        " ERROR a  failed  ValueError: no such map: '9m'",
        " ERROR a  failed  ValueError: no such map: '9m'",
        " ERROR a  failed  the actor's own words",
    ]


def test_without_a_file_the_traceback_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(None, node="cli")
    try:
        raise ValueError("no such map")
    except ValueError:
        log.get().exception("failed")
    printed = capsys.readouterr().err
    assert printed.splitlines()[0].endswith(" ERROR cli  failed  ValueError: no such map")
    assert "Traceback (most recent call last)" in printed


def test_what_json_cannot_say_does_not_cost_the_line(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner")
    logger = log.get()
    logger.info("odd", value=float("nan"), of={(1, 2): 3}, who="me")
    logger.info("object", value=Path("runs"))
    logger.info("text \udcff")

    first, second, third = lines(tmp_path)
    assert (first["value"], first["of"], first["who"]) == ("nan", "{(1, 2): 3}", "me")
    assert second["value"] == repr(Path("runs"))
    assert third["event"] == "text \udcff"


def test_a_display_can_take_the_short_lines_over_and_give_them_back(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(None, node="learner")
    display = io.StringIO()
    with contextlib.redirect_stderr(display):
        log.get().warning("inside")
    log.get().warning("outside")

    assert display.getvalue()[8:] == " WARNING learner  inside\n"
    assert capsys.readouterr().err[8:] == " WARNING learner  outside\n"


def test_a_closed_terminal_ends_the_short_lines_and_not_the_run(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner")
    with contextlib.redirect_stderr(Hung()):
        log.get().warning("first")
        log.get().warning("second")

    written = lines(tmp_path)
    assert [line["event"] for line in written] == ["first", "stderr is closed", "second"]
    assert written[1]["error"] == "BrokenPipeError(32, 'Broken pipe')"


def test_what_libraries_log_is_kept_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(tmp_path, node="learner")
    logging.getLogger("asyncio").error("Task %s was never retrieved", "x", exc_info=ValueError("lost"))
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("odd").log(35, "between")

    first, second = lines(tmp_path)
    assert (first["library"], first["event"]) == ("asyncio", "Task x was never retrieved")
    assert first["error"] == "ValueError: lost"
    assert (second["level"], second["event"]) == ("warning", "between")
    assert (
        capsys.readouterr().err.splitlines()[0].endswith(" ERROR asyncio  Task x was never retrieved  ValueError: lost")
    )


def test_a_restarted_node_appends_to_its_file(tmp_path: Path) -> None:
    for event in ("first", "second"):
        log.configure(tmp_path, node="learner")
        log.get().info(event)
        log.close()
    assert [line["event"] for line in lines(tmp_path)] == ["first", "second"]


def test_closing_forgets_the_set_up() -> None:
    log.configure(None, node="learner")
    handlers = list(logging.getLogger().handlers)
    log.close()
    assert not structlog.is_configured()
    assert len(logging.getLogger().handlers) == len(handlers) - 1
    log.close()  # twice is once


class Ends:
    """Something that the garbage collector may end while a line is written: its text ends a block and logs."""

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end

    def __repr__(self) -> str:
        self._end()
        return "ended"


@pytest.mark.timeout(20)
def test_a_block_of_warnings_may_end_while_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector ends an abandoned block in any thread, also in one that is in the middle of a beginning."""
    abandoned = contextlib.ExitStack()
    abandoned.enter_context(log.at_least_warnings("abandoned"))
    is_configured = structlog.is_configured

    def collected_before() -> bool:
        abandoned.close()
        return is_configured()

    with monkeypatch.context() as patch:
        patch.setattr(structlog, "is_configured", collected_before)
        following = log.at_least_warnings("following")
        following.__enter__()
    assert structlog.is_configured(), "the block that follows keeps the set-up"
    following.__exit__(None, None, None)
    assert not structlog.is_configured()


@pytest.mark.timeout(20)
def test_a_line_may_be_logged_while_another_is_written(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner")
    log.get().info("outer", value=Ends(lambda: log.get().info("inner")))
    assert [line["event"] for line in lines(tmp_path)] == ["inner", "outer"]


def test_an_unknown_level_is_refused_and_leaves_the_set_up_alone(tmp_path: Path) -> None:
    log.configure(tmp_path, node="learner")
    with pytest.raises(ValueError, match=r"^no such log level: 'loud'; the known ones are debug, info, warning,"):
        log.configure(tmp_path, node="other", level="loud")
    with pytest.raises(FileNotFoundError):
        log.configure(tmp_path / "gone", node="other")
    log.get().info("still here")
    assert lines(tmp_path)[0]["event"] == "still here"


def test_on_a_terminal_a_long_line_goes_on_below_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    for stream, indented in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        log.configure(tmp_path, node="learner")
        log.get(actor="a/b").warning("process died and is started again", pid=14354, how="killed by signal 9")
        first, *rest = stream.getvalue().splitlines()
        assert bool(rest) == indented
        assert all(line.startswith(" " * 9) and line[9] != " " and len(line) <= 40 for line in rest)
        said = " ".join([first, *(line.strip() for line in rest)])
        assert said.split()[-4:] == ["how=killed", "by", "signal", "9"]
