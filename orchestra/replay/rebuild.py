"""Rebuilds a recorded actor: from the experiment that planned it, from its parent, or from a factory given by hand."""

import contextlib
import hashlib
import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestra.actors import codec, spawning
from orchestra.actors.actor import Actor, making
from orchestra.actors.addresses import node_of
from orchestra.actors.message import REGISTRY, Message
from orchestra.errors import CannotReplay, ExperimentChanged, UsageError, ValuesMissing
from orchestra.hosts.shape import HostShape
from orchestra.replay import recorded_code
from orchestra.replay.context import Factory, ReplayContext
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.specialised import flags_of
from orchestra.runs.suggestions import did_you_mean
from orchestra.runs.topology import Topology
from orchestra.trace.format.effects import MessageType
from orchestra.trace.format.records import Activation, ActorSnapshot, Delivery, Incarnation
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.capture import source_hash
from orchestra.trace.recording.settings import versions


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The class and the factory of a recorded actor."""

    kind: type[Actor[Any]]
    factory: Factory
    notes: tuple[str, ...]
    """Changes since the run that may explain a difference."""


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """The source of an actor, and the changes to it.

    A changed experiment file is an error unless `allow_changes`. A changed class is only noted: seeing the effect of
    such a change is a purpose of a replay.
    """

    experiment: Path | None = None
    """The experiment's file, if it has moved since the run."""
    allow_changes: bool = False
    factory: Factory | None = None
    """Constructs the actor. Required where the trace does not hold the constructor's arguments."""
    kind: type[Actor[Any]] | None = None
    """The actor's class, if known."""
    flags: Mapping[str, str] | None = None
    """Changed flags of the experiment, as on a command line."""
    arguments: Mapping[str, Any] | None = None
    """Changed arguments of the constructor."""
    edited: type[Actor[Any]] | None = None
    """A class that replaces the actor's own."""


