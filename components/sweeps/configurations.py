"""The values of `--set`: values of flags to try, and the configurations that result."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestra import UsageError, flags_of, load_experiment

OF_THE_SWEEP = ("seed", "as", "resume", "runs-dir", "dry-run")
"""Flags of a run that a sweep sets itself."""
LONGEST = 80
"""Largest number of characters of a configuration in the name of a run."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of a flag, as typed."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers from `low` to `high`, inclusive."""

    low: float
    high: float
    whole: bool
    """True for integers only; `checked` sets it for flags that take integers."""
    log: bool
    """True for draws on a logarithmic scale."""


Space = Mapping[str, Choices | Range]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Values of flags that are tried together."""

    name: str
    """The first part of the names of its runs."""
    values: Mapping[str, Any]
    words: tuple[str, ...]
    """The values as flags."""

    @property
    def label(self) -> str:
        """Its values in readable form."""
        return " ".join(f"{name}={_short(value)}" for name, value in self.values.items()) or "(defaults)"


def space_of(texts: Sequence[str]) -> dict[str, Choices | Range]:
    """Return the space of the values of `--set`: `NAME=VALUE,VALUE…`, `NAME=LOW..HIGH` or `NAME=LOW..HIGH:log`.

    Raises:
        UsageError: a text has none of these forms, or a name occurs twice.
    """
    space: dict[str, Choices | Range] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not name.isidentifier() or not values:
            raise UsageError(
                f"--set: {text!r} is not allowed: write NAME=VALUE,VALUE or NAME=LOW..HIGH or NAME=LOW..HIGH:log"
            )
        if name.replace("_", "-") in OF_THE_SWEEP:
            raise UsageError(
                f"--set: {name!r} is not allowed: the sweep sets it; --seeds N says how many seeds there are"
            )
        if name in space:
            raise UsageError(f"--set: {name!r} is there twice")
        space[name] = _range(text, values) if ".." in values else Choices(tuple(values.split(",")))
    return space


def _range(text: str, values: str) -> Range:
    span, colon, scale = values.partition(":")
    low_text, _, high_text = span.partition("..")
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (colon and scale != "log"):
        raise UsageError(f"--set: {text!r} is no range: write LOW..HIGH or LOW..HIGH:log, with LOW below HIGH")
    if colon and low <= 0:
        raise UsageError(f"--set: {text!r}: a logarithmic scale begins above 0")
    return Range(low, high, whole=False, log=bool(colon))


def configuration(
    file: Path, further: Sequence[str], texts: Mapping[str, Any], name: str | None = None
) -> Configuration:
    """Return the configuration of these values, which are texts or have the types of their flags.

    Args:
        file: the experiment.
        further: flags of all runs; they may choose an algorithm that has flags of its own.
        texts: the values by name of their flag.
        name: name of the configuration; by default it consists of the values.

    Raises:
        UsageError: the experiment has no such flag, or a value is not allowed.
    """
    function = load_experiment(file)
    _, flags = flags_of(function, further)
    by_name = {flag.name: flag for flag in flags}
    own = [
        word
        for key, value in texts.items()
        if key in by_name
        for word in flags.to_argv({key: by_name[key].validated(value)})
    ]
    _, flags = flags_of(function, [*further, *own])
    values = flags.validated(texts)
    chosen = {key: values[key] for key in texts}
    return Configuration(name or _name(chosen), chosen, tuple(flags.to_argv(chosen)))


def grid(file: Path, further: Sequence[str], space: Space) -> list[Configuration]:
    """Return all combinations of values, the last flag changing fastest; without `space` the defaults alone.

    Raises:
        UsageError: as `configuration`; or a flag has a range, or two configurations are the same.
    """
    ranges = [name for name, values in space.items() if isinstance(values, Range)]
    if ranges:
        raise UsageError(f"--set: {ranges[0]!r} has a range, which only --search optuna can search; list its values")
    lists = [values.texts for values in space.values() if isinstance(values, Choices)]
    found = [configuration(file, further, dict(zip(space, each, strict=True))) for each in itertools.product(*lists)]
    by_words = {each.words: each for each in found}
    if len(by_words) < len(found):
        raise UsageError("--set: a value is there twice")
    if len({each.name for each in found}) < len(found):  # values differ only in characters that file names cannot have
        return [
            Configuration(f"{each.name[: LONGEST - 4]}-{number}", each.values, each.words)
            for number, each in enumerate(found)
        ]
    return found


def _name(values: Mapping[str, Any]) -> str:
    text = "_".join(f"{name}-{value}" for name, value in values.items()) or "defaults"
    return re.sub(r"[^\w.-]+", "-", text)[:LONGEST].strip("-.")


def checked(file: Path, further: Sequence[str], space: Space) -> dict[str, Choices | Range]:
    """Return the space with ranges in the types of their flags, after checking each choice and both ends of ranges.

    Raises:
        UsageError: the experiment has no such flag, a flag with a range takes no numbers, or a value is not allowed.
    """
    lists = {name: values.texts[0] for name, values in space.items() if isinstance(values, Choices)}
    function = load_experiment(file)
    _, flags = flags_of(function, [*further, *configuration(file, further, lists).words])
    bases = {flag.name: flag.base for flag in flags}
    found: dict[str, Choices | Range] = {}
    tried: dict[str, Sequence[Any]] = {}
    for name, values in space.items():
        found[name], tried[name] = values, getattr(values, "texts", ())
        if isinstance(values, Range):
            if bases.get(name, float) not in (int, float):
                raise UsageError(f"--set: {name!r} takes no numbers, so it has no range; list its values")
            found[name] = replace(values, whole=bases.get(name) is int)
            ends = (values.low, values.high)
            tried[name] = [int(end) if bases.get(name) is int and end.is_integer() else end for end in ends]
    first = {name: texts[0] for name, texts in tried.items()}
    for name, each_tried in tried.items():
        for each in each_tried:
            configuration(file, further, {**first, name: each})
    return found


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
