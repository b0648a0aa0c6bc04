"""The options of what a flag chooses are flags of the experiment."""

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from orchestra import Chosen, OptionsOf, Topology, UsageError, build, variant
from orchestra.runs.experiment import source_of
from orchestra.runs.flags import Flags
from orchestra.runs.specialised import flags_of, specialised

SEEN: list[dict[str, Any]] = []


class Sail:
    def __init__(
        self,
        boat: str,
        *,
        seed: int,
        area: Annotated[float, Field(gt=0, description="square metres")] = 12.0,
        crew: Annotated[int, Field(ge=1, description="people of the sail")] = 3,
    ) -> None:
        pass


class Jib(Sail):
    pass


class Broken:
    def __init__(self, *, sizes: list[int] = []) -> None:  # noqa: B006
        pass


KINDS = {"sail": Sail, "jib": Jib, "broken": Broken}


def experiment(
    *,
    power: Annotated[str, Field(description="of the boat"), OptionsOf(KINDS.get, without=("seed",))] = "oars",
    crew: Annotated[int, Field(ge=1, description="people")] = 8,
    chosen: Chosen = Chosen(),  # noqa: B008
) -> Topology:
    SEEN.append({"power": power, "crew": crew, "chosen": dict(chosen)})
    return Topology("boat")


@pytest.mark.parametrize("given", [{"power": "sail"}, ["--power", "sail"], ["--crew", "2", "--power=sail"]])
@pytest.mark.parametrize("function", [experiment, variant(experiment, crew=4)])
def test_what_is_chosen_brings_its_options_as_flags_with_help(function, given) -> None:
    chosen, flags = flags_of(function, given)
    assert [flag.name for flag in flags] == ["power", "area", "crew"]
    assert flags.defaults == {"power": "oars", "area": 12.0, "crew": 3}
    assert "square metres" in flags.describe()
    assert "people of the sail" in flags.describe()
    values = flags.parse(["--power", "sail", "--area", "9.5"])
    SEEN.clear()
    build(chosen, values)
    assert [{"power": "sail", "crew": 8 if function is experiment else 4, "chosen": {"area": 9.5, "crew": 3}}] == SEEN
    assert source_of(chosen) == (Path(__file__), "experiment")


BIG = variant(experiment, power="sail", area=30)


@pytest.mark.parametrize(
    ("function", "words", "expected"),
    [
        (BIG, [], {"area": 30.0, "crew": 3}),
        (BIG, ["--area", "9"], {"area": 9.0, "crew": 3}),
        (BIG, ["--power", "jib"], {"area": 30.0, "crew": 3}),
        (variant(BIG, crew=5), [], {"area": 30.0, "crew": 5}),
        (variant(BIG, area=2), [], {"area": 2.0, "crew": 3}),
        (variant(BIG, power="oars"), [], {}),
    ],
)
def test_a_variant_has_defaults_for_options_of_what_it_chooses(function, words, expected) -> None:
    chosen, flags = flags_of(function, words)
    SEEN.clear()
    build(chosen, flags.parse(words))
    assert SEEN[0]["chosen"] == expected
    if not words:
        assert {flag.name: flag.default for flag in flags if flag.name in expected} == expected
        SEEN.clear()
        function()
        assert SEEN[0]["chosen"].items() <= expected.items()


def test_a_default_of_an_option_is_checked_like_its_flag() -> None:
    with pytest.raises(UsageError, match=r"^--area: 0 is not allowed"):
        variant(experiment, power="sail", area=0)
    with pytest.raises(UsageError, match=r"^there is no parameter 'keel'; the parameters are power, crew, area$"):
        variant(experiment, power="sail", keel=1)
    with pytest.raises(UsageError, match=r"^there is no parameter 'area'; the parameters are power, crew$"):
        variant(experiment, area=30)


def test_options_of_an_inherited_constructor_count_and_bounds_hold() -> None:
    _, flags = flags_of(experiment, {"power": "jib"})
    with pytest.raises(UsageError, match=r"^--area: '0' is not allowed: it must be greater than 0"):
        flags.parse(["--power", "jib", "--area", "0"])


@pytest.mark.parametrize("given", [{}, [], ["--power"], {"power": "oars"}, {"crew": 3}])
def test_a_choice_without_options_leaves_the_experiment_as_it_is(given) -> None:
    assert specialised(experiment, given) is experiment
    assert [flag.name for flag in Flags.of(experiment)] == ["power", "crew"]


def test_an_option_that_no_flag_can_express_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"parameter 'sizes' is of type list\[int\]; a flag is a bool"):
        flags_of(experiment, {"power": "broken"})
