"""Digests of the arrays that are alive: of each the bytes are read once, however many records mention it."""

import weakref

from orchestra.actors.axes import AnyArray
from orchestra.trace.format.layout import digest_of


class ArrayDigests:
    """The digests of arrays, each kept until its array is deleted.

    A sent array is mentioned by the record of its sender, and later by the record of its recipient on the same node.
    The arrays are read-only, and so keep their digests.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[AnyArray], bytes]] = {}

    def __len__(self) -> int:
        """Return the number of arrays whose digests are kept."""
        return len(self._known)

    def of(self, array: AnyArray) -> bytes:
        """Return the digest of a C-contiguous, read-only array."""
        key, known = id(array), self._known
        found = known.get(key)
        if found is not None:
            return found[1]
        digest = digest_of(array)
        # The callback runs before another array can have the same id.
        known[key] = weakref.ref(array, lambda _: known.pop(key, None)), digest
        return digest
