"""What if: an actor is replayed with something changed, and what it then says otherwise is counted."""

import ast
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestra.actors.actor import Actor
from orchestra.errors import CannotReplay, UsageError
from orchestra.replay.difference import Difference, Lookup, first_difference, shown
from orchestra.replay.performance import Performance, Said, recorded_said
from orchestra.replay.rebuild import Sources
from orchestra.replay.replay import Replay
from orchestra.replay.state import StateDifference, state_differences

EDITED = "edited"


@dataclass(slots=True)
class Account:
    """How often one sort of thing was said, and how it differs from what was recorded."""

    what: str
    """`told learner/orchestrator TrainResultMsg`."""
    same: int = 0
    differ: int = 0
    only_recorded: int = 0
    only_replayed: int = 0
    first: tuple[int, Difference] | None = None
    """The delivery in which it first differs, and how."""

    def __str__(self) -> str:
        counts = [(self.same, "as recorded"), (self.differ, "otherwise"), (self.only_recorded, "no longer"),
                  (self.only_replayed, "new")]  # fmt: skip
        said = ", ".join(f"{count:,} {words}" for count, words in counts if count)
        first = "" if self.first is None else f"\n    first in delivery {self.first[0]:,}: {self.first[1]}"
        return f"  {self.what}: {said}{first}"


@dataclass(slots=True)
class WhatIf:
    """What became of it."""

    actor: str
    begin: int
    """The delivery from which on it counts."""
    end: int = 0
    changes: list[str] = field(default_factory=list)
    """What was changed, in words."""
    accounts: dict[tuple[str, str, str], Account] = field(default_factory=dict)
    failure: str = ""
    """How it ended, if it failed."""

    def __str__(self) -> str:
        lines = [f"{self.actor}, deliveries {self.begin:,} to {self.end:,}, with {'; '.join(self.changes)}:"]
        lines += [str(account) for account in self.accounts.values()] or ["  it said nothing, then and now"]
        if self.failure:
            lines.append(f"  it failed in delivery {self.end:,}: {self.failure}")
        return "\n".join(lines)

    def count(self, performance: Performance, recorded: list[Said], values: Lookup) -> None:
        """Take in one activation."""
        for key in dict.fromkeys((said.verb, said.recipient, said.kind) for said in (*recorded, *performance.said)):
            account = self.accounts.setdefault(key, Account(" ".join(key)))
            old, new = ([each for each in side if (each.verb, each.recipient, each.kind) == key]
                        for side in (recorded, performance.said))  # fmt: skip
            account.only_recorded += max(len(old) - len(new), 0)
            account.only_replayed += max(len(new) - len(old), 0)
            for was, now in zip(old, new, strict=False):
                difference = first_difference(was.fields, now.fields, values=values)
                account.same += difference is None
                account.differ += difference is not None
                if difference is not None and account.first is None:
                    account.first = (performance.activation.n, difference)


def what_if(
    make: Callable[[], Replay[Any]],
    *,
    begin: int = 0,
    settings: Mapping[str, str] | None = None,
    edited: type[Actor[Any]] | None = None,
    until: int | None = None,
    each: Callable[[Performance], None] | None = None,
) -> WhatIf:
    """Replay with something changed, from the delivery `begin` on.

    From birth (0) on, an actor is made with other settings. From a later delivery on, it lives as it did until then;
    then everything in it is set that the settings would have made different at birth: `learning_rate` reaches the
    optimiser.

    Args:
        make: opens a replay that is not strict.
        begin: the first delivery that counts.
        settings: flags of the experiment or arguments of the actor's constructor, as on a command line.
        edited: takes the place of the actor's class.
        until: the delivery before which to stop.
        each: hears of each activation.

    Raises:
        UsageError: a setting is neither, or cannot be changed in the middle of a life.
    """
    with make() as replay:
        report = WhatIf(replay.address, begin, begin)
        sources = _with_settings(replay, settings or {})
        report.changes += [f"{name}={text}" for name, text in (settings or {}).items()]
        if begin == 0:
            replay.remake(replace(sources, edited=edited))
        else:
            replay.run(until=begin, each=each)
            if settings:
                with make() as plain, make() as changed:
                    changed.remake(sources)
                    plain.step()
                    changed.step()
                    _carry_over(list(state_differences(plain.actor, changed.actor)), replay, report)
            if edited is not None:
                replay.recast(edited)
        if edited is not None:
            report.changes.append(f"the class {edited.__name__} of {Path(inspect.getfile(edited)).name}")
        while (activation := replay.activation) is not None and (until is None or activation.n < until):
            recorded = recorded_said(activation)
            performance = replay.step()
            assert performance is not None
            if each is not None:
                each(performance)
            report.end = activation.n
            report.count(performance, recorded, replay.values)
            if performance.error is not None:
                report.failure = f"{type(performance.error).__name__}: {performance.error}"
        return report


def edited_class(spelt: str) -> type[Actor[Any]]:
    """Return the actor class of `FILE.py:CLASS`.

    Raises:
        UsageError: there is none.
    """
    file, colon, name = spelt.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py" or not path.exists():
        raise UsageError(f"--class takes FILE.py:CLASS, and {spelt!r} names no file that is there")
    module_name = f"{EDITED}_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before it runs: type hints look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Actor)):
        known = [key for key, value in vars(module).items() if isinstance(value, type) and issubclass(value, Actor)]
        raise UsageError(f"{file} has no actor class {name!r}; it has {', '.join(known) or 'none'}")
    return found


def _with_settings(replay: Replay[Any], settings: Mapping[str, str]) -> Sources:
    """Return where an actor with other settings comes from."""
    flags, parameters = replay.flags(), replay.parameters()
    for name in settings:
        if name not in flags and name not in parameters:
            raise UsageError(
                f"--set {name}: neither the experiment nor {replay.kind.__name__} has a setting of that name; "
                f"the experiment's are {', '.join(sorted(flags)) or 'none'}; the actor's are "
                f"{', '.join(parameters) or 'none'}"
            )
    in_flags = {name: text for name, text in settings.items() if name in flags}
    arguments = {name: _value_of(text) for name, text in settings.items() if name not in flags}
    return replace(replay.sources, changes=in_flags, arguments=arguments)


def _carry_over(differences: list[StateDifference], replay: Replay[Any], report: WhatIf) -> None:
    """Set in the live actor what other settings had made different at birth."""
    what = ", ".join(report.changes)
    if not differences:
        raise UsageError(f"{what} changes nothing in {replay.address} at its birth, so there is nothing to set later")
    for each in differences:
        if not each.simple:
            raise UsageError(
                f"{what} changes {each.path} from {each.difference.recorded} to {each.difference.replayed}; it cannot "
                "be done in the middle of its life: replay from its birth (without --at)"
            )
    for each in differences:
        try:
            each.assign(replay.actor)
        except (LookupError, AttributeError, TypeError) as error:
            raise CannotReplay(f"{replay.address}: {each.path} cannot be set: {error}") from error
    report.changes[:] = [f"{each.path}={shown(each.other)}, was {shown(each.one)}" for each in differences]


def _value_of(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
