"""Weights: the approximate bytes of messages in a mailbox, without their arrays."""

import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from orchestra.actors.axes import Arrays

FLAT = 128
"""Bytes counted for any message in a mailbox, besides its contents."""
ENTRY = 16
"""Bytes counted for an entry of a tuple."""


def weigher(sized: tuple[str, ...], loose: tuple[str, ...]) -> Callable[[Any], int] | None:
    """Return the weighing function of a class with `sized` fields of text or bytes, and `loose` ones that may hold it.

    Most classes have one or two such fields and get a faster function. None if all messages of the class weigh `FLAT`.
    """
    if loose:

        def weigh_all(message: Any) -> int:
            fields = message.__dict__
            return FLAT + sum(len(fields[name]) for name in sized) + sum(_length(fields[name]) for name in loose)

        return weigh_all
    if not sized:
        return None
    first, *others = sized
    if not others:
        return lambda message: FLAT + len(message.__dict__[first])
    second = others[0]

    def weigh_two(message: Any) -> int:
        fields = message.__dict__
        return FLAT + len(fields[first]) + len(fields[second])

    def weigh_many(message: Any) -> int:
        fields = message.__dict__
        return FLAT + sum([len(fields[name]) for name in sized])

    return weigh_two if len(sized) == 2 else weigh_many


def _length(value: Any) -> int:
    """Return the approximate bytes of a value. Entries of a tuple are counted, not weighed."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, tuple | frozenset):
        return ENTRY * len(value)
    if isinstance(value, Arrays):
        return value.nbytes
    wire = getattr(type(value), "wire", None)  # of a message
    if wire is None:
        return 0
    return FLAT if wire.weigh is None else int(wire.weigh(value))


def may_be_long(annotation: Any) -> bool:
    """Return whether values of this type may take more than a few bytes."""
    origin = get_origin(annotation)
    if origin is Literal:
        return False
    if origin in (Annotated, Union, types.UnionType):
        return any(may_be_long(arm) for arm in get_args(annotation))
    kind = origin or annotation
    return isinstance(kind, type) and (
        issubclass(kind, (str, bytes, tuple, frozenset, Arrays)) or hasattr(kind, "wire")
    )
