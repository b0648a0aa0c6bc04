"""Values and events that depend on the number of environment steps made so far."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """A value from `start` to `end` over the first `over` steps, then constant; the ε schedule of DQN and its variants.

    Raises:
        ValueError: `over` is below 1.
    """

    start: float
    end: float
    over: int

    def __post_init__(self) -> None:
        if self.over < 1:
            raise ValueError(f"a linear schedule needs at least one step to run over, got over={self.over}")

    def __call__(self, steps: int) -> float:
        """Return the value after `steps` environment steps."""
        done = min(max(steps, 0) / self.over, 1.0)
        return self.start + (self.end - self.start) * done


@dataclass(slots=True)
class Interval:
    """An event that is due every `every` steps, and next at `next`."""

    every: int
    next: int

    def due(self, steps: int) -> bool:
        """Return whether the event is due after `steps` environment steps."""
        return steps >= self.next

    def advance(self, steps: int) -> None:
        """Set `next` to the first time after `steps`, skipping missed events. No change if the event is early."""
        self.next += self.every * (1 + (steps - self.next) // self.every)
