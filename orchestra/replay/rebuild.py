"""How an actor is made again: from the experiment that planned it, from what its parent gave it, or by hand."""

import hashlib
import importlib
import inspect
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from orchestra.actors import codec
from orchestra.actors.actor import Actor
from orchestra.actors.envelope import node_of
from orchestra.actors.message import REGISTRY, Message
from orchestra.actors.system_messages import SpawnMsg
from orchestra.errors import CannotReplay, ExperimentChanged, UsageError, ValuesMissing
from orchestra.nodes import spawning
from orchestra.replay.context import Factory
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags
from orchestra.runs.topology import Topology
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.records import Birth, Delivery, Header, Incarnation
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.capture import source_hash


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An actor to be, as it was."""

    kind: type[Actor[Any]]
    factory: Factory
    notes: tuple[str, ...]
    """What is not as it was, and may be why a replay differs."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where actors come from.

    A change of the experiment's file is an error, unless `allow_changes`; a change of the actor's class is only noted:
    to see what it does is what a replay is for.
    """

    experiment: Path | None = None
    """The experiment's file, if it is not where it was."""
    allow_changes: bool = False
    factory: Factory | None = None
    """Makes the actor, where the trace cannot say how."""
    kind: type[Actor[Any]] | None = None
    """Its class, if that is known."""
    changes: Mapping[str, str] | None = None
    """Flags of the experiment that shall be others, as on a command line."""
    arguments: Mapping[str, Any] | None = None
    """Arguments of the constructor that shall be others."""
    edited: type[Actor[Any]] | None = None
    """A class to take the place of the actor's own."""


def rebuilt(life: Incarnation, sources: Sources, recipe_of_child: Callable[[Incarnation], Factory]) -> Rebuilt:
    """Return how the actor of `life` is made, with what `sources` wants changed.

    Args:
        life: what was recorded of it.
        sources: where to look.
        recipe_of_child: replays the parent of a child until it spawns that, and returns how it does it.

    Raises:
        CannotReplay: the trace does not say enough.
        ExperimentChanged: the experiment is not what it was.
    """
    found = _as_it_was(life, sources, recipe_of_child)
    if not sources.arguments and sources.edited is None:
        return found
    factory = found.factory if isinstance(found.factory, partial) else partial(found.factory)
    if factory.func is not found.kind:
        raise CannotReplay(
            f"{life.birth.actor} is made by {factory.func!r}, of which nothing can be changed from outside"
        )
    kind: Any = sources.edited or found.kind
    made: Factory = partial(kind, *factory.args, **{**factory.keywords, **(sources.arguments or {})})
    return replace(found, kind=kind, factory=made)


