"""Experiments with the options of what one of their flags chooses: an algorithm from a file has flags of its own.

    def experiment(
        *,
        algorithm: Annotated[str, OptionsOf(class_of)] = "qmix",
        chosen: Chosen = Chosen(),
    ) -> Topology: ...

`--algorithm mine.py:Mappo --clip 0.2` calls it with `chosen={"clip": 0.2}`. An option with the name of a flag of the
experiment takes its place.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestra.errors import UsageError
from orchestra.runs.flags import Chosen, Flag, Flags, OptionsOf
from orchestra.runs.topology import Topology

Experiment = Callable[..., Topology]


def specialised(function: Experiment, given: Mapping[str, Any] | Sequence[str]) -> Experiment:
    """Return an experiment with the flags that `given` brings, or `function` itself if it brings none.

    Args:
        function: the experiment.
        given: the values of its flags by name, or the words of a command line.

    Raises:
        UsageError: what is chosen does not exist, or its parameters cannot be flags.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    taker = taker_of(function)
    if taker is None:
        return function
    for name, parameter in inspect.signature(function).parameters.items():
        for marker in getattr(hints.get(name), "__metadata__", ()):
            if isinstance(marker, OptionsOf):
                kind = marker.resolve(_value(name, given, parameter.default))
                return function if kind is None else _with_options(function, kind, taker, marker.without)
    return function


def taker_of(function: Experiment) -> str | None:
    """Return the parameter of an experiment that takes the options of what is chosen, or None."""
    hints = typing.get_type_hints(function, include_extras=True)
    return next((name for name in inspect.signature(function).parameters if hints.get(name) is Chosen), None)


def options_of(function: Experiment, given: Mapping[str, Any]) -> tuple[Flag, ...]:
    """Return the flags that `given` brings: the options of what it chooses.

    Raises:
        UsageError: as `specialised`.
    """
    chosen = specialised(function, given)
    names = getattr(chosen, "options", ())
    return () if chosen is function else tuple(flag for flag in Flags.of(chosen) if flag.name in names)


def flags_of(function: Experiment, given: Mapping[str, Any] | Sequence[str]) -> tuple[Experiment, Flags]:
    """Return `specialised(function, given)` and its flags.

    Raises:
        UsageError: as `specialised`.
    """
    function = specialised(function, given)
    return function, Flags.of(function)


def _value(name: str, given: Mapping[str, Any] | Sequence[str], default: Any) -> Any:
    if isinstance(given, Mapping):
        return given.get(name, default)
    option, value = "--" + name.replace("_", "-"), default
    for place, word in enumerate(given):
        flag, equals, text = word.partition("=")
        if flag == option and (equals or place + 1 < len(given)):
            value = text if equals else given[place + 1]
    return value


def _with_options(
    function: Experiment, kind: Callable[..., object], taker: str, without: tuple[str, ...]
) -> Experiment:
    maker: Any = kind
    if isinstance(kind, type):
        maker = next(vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base))
    try:
        own_hints = typing.get_type_hints(maker, include_extras=True)
        options = {
            name: parameter
            for name, parameter in inspect.signature(kind).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY and name not in without
        }
        defaults = {name: value for name, value in getattr(function, "option_defaults", {}).items() if name in options}
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(f"{getattr(kind, '__name__', kind)}(): cannot read its annotations: {error}") from error

    @functools.wraps(function)
    def experiment(**values: Any) -> Topology:
        chosen = Chosen((name, values.pop(name)) for name in options if name in values)
        return function(**values, **{taker: Chosen({**defaults, **chosen})})

    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in options and name != taker]
    added = [
        each.replace(annotation=own_hints.get(name, each.annotation), default=defaults.get(name, each.default))
        for name, each in options.items()
    ]
    experiment.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]  # read by inspect
    hints = typing.get_type_hints(function, include_extras=True)
    experiment.__annotations__ = {
        **{name: hint for name, hint in hints.items() if name != taker},
        **{name: own_hints[name] for name in options if name in own_hints},
    }
    experiment.variant_of = function  # type: ignore[attr-defined]  # read by source_of
    experiment.options = tuple(options)  # type: ignore[attr-defined]  # read by options_of
    Flags.of(experiment)
    return experiment
