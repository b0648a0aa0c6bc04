"""Flags of the command line, read from a function's signature: parsed, explained in the help, and written back.

The parameters are keyword-only, annotated, and have defaults:

    def experiment(*, workers: Annotated[int, Field(ge=1, description="worker processes")] = 2, double_q: bool = True)

`Flags.of(experiment)` makes `--workers INT` and `--double-q/--no-double-q` of it. A parameter of type `X | None` also
has `--no-name`, which sets None; one of type `tuple[str, ...]` may be given several times. `to_argv` is the inverse of
`parse`.
"""

import argparse
import functools
import inspect
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, Union

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestra.errors import UsageError
from orchestra.hosts.shape import Hosts
from orchestra.runs.flag_parser import FlagParser, unknown
from orchestra.runs.suggestions import did_you_mean


class Chosen(dict[str, Any]):
    """The options of what a flag of an experiment chooses, such as those of an algorithm from a file.

    A parameter of this type is no flag; `OptionsOf` says which flag makes the choice.
    """


@dataclass(frozen=True, slots=True)
class OptionsOf:
    """Annotation of a flag whose value may bring options of its own, which become flags of the experiment."""

    resolve: Callable[[Any], Callable[..., object] | None]
    """Returns what the value chooses, whose keyword-only parameters are the options; None if it brings none."""
    without: tuple[str, ...] = ()
    """Parameters that are no flags: the experiment gives them."""


_KINDS = {bool: "bool", int: "int", float: "float", str: "str", Path: "path", tuple: "str"}
_WANTED = {
    int: "a whole number",
    float: "a finite number",
    str: "text",
    Path: "a path",
    bool: "true or false",
    tuple: "a sequence of texts",
}
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"), ("multiple_of", "a multiple of"))
_MIN_DESCRIPTION = 40  # columns
# A value that was left out, as in `--steps --seed 1`. argparse's own error names neither the type nor the remedy.
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Flag:
    """One parameter as a flag."""

    name: str
    """The parameter's name, in snake_case."""
    base: type
    """The type of a value that is not None: bool, int, float, str, Path or tuple; str for a Literal."""
    choices: tuple[str | int, ...]
    """The values that a Literal allows; empty for any other type."""
    optional: bool
    """True if None is allowed."""
    default: Any
    kind: str
    """The type and its bounds as text: `int >= 1`, or `3m|8m`."""
    description: str
    adapter: TypeAdapter[Any]

    @property
    def option(self) -> str:
        """The flag as it is typed: `--learning-rate`."""
        return _option(self.name)

    @property
    def negation(self) -> str | None:
        """`--no-name`, which sets False or None; None for a flag that takes neither."""
        return f"--no-{self.option[2:]}" if self.base is bool or self.optional else None

    def validated(self, value: object) -> Any:
        """Return `value`, which may be the text that is typed on a command line, converted to the flag's type.

        Raises:
            UsageError: it is of another type, out of bounds, or not among the choices.
        """
        if self.choices and value is not None:
            choices = {str(choice): choice for choice in self.choices}
            if str(value) in choices:
                return choices[str(value)]
            hint, known = did_you_mean(str(value), choices), ", ".join(choices)
            raise UsageError(f"{self.option}: unknown choice {value!r}{hint}; the known ones are {known}")
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"].endswith(("_parsing", "_type", "_from_float", "finite_number")):
                said = f"not {_WANTED[self.base]}"
            else:
                said = "not allowed: " + _said(first)
            raise UsageError(f"{self.option}: {value!r} is {said} (it takes {self.kind})") from error

    def words(self, value: Any) -> list[str]:
        """Return the words of a command line that set `value`.

        A value shares the word of its flag: in a word of its own it could not begin with a dash.

        Raises:
            ValueError: the value is None, and the flag does not allow it.
        """
        if value is True:
            return [self.option]
        if value is None or value is False:
            if self.negation is None:
                raise ValueError(f"{self.option} cannot be {value}")
            return [self.negation]
        return [f"{self.option}={one}" for one in (value if self.base is tuple else [value])]

    def columns(self) -> tuple[str, str, str]:
        """Return the three columns of the flag's help: how it is typed, its default, its description."""
        if self.base is bool:
            return f"{self.option}, {self.negation}", "on" if self.default else "off", self.description
        typed = f"{self.option} {self.kind}"
        if self.base is tuple:
            return typed, " ".join(self.default) or "none", self.description
        if self.default is None:
            return typed, "none", self.description
        return typed + (f", {self.negation}" if self.optional else ""), str(self.default) or "''", self.description


