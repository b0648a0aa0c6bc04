"""A queue that holds so much and no more, and what happens to that for which there is no room. It waits for nothing."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar, get_args

T = TypeVar("T")

Policy = Literal["block", "drop_oldest", "refuse"]
"""What happens at the high-water mark: whoever brings something waits, the oldest goes, or `Full` is raised."""


class Full(RuntimeError):
    """A queue is at its high-water mark, and its policy is to refuse. Nothing was taken."""


class HighWater(Generic[T]):
    """Items in the order they came, bounded by their weight together.

    An item has its weight from when room is made for it until it is done with, which may be after it was taken.

    Args:
        name: what it is called in errors.
        mark: the most that all items may weigh; one that weighs more by itself is let in when there is nothing else.
        policy: what happens at the mark.
        oldest: says of the items that wait which go first: those from an index on and before another; none if these
            are equal. By default the oldest one.

    Raises:
        ValueError: `mark` is below 1, or `policy` is none.
    """

    def __init__(
        self,
        name: str,
        mark: int,
        policy: Policy,
        *,
        oldest: Callable[[Sequence[T]], tuple[int, int]] = lambda items: (0, 1),
    ) -> None:
        if mark < 1:
            raise ValueError(f"{name}: expected a high-water mark of at least 1, got {mark}")
        if policy not in get_args(Policy):
            raise ValueError(f"{name}: expected one of {', '.join(get_args(Policy))} at the mark, got {policy!r}")
        self.name, self.mark, self.policy = name, mark, policy
        self.level = 0
        """What all that is in it weighs, and all that was taken and is not done with."""
        self.dropped = 0
        """The weight of what had to make room."""
        self.refused = 0
        """The weight of what was refused."""
        self._items: deque[tuple[T, int]] = deque()
        self._oldest = oldest

    def __len__(self) -> int:
        """Return how many items wait to be taken."""
        return len(self._items)

    def has_room(self, weight: int = 1) -> bool:
        """Say whether so much more may come in as things are."""
        return self.level + weight <= self.mark or self.level == 0

    def make_room(self, weight: int = 1) -> bool:
        """Keep room for so much; or return false if it has to be waited for.

        Raises:
            Full: there is none, and the policy is to refuse.
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
        """Add an item for which room was made."""
        self._items.append((item, weight))

    def put_back(self, item: T, weight: int = 1) -> None:
        """Add an item again that was taken, as the oldest."""
        self._items.appendleft((item, weight))

    def take(self) -> tuple[T, int] | None:
        """Take the oldest item and its weight, which stays until `free`; None if there is none."""
        return self._items.popleft() if self._items else None

    @property
    def oldest(self) -> T | None:
        """The item that `take` would return."""
        return self._items[0][0] if self._items else None

    def drop(self, weight: int = 1) -> None:
        """Give back the room of what is not added after all, and count it."""
        self.level -= weight
        self.dropped += weight

    def free(self, weight: int = 1) -> None:
        """Give back the room of what is done with."""
        self.level -= weight
