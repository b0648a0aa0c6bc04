"""When a recorded activation began, and whether it came to an end of its own."""

from orchestra.trace.format.records import Activation

_CUT_OFF = frozenset({"Aborted", "_Halted"})
"""The types of failure of an activation that was broken off from outside."""


def beginning_of(activation: Activation) -> float:
    """Return when it began, in seconds of the node's clock."""
    if activation.handled is not None:
        return activation.handled.time
    return 0.0 if activation.delivery is None else activation.delivery.time


def was_cut_off(activation: Activation) -> bool:
    """Whether it came to no end of its own: the actor was aborted, or the record stops within it."""
    handled = activation.handled
    return handled is None or (handled.failure is not None and handled.failure.type in _CUT_OFF)
