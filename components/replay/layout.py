"""What a replay server keeps, and how: the one thing that clients are told when they connect."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic import TypeAdapter, ValidationError

from components.replay.invalid import InvalidExperience
from components.replay.prioritized import PrioritizedTransitions, Variant
from components.replay.transitions import Field, NStep, Transitions
from components.replay.windows import FrameStack, Rollout, Window

DTYPES = "biufc"
"""Kinds of numbers that can travel; of at most 16 bytes, in the order of this machine's bytes."""
KINDS: dict[str, type[NStep] | type[FrameStack] | type[Rollout]] = {
    kind.__name__: kind for kind in (NStep, FrameStack, Rollout)
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What an entry holds, and how the memories of all clients are made.

    Raises:
        ValueError: a number is out of its range, there are no fields, or one of them cannot travel.
    """

    fields: Mapping[str, Field]
    """By name, what an entry holds."""
    capacity: int
    """Entries of each client's memory; the oldest go first."""
    _: KW_ONLY
    kept_by: Literal["clients", "server"] = "clients"
    """Where the memories are: in the clients, which send what is drawn, or in the server, to which all entries go."""
    chunk: int = 64
    """Entries that are inserted at a time. At the end of an episode, and on `flush`, fewer are."""
    alpha: float = 0.6
    """As for `Priorities`, like all that follow; 0 draws uniformly."""
    epsilon: float = 1e-6
    decay: float = 1.0
    variant: Variant = "proportional"
    """As for `PrioritizedTransitions`. Each client's memory ranks its own."""
    n_step: NStep | None = None
    """As for `Transitions`."""
    window: Window | None = None
    """As for `Transitions`."""

    def __post_init__(self) -> None:
        fields = {name: Field(np.dtype(f.dtype), tuple(f.shape), f.finite) for name, f in self.fields.items()}
        object.__setattr__(self, "fields", fields)  # equal layouts are to compare equal
        if self.kept_by not in ("clients", "server"):
            raise ValueError(f"kept_by: expected clients or server, got {self.kept_by!r}")
        if not 1 <= self.chunk <= self.capacity:
            raise ValueError(f"chunk: expected 1 to {self.capacity}, which is the capacity, got {self.chunk}")
        for name, (dtype, _, _) in fields.items():
            kind = np.dtype(dtype)
            if kind.kind not in DTYPES or kind.itemsize > 16 or not kind.isnative or kind == np.longdouble:
                raise ValueError(f"{name}: expected numbers that can travel, got {kind}")
        self.memory()

    def memory(self) -> PrioritizedTransitions:
        """Return an empty memory of a client. It takes its room as it fills."""
        return PrioritizedTransitions(
            self.fields,
            self.capacity,
            alpha=self.alpha,
            epsilon=self.epsilon,
            decay=self.decay,
            variant=self.variant,
            n_step=self.n_step,
            window=self.window,
            slabs=1,  # what is drawn is copied out at once
        )

    def rows(self, capacity: int) -> Transitions:
        """Return an empty ring of entries: what is filled before it is sent."""
        return Transitions(self.fields, capacity, slabs=1)

    @property
    def row_bytes(self) -> int:
        """Bytes of the numbers of an entry."""
        return sum(np.dtype(f.dtype).itemsize * int(np.prod(f.shape)) for f in self.fields.values())

    @property
    def needs_all(self) -> bool:
        """Whether what is drawn is made of entries that follow each other, so that none may be left out."""
        return self.n_step is not None or self.window is not None

    def to_plain(self) -> dict[str, Any]:
        """Return it in values that a message can carry."""
        plain = {
            name: getattr(self, name)
            for name in ("capacity", "kept_by", "chunk", "alpha", "epsilon", "decay", "variant")
        }
        plain["fields"] = {
            name: [np.dtype(dtype).str, list(shape), finite] for name, (dtype, shape, finite) in self.fields.items()
        }
        for name, value in (("n_step", self.n_step), ("window", self.window)):
            plain[name] = None if value is None else [type(value).__name__, asdict(value)]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the layout that `to_plain` gave.

        Raises:
            InvalidExperience: it is something else.
        """
        try:
            values = dict(plain)
            fields = {
                name: Field(np.dtype(dtype), tuple(shape), finite)
                for name, (dtype, shape, finite) in values.pop("fields").items()
            }
            for name in ("n_step", "window"):
                if values[name] is not None:
                    kind, arguments = values[name]
                    values[name] = TypeAdapter(KINDS[kind]).validate_python(arguments)
            return cls(fields, values.pop("capacity"), **values)
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise InvalidExperience(
                f"layout: expected what a replay server of this version says, got {error}"
            ) from error
