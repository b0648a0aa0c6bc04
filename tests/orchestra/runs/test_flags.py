"""A signature becomes flags; flags become values; values become the same flags again."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from orchestra.errors import UsageError
from orchestra.runs.flag_parser import FlagParser
from orchestra.runs.flags import Flags


def experiment(
    *,
    scenario: Annotated[Literal["3m", "8m", "2s3z"], Field(description="the map")] = "8m",
    workers: Annotated[int, Field(ge=1, le=64, description="worker processes")] = 2,
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4,
    clip: Annotated[float | None, Field(gt=0, description="largest gradient norm")] = 10,
    double_q: Annotated[bool, Field(description="double Q-learning")] = True,
    out: Path = Path("runs"),
    name: str = "",
    layers: Literal[1, 2] | None = None,
) -> None: ...


FLAGS = Flags.of(experiment)


def refusal(argv: list[str], flags: Flags = FLAGS) -> str:
    with pytest.raises(UsageError) as caught:
        flags.parse(argv)
    return str(caught.value)


def refused(function: Callable[..., object]) -> str:
    with pytest.raises(UsageError) as caught:
        Flags.of(function)
    return str(caught.value)


def test_without_flags_every_parameter_has_its_default_as_its_own_type() -> None:
    values = FLAGS.parse([])

    assert values == {
        "scenario": "8m",
        "workers": 2,
        "learning_rate": 5e-4,
        "clip": 10.0,
        "double_q": True,
        "out": Path("runs"),
        "name": "",
        "layers": None,
    }
    assert type(values["clip"]) is float  # written as 10
    assert values == FLAGS.defaults


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--scenario", "3m"], "scenario", "3m"),
        (["--workers=64"], "workers", 64),
        (["--learning-rate", "1e-3"], "learning_rate", 1e-3),
        (["--no-clip"], "clip", None),
        (["--clip", "0.5"], "clip", 0.5),
        (["--no-double-q"], "double_q", False),
        (["--no-double-q", "--double-q"], "double_q", True),
        (["--out", "/scratch/my runs"], "out", Path("/scratch/my runs")),
        (["--name=--odd one"], "name", "--odd one"),
        (["--layers", "2"], "layers", 2),
        (["--workers", "3", "--workers", "4"], "workers", 4),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_flag_sets_its_parameter(argv: list[str], name: str, value: object) -> None:
    assert FLAGS.parse(argv) == FLAGS.defaults | {name: value}


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--worker", "3"], "unknown flag --worker (did you mean --workers?)"),
        (["--leraning-rate=3"], "unknown flag --leraning-rate (did you mean --learning-rate?)"),
        (["--zzz"], "unknown flag --zzz"),
        (["--no-workers"], "unknown flag --no-workers (did you mean --workers?)"),
        (["8m"], "unexpected argument '8m'"),
        (["--workers", "many"], "--workers: 'many' is not a whole number (it takes int >= 1, <= 64)"),
        (["--workers", "2.5"], "--workers: '2.5' is not a whole number (it takes int >= 1, <= 64)"),
        (
            ["--workers", "0"],
            "--workers: '0' is not allowed: it must be greater than or equal to 1 (it takes int >= 1, <= 64)",
        ),
        (["--clip", "-3"], "--clip: '-3' is not allowed: it must be greater than 0 (it takes float > 0)"),
        (["--learning-rate", "fast"], "--learning-rate: 'fast' is not a finite number (it takes float > 0)"),
        (["--learning-rate", "nan"], "--learning-rate: 'nan' is not a finite number (it takes float > 0)"),
        (["--learning-rate", "inf"], "--learning-rate: 'inf' is not a finite number (it takes float > 0)"),
        (
            ["--scenario", "2s3s"],
            "--scenario: unknown choice '2s3s' (did you mean 2s3z?); the known ones are 3m, 8m, 2s3z",
        ),
        (["--layers", "3"], "--layers: unknown choice '3'; the known ones are 1, 2"),
        (["--double-q=yes"], "--double-q: takes no value, got 'yes'"),
        (
            ["--name", "--double-q"],
            "--name: its value is missing (it takes str; one that begins with a dash is written --name=VALUE)",
        ),
        (
            ["--learning-rate", "-1e-4"],
            "unexpected argument '-1e-4'; a value that begins with a dash is written --flag=-1e-4",
        ),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_a_slip_is_answered_with_the_flag_the_value_and_what_is_allowed(argv: list[str], text: str) -> None:
    assert refusal(argv) == text


def test_an_abbreviation_is_an_unknown_flag() -> None:
    assert refusal(["--scen", "3m"]) == "unknown flag --scen (did you mean --scenario?)"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "scenario": st.sampled_from(["3m", "8m", "2s3z"]),
            "workers": st.integers(1, 64),
            "learning_rate": st.floats(0, exclude_min=True, allow_infinity=False),
            "clip": st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
            "double_q": st.booleans(),
            "out": st.text(min_size=1).map(Path),
            "name": st.text(),
            "layers": st.none() | st.sampled_from([1, 2]),
        },
    )
)
def test_a_launched_process_reads_the_very_values_it_was_told(values: dict[str, Any]) -> None:
    read = FLAGS.parse(FLAGS.to_argv(values))

    assert read == FLAGS.defaults | values
    assert {name: type(value) for name, value in read.items()} == {
        name: type(value) for name, value in (FLAGS.defaults | values).items()
    }


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(), st.text())
def test_also_negative_numbers_and_dashes_survive_the_command_line(number: float, count: int, text: str) -> None:
    def plain(*, number: float = 0.0, count: int = 0, text: str | None = None) -> None: ...

    flags = Flags.of(plain)
    values = {"number": number, "count": count, "text": text}
    assert flags.parse(flags.to_argv(values)) == values


def test_what_is_no_parameter_cannot_be_written_as_a_flag() -> None:
    with pytest.raises(ValueError, match=r"^no such flags: stpes$"):
        FLAGS.to_argv({"workers": 1, "stpes": 2})
    with pytest.raises(ValueError, match=r"^--workers cannot be None$"):
        FLAGS.to_argv({"workers": None})


def test_help_has_one_line_for_each_flag() -> None:
    assert FLAGS.describe().splitlines() == [
        "--scenario 3m|8m|2s3z        = 8m      the map",
        "--workers int >= 1, <= 64    = 2       worker processes",
        "--learning-rate float > 0    = 0.0005",
        "--clip float > 0, --no-clip  = 10.0    largest gradient norm",
        "--double-q, --no-double-q    = on      double Q-learning",
        "--out path                   = runs",
        "--name str                   = ''",
        "--layers 1|2                 = none",
    ]


def test_a_command_shows_the_flags_in_its_help_and_keeps_its_own() -> None:
    parser = FlagParser(prog="orchestra run")
    parser.add_argument("file")
    parser.add_argument("--dry-run", action="store_true")
    FLAGS.add_to(parser)

    namespace = parser.parse_strictly(["--workers", "3", "qmix.py", "--dry-run"])

    assert (namespace.file, namespace.dry_run) == ("qmix.py", True)
    assert FLAGS.collect(namespace) == {"workers": 3}
    assert "  --workers int >= 1, <= 64    = 2       worker processes\n" in parser.format_help()


def test_an_experiment_without_flags_says_so_in_its_help() -> None:
    def bare() -> None: ...

    parser = FlagParser(prog="orchestra run")
    Flags.of(bare).add_to(parser)
    assert "flags of the experiment:\n  it has none\n" in parser.format_help()


def test_a_flag_that_the_command_has_already_is_refused() -> None:
    def clash(*, dry_run: bool = False) -> None: ...

    parser = FlagParser(prog="orchestra run")
    parser.add_argument("--dry-run", action="store_true")
    with pytest.raises(UsageError) as caught:
        Flags.of(clash).add_to(parser)
    assert str(caught.value) == "parameter 'dry_run' makes the flag --dry-run, which the command has of its own"


def test_a_misused_parser_raises_instead_of_exiting() -> None:
    parser = FlagParser(prog="orchestra run")
    parser.add_argument("--seed", type=int)
    parser.add_argument("file")

    with pytest.raises(UsageError, match=r"^--seed: invalid int value: 'x'$"):
        parser.parse_strictly(["--seed", "x", "qmix.py"])
    with pytest.raises(UsageError, match=r"^the following arguments are required: file$"):
        parser.parse_strictly([])


def test_a_signature_that_no_command_line_can_say_is_refused() -> None:
    def positional(workers: int = 1) -> None: ...
    def bare(*, workers=1) -> None: ...
    def required(*, workers: int) -> None: ...
    def many(**options: int) -> None: ...
    def listed(*, sizes: list[int] = []) -> None: ...  # noqa: B006 (never called)
    def either(*, size: int | str = 1) -> None: ...
    def three(*, fast: bool | None = None) -> None: ...
    def mixed(*, level: Literal["1", 1] = 1) -> None: ...
    def wrong(*, workers: Annotated[int, Field(ge=1)] = 0) -> None: ...
    def unresolved(*, workers: "Nowhere" = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def twice(*, x: bool = True, no_x: bool = False) -> None: ...
    def help_(*, help: bool = True) -> None: ...  # noqa: A002 (that is the point)

    positional_text = (
        "positional(): parameter 'workers' is positional; put a bare * before it, so that it is keyword-only"
    )
    ends = "a flag is a bool, int, float, str, Path or Literal, or one | None, or a tuple[str, ...]"
    assert refused(positional) == positional_text
    assert refused(bare) == "bare(): parameter 'workers' has no annotation"
    assert refused(required) == "required(): parameter 'workers' has no default"
    assert refused(many) == (
        "many(): parameter 'options' takes any number of values; a flag is one keyword-only parameter"
    )
    assert refused(listed) == f"listed(): parameter 'sizes' is of type list[int]; {ends}"
    assert refused(either) == f"either(): parameter 'size' is of type int | str; {ends}"
    assert refused(three) == (
        "three(): parameter 'fast' is bool | None; a switch has two positions, use a Literal for three"
    )
    assert refused(mixed) == (
        "mixed(): parameter 'level' is Literal['1', 1]; choices must be distinct texts or whole numbers"
    )
    assert refused(wrong) == (
        "wrong(): parameter 'workers' has the default 0, but: Input should be greater than or equal to 1"
    )
    assert refused(unresolved) == "unresolved(): cannot read its annotations: name 'Nowhere' is not defined"
    assert refused(twice) == "twice(): parameter 'no_x' makes the flag --no-x, and so does 'x'"
    assert refused(help_) == "help_(): parameter 'help' makes the flag --help, and so does 'help'"


def test_a_flag_of_texts_may_be_given_several_times() -> None:
    def recorded(*, include: tuple[str, ...] = ("a",)) -> None: ...

    flags = Flags.of(recorded)
    assert flags.parse([]) == {"include": ("a",)}
    assert flags.parse(["--include", "b", "--include=-c"]) == {"include": ("b", "-c")}
    assert flags.parse(flags.to_argv({"include": ("b", "-c d")})) == {"include": ("b", "-c d")}
    assert flags.describe() == "--include str  = a"
    assert refusal(["--include", "b", "--include"], flags).startswith("--include: its value is missing")


def test_keywords_are_checked_as_flags_are() -> None:
    assert FLAGS.validated({"workers": "3", "out": "here"}) == FLAGS.defaults | {"workers": 3, "out": Path("here")}
    with pytest.raises(UsageError, match=r"^unknown flag --worker \(did you mean --workers\?\)$"):
        FLAGS.validated({"worker": 3})
    with pytest.raises(UsageError, match=r"^--workers: 0 is not allowed: it must be greater than or equal to 1"):
        FLAGS.validated({"workers": 0})


def test_the_help_wraps_descriptions_in_their_column(monkeypatch: pytest.MonkeyPatch) -> None:
    def wordy(*, size: Annotated[int, Field(description="word " * 20)] = 3) -> None: ...

    monkeypatch.setenv("COLUMNS", "70")
    first, *more = Flags.of(wordy).describe().splitlines()
    assert first.startswith("--size int  = 3  word word")
    assert more
    assert all(line.startswith(" " * len("--size int  = 3  ") + "word") and len(line) <= 68 for line in more)


def test_flags_are_described_by_a_short_repr() -> None:
    def two(*, a: int = 1, b_c: bool = False) -> None: ...

    assert repr(Flags.of(two)) == "<Flags --a --b-c>"


def test_an_ordinary_parser_may_be_given_the_flags_too() -> None:
    parser = argparse.ArgumentParser()
    FLAGS.add_to(parser)
    assert FLAGS.collect(parser.parse_args(["--workers", "5"]))["workers"] == 5
