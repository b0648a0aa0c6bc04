"""Exports read back, and the common time of nodes whose clocks disagree."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main
from orchestra.trace.analysis.timeline import Timeline
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace


def exported(played: Path, form: str, *words: str) -> Path:
    ending = {"perfetto": "json", "mcap": "mcap", "mermaid": "md", "jsonl": "jsonl"}[form]
    path = played / f"out.{ending}"
    assert main(["trace", "export", str(played), "--to", form, "-o", str(path), *words]) == 0
    return path


def test_clocks_that_disagree_by_hours_are_aligned(played: Path) -> None:
    with RunTrace(played) as trace:
        timeline = Timeline(trace)
        times = [timeline.seconds(seen.header, seen.delivery.time) for seen in Query().deliveries(trace)]
        walls = [seen.header.at(seen.delivery.time).timestamp() for seen in Query().deliveries(trace)]
    assert max(walls) - min(walls) > 10_000
    assert max(times) - min(times) < 1.0  # the manual clocks stand still


def test_perfetto_has_a_slice_for_each_activation_and_arrows_between_them(played: Path) -> None:
    told = json.loads(exported(played, "perfetto").read_text())
    events: list[dict[str, Any]] = told["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    assert set(kinds) == {"M", "X", "s", "f"}
    names = {(event["pid"], event["args"]["name"]) for event in events if event["name"] == "process_name"}
    assert {name for _, name in names} == {"left", "middle", "right"}
    slices: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] > 0
            slices.setdefault((event["pid"], event["tid"]), []).append(event)
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(slices) == threads
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(ends) == 9  # the balls but for the two that were thrown in from outside
    assert set(ends) <= set(starts)
    for identity, end in ends.items():
        assert end["bp"] == "e"
        assert (end["pid"], end["tid"]) != (starts[identity]["pid"], starts[identity]["tid"])
        for event in (end, starts[identity]):  # an arrow hangs on the slice that encloses it
            assert any(
                each["ts"] <= event["ts"] <= each["ts"] + each["dur"] for each in slices[event["pid"], event["tid"]]
            )
    ball = next(event for event in events if event["ph"] == "X" and event["name"] == "BallMsg")
    assert set(ball["args"]) >= {"from", "fields", "waited_s", "clock"}


def test_perfetto_export_obeys_the_query(played: Path) -> None:
    told = json.loads(exported(played, "perfetto", "--actor", "right/*", "--where", "throws == 5").read_text())
    assert [event["name"] for event in told["traceEvents"] if event["ph"] == "X"].count("BallMsg") == 1


def test_mermaid_draws_arrows_in_causal_order(played: Path) -> None:
    lines = exported(played, "mermaid", "--type", "BallMsg", "--where", "name == 'red'").read_text().splitlines()
    assert lines[2:4] == ["```mermaid", "sequenceDiagram"]
    arrows = [line.split(":")[0].strip() for line in lines if "->>" in line]
    assert arrows[:3] == ["left_outside->>left_player", "left_player->>middle_player", "middle_player->>right_player"]
    assert len(arrows) == 8
    assert any(line.strip() == "participant left_player as left/player" for line in lines)
    assert "#" not in "".join(lines[2:]).replace("#35;", "").replace("#lt;", "").replace("#gt;", "")


def test_jsonl_has_every_delivery_with_its_effects(played: Path) -> None:
    told = [json.loads(line) for line in exported(played, "jsonl", "--type", "BallMsg").read_text().splitlines()]
    assert len(told) == 11
    assert [each["clock"] for each in told] == sorted(each["clock"] for each in told)
    assert told[0]["effects"][0]["effect"] == "Sent"


def test_mcap_is_read_by_its_own_reader(played: Path) -> None:
    reader = pytest.importorskip("mcap.reader")
    with exported(played, "mcap").open("rb") as file:
        messages = list(reader.make_reader(file).iter_messages())
    balls = [json.loads(message.data) for _, channel, message in messages if channel.topic == "/left/player/BallMsg"]
    assert [(ball["name"], ball["throws"]) for ball in balls if ball["name"] == "red"] == [
        ("red", 7),
        ("red", 4),
        ("red", 1),
    ]


def test_an_unwritable_output_is_one_line(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "export", str(played), "--to", "jsonl", "-o", str(played / "no" / "where")]) == 2
    assert "--output: cannot write" in capsys.readouterr().err


def test_perfetto_draws_answers_back(writer: Any, toy: Any) -> None:
    made = writer()
    made.write([toy.delivery(1), toy.handled(1, [[4, 0.01, 7, "toy/c", 1, [1, "?"]], [5, 0.05, 7]], types=(1,))])
    answer = [7, 0.01, "toy/a", 7, 3, "yes"]
    made.write([toy.delivery(1, actor="toy/c", sender="toy/a"), toy.handled(1, [answer], "toy/c")])
    made.close()
    events = json.loads(exported(made.paths[0].parent, "perfetto").read_text())["traceEvents"]
    arrows = {(event["ph"], event["id"]): event["tid"] for event in events if event["ph"] in "sf"}
    assert arrows["s", "answer to toy/a#7"] != arrows["f", "answer to toy/a#7"]
    assert arrows["s", "toy/a#7"] == arrows["f", "answer to toy/a#7"]
