"""Latest-wins messages of a sender: one version is on its way to a recipient, and only the newest other one waits.

A version that the recipient has not taken from its mailbox holds back the next one of its sender and type. A newer one
replaces the one that waits. So a slow recipient is sent the versions that it takes, and no others, and no more than two
versions wait for it. No I/O.
"""

from dataclasses import dataclass

from orchestra.actors.codec import Buffer

Key = tuple[str, str]
"""Sender and type."""
Encoded = tuple[list[Buffer], int]
"""The pieces of an encoded message, and their bytes."""


@dataclass(slots=True)
class _Versions:
    """The versions of one sender and type that the recipient has not taken."""

    unread: int
    """Versions that were sent."""
    held: Encoded | None = None
    """The newest version, if it is not sent."""


class LatestVersions:
    """The latest-wins messages for one recipient."""

    __slots__ = ("_versions", "held")

    def __init__(self) -> None:
        self._versions: dict[Key, _Versions] = {}
        self.held = 0
        """Versions that wait for an earlier one to be taken."""

    def __contains__(self, key: Key) -> bool:
        return key in self._versions

    def put(self, key: Key, encoded: Encoded) -> bool:
        """Return True if a version is to be sent now; else it is held, and replaces an older one that was held."""
        versions = self._versions.get(key)
        if versions is None:
            self._versions[key] = _Versions(unread=1)
            return True
        self.held += versions.held is None
        versions.held = encoded
        return False

    def taken(self, key: Key) -> Encoded | None:
        """Count a version that was taken, of a known key; return the one that is to be sent now, if one was held."""
        versions = self._versions[key]
        versions.unread -= 1
        if versions.unread:
            return None
        if versions.held is None:
            del self._versions[key]
            return None
        return self._send(versions)

    def release(self) -> list[Encoded]:
        """Return the versions that are held; they are to be sent now, before a message that must not overtake them."""
        return [self._send(versions) for versions in self._versions.values() if versions.held is not None]

    def _send(self, versions: _Versions) -> Encoded:
        encoded, versions.held = versions.held, None
        assert encoded is not None
        versions.unread += 1
        self.held -= 1
        return encoded
