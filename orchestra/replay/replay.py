"""Replay: one actor of a recorded run, live again, with its recorded inputs, and compared with its recorded outputs.

    with Replay("runs/qmix_8m/20260101-120000-seed0", "learner/trainer") as replay:
        replay.seek(412)        # handles everything before it
        print(replay.message)   # the next message
        print(replay.actor)     # the live object: look, call, change
        replay.step()           # runs the handler; raises ReplayDiverged if an output differs from the record

It is synchronous, so that a debugger or a notebook needs no event loop.
"""

import bdb
import inspect
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from orchestra.actors.actor import Actor
from orchestra.actors.axes import AnyArray
from orchestra.actors.message import Message
from orchestra.actors.system_messages import StopMsg
from orchestra.errors import CannotReplay, ReplayDiverged
from orchestra.replay.context import Factory, ReplayContext
from orchestra.replay.effects import ReplayedActivation, was_aborted
from orchestra.replay.rebuild import (
    Rebuilder,
    RebuildOptions,
    Rebuilt,
    address_of,
    constructed,
    recorded_start,
    resume_folder,
    scratch_folder,
)
from orchestra.replay.report import Divergence, activation_text, causes_of, compare_failures
from orchestra.trace.analysis.values import ValueDifference
from orchestra.trace.format.records import Activation, ActorSnapshot, Delivery, Digest, Failure, Handled, Incarnation
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.recording.capture import failure_of

A = TypeVar("A", bound=Actor[Any])


class Options(TypedDict, total=False):
    """The keywords of `Replay`."""

    incarnation: int | None
    generation: int | None
    experiment: Path | None
    allow_changes: bool
    factory: Factory | None
    tolerance: float
    strict: bool


