"""How a recorder keeps a value: as it is now, whatever becomes of it."""

from typing import Any

import numpy as np

from orchestra.actors import codec
from orchestra.actors.message import Message, frozen_copy, is_frozen, isolated, size_of
from orchestra.actors.ref import Ref

ATOMS = (type(None), bool, int, float, str, bytes, Ref)
"""What cannot change, and travels as it is."""


def kept_message(message: Message) -> Message:
    """Return `message`, or a copy of it if its sender could still change it."""
    return isolated(message) if message.wire.immutable else codec.copied(message)


def kept(value: Any) -> Any:
    """Return `value` as it is now, sharing nothing with it that could change. Frozen arrays are not copied.

    Raises:
        TypeError: something in it cannot travel.
    """
    if isinstance(value, ATOMS):
        return value
    match value:
        case np.ndarray():
            return value if value.flags.c_contiguous and is_frozen(value) else frozen_copy(value)
        case Message():
            return kept_message(value)
        case dict():
            return {key: kept(item) for key, item in value.items()}
        case list() | tuple():
            return [kept(item) for item in value]
    header, arrays = codec.Encoder().encode(value)
    return codec.decode(header, codec.payload_array(arrays))


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a kept value takes in memory."""
    match value:
        case np.ndarray():
            return value.nbytes + 128
        case str() | bytes():
            return len(value) + 64
        case Message():
            return 512 + size_of(value)
        case dict():
            return 64 + sum(64 + nbytes_of(item) for item in value.values())
        case list():
            return 64 + sum(map(nbytes_of, value))
    return 64


def holds_messages(value: Any) -> bool:
    """Whether a message is anywhere in `value`: it would come back from a record as a mere dict."""
    match value:
        case Message():
            return True
        case dict():
            return any(map(holds_messages, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(holds_messages, value))
    return False
