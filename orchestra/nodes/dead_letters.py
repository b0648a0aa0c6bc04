"""What a node could hand to nobody: how much, and which of it is worth a line in the log."""

LOGGED = 10
"""Dead letters of each kind for each recipient that are logged."""
KINDS = 1000
"""Pairs of recipient and type that are told apart: names come from peers, without end if one makes them up."""
OTHERS = ("others", "any")
"""What all further pairs are counted as."""


class DeadLetters:
    """A node's account of its dead letters. Its size is bounded, and so is what is logged of them."""

    def __init__(self) -> None:
        self.total = 0
        """Dead letters so far."""
        self._counts: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        """Return how many pairs of recipient and type are told apart, the others as one."""
        return len(self._counts)

    def count(self, recipient: str, kind: str) -> bool:
        """Count one; return whether it is among the first of its kind for this recipient, and so should be logged."""
        self.total += 1
        key = (recipient, kind)
        if key not in self._counts and len(self._counts) >= KINDS:
            key = OTHERS
        count = self._counts[key] = self._counts.get(key, 0) + 1
        return count <= LOGGED
