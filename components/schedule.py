"""A value that changes with the number of environment steps made so far."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """From `start` to `end` over the first `over` steps, constant after; the ε schedule of DQN and its children."""

    start: float
    end: float
    over: int

    def __post_init__(self) -> None:
        if self.over < 1:
            raise ValueError(f"a linear schedule needs at least one step to run over, got over={self.over}")

    def __call__(self, steps: int) -> float:
        done = min(max(steps, 0) / self.over, 1.0)
        return self.start + (self.end - self.start) * done