def _as_it_was(life: Incarnation, sources: Sources, recipe_of_child: Callable[[Incarnation], Factory]) -> Rebuilt:
    """Return how the actor of `life` was made."""
    birth = life.birth
    if sources.factory is not None:
        kind = sources.kind or actor_class_named(birth.kind, life.header, sources)
        return _noted(life, kind, sources.factory)
    if birth.origin == "planned":
        return _planned(life, sources)
    kind = actor_class_named(birth.kind, life.header, sources)
    if birth.origin == "child":
        if birth.args is not None and node_of(birth.parent) != node_of(birth.actor):
            return _noted(life, kind, _from_afar(birth))
        if birth.args is not None:
            return _noted(life, kind, partial(kind, *birth.args, **(birth.kwargs or {})))
        return _noted(life, kind, recipe_of_child(life))
    needed = [
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise CannotReplay(
            f"{birth.actor} was spawned by the code around its node, which the trace does not hold; "
            f"say how it is made: Replay(..., recipe=lambda: {kind.__name__}({', '.join(needed)}))"
        )
    return _noted(life, kind, kind)


def _from_afar(birth: Birth) -> Factory:
    """Return what makes an actor that another node asked for, from what that gave it."""
    request = SpawnMsg(
        name=birth.actor.partition("/")[2],
        kind=birth.kind,
        parent=birth.parent,
        args=list(birth.args or ()),
        kwargs=dict(birth.kwargs or {}),
    )
    try:
        return spawning.factory_of(request)
    except UsageError as error:
        raise CannotReplay(f"{birth.actor} cannot be made again: {error}") from error


def topology_of(header: Header, sources: Sources) -> Topology:
    """Return the plan of the run, built anew: nothing in it is shared with another.

    Raises:
        ExperimentChanged: the experiment is not what it was.
    """
    function = load_experiment(_file_of(header, sources))
    experiment = header.experiment
    assert experiment is not None
    flags = Flags.of(function)
    try:
        values = flags.parse(experiment.flags)
    except UsageError as error:
        raise ExperimentChanged(f"the experiment does not take the run's flags any longer: {error}") from error
    for flag in flags:
        text = (sources.changes or {}).get(flag.name)
        if text is not None:
            values[flag.name] = None if flag.optional and text.lower() == "none" else flag.value_of(text)
    return build(function, values)


def flags_of(header: Header, sources: Sources) -> list[str]:
    """Return the names of the experiment's flags.

    Raises:
        ExperimentChanged: its file is not what it was.
    """
    return [flag.name for flag in Flags.of(load_experiment(_file_of(header, sources)))]


def message_class(kind: MessageType, header: Header, sources: Sources) -> type[Message]:
    """Return the class of a recorded message.

    Raises:
        CannotReplay: there is none of that name, or it has other fields now.
    """
    found = REGISTRY.get(kind.tag)
    if found is None:
        _import_owner(kind.tag, header, sources)
        found = REGISTRY.get(kind.tag)
    if found is None:
        raise CannotReplay(f"there is no message class {kind.tag} any longer; was it renamed or moved?")
    if found.wire.fingerprint != kind.fingerprint:
        raise CannotReplay(
            f"{kind.name} is not the message that was recorded: its fields were {', '.join(kind.fields)}, and are "
            f"{', '.join(found.wire.fields)}; their types may differ as well"
        )
    return found


def message_of(
    delivery: Delivery, actor: type[Actor[Any]], trace: RunTrace, header: Header, sources: Sources
) -> Message:
    """Return the message of a delivery, as a handler of `actor` gets it.

    Raises:
        CannotReplay: there is no class of it any longer.
        ValuesMissing: its fields, or the numbers of an array, were not recorded.
    """
    kind = _edited_message(delivery, actor) or message_class(delivery.type, header, sources)
    if delivery.fields is None:
        raise ValuesMissing(
            f"{delivery.actor}: what delivery {delivery.n:,} said was not recorded: the fields of "
            f"{delivery.type.name} were left out of the trace"
        )
    return codec.build(kind, trace.resolved(dict(delivery.fields)))


def _edited_message(delivery: Delivery, actor: type[Actor[Any]]) -> type[Message] | None:
    """Return the class's own copy of a message that stands in its file, where another file takes its place."""
    name, tag = delivery.type.name, delivery.type.tag
    if any(message.wire.tag == tag for message in actor.handlers):
        return None
    own = [
        message
        for message in actor.handlers
        if message.__name__ == name and message.wire.fields == delivery.type.fields
    ]
    return own[0] if own else None


def actor_class_named(name: str, header: Header, sources: Sources) -> type[Actor[Any]]:
    """Return the actor class `module:qualname`.

    Raises:
        CannotReplay: there is none.
    """
    module, _, qualname = name.partition(":")
    if module.startswith("experiment_") and header.experiment is not None:
        load_experiment(_file_of(header, sources))
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CannotReplay(f"the class {name} cannot be found: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Actor)):
        raise CannotReplay(f"{name} is no actor class any longer")
    return found


def _planned(life: Incarnation, sources: Sources) -> Rebuilt:
    birth = life.birth
    if life.header.experiment is None:
        raise CannotReplay(f"the trace does not say which experiment planned {birth.actor}")
    topology = topology_of(life.header, sources)
    node, _, name = birth.actor.partition("/")
    planned = topology.nodes[node].actors if node in topology.nodes else []
    for actor in planned:
        if actor.name == name:
            break
    else:
        every = (f"{each.name}/{actor.name}" for each in topology.nodes.values() for actor in each.actors)
        raise ExperimentChanged(
            f"the experiment plans no {birth.actor} any longer; it plans {', '.join(every) or 'nobody'}"
        )
    kind = f"{actor.kind.__module__}:{actor.kind.__qualname__}"
    if kind.partition(":")[2] != birth.kind.partition(":")[2]:
        raise ExperimentChanged(f"{birth.actor} was a {birth.kind}, and is planned as a {kind} now")
    return _noted(life, actor.kind, actor.factory)


def _file_of(header: Header, sources: Sources) -> Path:
    experiment = header.experiment
    if experiment is None:
        raise CannotReplay("the trace does not say which experiment it is of")
    file = sources.experiment or Path(experiment.file)
    if not file.exists():
        raise CannotReplay(f"the experiment's file {str(file)!r} is gone; say where it is now (--experiment FILE)")
    if not sources.allow_changes and hashlib.sha256(file.read_bytes()).hexdigest() != experiment.sha256:
        raise ExperimentChanged(
            f"the experiment's file {str(file)!r} has changed since the run (its SHA-256 was "
            f"{experiment.sha256[:8]}…); --allow-changes replays with it as it is now"
        )
    return file


def _noted(life: Incarnation, kind: type[Actor[Any]], factory: Factory) -> Rebuilt:
    notes = []
    recorded = life.birth.source
    if recorded and source_hash(kind) != recorded:
        notes.append(f"the class {kind.__name__} has changed since the run")
    for name, then in life.header.versions.items():
        now = _version(name)
        if then and now and then != now:
            notes.append(f"{name} was {then} then, and is {now} now")
    return Rebuilt(kind, factory, tuple(notes))


def _version(name: str) -> str | None:
    if name == "python":
        return platform.python_version()
    try:
        return metadata.version("orchestra-rl" if name == "orchestra" else name)
    except metadata.PackageNotFoundError:
        return None  # a library that is not installed here; what needs it will say so


def _import_owner(tag: str, header: Header, sources: Sources) -> None:
    """Import the module that a message class is in: the longest part of its name that is one."""
    if tag.startswith("experiment_") and header.experiment is not None:
        load_experiment(_file_of(header, sources))
        return
    module = tag
    while "." in module:
        module = module.rpartition(".")[0]
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return
