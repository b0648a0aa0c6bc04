"""Checks of the values of a TOML file. Their errors name the value, its place in the file, and what is allowed."""

from collections.abc import Callable
from math import inf
from typing import Any

Check = Callable[[Any, str], Any]
"""Takes a value and its place in the file; returns the value as it is used, or raises `ValueError` if it is invalid."""

REQUIRED: Any = object()
"""Default of a field that must be given."""


def number(least: float, most: float = inf, *, whole: bool = False, above: bool = False) -> Check:
    """Return a check of a number in this range; with `above`, `least` itself is not allowed."""
    kind = "an integer" if whole else "a number"
    lower = f"above {least:g}" if above else f"at least {least:g}"
    wanted = f"{kind} {lower}" if most == inf else f"{kind} from {least:g} to {most:g}"

    def check(value: Any, where: str) -> float:
        fits = isinstance(value, int) or (isinstance(value, float) and not whole)
        if isinstance(value, bool) or not fits or not least <= value <= most or (above and value == least):
            raise ValueError(f"{where} is {value!r}, must be {wanted}")
        return value if whole else float(value)

    return check


def of_type(kind: type, words: str) -> Check:
    """Return a check of a value of this type, which errors describe as `words`."""

    def check(value: Any, where: str) -> Any:
        if not isinstance(value, kind):
            raise ValueError(f"{where} is {value!r}, must be {words}")
        return value

    return check


def list_of(each: Check, size: int | None = None) -> Check:
    """Return a check of a list of values that pass `each`, of length `size` if it is given."""

    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or (size is not None and len(value) != size):
            raise ValueError(f"{where} is {value!r}, must be a list" + (f" of {size} values" if size else ""))
        return [each(item, f"{where}.{k}") for k, item in enumerate(value)]

    return check


def by_name(each: Check) -> Check:
    """Return a check of a non-empty table of values that pass `each`, under any names."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not value:
            raise ValueError(f"{where} is {value!r}, must be a table with an entry at least")
        return {name: each(item, f"{where}.{name}") for name, item in value.items()}

    return check


def table_of(**fields: tuple[Check, Any]) -> Check:
    """Return a check of a table with these fields, each given as its check and its default."""

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {value!r}, must be a table")
        inside = f"{where}." if where else ""
        for name in value:
            if name not in fields:
                raise ValueError(f"{inside}{name} is unknown; there are {', '.join(fields)}")
        for name, (_, default) in fields.items():
            if name not in value and default is REQUIRED:
                raise ValueError(f"{inside}{name} is missing")
        return {
            name: each(value[name], inside + name) if name in value else default
            for name, (each, default) in fields.items()
        }

    return check