@dataclass(frozen=True, slots=True)
class Rebuilder:
    """Finds the class, the constructor's arguments and the messages of one recorded actor."""

    trace: RunTrace
    incarnation: Incarnation
    options: RebuildOptions
    factory_from_parent: Callable[[Incarnation], Factory]
    """Replays the parent of a child until it spawns the child, and returns the child's factory."""

    def rebuild(self) -> Rebuilt:
        """Return how the actor is constructed, with the changes of the options.

        Raises:
            CannotReplay: the trace does not hold enough.
            ExperimentChanged: the experiment is not the recorded one.
        """
        kind, factory = self._unchanged()
        notes = self._notes(kind)
        arguments, edited = self.options.arguments, self.options.edited
        if not arguments and edited is None:
            return Rebuilt(kind, factory, notes)
        call = factory if isinstance(factory, partial) else partial(factory)
        if call.func is not kind:
            raise CannotReplay(
                f"{self.incarnation.birth.actor} is constructed by {call.func!r}; only the arguments of its class "
                f"{kind.__name__} could be changed"
            )
        changed: Any = edited or kind
        return Rebuilt(changed, partial(changed, *call.args, **{**call.keywords, **(arguments or {})}), notes)

    def flag_names(self) -> list[str]:
        """Return the names of the experiment's flags; none for an actor that no experiment planned.

        Raises:
            ExperimentChanged: the experiment's file is not the recorded one.
        """
        if self.incarnation.birth.origin != "planned" or self.options.factory is not None:
            return []
        experiment = self.incarnation.header.experiment
        given = () if experiment is None else experiment.flags
        return [flag.name for flag in flags_of(load_experiment(self._experiment_file()), given)[1]]

    def message(self, delivery: Delivery, kind: type[Actor[Any]]) -> Message:
        """Return the message of a delivery, as a handler of the class `kind` gets it.

        Raises:
            CannotReplay: its class does not exist, or has other fields now.
            ValuesMissing: its fields, or the values of an array, were not recorded.
        """
        message = _edited_message(delivery, kind) or self._message_class(delivery.type)
        if delivery.fields is None:
            raise ValuesMissing(
                f"{delivery.actor}: delivery {delivery.n:,} cannot be replayed: the fields of {delivery.type.name} "
                "were left out of the trace"
            )
        return codec.build(message, self.trace.resolved(dict(delivery.fields)))

    def _unchanged(self) -> tuple[type[Actor[Any]], Factory]:
        """Return the actor's class, and its factory without the changes of the options."""
        birth, options = self.incarnation.birth, self.options
        if options.factory is not None:
            return options.kind or self._actor_class(), options.factory
        if birth.origin == "planned":
            return self._planned()
        kind = self._actor_class()
        if birth.origin == "child":
            if birth.args is None:
                return kind, self.factory_from_parent(self.incarnation)
            kwargs = birth.kwargs or {}
            if node_of(birth.parent) == node_of(birth.actor):
                return kind, partial(kind, *birth.args, **kwargs)
            try:
                return kind, spawning.factory_of(birth.kind, birth.args, kwargs)
            except UsageError as error:
                raise CannotReplay(f"{birth.actor} cannot be constructed: {error}") from error
        required = [
            parameter.name
            for parameter in inspect.signature(kind).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if required:
            raise CannotReplay(
                f"{birth.actor} was spawned from outside of actors, and the trace does not hold its constructor's "
                f"arguments; give a factory: Replay(..., factory=lambda: {kind.__name__}({', '.join(required)}))"
            )
        return kind, kind

    def _planned(self) -> tuple[type[Actor[Any]], Factory]:
        birth = self.incarnation.birth
        topology = self._topology()
        with contextlib.suppress(UsageError):
            topology.find(node_of(birth.actor))  # it may be a replica of a run that was scaled
        nodes = topology.nodes.values()
        planned = {f"{node.name}/{actor.name}": actor for node in nodes for actor in node.actors}
        actor = planned.get(birth.actor)
        if actor is None:
            raise ExperimentChanged(
                f"the experiment no longer plans {birth.actor}; it plans {', '.join(planned) or 'no actor'}"
            )
        if actor.kind.__qualname__ != birth.kind.partition(":")[2]:
            kind = spawning.class_name(actor.kind)
            raise ExperimentChanged(f"{birth.actor} was a {birth.kind} in the run, and is planned as a {kind} now")
        return actor.kind, actor.factory

    def _topology(self) -> Topology:
        """Return the run's topology, built for this replay alone."""
        experiment = self.incarnation.header.experiment
        assert experiment is not None
        function, flags = flags_of(load_experiment(self._experiment_file()), experiment.flags)
        try:
            values = flags.parse(experiment.flags)
        except UsageError as error:
            raise ExperimentChanged(f"the experiment rejects the flags of the run: {error}") from error
        for flag in flags:
            text = (self.options.flags or {}).get(flag.name)
            if text is not None:
                values[flag.name] = None if flag.optional and text.lower() == "none" else flag.validated(text)
        return build(function, values, [HostShape(*host) for host in experiment.hosts] or None)

    def _experiment_file(self) -> Path:
        experiment = self.incarnation.header.experiment
        if experiment is None:
            raise CannotReplay(f"{self.incarnation.birth.actor} cannot be constructed: the trace names no experiment")
        file = self.options.experiment or recorded_code.checkout_file(self.trace.path, experiment)
        changed = not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != experiment.sha256
        if changed and not (self.options.experiment or self.options.allow_changes):
            file = recorded_code.unpacked_file(self.trace.path, experiment) or file
        if not file.exists():
            raise CannotReplay(
                f"the experiment's file {str(file)!r} does not exist; give its path with --experiment FILE"
            )
        if not self.options.allow_changes and hashlib.sha256(file.read_bytes()).hexdigest() != experiment.sha256:
            raise ExperimentChanged(
                f"the experiment's file {str(file)!r} has changed since the run (its SHA-256 was "
                f"{experiment.sha256[:8]}…); --allow-changes replays with the changed file"
            )
        return file

    def _actor_class(self) -> type[Actor[Any]]:
        name = self.incarnation.birth.kind
        self._load_experiment_of(name)
        try:
            found = pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise CannotReplay(f"the class {name} cannot be imported: {error}") from error
        if not (isinstance(found, type) and issubclass(found, Actor)):
            raise CannotReplay(f"{name} is not an actor class")
        return found

    def _message_class(self, recorded: MessageType) -> type[Message]:
        if recorded.tag not in REGISTRY:
            self._import_owner(recorded.tag)
        if (found := REGISTRY.get(recorded.tag)) is None:
            raise CannotReplay(f"the message class {recorded.tag} does not exist; was it renamed?")
        if found.wire.fingerprint != recorded.fingerprint:
            raise CannotReplay(
                f"{recorded.name} has changed since the run: its fields were {', '.join(recorded.fields)}, and are "
                f"{', '.join(found.wire.fields)} now; their types may differ as well"
            )
        return found

    def _import_owner(self, tag: str) -> None:
        """Import the package of a message class, with which its tag begins."""
        if not self._load_experiment_of(tag):
            with contextlib.suppress(ModuleNotFoundError):  # the caller reports that the class does not exist
                importlib.import_module(tag.partition(".")[0])

    def _load_experiment_of(self, module: str) -> bool:
        """Load the experiment if `module` lies in its file; return whether it does."""
        if not module.startswith("experiment_") or self.incarnation.header.experiment is None:
            return False
        load_experiment(self._experiment_file())
        return True

    def _notes(self, kind: type[Actor[Any]]) -> tuple[str, ...]:
        notes = []
        recorded = self.incarnation.birth.source
        if recorded and source_hash(kind) != recorded:
            notes.append(f"the class {kind.__name__} has changed since the run")
        now = versions()
        for name, then in self.incarnation.header.versions.items():
            if then and then != now.get(name, then):
                notes.append(f"{name} was {then} in the run, and is {now[name]} now")
        return tuple(notes)


def address_of(trace: RunTrace, actor: str | type[Actor[Any]]) -> str:
    """Return the address of the recorded actor that is named by its address, or by its class.

    Raises:
        CannotReplay: the trace does not hold it, or several actors are of that class.
    """
    known = trace.actors()
    if isinstance(actor, str):
        if actor in known:
            return actor
        hint = did_you_mean(actor, known)
        every = ", ".join(known) or "none"
        raise CannotReplay(f"{trace.path}: nothing was recorded of {actor!r}{hint}; the recorded actors are {every}")
    name = spawning.class_name(actor)
    found = sorted({each.birth.actor for each in trace.incarnations() if each.birth.kind == name})
    if len(found) == 1:
        return found[0]
    which = f"{len(found)} actors are of this class: {', '.join(found)}" if found else "no actor is of this class"
    raise CannotReplay(f"{trace.path}: {actor.__name__} does not select one actor: {which}; give an address instead")


def recorded_start(
    trace: RunTrace, incarnation: Incarnation, kind: type[Actor[Any]]
) -> tuple[ActorSnapshot | None, Iterator[Activation]]:
    """Return the snapshot with which a replay begins, None for the actor's birth, and the activations from there on.

    Raises:
        CannotReplay: the record reaches back neither to the actor's birth nor to a snapshot.
    """
    first, snapshot = next(trace.activations(incarnation), None), None
    if first is None or first.n > 0:
        snapshot = trace.snapshot(incarnation)
        if snapshot is not None:
            first = next(trace.activations(incarnation, since=snapshot.n), None)
    begin = 0 if snapshot is None else snapshot.n
    if first is not None and first.n == begin:
        return snapshot, trace.activations(incarnation, since=begin)
    if first is not None:
        begins = f"the record begins at {first.n:,}"
    else:
        begins = "its record holds no delivery" + ("" if snapshot is None else " after its last snapshot")
    advice = ""
    if incarnation.header.mode == "flight":
        advice = (
            "; a flight record keeps only the end of a run: record with --trace full, or with a larger flight record"
        )
        if kind.snapshot is Actor.snapshot:
            advice += f", or implement {kind.__name__}.snapshot (see Actor.snapshot)"
    raise CannotReplay(
        f"{incarnation.birth.actor} cannot be replayed from its birth: {begins}, without a snapshot{advice}"
    )


def constructed(context: ReplayContext, factory: Factory) -> Actor[Any]:
    """Return a new actor that lives in `context`."""
    token = making.set(context)
    try:
        return factory()
    finally:
        making.reset(token)


def scratch_folder(trace: RunTrace, incarnation: Incarnation) -> tempfile.TemporaryDirectory[str] | None:
    """Create a temporary folder in the place of the run's, if the actor's run had one; else return None.

    It has a copy of the run's configuration, folders for the files of an actor, and for an actor that resumed a copy of
    the metrics, which it continues.
    """
    if not incarnation.header.run_directory:
        return None
    temporary = tempfile.TemporaryDirectory(prefix="replay-", ignore_cleanup_errors=True)
    scratch = RunDirectory(Path(temporary.name))
    for folder in (scratch.checkpoints, scratch.logs, scratch.tensorboard, scratch.traces):
        folder.mkdir()
    # An actor of another host had a folder of its own there; the trace lies in the run directory.
    run = recorded_code.run_of(trace.path) or RunDirectory(Path(incarnation.header.run_directory))
    scratch.config_path.write_bytes(run.config_path.read_bytes() if run.config_path.exists() else b"{}")
    if incarnation.resume_from:
        scratch.metrics.write_bytes(run.metrics.read_bytes() if run.metrics.exists() else b"")
    return temporary


def resume_folder(trace: RunTrace, incarnation: Incarnation) -> Path | None:
    """Return the folder of the saved state that an actor resumed from; None if it resumed from none.

    An actor of another host has resumed from a copy.
    """
    if not incarnation.resume_from:
        return None
    folder = Path(incarnation.resume_from)
    run = recorded_code.run_of(trace.path)
    return folder if folder.exists() or run is None else run.state / folder.name


def _edited_message(delivery: Delivery, kind: type[Actor[Any]]) -> type[Message] | None:
    """Return an edited actor's own copy of a message class: its file defines the message again under another tag."""
    name, tag, fields = delivery.type.name, delivery.type.tag, delivery.type.fields
    if any(message.wire.tag == tag for message in kind.handlers):
        return None
    return next((each for each in kind.handlers if (each.__name__, each.wire.fields) == (name, fields)), None)
