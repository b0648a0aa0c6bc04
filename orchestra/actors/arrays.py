"""Arrays of messages: freezing, copies of arrays that are not frozen, and sizes in bytes."""

from collections.abc import Iterator
from typing import TypeVar

from orchestra.actors.axes import AnyArray, frozen_copy, is_frozen
from orchestra.actors.message import Message
from orchestra.actors.weights import FLAT

M = TypeVar("M", bound=Message)


def isolated(message: M) -> M:
    """Return `message` with copies of all arrays that its sender could still write to."""
    copies = {name: frozen_copy(array) for name, array in _arrays(message) if not is_frozen(array)}
    return message.model_copy(update=copies) if copies else message


def size_of(message: Message) -> int:
    """Return the approximate bytes of an immutable message: arrays, texts, tuples, and `FLAT` for the rest."""
    weigh = message.wire.weigh
    flat = FLAT if weigh is None else weigh(message)
    return flat + sum(array.nbytes for _, array in _arrays(message)) if message.wire.array_fields else flat


def _arrays(message: Message) -> Iterator[tuple[str, AnyArray]]:
    for name in message.wire.array_fields:
        value = getattr(message, name)
        if value is not None:
            yield name, value


def freeze(array: AnyArray) -> AnyArray:
    """Make `array` read-only and return it, so that messages can hold it without a copy.

    A view of writable memory is copied, since the owner of the memory could still change it.
    """
    array.flags.writeable = False
    return array if is_frozen(array) else frozen_copy(array)
