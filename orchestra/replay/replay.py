"""Replay: one actor of a recorded run, live again, fed what it was fed, and held to what it said.

    with Replay("runs/qmix_8m/20260101-120000-seed0", "learner/trainer") as replay:
        replay.seek(412)        # everything before it has been handled again, for real
        print(replay.message)   # what it is about to be told
        print(replay.actor)     # the live object: look, call, change
        replay.step()           # runs the handler; raises ReplayDiverged if it now says something else

It is synchronous, so that a debugger or a notebook needs no event loop.
"""

import bdb
import inspect
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack, overload

from orchestra.actors.actor import Actor, making
from orchestra.actors.message import AnyArray, Message
from orchestra.actors.system_messages import StopMsg
from orchestra.errors import CannotReplay, ReplayDiverged
from orchestra.replay.activation import was_cut_off
from orchestra.replay.beginning import first_of, reborn, scratch_for
from orchestra.replay.causes import causes_of
from orchestra.replay.context import Factory, Stage
from orchestra.replay.difference import Difference
from orchestra.replay.finding import address_of
from orchestra.replay.handling import handle
from orchestra.replay.performance import Performance
from orchestra.replay.rebuild import Rebuilt, Sources, flags_of, message_of, rebuilt
from orchestra.replay.report import Divergence, compared_failures, named
from orchestra.trace.format.records import (
    Activation,
    ActorSnapshot,
    Delivery,
    Digest,
    Failure,
    Handled,
    Incarnation,
)
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
    """One incarnation of an actor, from its birth on.

    Its sends go nowhere and are compared with those recorded; what it asked is answered from the record, and so is what
    it read from the clock; its random numbers are drawn anew from the same seed. What it offloads runs at once. Its
    files go to a scratch folder. What it does besides (a socket, a file elsewhere) happens again, for real.

    Two coroutines of one handler that wait at once, and share state without waiting for each other, may go on in
    another order than they did.

    Args:
        path: a run directory, a folder of traces, or one trace file.
        actor: its address; or its class, if the run had one of it.
        incarnation: which one: 0 for the first, and one more for each restart.
        generation: of its process, where several were its node, one after the other; the first by default.
        experiment: the experiment's file, if it is not where it was.
        allow_changes: whether the experiment's file may have changed since the run. A change of the actor's class is no
            error, but noted: to see what it does is what a replay is for.
        recipe: makes the actor, where the trace cannot say how.
        tolerance: relative and absolute, of floating-point numbers; 0 for equal bytes.
        strict: whether to compare at all.

    Raises:
        NotATrace, TraceVersion: there is no trace that can be read.
        TraceError: nothing was recorded of this actor.
        CannotReplay: it cannot be rebuilt; `ExperimentChanged` if that is why.
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
        """The trace it comes from."""
        self.tolerance = tolerance
        self.strict = strict
        self.sources = Sources(experiment, allow_changes, factory, actor if isinstance(actor, type) else None)
        self.divergence: Divergence | None = None
        """What was not as recorded, if anything was."""
        self._scratch: Path | None = None
        self._actor: Any = None
        self._failure: Exception | None = None
        self._next: Activation | None = None
        self._last = 0
        self.first = 0
        """The activation with which the record can be replayed: 0, its birth, unless a flight record has lost that."""
        self._gap = ""
        self._debugger: bdb.Bdb | None = None
        try:
            address = address_of(self.trace, actor)
            self.life: Incarnation = self.trace.incarnation(address, generation=generation, incarnation=incarnation)
            """The incarnation that is replayed."""
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Replay of {self.life.birth.actor} at {self._next.n if self._next else 'its end'}>"

    def close(self) -> None:
        """Close the trace, and remove what the actor wrote."""
        self.trace.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # Where it is

    @property
    def address(self) -> str:
        """The actor's."""
        return self.life.birth.actor

    @property
    def actor(self) -> A:
        """The live object, of the real class.

        Raises:
            CannotReplay: it has not been made yet; `step` does that.
        """
        if self._actor is None:
            raise CannotReplay(f"{self.address} is not born yet: the first step makes it")
        return self._actor  # type: ignore[no-any-return]  # of the class that the address stands for

    @property
    def activation(self) -> Activation | None:
        """What comes next; None at the end of the record."""
        return self._next

    @property
    def delivery(self) -> Delivery | None:
        """The message that it is told next; None before its birth, at its stop, and at the end."""
        return None if self._next is None else self._next.delivery

    @property
    def message(self) -> Message | None:
        """That message, as the handler gets it."""
        delivery = self.delivery
        return None if delivery is None else self._message(delivery)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as it was: a class that was edited since, another version of a library; and where it begins."""
        if not self.first:
            return self._rebuilt.notes
        begins = f"it begins with the state of {self.address} before delivery {self.first:,}"
        return (*self._rebuilt.notes, begins)

    @property
    def failure(self) -> Exception | None:
        """What the actor raised, if it has failed; with its traceback."""
        return self._failure

    @property
    def kind(self) -> type[Actor[Any]]:
        """The actor's class."""
        return self._rebuilt.kind

    def flags(self) -> list[str]:
        """Return the names of the experiment's flags, where the actor comes from one."""
        if self.life.birth.origin != "planned" or self.sources.factory is not None:
            return []
        return flags_of(self.life.header, self.sources)

    def parameters(self) -> list[str]:
        """Return the names of what the actor's constructor takes."""
        return list(inspect.signature(self.kind).parameters)

    def told_failure(self) -> Failure | None:
        """Return what it raised as a trace tells it, with the line."""
        return None if self._failure is None else Failure(*failure_of(self._failure, self.kind))

    # Changing it

    def remake(self, sources: Sources) -> None:
        """Begin again, with an actor that comes from elsewhere."""
        self.sources = sources
        self._begin()

    def recast(self, kind: type[Actor[Any]]) -> None:
        """Have the live actor be of another class from now on."""
        self.actor.__class__ = kind  # type: ignore[assignment]  # an edited copy of its own

    # Going on

    def step(self, *, debugger: bdb.Bdb | None = None) -> Performance | None:
        """Do what comes next: make the actor, let it handle a message, or stop it. Return None at the end.

        A failure that was recorded and comes again is what was expected: see `failure`.

        Args:
            debugger: stops at the first line of the handler.

        Raises:
            ReplayDiverged: it does not do what was recorded.
            CannotReplay: what came to it was not recorded whole.
        """
        activation = self._next
        if activation is None:
            return None
        if self._gap:
            raise CannotReplay(self._gap)
        self._debugger = debugger
        performance = self._stage.perform(activation, self._work(activation), strict=self._compares(activation))
        self._advance()
        self._failure = performance.error
        if performance.error is not None and not self.strict:
            self._next = None
        if performance.difference is None and self._compares(activation):
            performance.difference = self._compare_failure(activation, performance.error)
        if performance.difference is not None and self.strict:
            self.divergence = self._divergence(activation, performance.difference)
            raise ReplayDiverged(str(self.divergence)) from performance.error
        return performance

    def seek(self, target: int | str | type[Message] | Callable[[Delivery], bool]) -> Delivery:
        """Go on until the next message is the one that is meant, and return it; it has not been handled then.

        Args:
            target: the number of a delivery (one that has passed is sought from birth), a message's type or its name,
                or a predicate.

        Raises:
            ReplayDiverged: as `step`.
            CannotReplay: there is no such delivery up to the end of the record.
        """
        if isinstance(target, int):
            if target < self.first:
                raise CannotReplay(f"{self.address}: the record begins with the state before delivery {self.first:,}")
            if self._next is None or target < self._next.n:
                self._begin()
            fits: Callable[[Delivery], bool] = lambda delivery: delivery.n == target  # noqa: E731 (one of three)
            said = f"delivery {target:,}"
        elif isinstance(target, str | type):
            name = target if isinstance(target, str) else target.__name__
            fits = lambda delivery: delivery.type.name == name  # noqa: E731 (two of three)
            said = f"further {name}"
        else:
            fits, said = target, "delivery of this kind"
        while self._next is not None:
            delivery = self._next.delivery
            if delivery is not None and fits(delivery):
                return delivery
            self.step()
        raise CannotReplay(f"{self.address} was told no {said}; its record has {self._last:,} deliveries")

    def run(self, *, until: int | None = None, each: Callable[[Performance], None] | None = None) -> int:
        """Go on to the end of the record, or to the delivery `until`, which is not handled; return how far that is.

        Args:
            until: where to stop.
            each: hears of each activation.

        Raises:
            ReplayDiverged: as `step`.
        """
        count = 0
        while self._next is not None and (until is None or self._next.n < until):
            performance = self.step()
            count += 1
            if each is not None and performance is not None:
                each(performance)
        return count

    def __iter__(self) -> Iterator[Delivery]:
        """Yield each message before it is handled; it is handled when the next one is asked for."""
        while (activation := self._next) is not None:
            if activation.delivery is not None:
                yield activation.delivery
            if self._next is activation:  # the body of the loop may have taken the step itself
                self.step()

    # Inside

    def _begin(self) -> None:
        """Stand before its birth."""
        life = self.life
        recorded = life.header.run_directory
        if recorded and self._scratch is None:
            self._scratch = scratch_for(Path(recorded))
        resume_from = Path(life.header.resume_from)
        if life.header.resume_from and not resume_from.exists():
            raise CannotReplay(f"{self.address} went on from {str(resume_from)!r}, which is not there any more")
        self._rebuilt: Rebuilt = rebuilt(life, self.sources, self._recipe_of_child)
        self._stage = Stage(
            life.header,
            life.birth,
            values=self.values,
            resolved=self.trace.resolved,
            run_directory=self._scratch,
            recorded_directory=recorded,
            tolerance=self.tolerance,
        )
        self._actor = self._failure = self.divergence = None
        self._last = 0
        self._gap = ""
        snapshot, self._activations = first_of(self.trace, life, self._rebuilt.kind)
        self._next = next(self._activations, None)
        self.first = 0 if snapshot is None else snapshot.n
        if snapshot is not None:
            self._restore(snapshot)

    def _restore(self, snapshot: ActorSnapshot) -> None:
        """Have the actor be as it was when its state was kept."""
        state = self.trace.resolved(dict(snapshot.state))

        async def restored() -> None:
            self._actor = await reborn(self._stage, self._rebuilt, snapshot, state)

        nothing = Handled(self.address, snapshot.incarnation, snapshot.n - 1, "start", 0, snapshot.time, 0.0, ())
        began = Activation(snapshot.n - 1, "start", handled=nothing)
        failure = self._stage.perform(began, restored, strict=False).error
        if failure is not None:
            raise CannotReplay(
                f"{self.address} cannot hold the state again that it had before delivery {snapshot.n:,}: "
                f"{type(failure).__name__}: {failure}"
            ) from failure
        self._last = snapshot.n - 1

    def _advance(self) -> None:
        assert self._next is not None
        self._last = self._next.n
        following = next(self._activations, None)
        if following is not None and following.n != self._last + 1:
            self._gap = (
                f"{self.address}: what came after delivery {self._last:,} and before {following.n:,} was not recorded"
            )
        self._next = following

    def _work(self, activation: Activation) -> Callable[[], Any]:
        if activation.phase == "start":
            return self._start
        if activation.phase == "stop":
            return self._stop
        delivery = activation.delivery
        if delivery is None:
            raise CannotReplay(f"{self.address}: the message of delivery {activation.n:,} is lost")
        message = self._message(delivery)
        return lambda: self._handle(delivery, message)

    async def _start(self) -> None:
        token = making.set(self._stage)
        try:
            made = self._rebuilt.factory()
        finally:
            making.reset(token)
        self._actor = made
        await made.started()

    async def _handle(self, delivery: Delivery, message: Message) -> None:
        name = self._actor.handlers.get(type(message))
        if name is not None:
            await handle(getattr(self._actor, name), delivery, message, self._stage, self._debugger)
        elif isinstance(message, StopMsg):
            self._stage.request_stop(graceful=message.graceful)

    async def _stop(self) -> None:
        await self._actor.stopped()

    def _message(self, delivery: Delivery) -> Message:
        kind = self.kind if self._actor is None else type(self._actor)
        return message_of(delivery, kind, self.trace, self.life.header, self.sources)

    def values(self, digest: Digest) -> AnyArray | None:
        """Return the bytes of an array that was recorded by its digest, if the run has them anywhere."""
        return self.trace.array(digest.digest)

    def _compares(self, activation: Activation) -> bool:
        return self.strict and activation.handled is not None

    def _handles(self, activation: Activation) -> bool:
        """Whether the actor has a hand in it: of most of the runtime's own messages it never hears."""
        delivery = activation.delivery
        return delivery is None or type(self._message(delivery)) in self._actor.handlers

    def _compare_failure(self, activation: Activation, error: Exception | None) -> tuple[str, Difference, str] | None:
        if was_cut_off(activation) or not self._handles(activation):
            return None
        recorded = activation.handled.failure if activation.handled is not None else None
        changed = any("class" in note for note in self.notes)
        return compared_failures(recorded, self.told_failure(), other_lines=changed)

    def _divergence(self, activation: Activation, found: tuple[str, Difference, str]) -> Divergence:
        what, difference, where = found
        return Divergence(
            actor=self.address,
            n=activation.n,
            during=named(activation.delivery, activation.phase),
            what=what,
            difference=difference,
            where=where,
            causes=causes_of(self.trace, activation.delivery),
        )

    def _recipe_of_child(self, child: Incarnation) -> Factory:
        """Replay the parent until it spawns the child, and return how it does that."""
        birth = child.birth
        with Replay(
            self.trace.path,
            birth.parent,
            incarnation=birth.parent_incarnation,
            generation=child.header.generation,
            experiment=self.sources.experiment,
            allow_changes=self.sources.allow_changes,
            strict=False,
        ) as parent:
            if parent.first > birth.parent_n:
                raise CannotReplay(
                    f"{birth.parent} makes {birth.actor}, and its record begins with its delivery {parent.first:,}, "
                    f"after it did that in {birth.parent_n:,}"
                )
            parent.run(until=birth.parent_n + 1)
            made = parent._stage.factories.get(birth.actor)
        if made is None:
            raise CannotReplay(f"{birth.parent} does not spawn {birth.actor} any longer when it is replayed")
        return made[1]
