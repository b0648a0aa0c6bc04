"""Comparison of two traces."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main
from orchestra.trace.format.writer import TraceWriter

MakeRun = Callable[..., Path]


@pytest.fixture
def run_of(tmp_path: Path, toy: Any) -> MakeRun:
    """Write a trace of one actor that receives these values, and of a second one that receives arrays."""

    def made(name: str, numbers: Sequence[int], *, values: bool = True, pixels: float = 0.0) -> Path:
        writer = TraceWriter(
            tmp_path / name,
            "toy.77",
            toy.HEADER,
            toy.RecordEncoder(types=toy.TYPES),
            clock=toy.ManualClock(),
            values=values,
        )
        writer.write([toy.birth(), toy.birth("toy/z")])
        for n, number in enumerate(numbers, 1):
            frame = toy.frame(number).copy()
            frame[7] += pixels * (n == 2)
            writer.write([toy.delivery(n, [number, "x"]), toy.delivery(n, [n, frame], actor="toy/z", kind=2)])
        writer.close()
        return tmp_path / name

    return made


def test_equal_runs_are_reported_as_equal(run_of: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "diff", str(run_of("a", [1, 2, 3])), str(run_of("b", [1, 2, 3]))]) == 0
    assert capsys.readouterr().out == "6 deliveries are equal\n"


def test_the_first_delivery_that_differs_is_named_field_by_field(
    run_of: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = (str(run_of("a", [1, 2, 3, 4])), str(run_of("b", [1, 2, 7, 4])))
    assert main(["trace", "diff", *runs]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "toy/a:3 CountMsg from toy/b#3: the first delivery that differs",
        "  count: 3",
        "         7",
        "4 deliveries before are equal; later toy/z differ",
    ]
    assert main(["trace", "diff", *runs, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [each["actor"] for each in told["first_differences"]] == ["toy/a", "toy/z"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ignore", "count"), "toy/z:3 FrameMsg"),
        (("--ignore", "CountMsg.count", "--ignore", "pixels"), "8 deliveries are equal"),
        (("--ignore", "CountMsg"), "toy/z:3 FrameMsg"),
        (("--ignore", "*Msg"), "0 deliveries are equal"),
        (("--actor", "*/z"), "toy/z:3 FrameMsg"),
    ],
)
def test_fields_and_messages_can_be_ignored(
    run_of: MakeRun, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    runs = (str(run_of("a", [1, 2, 3, 4])), str(run_of("b", [1, 2, 7, 4])))
    main(["trace", "diff", *runs, *words])
    assert capsys.readouterr().out.startswith(said)


def test_the_first_element_that_differs_in_an_array_is_named(
    run_of: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "diff", str(run_of("a", [1, 2])), str(run_of("b", [1, 2], pixels=0.5))]) == 1
    said = capsys.readouterr().out
    assert "  pixels[7]: 9.0\n" in said
    assert "             9.5  (1 of 512 differ)\n" in said


def test_arrays_recorded_by_digest_are_compared(run_of: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    full, digest = run_of("a", [1, 2]), run_of("b", [1, 2], values=False)
    assert main(["trace", "diff", str(full), str(digest)]) == 0
    other = run_of("c", [1, 2], values=False, pixels=0.5)
    assert main(["trace", "diff", str(digest), str(other)]) == 1
    assert "pixels: float32[512] " in capsys.readouterr().out


def test_a_run_that_ends_earlier_differs_there(run_of: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "diff", str(run_of("a", [1, 2])), str(run_of("b", [1, 2, 3]))]) == 1
    said = capsys.readouterr().out
    assert "toy/a:3" in said
    assert "  end: has ended\n       goes on\n" in said


def test_an_actor_that_only_one_run_has_is_named(
    run_of: MakeRun, toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = run_of("a", [1])
    header = replace(toy.HEADER, generation=78)
    writer = TraceWriter(
        one, "toy.78", header, toy.RecordEncoder(types=toy.TYPES), clock=toy.ManualClock(), values=True
    )
    writer.write([toy.birth("toy/new")])
    writer.close()
    assert main(["trace", "diff", str(one), str(run_of("b", [1]))]) == 1
    assert "only the first run has toy/new" in capsys.readouterr().out
