"""What if: replays an actor with a change, and counts how its outputs differ from the record."""

import ast
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestra.actors.actor import Actor
from orchestra.errors import CannotReplay, UsageError
from orchestra.replay.effects import ReplayedActivation, recorded_outputs
from orchestra.replay.rebuild import RebuildOptions
from orchestra.replay.replay import Replay
from orchestra.replay.state import StateDifference, state_differences
from orchestra.runs.experiment import import_file
from orchestra.trace.analysis.values import FindArray, ValueDifference, exact_text, value_difference

EDITED = "edited"
OUTCOMES = ("as recorded", "different", "missing", "new")
"""The outcomes of an output: a `missing` one is only in the record, a `new` one only in the replay."""


@dataclass(slots=True)
class OutputCounts:
    """The numbers of outputs of one kind that are as recorded, and that are not."""

    what: str
    """`told learner/orchestrator TrainResultMsg`."""
    counts: Counter[str] = field(default_factory=Counter)
    """Outputs by one of `OUTCOMES`."""
    first: tuple[int, ValueDifference] | None = None
    """The first delivery with a different output, and the difference."""

    def __str__(self) -> str:
        text = ", ".join(f"{self.counts[each]:,} {each}" for each in OUTCOMES if self.counts[each])
        first = "" if self.first is None else f"\n    first in delivery {self.first[0]:,}: {_text(self.first[1])}"
        return f"  {self.what}: {text}{first}"


@dataclass(slots=True)
class WhatIf:
    """The result: the outputs of a range of deliveries, compared with the record."""

    actor: str
    begin: int
    """The first delivery that is compared."""
    end: int = 0
    changes: list[str] = field(default_factory=list)
    """The changes, as text."""
    outputs: dict[tuple[str, str, str], OutputCounts] = field(default_factory=dict)
    failure: str = ""
    """The exception that ended the actor, as text; empty without one."""

    def __str__(self) -> str:
        lines = [f"{self.actor}, deliveries {self.begin:,} to {self.end:,}, with {'; '.join(self.changes)}:"]
        lines += [str(counts) for counts in self.outputs.values()] or ["  no outputs, in the record and in the replay"]
        if self.failure:
            lines.append(f"  it failed in delivery {self.end:,}: {self.failure}")
        return "\n".join(lines)

    def add(self, replayed: ReplayedActivation, find_array: FindArray) -> None:
        """Compare and count the outputs of one activation."""
        self.end = replayed.activation.n
        if replayed.error is not None:
            self.failure = f"{type(replayed.error).__name__}: {replayed.error}"
        recorded = recorded_outputs(replayed.activation)
        for key in dict.fromkeys(each.key for each in (*recorded, *replayed.outputs)):
            output = self.outputs.setdefault(key, OutputCounts(" ".join(key)))
            old, new = ([each for each in side if each.key == key] for side in (recorded, replayed.outputs))
            output.counts["missing"] += max(len(old) - len(new), 0)
            output.counts["new"] += max(len(new) - len(old), 0)
            for before, now in zip(old, new, strict=False):
                difference = value_difference(before.fields, now.fields, find_array=find_array)
                output.counts["as recorded" if difference is None else "different"] += 1
                if difference is not None and output.first is None:
                    output.first = (replayed.activation.n, difference)


def what_if(
    make: Callable[[], Replay[Any]],
    *,
    begin: int = 0,
    settings: Mapping[str, str] | None = None,
    edited: type[Actor[Any]] | None = None,
    until: int | None = None,
    each: Callable[[ReplayedActivation], None] | None = None,
) -> WhatIf:
    """Replay with changes, from the delivery `begin` on.

    From birth (0) on, the actor is constructed with the changed settings. From a later delivery on, it is unchanged up
    to there; then every attribute is set that the settings change at birth, so that `learning_rate` reaches the
    optimiser.

    Args:
        make: opens a replay that is not strict.
        begin: the first delivery with the changes.
        settings: flags of the experiment or arguments of the actor's constructor, as on a command line.
        edited: a class that replaces the actor's own.
        until: the delivery before which to stop.
        each: called after each activation.

    Raises:
        UsageError: a setting is unknown, or cannot be changed after birth.
        CannotReplay: an attribute cannot be set.
    """
    with make() as replay:
        report = WhatIf(replay.address, begin, begin)
        options = _with_settings(replay, settings or {})
        report.changes += [f"{name}={text}" for name, text in (settings or {}).items()]
        if begin == 0:
            replay.rebuild(replace(options, edited=edited))
        else:
            replay.run(until=begin, each=each)
            if settings:
                with make() as plain, make() as changed:
                    changed.rebuild(options)
                    plain.step()
                    changed.step()
                    _carry_over(list(state_differences(plain.actor, changed.actor)), replay, report)
            if edited is not None:
                replay.set_class(edited)
        if edited is not None:
            report.changes.append(f"the class {edited.__name__} of {Path(inspect.getfile(edited)).name}")

        def add(replayed: ReplayedActivation) -> None:
            report.add(replayed, replay.find_array)
            if each is not None:
                each(replayed)

        replay.run(until=until, each=add)
        return report


def edited_class(text: str) -> type[Actor[Any]]:
    """Return the actor class that is written as `FILE.py:CLASS`.

    Raises:
        UsageError: there is no such file or class, or the file cannot be imported.
    """
    file, colon, name = text.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py" or not path.exists():
        raise UsageError(f"--class takes FILE.py:CLASS, and {text!r} names no existing Python file")
    module = import_file(path, EDITED)
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Actor)):
        known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Actor)]
        raise UsageError(f"{file} has no actor class {name!r}; it has {', '.join(known) or 'none'}")
    return found


def _text(difference: ValueDifference) -> str:
    path = f"{difference.path}: " if difference.path else ""
    return f"{path}recorded {difference.left}, replayed {difference.right}"


def _with_settings(replay: Replay[Any], settings: Mapping[str, str]) -> RebuildOptions:
    """Return the replay's options with changed settings."""
    flags, parameters = replay.flag_names(), replay.parameter_names()
    for name in settings:
        if name not in flags and name not in parameters:
            raise UsageError(
                f"--set {name}: neither the experiment nor {replay.kind.__name__} has this setting; "
                f"the experiment's are {', '.join(sorted(flags)) or 'none'}; the actor's are "
                f"{', '.join(parameters) or 'none'}"
            )
    changed = {name: text for name, text in settings.items() if name in flags}
    arguments = {name: _value_of(text) for name, text in settings.items() if name not in flags}
    return replace(replay.options, flags=changed, arguments=arguments)


def _carry_over(differences: list[StateDifference], replay: Replay[Any], report: WhatIf) -> None:
    """Set in the live actor what other settings change at birth."""
    changes = ", ".join(report.changes)
    if not differences:
        raise UsageError(f"{changes} changes no attribute of {replay.address} at birth, so none can be set later")
    for each in differences:
        if not each.simple:
            raise UsageError(
                f"{changes} changes {each.path} from {each.difference.left} to {each.difference.right}, which "
                "cannot be set in a live actor: replay from its birth (without --at)"
            )
    for each in differences:
        try:
            each.assign(replay.actor)
        except (LookupError, AttributeError, TypeError) as error:
            raise CannotReplay(f"{replay.address}: {each.path} cannot be set: {error}") from error
    report.changes[:] = [f"{each.path}={exact_text(each.other)}, was {exact_text(each.one)}" for each in differences]


def _value_of(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