class Flags:
    """The flags of one function, in the order of its parameters."""

    def __init__(self, flags: Iterable[Flag]) -> None:
        self._flags = {flag.name: flag for flag in flags}
        taken: dict[str, str] = {"--help": "help"}
        for flag in self._flags.values():
            for option in filter(None, (flag.option, flag.negation)):
                if option in taken:
                    raise UsageError(f"parameter {flag.name!r} makes the flag {option}, and so does {taken[option]!r}")
                taken[option] = flag.name

    @classmethod
    def of(cls, function: Callable[..., object], *, keywords_alone: bool = False) -> Self:
        """Return the flags that the signature of `function` describes. A parameter of type `Hosts` or `Chosen` is none.

        Args:
            function: is only looked at.
            keywords_alone: leave out parameters that are not keyword-only, instead of refusing them.

        Raises:
            UsageError: a parameter is not keyword-only, has no annotation or no default, or has a type that no flag
                can express; its type refuses its default; or two parameters make the same flag.
        """
        name = getattr(function, "__name__", "experiment")
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters.values()
            return cls(
                _flag(parameter, hints)
                for parameter in parameters
                if not keywords_alone or parameter.kind is inspect.Parameter.KEYWORD_ONLY
                if hints.get(parameter.name) not in (Hosts, Chosen)
            )
        except UsageError as error:
            raise UsageError(f"{name}(): {error}") from error
        except (NameError, TypeError, PydanticUserError) as error:
            raise UsageError(f"{name}(): cannot read its annotations: {_first_line(error)}") from error

    def __iter__(self) -> typing.Iterator[Flag]:
        return iter(self._flags.values())

    def __repr__(self) -> str:
        return f"<Flags {' '.join(flag.option for flag in self)}>"

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of every parameter, by name."""
        return {flag.name: flag.default for flag in self}

    def add_to(self, parser: argparse.ArgumentParser, title: str = "flags of the experiment") -> None:
        """Add the flags to `parser`, as a group of its help; `collect` takes their values from the namespace it parses.

        Raises:
            UsageError: the parser has a flag of that name already.
        """
        group = parser.add_argument_group(title, description=self.describe() or "it has none")
        for flag in self:
            # A flag that is not given leaves nothing in the namespace, and the help has the flags in its description.
            add = functools.partial(
                group.add_argument, dest=_dest(flag), default=argparse.SUPPRESS, help=argparse.SUPPRESS
            )
            try:
                if flag.base is bool:
                    add(flag.option, action="store_const", const=True)
                else:
                    it = add(flag.option, action="append" if flag.base is tuple else "store", nargs="?", const=_MISSING)
                    setattr(it, "completer", lambda values=flag.choices, **_: map(str, values))  # noqa: B010, of mypy
                if flag.negation is not None:
                    add(flag.negation, action="store_const", const=False if flag.base is bool else None)
            except argparse.ArgumentError as error:
                raise UsageError(
                    f"parameter {flag.name!r} makes the flag {flag.option}, which the command has of its own"
                ) from error

    def collect(self, namespace: argparse.Namespace) -> dict[str, Any]:
        """Return the values that were given, from the namespace of a parser to which `add_to` added the flags.

        Raises:
            UsageError: a value is missing, of another type, out of bounds, or not among the choices.
        """
        values = {}
        for flag in self:
            if not hasattr(namespace, _dest(flag)):
                continue
            given = getattr(namespace, _dest(flag))
            if given is _MISSING or (isinstance(given, list) and _MISSING in given):
                raise UsageError(
                    f"{flag.option}: its value is missing (it takes {flag.kind}; "
                    f"one that begins with a dash is written {flag.option}=VALUE)"
                )
            values[flag.name] = flag.validated(given) if isinstance(given, str | list) else given
        return values

    def validated(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the value of every parameter, those in `values` converted to the types of their flags.

        Raises:
            UsageError: a name is no parameter, or a value is not allowed.
        """
        for name in values:
            if name not in self._flags:
                raise UsageError(unknown([_option(name)], [flag.option for flag in self]))
        return self.defaults | {name: self._flags[name].validated(value) for name, value in values.items()}

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the value of every parameter, given or by default; of a flag given twice the last one counts.

        Raises:
            UsageError: a flag is unknown, or its value is not allowed.
        """
        parser = FlagParser(add_help=False)
        self.add_to(parser)
        return self.defaults | self.collect(parser.parse_strictly(argv))

    def to_argv(self, values: Mapping[str, Any]) -> list[str]:
        """Return the command line that `parse` reads as `values`.

        Raises:
            ValueError: a name is no parameter, or a value is None where that is not allowed.
        """
        strangers = [name for name in values if name not in self._flags]
        if strangers:
            raise ValueError(f"no such flags: {', '.join(strangers)}")
        return [word for name, value in values.items() for word in self._flags[name].words(value)]

    def describe(self) -> str:
        """Return the help: of each flag how it is typed, its default, and its description, wrapped in its column."""
        rows = [flag.columns() for flag in self]
        typed = max((len(row[0]) for row in rows), default=0)
        default = max((len(row[1]) for row in rows), default=0)
        margin = typed + default + len("  =   ")
        width = max(shutil.get_terminal_size().columns - margin - 2, _MIN_DESCRIPTION)
        lines = []
        for left, middle, right in rows:
            first, *more = textwrap.wrap(right, width, break_on_hyphens=False) or [""]
            lines.append(f"{left:<{typed}}  = {middle:<{default}}  {first}".rstrip())
            lines += [" " * margin + line for line in more]
        return "\n".join(lines)


def _option(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")  # `as_`: a word of Python's own


def _dest(flag: Flag) -> str:
    # Not the bare name: a parameter `file` of an experiment and `file` of the command share one namespace.
    return f"experiment.{flag.name}"


def _flag(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Flag:
    where = f"parameter {parameter.name!r}"
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise UsageError(f"{where} takes any number of values; a flag is one keyword-only parameter")
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        raise UsageError(f"{where} is positional; put a bare * before it, so that it is keyword-only")
    if parameter.name not in hints:
        raise UsageError(f"{where} has no annotation")
    if parameter.default is inspect.Parameter.empty:
        raise UsageError(f"{where} has no default")
    hint = hints[parameter.name]
    base, choices, optional, infos = _taken_apart(hint, where)
    # Settings are kept as JSON, which has neither infinity nor NaN.
    adapter = TypeAdapter[Any](hint, config=ConfigDict(allow_inf_nan=False))
    try:
        default = adapter.validate_python(parameter.default)
    except ValidationError as error:
        refusal = error.errors(include_url=False)[0]["msg"]
        raise UsageError(f"{where} has the default {parameter.default!r}, but: {refusal}") from error
    return Flag(
        name=parameter.name,
        base=base,
        choices=choices,
        optional=optional,
        default=default,
        kind=_kind(base, choices, infos),
        description=" ".join(next((info.description for info in infos if info.description), "").split()),
        adapter=adapter,
    )


def _taken_apart(hint: Any, where: str) -> tuple[type, tuple[str | int, ...], bool, list[FieldInfo]]:
    """Return base type, choices, whether None is allowed, and the annotations of all levels, outermost first."""
    info = FieldInfo.from_annotation(hint)
    hint = info.annotation
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        members = [member for member in arguments if member is not types.NoneType]
        if len(members) == 1:
            base, choices, _, infos = _taken_apart(members[0], where)
            if base is bool:
                raise UsageError(f"{where} is bool | None; a switch has two positions, use a Literal for three")
            return base, choices, True, [info, *infos]
    if origin is Literal:
        members = [member for member in arguments if member is not None]
        texts = {str(member) for member in members}
        if members and all(type(member) in (str, int) for member in members) and len(texts) == len(members):
            return str, tuple(members), None in arguments, [info]
        raise UsageError(f"{where} is {_spelled(hint)}; choices must be distinct texts or whole numbers")
    if hint in _KINDS and hint is not tuple:
        return hint, (), False, [info]
    if origin is tuple and arguments == (str, ...):
        return tuple, (), False, [info]
    raise UsageError(
        f"{where} is of type {_spelled(hint)}; a flag is a bool, int, float, str, Path or Literal, or one | None, "
        "or a tuple[str, ...]"
    )


def _spelled(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _kind(base: type, choices: tuple[str | int, ...], infos: list[FieldInfo]) -> str:
    if choices:
        return "|".join(map(str, choices))
    constraints = [constraint for info in infos for constraint in info.metadata]
    # annotated_types names the attribute after the bound: Ge(ge=1)
    bounds = [f"{sign} {getattr(one, name)}" for one in constraints for name, sign in _BOUNDS if hasattr(one, name)]
    return f"{_KINDS[base]} {', '.join(bounds)}".rstrip()


def _said(error: ErrorDetails) -> str:
    """Return what pydantic says of a value, or what a validator's `ValueError` says."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return error["msg"].replace("Input should be", "it must be")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
