"""Addresses of actors, `node/name`, and the names in them."""

from orchestra.errors import UsageError

OBSERVER = "observer-"
"""Prefix of the names of observers: nodes that observe a run without being part of it."""

AGENT = "agent-"
"""Prefix of the names of agents: the nodes that keep the processes of a host, `agent-<slot>`."""


def node_of(address: str) -> str:
    """Return the node's part of `node/name`."""
    return address.partition("/")[0]


def is_observer(address: str) -> bool:
    """Return whether a node, or the node of an address, is an observer of the run."""
    return address.startswith(OBSERVER)


def check_name(name: str, what: str) -> str:
    """Return `name` if it can be part of an address.

    Args:
        name: the candidate.
        what: the thing to be named, as it appears in the error.

    Raises:
        UsageError: it is empty or has characters other than letters, digits, `-`, `_`, `.`, `:`.
    """
    if name and all(c.isalnum() or c in "-_.:" for c in name):
        return name
    raise UsageError(f"{name!r} cannot name {what}: use letters, digits and - _ . :")
