"""The commands of `orchestra trace` on a small trace of two actors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestra.cli.main import main
from orchestra.trace.format.writer import TraceWriter
from orchestra.trace.reading.query import Query, follow

Ask = Callable[..., str]


@pytest.fixture
def traces(writer: Callable[..., TraceWriter], toy: Any) -> Path:
    """Two actors: one receives numbers and sends frames to the other."""
    made = writer()
    made.write([toy.birth(), toy.birth("toy/c")])
    for n in range(1, 21):
        sent = [1, 0.01, n, "toy/c", 2, [n, toy.frame(n)], False]
        made.write([toy.delivery(n), toy.handled(n, [sent], types=(2,))])
        frame = toy.delivery(n, [n, toy.frame(n)], actor="toy/c", kind=2, sender="toy/a")
        made.write([frame, toy.handled(n, (), "toy/c")])
    made.close()
    return made.paths[0].parent


@pytest.fixture
def ask(traces: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(question: str, *words: str, code: int = 0) -> str:
        assert main(["trace", question, str(traces), *words]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return asked


def test_ls_lists_files_and_actors(ask: Ask) -> None:
    said = ask("ls")
    assert "toy.77.000.trace" in said
    lines = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith("toy/")}
    assert lines["toy/a"][:4] == ["toy/a", "toys:Toy", "1", "20"]
    assert lines["toy/c"][3] == "20"
    told = json.loads(ask("ls", "--json"))
    assert [actor["deliveries"] for actor in told["actors"]] == [20, 20]
    assert told["files"][0]["experiment"]["flags"] == ["--size=3"]


def test_grep_says_which_pattern_fits_nothing_that_was_recorded(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (("--actor", "toy/x"), ": no recorded actor is 'toy/x'; there are toy/a, toy/c"),
        (("--type", "Nope"), ": no recorded type is 'Nope'; there are CountMsg, FrameMsg"),
        (("--actor", "toy/*", "--since", "1000"), ""),
    ):
        assert main(["trace", "grep", str(traces), *words]) == 0
        assert capsys.readouterr().err == f"nothing matches{said}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), 40),
        (("--actor", "toy/c"), 20),
        (("--actor", "*/a", "--type", "Count*"), 20),
        (("--type", "FrameMsg", "--where", "step > 15"), 5),
        (("--where", "count > 18 or step > 18"), 4),
        (("--sender", "toy/b"), 20),
        (("--since", "5", "--until", "7"), 6),
        (("--where", "max(pixels) >= 530"), 2),
        (("--min-bytes", "129"), 0),
        (("--max-bytes", "127"), 0),
        (("--limit", "3"), 3),
    ],
)
def test_grep_finds_deliveries(ask: Ask, words: tuple[str, ...], expected: int) -> None:
    assert len(ask("grep", *words).splitlines()) == expected
    assert len(ask("grep", "--json", *words).splitlines()) == expected


def test_grep_prints_the_newest_first_on_request(ask: Ask) -> None:
    (line,) = ask("grep", "--last", "--limit", "1", "--actor", "toy/a", "--json").splitlines()
    told = json.loads(line)
    assert (told["n"], told["fields"], told["type"]) == (20, {"count": 20, "note": "note 20"}, "CountMsg")


def test_show_prints_an_activation_in_full(ask: Ask) -> None:
    said = ask("show", "toy/a:7")
    assert "CountMsg from toy/b#7" in said
    assert "count = 7" in said
    assert "#7 told toy/c FrameMsg(step=7, pixels=float32[512]" in said
    assert "handled in 125.0 ms" in said
    assert "delivery 20" in ask("show", "toy/a")
    assert "toy/c (toys:Toy): delivery 7" in ask("show", "toy/a#7")
    told = json.loads(ask("show", "toy/a:7", "--json"))
    assert told["handled"]["effects"][0]["recipient"] == "toy/c"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("toy/x",), "nothing was recorded of 'toy/x'; the recorded actors are toy/a, toy/c"),
        (("toy/a:99",), "toy/a has no activation 99 in this trace; the last is 20"),
        (("toy/a#99",), "no delivery of toy/a#99 was recorded"),
        (("toy/a#x",), "a message is named SENDER#NUMBER"),
    ],
)
def test_a_missing_actor_or_message_is_one_line(ask: Ask, words: tuple[str, ...], said: str) -> None:
    err = ask("show", *words, code=2)
    assert said in err
    assert err.count("\n") == 1


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "wher", "x"]) == 2
    assert "unknown command 'wher'; the commands are ls, show" in capsys.readouterr().err
    assert main(["trace"]) == 2
    assert "List the files and actors" in capsys.readouterr().out


def test_stats_count_and_measure(ask: Ask) -> None:
    rows = {(row["actor"], row["type"]): row for row in map(json.loads, ask("stats", "--json").splitlines())}
    assert set(rows) == {("toy/a", "CountMsg"), ("toy/c", "FrameMsg")}
    row = rows["toy/a", "CountMsg"]
    assert (row["count"], row["nbytes"], row["failed"]) == (20, 20 * 128, 0)
    assert row["waited"] == [0.25, 0.25, 0.25]
    assert row["handling"] == [0.125, 0.125, 0.125]
    assert row["per_second"] == pytest.approx(20 / 19)
    assert "FrameMsg" in ask("stats", "--type", "Frame*")
    assert "CountMsg" not in ask("stats", "--type", "Frame*")


def test_stats_print_the_lag_of_a_counter(writer: Callable[..., TraceWriter], toy: Any, ask: Ask, traces: Path) -> None:
    for path in traces.iterdir():
        path.unlink()
    made = writer()
    n = 0
    for version in range(1, 31):
        n += 1
        made.write([toy.delivery(n, [version, ""], sender="toy/trainer")])
        n += 1
        made.write([toy.delivery(n, [np.array([max(1, version - 3), version]), ""], sender="toy/slow")])
    made.close()
    rows = {row["sender"]: row for row in map(json.loads, ask("stats", "--lag", "count", "--json").splitlines())}
    assert (rows["toy/trainer"]["worst"], rows["toy/trainer"]["value"]) == (0, 30)
    assert (rows["toy/slow"]["median"], rows["toy/slow"]["last"], rows["toy/slow"]["value"]) == (3, 3, 27)


def test_follow_yields_added_deliveries_until_all_files_are_closed(
    writer: Callable[..., TraceWriter], toy: Any
) -> None:
    made = writer()
    made.write([toy.birth(), toy.delivery(1)])
    turns: list[int] = []

    def next_turn(seconds: float) -> None:
        turns.append(len(turns))
        match len(turns):
            case 1:
                made.write([toy.delivery(2), toy.delivery(3, actor="toy/z")])
            case 3:
                made.close()

    found = [row.delivery.n for _, row in follow(made.paths[0].parent, Query(actor="toy/a"), next_turn)]
    assert (found, len(turns)) == ([1, 2], 3)