class Replay(Generic[A]):
    """One incarnation of an actor, from its birth, or from a snapshot if a flight record no longer holds the birth.

    The actor is an object of its real class. Its sends are compared with the record and go nowhere; the answers to its
    asks and the readings of its clock come from the record; its random numbers are drawn again from the same seed.
    Offloaded work runs at once, and files go to a scratch folder. Any other side effect, such as a socket or a file
    elsewhere, happens again.

    Not reproduced: the order in which two coroutines of one handler continue if both wait at the same time and share
    state without awaiting each other.

    Args:
        path: a run directory, a folder of traces, or one trace file.
        actor: the actor's address; or its class, if one actor of the run is of that class.
        incarnation: 0 for the actor's first start, and one more for each restart; the first recorded one by default.
        generation: of the node's process, if several processes were this node one after the other; the first by
            default.
        experiment: the experiment's file, if it has moved since the run.
        allow_changes: whether the experiment's file may differ from the recorded one. A change of the actor's class is
            only noted (`notes`): seeing its effect is a purpose of a replay.
        factory: constructs the actor. Required where the trace does not hold the constructor's arguments.
        tolerance: relative and absolute tolerance of floating-point numbers; 0 requires equal bytes.
        strict: whether to compare the actor with the record.

    Raises:
        NotATrace, TraceVersion: `path` holds no readable trace.
        TraceError: nothing was recorded of this actor.
        CannotReplay: the actor cannot be rebuilt; `ExperimentChanged` if that is because the experiment has changed.
    """

    @overload
    def __init__(self: "Replay[Any]", path: Path | str, actor: str, **options: Unpack[Options]) -> None: ...
    @overload
    def __init__(self: "Replay[A]", path: Path | str, actor: type[A], **options: Unpack[Options]) -> None: ...

    def __init__(
        self,
        path: Path | str,
        actor: Any,
        *,
        incarnation: int | None = None,
        generation: int | None = None,
        experiment: Path | None = None,
        allow_changes: bool = False,
        factory: Factory | None = None,
        tolerance: float = 0.0,
        strict: bool = True,
    ) -> None:
        self.trace = RunTrace(Path(path))
        """The run's trace."""
        self.tolerance = tolerance
        self.strict = strict
        self.options = RebuildOptions(experiment, allow_changes, factory, actor if isinstance(actor, type) else None)
        self.divergence: Divergence | None = None
        """The first difference from the record, if there was one."""
        self.first = 0
        """The first activation of the replay: 0, the actor's birth, or the one after the snapshot it begins with."""
        self.activation: Activation | None = None
        """The next activation; None at the end of the record."""
        self.failure: Exception | None = None
        """The exception that ended the actor, with its traceback; None without one."""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._actor: Any = None
        self._last = -1
        self._debugger: bdb.Bdb | None = None
        try:
            address = address_of(self.trace, actor)
            self.incarnation: Incarnation = self.trace.incarnation(
                address, generation=generation, incarnation=incarnation
            )
            """The replayed incarnation."""
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Replay of {self.address} at {self.activation.n if self.activation else 'its end'}>"

    def close(self) -> None:
        """Close the trace, and remove the scratch folder."""
        self.trace.close()
        self._remove_scratch()

    # Its state

    @property
    def address(self) -> str:
        """The actor's address."""
        return self.incarnation.birth.actor

    @property
    def actor(self) -> A:
        """The live object, of the real class.

        Raises:
            CannotReplay: the actor is constructed by the first `step`, which was not called yet.
        """
        if self._actor is None:
            raise CannotReplay(f"{self.address} does not exist yet: the first step() constructs it")
        return self._actor  # type: ignore[no-any-return]  # of the class that the address stands for

    @property
    def delivery(self) -> Delivery | None:
        """The next delivery; None if the next activation is the birth or the stop, and at the end."""
        return None if self.activation is None else self.activation.delivery

    @property
    def message(self) -> Message | None:
        """The message of the next delivery, as the handler gets it."""
        delivery = self.delivery
        return None if delivery is None else self._message(delivery)

    @property
    def notes(self) -> tuple[str, ...]:
        """Changes since the run (an edited class, another version of a library), and where the replay begins."""
        if not self.first:
            return self._rebuilt.notes
        begins = f"the replay begins with a snapshot of {self.address} before delivery {self.first:,}"
        return (*self._rebuilt.notes, begins)

    @property
    def failure_record(self) -> Failure | None:
        """`failure` in the form of a trace, with its line."""
        return None if self.failure is None else Failure(*failure_of(self.failure, self.kind))

    @property
    def kind(self) -> type[Actor[Any]]:
        """The actor's class."""
        return self._rebuilt.kind

    def flag_names(self) -> list[str]:
        """Return the names of the experiment's flags; none for an actor that no experiment planned."""
        return self._rebuilder.flag_names()

    def parameter_names(self) -> list[str]:
        """Return the names of the parameters of the actor's constructor."""
        return list(inspect.signature(self.kind).parameters)

    def find_array(self, digest: Digest) -> AnyArray | None:
        """Return the bytes of an array that was recorded by its digest; None if the trace does not hold them."""
        return self.trace.array(digest.digest)

    def portable(self, text: str) -> str:
        """Return `text` with the folder of the run in the place of the scratch folder."""
        return (
            text if self._scratch is None else text.replace(self._scratch.name, self.incarnation.header.run_directory)
        )

    # Changing it

    def rebuild(self, options: RebuildOptions) -> None:
        """Begin again with an actor that is rebuilt by other options."""
        self.options = options
        self._begin()

    def set_class(self, kind: type[Actor[Any]]) -> None:
        """Change the class of the live actor to an edited copy of its own."""
        self.actor.__class__ = kind  # type: ignore[assignment]  # an edited copy of its own

    # Running it

    def step(self, *, debugger: bdb.Bdb | None = None) -> ReplayedActivation | None:
        """Run the next activation: construct and start the actor, handle a message, or stop. Return None at the end.

        A recorded failure that happens again is no difference; see `failure`.

        Args:
            debugger: stops at the first line of the handler.

        Raises:
            ReplayDiverged: the actor differs from the record.
            CannotReplay: the record of this activation is incomplete.
        """
        activation = self.activation
        if activation is None:
            return None
        if activation.n != self._last + 1:
            between = f"between {self._last:,} and {activation.n:,}"
            raise CannotReplay(f"{self.address}: the deliveries {between} were not recorded")
        self._debugger = debugger
        compares = self.strict and activation.handled is not None
        replayed = self._context.perform(activation, self._work(activation), strict=compares)
        self._last, self.failure = activation.n, replayed.error
        self.activation = None if replayed.error is not None and not self.strict else next(self._activations, None)
        if replayed.difference is None and compares:
            replayed.difference = self._failure_difference(activation)
        if replayed.difference is not None and self.strict:
            what, difference, where = replayed.difference
            during = activation_text(activation.delivery, activation.phase)
            causes = causes_of(self.trace, activation.delivery)
            self.divergence = Divergence(self.address, activation.n, during, what, difference, where, causes)
            raise ReplayDiverged(str(self.divergence)) from replayed.error
        return replayed

    def seek(self, target: int | str | type[Message] | Callable[[Delivery], bool]) -> Delivery:
        """Run up to the delivery `target`, which is not handled, and return it.

        Args:
            target: a delivery's number (the replay begins again if it has passed), a message's type or the name of one,
                or a predicate.

        Raises:
            ReplayDiverged: see `step`.
            CannotReplay: the rest of the record holds no such delivery.
        """
        if isinstance(target, int):
            if target < self.first:
                raise CannotReplay(
                    f"{self.address}: delivery {target:,} cannot be reached: the replay begins with a snapshot before "
                    f"delivery {self.first:,}"
                )
            if self.activation is None or target < self.activation.n:
                self._begin()
            fits: Callable[[Delivery], bool] = lambda delivery: delivery.n == target  # noqa: E731 (one of three)
            sought = f"delivery {target:,}"
        elif isinstance(target, str | type):
            name = target if isinstance(target, str) else target.__name__
            fits = lambda delivery: delivery.type.name == name  # noqa: E731 (two of three)
            sought = f"further {name}"
        else:
            fits, sought = target, "delivery that fits"
        while self.activation is not None:
            delivery = self.activation.delivery
            if delivery is not None and fits(delivery):
                return delivery
            self.step()
        raise CannotReplay(f"{self.address} got no {sought}; its record has {self._last:,} deliveries")

    def run(
        self,
        *,
        until: int | Callable[[A], bool] | None = None,
        each: Callable[[ReplayedActivation], None] | None = None,
    ) -> int:
        """Run to the end of the record, or as far as `until` says; return the number of activations.

        Args:
            until: the delivery before which to stop; or a predicate over the actor, to stop as soon as it is true after
                an activation.
            each: called after each activation.

        Raises:
            ReplayDiverged: see `step`.
        """
        count = 0
        while self.activation is not None and not (isinstance(until, int) and self.activation.n >= until):
            replayed = self.step()
            count += 1
            if each is not None and replayed is not None:
                each(replayed)
            if callable(until) and self._actor is not None and until(self.actor):
                break
        return count

    def __iter__(self) -> Iterator[Delivery]:
        """Yield each delivery before it is handled; asking for the next one handles it."""
        while (activation := self.activation) is not None:
            if activation.delivery is not None:
                yield activation.delivery
            if self.activation is activation:  # the body of the loop may have called step()
                self.step()

    # Inside

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _begin(self) -> None:
        """Go to the actor's birth, or to its snapshot."""
        incarnation = self.incarnation
        resume_from = resume_folder(self.trace, incarnation)
        if resume_from is not None and not resume_from.exists():
            raise CannotReplay(f"{self.address} resumed from {str(resume_from)!r}, which does not exist")
        self._remove_scratch()
        self._scratch = scratch_folder(self.trace, incarnation)
        self._rebuilder = Rebuilder(self.trace, incarnation, self.options, self._child_factory)
        self._rebuilt: Rebuilt = self._rebuilder.rebuild()
        self._context = ReplayContext(
            self.trace,
            incarnation,
            run_directory=None if self._scratch is None else Path(self._scratch.name),
            resume_from=resume_from,
            tolerance=self.tolerance,
        )
        self._actor = self.failure = self.divergence = None
        snapshot, self._activations = recorded_start(self.trace, incarnation, self._rebuilt.kind)
        self.activation = next(self._activations, None)
        self.first = 0 if snapshot is None else snapshot.n
        self._last = self.first - 1
        if snapshot is not None:
            self._restore(snapshot)

    def _restore(self, snapshot: ActorSnapshot) -> None:
        """Construct the actor, which is not started, and restore the state of a snapshot."""
        state = self.trace.resolved(dict(snapshot.state))

        async def restore() -> None:
            self._actor = constructed(self._context, self._rebuilt.factory)
            self._context.rng.bit_generator.state = json.loads(snapshot.random)
            self._actor.restore(state)

        handled = Handled(self.address, snapshot.incarnation, snapshot.n - 1, "start", 0, snapshot.time, 0.0, ())
        error = self._context.perform(Activation(snapshot.n - 1, "start", handled=handled), restore, strict=False).error
        if error is not None:
            raise CannotReplay(
                f"{self.address} cannot restore its snapshot before delivery {snapshot.n:,}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _work(self, activation: Activation) -> Callable[[], Any]:
        if activation.phase == "start":
            return self._start
        if activation.phase == "stop":
            return self._actor.stopped  # type: ignore[no-any-return]  # a method of the actor
        delivery = activation.delivery
        if delivery is None:
            raise CannotReplay(f"{self.address}: the message of delivery {activation.n:,} was not recorded")
        message = self._message(delivery)
        return lambda: self._handle(delivery, message)

    async def _start(self) -> None:
        self._actor = constructed(self._context, self._rebuilt.factory)
        await self._actor.started()

    async def _handle(self, delivery: Delivery, message: Message) -> None:
        name = self._actor.handlers.get(type(message))
        if name is not None:
            await self._context.handle(getattr(self._actor, name), delivery, message, self._debugger)
        elif isinstance(message, StopMsg):
            self._context.request_stop(graceful=message.graceful)

    def _message(self, delivery: Delivery) -> Message:
        return self._rebuilder.message(delivery, self.kind if self._actor is None else type(self._actor))

    def _failure_difference(self, activation: Activation) -> tuple[str, ValueDifference, str] | None:
        delivery = activation.delivery
        handled = delivery is None or type(self._message(delivery)) in self._actor.handlers
        if was_aborted(activation) or not handled:  # the runtime handles most of its own messages itself
            return None
        recorded = activation.handled.failure if activation.handled is not None else None
        changed = any("class" in note for note in self.notes)
        return compare_failures(recorded, self.failure_record, class_changed=changed)

    def _child_factory(self, child: Incarnation) -> Factory:
        """Replay the parent until it spawns the child, and return the child's factory."""
        birth = child.birth
        with Replay(
            self.trace.path,
            birth.parent,
            incarnation=birth.parent_incarnation,
            generation=child.header.generation,
            experiment=self.options.experiment,
            allow_changes=self.options.allow_changes,
            strict=False,
        ) as parent:
            if parent.first > birth.parent_n:
                raise CannotReplay(
                    f"{birth.actor} was spawned by {birth.parent} in delivery {birth.parent_n:,}, and the replay of "
                    f"{birth.parent} begins later, with delivery {parent.first:,}"
                )
            parent.run(until=birth.parent_n + 1)
            factory = parent._context.factories.get(birth.actor)
        if factory is None:
            raise CannotReplay(f"{birth.actor} cannot be constructed: {birth.parent} did not spawn it when replayed")
        return factory
