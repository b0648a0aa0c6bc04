"""Stories are in causal order, whatever the wall clocks say."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.trace.analysis import story as stories
from orchestra.trace.analysis.story import around, cause_of, consequences_of, story
from orchestra.trace.reading.query import DeliveryRow, Query
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where


def throws(rows: Iterable[DeliveryRow]) -> list[int]:
    return [each.delivery.fields["throws"] for each in rows]


def test_the_order_is_causal_and_independent_of_wall_clocks(played: Path) -> None:
    with RunTrace(played) as trace:
        found = list(Query(where=Where("name == 'red'")).deliveries(trace))
        stops = story(reversed(found))
        assert throws(stop.row for stop in stops) == [7, 6, 5, 4, 3, 2, 1, 0]
        assert [stop.delivery.actor.split("/")[0] for stop in stops[:4]] == ["left", "middle", "right", "left"]
        by_wall = sorted(stops, key=lambda stop: stop.row.header.at(stop.delivery.time))
        assert throws(stop.row for stop in by_wall) != throws(stop.row for stop in stops)
        assert [len(stop.sent) for stop in stops] == [1] * 7 + [0]
        assert all(stop.handled is not None for stop in stops)


def test_causes_and_consequences_are_found_across_nodes(played: Path) -> None:
    with RunTrace(played) as trace:
        (four,) = Query(where=Where("name == 'red' and throws == 4")).deliveries(trace)
        assert throws([cause_of(trace, four)]) == [5]
        assert throws(consequences_of(trace, four)) == [3]
        assert sorted(throws(around(trace, four, depth=2))) == [2, 3, 4, 5, 6, 7]
        (first,) = Query(where=Where("name == 'red' and throws == 7")).deliveries(trace)
        assert cause_of(trace, first) is None  # told from outside


def test_the_story_of_a_message_is_printed(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "story", str(played), "--message", "middle/player#1", "--depth", "1"]) == 0
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "BallMsg" in line]
    assert [line.split()[2] for line in lines] == [
        "left/player:1",
        "middle/player:1",
        "right/player:1",
        "left/player:3",
    ]
    assert "name='red', throws=5" in said
    assert "4 stops on 3 nodes" in said


def test_the_story_of_a_condition_is_printed_as_json(played: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "story", str(played), "--where", "name == 'blue'", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(stop["node"], stop["fields"]["throws"]) for stop in told] == [("left", 2), ("middle", 1), ("right", 0)]


def test_a_story_key_finds_the_thing(
    played: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ball(trace: RunTrace, value: str) -> Iterable[DeliveryRow]:
        """COLOUR, a ball."""
        return Query(where=Where(f"name == {value!r}")).deliveries(trace)

    monkeypatch.setattr(stories, "story_keys", lambda: {"ball": ball})
    monkeypatch.setattr("orchestra.cli.trace_story.story_keys", lambda: {"ball": ball})
    assert main(["trace", "story", str(played), "--ball", "blue"]) == 0
    assert "3 stops on 3 nodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give exactly one of --message"),
        (("--message", "left/player"), "a message is named SENDER#NUMBER"),
        (("--message", "left/player#99"), "no delivery of left/player#99 was recorded"),
        (("--where", "name == 'green'"), "nothing was recorded of --where name == 'green'"),
    ],
)
def test_a_story_of_nothing_is_one_line(
    played: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["trace", "story", str(played), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
