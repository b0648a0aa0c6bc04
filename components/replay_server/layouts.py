"""What a replay server keeps, and how: the one thing that clients are told when they connect."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from components.replay_buffers.federated import ClientSample
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.prioritized import (
    PrioritizedEpisodeReplay,
    PrioritizedTransitions,
    Variant,
)
from components.replay_buffers.runs import Fields
from components.replay_buffers.transitions import Field, NStep
from components.replay_buffers.windows import FrameStack, Rollout, Window
from components.replay_server.protocol import PROTOCOL
from components.replay_server.schemas import Form, RowForm, Rows

DTYPES = "biufc"
"""Kinds of numbers that can travel; of at most 16 bytes, in the order of this machine's bytes."""
KINDS: dict[str, type[NStep] | type[FrameStack] | type[Rollout]] = {
    kind.__name__: kind for kind in (NStep, FrameStack, Rollout)
}

Memory = PrioritizedTransitions | PrioritizedEpisodeReplay
"""What a client's entries are kept in."""


@dataclass(frozen=True, slots=True)
class AnyLayout(ABC):
    """What all layouts have: how the memories of all clients are made, and where they are."""

    _: KW_ONLY
    kept_by: Literal["clients", "server"] = "clients"
    """Where the memories are: in the clients, which send what is drawn, or in the server, to which all entries go."""
    chunk: int = 1
    """Entries that are inserted at a time. At the end of an episode, and on `flush`, fewer are."""
    alpha: float = 0.6
    """As for `Priorities`, like all that follow; 0 draws uniformly."""
    epsilon: float = 1e-6
    decay: float = 1.0
    variant: Variant = "proportional"
    """As for `PrioritizedTransitions`. Each client's memory ranks its own."""

    kind: ClassVar[str]
    high_water: ClassVar[int]
    """Entries that may wait at a client, unless that says otherwise."""

    def _check(self, capacity: int) -> None:
        if self.kept_by not in ("clients", "server"):
            raise ValueError(f"kept_by: expected clients or server, got {self.kept_by!r}")
        if not 1 <= self.chunk <= capacity:
            raise ValueError(f"chunk: expected 1 to {capacity}, which is the capacity, got {self.chunk}")

    @abstractmethod
    def memory(self, folder: str | Path | None = None) -> Memory:
        """Return an empty memory of a client. It takes its room as it fills, or all of it on the disk of `folder`.

        Raises:
            OSError: there is no such folder, or too little space in it.
        """

    @abstractmethod
    def form(self) -> Form:
        """Return what checks entries, and collects them into chunks."""

    @abstractmethod
    def insert(self, memory: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        """Insert entries into a memory, with priorities (N,) or the largest so far.

        Raises:
            InvalidExperience: it refuses them; nothing has changed then.
        """

    @abstractmethod
    def share(self, memory: Any, n: int, rng: np.random.Generator) -> ClientSample:
        """Draw `n` items from a memory, to be pushed."""

    @property
    @abstractmethod
    def share_fields(self) -> Fields:
        """What the items of a share hold, as `FederatedReplay` takes it."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The fields of an entry."""

    def to_plain(self) -> dict[str, Any]:
        """Return it in values that a message can carry."""
        names = ("kept_by", "chunk", "alpha", "epsilon", "decay", "variant")
        return {"protocol": PROTOCOL, "kind": self.kind} | {name: getattr(self, name) for name in names}

    @classmethod
    def _arguments(cls, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `to_plain` said, but for the protocol and the kind, which have to be these."""
        values = dict(plain)
        for name, wanted in (("protocol", PROTOCOL), ("kind", cls.kind)):
            if (got := values.pop(name, None)) != wanted:
                raise ValueError(f"{name}: expected {wanted!r}, got {got!r}")
        return values


@dataclass(frozen=True, slots=True)
class Layout(AnyLayout):
    """What an entry holds that is one transition, and how the memories of all clients are made.

    Raises:
        ValueError: a number is out of its range, there are no fields, or one of them cannot travel.
    """

    fields: Mapping[str, Field]
    """By name, what an entry holds."""
    capacity: int
    """Entries of each client's memory; the oldest go first."""
    _: KW_ONLY
    chunk: int = 64
    """As for all layouts."""
    n_step: NStep | None = None
    """As for `Transitions`."""
    window: Window | None = None
    """As for `Transitions`."""

    kind: ClassVar[str] = "transitions"
    high_water: ClassVar[int] = 4096

    def __post_init__(self) -> None:
        fields = {name: Field(np.dtype(f.dtype), tuple(f.shape), f.finite) for name, f in self.fields.items()}
        object.__setattr__(self, "fields", fields)  # equal layouts are to compare equal
        self._check(self.capacity)
        for name, (dtype, _, _) in fields.items():
            kind = np.dtype(dtype)
            if kind.kind not in DTYPES or kind.itemsize > 16 or not kind.isnative or kind == np.longdouble:
                raise ValueError(f"{name}: expected numbers that can travel, got {kind}")
        self.memory()

    def memory(self, folder: str | Path | None = None) -> PrioritizedTransitions:
        return PrioritizedTransitions(
            self.fields,
            self.capacity,
            alpha=self.alpha,
            epsilon=self.epsilon,
            decay=self.decay,
            variant=self.variant,
            n_step=self.n_step,
            window=self.window,
            folder=folder,
        )

    def form(self) -> Form:
        return RowForm(self.fields, self.chunk, self.together)

    @property
    def together(self) -> tuple[NStep | Window, ...]:
        """What makes items of entries that follow each other, so that none may be left out among them."""
        return tuple(it for it in (self.n_step, self.window) if it is not None)

    def insert(self, memory: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        memory.insert(rows, priorities)

    def share(self, memory: Any, n: int, rng: np.random.Generator) -> ClientSample:
        drawn: ClientSample = memory.share(n, rng)
        return drawn

    @property
    def share_fields(self) -> Fields:
        return self.memory().share_fields

    @property
    def names(self) -> list[str]:
        return list(self.fields)

    def to_plain(self) -> dict[str, Any]:
        plain = AnyLayout.to_plain(self) | {"capacity": self.capacity}
        plain["fields"] = {
            name: [np.dtype(dtype).str, list(shape), finite] for name, (dtype, shape, finite) in self.fields.items()
        }
        for name, value in (("n_step", self.n_step), ("window", self.window)):
            plain[name] = None if value is None else [type(value).__name__, asdict(value)]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Layout":
        """Return the layout that `to_plain` gave.

        Raises:
            InvalidExperience: it is something else.
        """
        try:
            values = cls._arguments(plain)
            fields = {
                name: Field(np.dtype(dtype), tuple(shape), finite)
                for name, (dtype, shape, finite) in values.pop("fields").items()
            }
            for name in ("n_step", "window"):
                if values[name] is not None:
                    kind, arguments = values[name]
                    values[name] = TypeAdapter(KINDS[kind]).validate_python(arguments)
            return cls(fields, values.pop("capacity"), **values)
        except NOT_PLAIN as error:
            raise not_plain(error) from error


NOT_PLAIN = (KeyError, TypeError, ValueError, AttributeError, ValidationError)
"""What may be raised on the way to a layout by what is none."""


def not_plain(error: Exception) -> InvalidExperience:
    """Return what is raised for what is no layout."""
    return InvalidExperience(f"layout: expected what a replay server of this version says, got {error}")
