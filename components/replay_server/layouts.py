"""Layouts: the format of the data on a replay server. A client fetches its server's layout when it connects."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from components.replay_buffers.buffer import Variant
from components.replay_buffers.episode_store import Episodes
from components.replay_buffers.episodes import PrioritizedEpisodeReplay, check_rollout
from components.replay_buffers.federated import ClientSample
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.rows import Field
from components.replay_buffers.segments import Fields
from components.replay_buffers.transitions import PrioritizedTransitions
from components.replay_buffers.windows import NStep, Window
from components.replay_server.protocol import PROTOCOL
from components.replay_server.schemas import EntrySchema, EpisodeSchema, Rows, TransitionSchema

if TYPE_CHECKING:  # importing environments imports a compiler
    from components.envs.base import EnvSpec

DTYPE_KINDS = "biufc"
"""Kinds of numbers that can be sent; of at most 16 bytes, in this machine's byte order."""

AnyBuffer = PrioritizedTransitions | PrioritizedEpisodeReplay
"""The replay buffer of one client."""


@dataclass(frozen=True, slots=True)
class AnyLayout(ABC):
    """Settings of all layouts: how each client's replay buffer is made, and where it is kept."""

    _: KW_ONLY
    kept_by: Literal["clients", "server"] = "clients"
    """Place of the buffers: at the clients, which send sampled items, or at the server, which receives all entries."""
    chunk: int = 1
    """Number of entries inserted at a time; fewer at the end of an episode and on `flush`."""
    alpha: float = 0.6
    """As for `Priorities`, like the next two; 0 samples uniformly."""
    epsilon: float = 1e-6
    decay: float = 1.0
    variant: Variant = "proportional"
    """As for `PrioritizedTransitions`. Each client's buffer ranks its own items."""

    kind: ClassVar[str]
    high_water: ClassVar[int]
    """Default limit of entries that wait at a client."""

    def _check(self, capacity: int) -> None:
        if self.kept_by not in ("clients", "server"):
            raise ValueError(f"kept_by: expected clients or server, got {self.kept_by!r}")
        if not 1 <= self.chunk <= capacity:
            raise ValueError(f"chunk: expected 1 to {capacity}, which is the capacity, got {self.chunk}")

    @property
    def _buffer_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("alpha", "epsilon", "decay", "variant")}

    @abstractmethod
    def new_buffer(self, folder: str | Path | None = None) -> AnyBuffer:
        """Return an empty replay buffer for one client.

        Its memory grows as it fills; on the disk of `folder`, if given, all of it is allocated at once.

        Raises:
            OSError: there is no such folder, or too little space in it.
        """

    @abstractmethod
    def schema(self) -> EntrySchema:
        """Return a new schema, which checks entries and collects them into chunks."""

    @abstractmethod
    def insert(self, buffer: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        """Insert N entries into a buffer, with priorities (N,) or the largest so far.

        Raises:
            InvalidExperience: entries or priorities are malformed; nothing has changed then.
        """

    @abstractmethod
    def draw(self, buffer: Any, n: int, rng: np.random.Generator) -> ClientSample:
        """Draw `n` items from a buffer, maybe none, to be sent to the server."""

    @property
    @abstractmethod
    def sample_fields(self) -> Fields:
        """Fields of drawn items, as `FederatedReplay` takes them."""

    def to_plain(self) -> dict[str, Any]:
        """Return the layout as values that a message can carry."""
        return {"protocol": PROTOCOL, "kind": self.kind} | asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the layout from the result of `to_plain` of this class.

        Raises:
            InvalidExperience: the values are not those of a layout, or of another version.
        """
        try:
            values = dict(plain)
            for name, wanted in (("protocol", PROTOCOL), ("kind", cls.kind)):
                if (got := values.pop(name, None)) != wanted:
                    raise ValueError(f"{name}: expected {wanted!r}, got {got!r}")
            return cls(**cls._arguments(values))
        except (KeyError, TypeError, ValueError, AttributeError, ValidationError) as error:
            raise InvalidExperience(f"layout: expected that of a replay server of this version, got {error}") from error

    @classmethod
    @abstractmethod
    def _arguments(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the constructor from plain values."""


@dataclass(frozen=True, slots=True)
class Layout(AnyLayout):
    """Layout of a server whose entries are transitions.

    Raises:
        ValueError: a number is out of its range, there are no fields, or a field cannot be sent.
    """

    fields: Mapping[str, Field]
    """Fields of a transition by name."""
    capacity: int
    """Transitions of each client's buffer; the oldest are overwritten."""
    _: KW_ONLY
    chunk: int = 64
    """As for `AnyLayout`."""
    n_step: NStep | None = None
    """As for `Transitions`, like the next."""
    window: Window | None = None

    kind: ClassVar[str] = "transitions"
    high_water: ClassVar[int] = 4096

    def __post_init__(self) -> None:
        fields = {name: Field(np.dtype(f.dtype), tuple(f.shape), f.finite) for name, f in self.fields.items()}
        object.__setattr__(self, "fields", fields)  # so that equal layouts compare equal
        self._check(self.capacity)
        for name, (dtype, _, _) in fields.items():
            kind = np.dtype(dtype)
            if kind.kind not in DTYPE_KINDS or kind.itemsize > 16 or not kind.isnative or kind == np.longdouble:
                raise ValueError(f"{name}: expected numbers that can travel, got {kind}")
        self.new_buffer()

    def new_buffer(self, folder: str | Path | None = None) -> PrioritizedTransitions:
        return PrioritizedTransitions(
            self.fields, self.capacity, n_step=self.n_step, window=self.window, folder=folder, **self._buffer_options
        )

    def schema(self) -> EntrySchema:
        return TransitionSchema(self.fields, self.chunk, self.new_buffer().priorities.to_weights, self.multi_row)

    @property
    def multi_row(self) -> tuple[NStep | Window, ...]:
        """Settings that make items of consecutive transitions; no transition may be left out then."""
        return tuple(it for it in (self.n_step, self.window) if it is not None)

    def insert(self, buffer: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        buffer.insert(rows, priorities)

    def draw(self, buffer: Any, n: int, rng: np.random.Generator) -> ClientSample:
        sample: ClientSample = buffer.share(n, rng)
        return sample

    @property
    def sample_fields(self) -> Fields:
        return self.new_buffer().share_fields

    def to_plain(self) -> dict[str, Any]:
        plain = AnyLayout.to_plain(self)
        plain["fields"] = {
            name: [np.dtype(dtype).str, list(shape), finite] for name, (dtype, shape, finite) in self.fields.items()
        }
        return plain

    @classmethod
    def _arguments(cls, values: dict[str, Any]) -> dict[str, Any]:
        values["fields"] = {
            name: Field(np.dtype(dtype), tuple(shape), finite)
            for name, (dtype, shape, finite) in values["fields"].items()
        }
        values["n_step"] = TypeAdapter(NStep | None).validate_python(values["n_step"])
        values["window"] = TypeAdapter(Window | None).validate_python(values["window"])
        return values


@dataclass(frozen=True, slots=True)
class EpisodeLayout(AnyLayout):
    """Layout of a server whose entries are whole episodes of a multi-agent environment.

    A batch of E episodes of A agents is padded with zeros to its longest of T steps, and holds the fields of
    `EpisodeBatch`: `obs` (E, T+1, A, O), `state` (E, T+1, S), `available` (E, T+1, A, U), `actions` (E, T, A),
    `reward` (E, T), `lengths` and `terminated` (E,). With `rollout` its items are parts of episodes, and it also holds
    `learn` (E, T), the steps to learn from, and `firsts` (E,), the step of its episode with which each part begins.

    Raises:
        ValueError: a number is out of its range.
    """

    spec: "EnvSpec"
    """Sizes of the environment."""
    capacity: int
    """Episodes of each client's buffer; the oldest are overwritten."""
    _: KW_ONLY
    rollout: int = 0
    """Steps of the sampled parts of episodes, as by `EpisodeReplay.sample_rollouts`; 0 samples whole episodes."""
    burn_in: int = 0
    """Steps at the start of a part that are not learned from, 0 to `rollout` - 1."""

    kind: ClassVar[str] = "episodes"
    high_water: ClassVar[int] = 64

    def __post_init__(self) -> None:
        self._check(self.capacity)
        for name, size in asdict(self.spec).items():
            if isinstance(size, int) and size < 1:
                raise ValueError(f"spec: expected {name} to be at least 1, got {size}")
        if self.rollout or self.burn_in:
            check_rollout(self.rollout, self.burn_in)
        self.new_buffer()

    def new_buffer(self, folder: str | Path | None = None) -> PrioritizedEpisodeReplay:
        return PrioritizedEpisodeReplay(self.spec, self.capacity, folder=folder, **self._buffer_options)

    def schema(self) -> EntrySchema:
        return EpisodeSchema(self.spec, self.new_buffer().priorities.to_weights)

    def insert(self, buffer: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        buffer.insert(Episodes(**rows), priorities)

    def draw(self, buffer: Any, n: int, rng: np.random.Generator) -> ClientSample:
        rollout, burn_in = self.rollout, self.burn_in
        sample: ClientSample = (
            buffer.share_rollouts(n, rollout, rng, burn_in=burn_in) if rollout else buffer.share(n, rng)
        )
        return sample

    @property
    def sample_fields(self) -> Fields:
        buffer = self.new_buffer()
        return buffer.rollout_fields if self.rollout else buffer.share_fields

    @classmethod
    def _arguments(cls, values: dict[str, Any]) -> dict[str, Any]:
        from components.envs.base import EnvSpec

        return values | {"spec": TypeAdapter(EnvSpec).validate_python(values["spec"])}


def layout_from_plain(plain: Mapping[str, Any]) -> AnyLayout:
    """Return the layout from the result of `to_plain` of either class.

    Raises:
        InvalidExperience: the values are not those of a layout, or of another version.
    """
    return (EpisodeLayout if plain.get("kind") == EpisodeLayout.kind else Layout).from_plain(plain)
