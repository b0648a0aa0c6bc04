"""What a replay server keeps that holds whole multi-agent episodes."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from components.replay_buffers.episodes import FRAME_FIELDS, check_rollout
from components.replay_buffers.federated import ClientSample
from components.replay_buffers.prioritized import PrioritizedEpisodeReplay
from components.replay_buffers.runs import Fields
from components.replay_server.layouts import NOT_PLAIN, AnyLayout, Layout, not_plain
from components.replay_server.schemas import EpisodeForm, Form, Rows

if TYPE_CHECKING:  # it brings a compiler along
    from components.envs.base import EnvSpec


@dataclass(frozen=True, slots=True)
class EpisodeLayout(AnyLayout):
    """An entry is a whole episode of an environment of some sizes; and how the memories of all clients are made.

    Of E agents' episodes a batch has, padded with zeros to the longest of T steps, what `EpisodeBatch` has: `obs`
    (E, T+1, A, O), `state` (E, T+1, S), `available` (E, T+1, A, U), `actions` (E, T, A), `reward` (E, T), `lengths` and
    `terminated` (E,). With `rollout` they are parts of episodes, and beside them are `learn` (E, T), which steps to
    learn from, and `firsts` (E,), with which step of its episode each begins.

    Raises:
        ValueError: a number is out of its range.
    """

    spec: "EnvSpec"
    """Sizes of the environment."""
    capacity: int
    """Episodes of each client's memory; the oldest go first."""
    _: KW_ONLY
    rollout: int = 0
    """Steps of the parts that are drawn of episodes, as by `EpisodeReplay.sample_rollouts`; 0 draws them whole."""
    burn_in: int = 0
    """Steps at the start of a part that nothing is learnt from, 0 to `rollout` - 1."""

    kind: ClassVar[str] = "episodes"
    high_water: ClassVar[int] = 64

    def __post_init__(self) -> None:
        self._check(self.capacity)
        for name, size in asdict(self.spec).items():
            if not isinstance(size, str) and size < 1:
                raise ValueError(f"spec: expected {name} to be at least 1, got {size}")
        if self.rollout or self.burn_in:
            check_rollout(self.rollout, self.burn_in)
        self.memory()

    def memory(self, folder: str | Path | None = None) -> PrioritizedEpisodeReplay:
        return PrioritizedEpisodeReplay(
            self.spec,
            self.capacity,
            alpha=self.alpha,
            epsilon=self.epsilon,
            decay=self.decay,
            variant=self.variant,
            folder=folder,
        )

    def form(self) -> Form:
        return EpisodeForm(self.spec)

    def insert(self, memory: Any, rows: Rows, priorities: NDArray[np.floating[Any]] | None) -> None:
        memory.insert(**rows, priorities=priorities)

    def share(self, memory: Any, n: int, rng: np.random.Generator) -> ClientSample:
        drawn: ClientSample
        if self.rollout:
            drawn = memory.share_rollouts(n, self.rollout, rng, burn_in=self.burn_in)
        else:
            drawn = memory.share(n, rng)
        return drawn

    @property
    def share_fields(self) -> Fields:
        memory = self.memory()
        return memory.rollout_fields if self.rollout else memory.share_fields

    @property
    def names(self) -> list[str]:
        return [*FRAME_FIELDS, "actions", "reward", "terminated"]

    def to_plain(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("capacity", "rollout", "burn_in")}
        return AnyLayout.to_plain(self) | own | {"spec": asdict(self.spec)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "EpisodeLayout":
        """Return the layout that `to_plain` gave.

        Raises:
            InvalidExperience: it is something else.
        """
        from components.envs.base import EnvSpec

        try:
            values = cls._arguments(plain)
            spec = TypeAdapter(EnvSpec).validate_python(values.pop("spec"))
            return cls(spec, values.pop("capacity"), **values)
        except NOT_PLAIN as error:
            raise not_plain(error) from error


def layout_from_plain(plain: Mapping[str, Any]) -> AnyLayout:
    """Return the layout that `to_plain` of either kind gave.

    Raises:
        InvalidExperience: it is something else.
    """
    if plain.get("kind") == EpisodeLayout.kind:
        return EpisodeLayout.from_plain(plain)
    return Layout.from_plain(plain)
