"""Save point: the actors that still have to save before a checkpoint of the run is complete."""

from collections.abc import Iterable
from dataclasses import field

from pydantic.dataclasses import dataclass


@dataclass
class SavePoint:
    """The state of the checkpoint that is being taken, without messages and files.

    `begin` names the actors that save first. A checkpoint is `ready` for the other actors when each of them has saved
    or is gone (`mark_saved`) and nothing is in flight any more. `commit` ends it. Its fields are its state.
    """

    env_steps: int | None = None
    """Environment steps of the checkpoint that is being taken; None if there is none."""
    committed: int | None = None
    """Environment steps of the last complete checkpoint; None before the first."""
    unsaved: set[str] = field(default_factory=set)
    """Addresses of the actors that have not saved yet."""
    error: str = ""
    """Error of the checkpoint that is being taken, in words; empty without an error."""
    failed: bool = False
    """True if the last checkpoint could not be written."""

    @property
    def active(self) -> bool:
        """True while a checkpoint is being taken."""
        return self.env_steps is not None

    def begin(self, env_steps: int, addresses: Iterable[str], error: str = "") -> None:
        """Begin a checkpoint for which the actors at these addresses save first; `error` if it cannot be written."""
        self.env_steps, self.unsaved, self.error = env_steps, set(addresses), error

    def mark_saved(self, address: str, error: str = "") -> None:
        """Stop waiting for the actor at `address`: it has saved, is gone, or cannot save because of `error`."""
        self.unsaved.discard(address)
        self.error = self.error or error

    def ready(self, *, in_flight: bool) -> bool:
        """Return whether the other actors may save now; `in_flight`: there are unfinished batches or evaluations."""
        return self.active and not self.unsaved and not in_flight

    def commit(self, env_steps: int) -> None:
        """End the checkpoint. Transitions that were in flight when it began count, so it may have more steps."""
        self.env_steps, self.committed, self.failed = None, env_steps, False

    def abandon(self) -> None:
        """End a checkpoint that cannot be written."""
        self.env_steps, self.failed = None, True
