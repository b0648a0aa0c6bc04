"""Bounded queue with an overflow policy. It never waits, but returns whether there is room."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar, get_args

T = TypeVar("T")

OverflowPolicy = Literal["block", "drop_oldest", "refuse"]
"""What a full queue does with a new item: keep the producer waiting, drop the oldest item, or raise `Full`."""


class Full(RuntimeError):
    """A queue or a limit is full and its policy is to refuse. Nothing was taken."""


class BoundedQueue(Generic[T]):
    """First-in, first-out queue, bounded by the total weight of its items.

    An item occupies its weight from `make_room` until `free`, which may be called long after `take`.

    Args:
        name: what the queue holds, for errors.
        mark: the largest total weight. An item heavier than that is accepted when the queue is empty.
        policy: what happens to an item for which there is no room.
        oldest: selects the waiting items to drop next: indices from the first returned number up to, but not including,
            the second; equal numbers drop nothing. By default the oldest item.

    Raises:
        ValueError: `mark` is below 1, or `policy` is unknown.
    """

    def __init__(
        self,
        name: str,
        mark: int,
        policy: OverflowPolicy,
        *,
        oldest: Callable[[Sequence[T]], tuple[int, int]] = lambda items: (0, 1),
    ) -> None:
        if mark < 1:
            raise ValueError(f"{name}: expected a high-water mark of at least 1, got {mark}")
        if policy not in get_args(OverflowPolicy):
            raise ValueError(
                f"{name}: expected one of {', '.join(get_args(OverflowPolicy))} at the mark, got {policy!r}"
            )
        self.name, self.mark, self.policy = name, mark, policy
        self.level = 0
        """Weight of all items in the queue, and of all taken items that are not freed."""
        self.dropped = 0
        """Weight of all dropped items."""
        self.refused = 0
        """Weight of all refused items."""
        self._items: deque[tuple[T, int]] = deque()
        self._oldest = oldest

    def __len__(self) -> int:
        """Return the number of items that wait to be taken."""
        return len(self._items)

    def has_room(self, weight: int = 1) -> bool:
        """Return whether `weight` fits without dropping anything."""
        return self.level + weight <= self.mark or self.level == 0

    def make_room(self, weight: int = 1) -> bool:
        """Reserve `weight`; drop old items if that is the policy. Return False if the producer has to wait.

        Raises:
            Full: there is no room, and the policy is to refuse.
        """
        if not self.has_room(weight) and self.policy == "refuse":
            self.refused += weight
            raise Full(f"{self.name}: expected room for {weight}, but {self.level} of {self.mark} are waiting")
        while not self.has_room(weight) and self.policy == "drop_oldest" and self._items:
            first, stop = self._oldest([item for item, _ in self._items])
            if first == stop:
                break
            for _ in range(first, stop):
                self.drop(self._items[first][1])
                del self._items[first]
        if not self.has_room(weight):
            return False
        self.level += weight
        return True

    def append(self, item: T, weight: int = 1) -> None:
        """Add an item whose weight `make_room` has reserved."""
        self._items.append((item, weight))

    def put_back(self, item: T, weight: int = 1) -> None:
        """Return a taken item to the front of the queue."""
        self._items.appendleft((item, weight))

    def take(self) -> tuple[T, int] | None:
        """Remove and return the oldest item and its weight, or None. The weight stays occupied until `free`."""
        return self._items.popleft() if self._items else None

    @property
    def oldest(self) -> T | None:
        """The item that `take` would return."""
        return self._items[0][0] if self._items else None

    def drop(self, weight: int = 1) -> None:
        """Release a reserved weight and count it as dropped."""
        self.level -= weight
        self.dropped += weight

    def free(self, weight: int = 1) -> None:
        """Release the weight of a taken item."""
        self.level -= weight
