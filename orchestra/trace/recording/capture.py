"""Capture: values as they are now, and the code and the failures of an actor, for its records."""

import hashlib
import inspect
import traceback
from collections.abc import Iterator
from typing import Any, TypeVar

from orchestra.actors import codec
from orchestra.actors import lazy_numpy as np
from orchestra.actors.arrays import isolated, size_of
from orchestra.actors.axes import Arrays, frozen_copy, is_frozen
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.sparse_array import SparseArray
from orchestra.actors.weights import FLAT
from orchestra.trace.format.layout import INLINE_BELOW, digest_of
from orchestra.trace.format.records import Digest

M = TypeVar("M", bound=Message)

DIGEST_MEMORY = 200
"""Approximate memory of a `Digest`, in bytes."""
ATOMS = (type(None), bool, int, float, str, bytes, Ref)
"""Immutable types that are encoded as they are."""


def frozen_message(message: Message) -> Message:
    """Return `message`, or a copy where its sender can still change it."""
    return isolated(message) if message.wire.immutable else codec.copied(message)


def frozen_value(value: Any) -> Any:
    """Return a copy of `value` that shares no mutable object with it. Frozen arrays are not copied.

    Raises:
        TypeError: part of the value cannot be encoded.
    """
    if isinstance(value, ATOMS):
        return value
    match value:
        case np.ndarray():
            return value if value.flags.c_contiguous and is_frozen(value) else frozen_copy(value)
        case Message():
            return frozen_message(value)
        case Arrays():
            return frozen_value(value.plain())
        case SparseArray():
            return frozen_value(value.record())
        case dict():
            return {key: frozen_value(item) for key, item in value.items()}
        case list() | tuple():
            return [frozen_value(item) for item in value]
    header, arrays = codec.Encoder().encode(value)
    return codec.decode(header, codec.payload_array(arrays))


def digested(message: M, kept: Message | None) -> tuple[M, int]:
    """Return a frozen message for a record that holds no arrays, and the bytes of memory that it takes.

    Large arrays are replaced by their digests, but for those of the message `kept`, which stay in memory anyway. Small
    arrays that are a part of larger memory are copied.
    """
    present = set() if kept is None else {id(array) for _, array in _all_arrays(kept)}
    wire = message.wire
    nbytes = FLAT if wire.weigh is None else wire.weigh(message)
    update: dict[str, Any] = {}
    for (name, inner, part), array in _all_arrays(message):
        nbytes -= array.nbytes if inner else 0  # was weighed
        if id(array) in present:
            continue
        if array.nbytes < INLINE_BELOW:
            nbytes += array.nbytes
            if not isinstance(array.base, np.ndarray) or array.base.nbytes <= array.nbytes:
                continue
            instead: Any = frozen_copy(array)  # a view would keep the memory of all arrays of the message
        else:
            plain = array if array.flags.c_contiguous else frozen_copy(array)
            instead = Digest(array.dtype, array.shape, digest_of(plain))
            nbytes += DIGEST_MEMORY
        if inner:
            group = (update.get(name) or getattr(message, name)).plain()
            update[name] = Arrays.of({**group, inner: group[inner].replaced(**{part: instead}) if part else instead})
        else:
            update[name] = instead
    return (message.model_copy(update=update) if update else message), nbytes


def _all_arrays(message: Message) -> Iterator[tuple[tuple[str, str, str], Any]]:
    """Yield the arrays of a message, those in `Arrays` too, with their place.

    A place is their field, their name in it, and their name in a sparse array; empty for none.
    """
    for name in message.wire.array_fields:
        array = getattr(message, name)
        if array is not None:
            yield (name, "", ""), array
    for name, value in message.__dict__.items():
        if isinstance(value, Arrays):
            for inner, array in value.plain().items():
                if isinstance(array, SparseArray):
                    yield (name, inner, "bits"), array.bits
                    yield (name, inner, "values"), array.values
                else:
                    yield (name, inner, ""), array


def nbytes_of(value: Any) -> int:
    """Return about how many bytes of memory a frozen value takes."""
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
    """Return whether `value` contains a message. A record returns that as a dict."""
    match value:
        case Message():
            return True
        case dict():
            return any(map(holds_messages, value.values()))
        case list() | tuple() | set() | frozenset():
            return any(map(holds_messages, value))
    return False


def source_hash(kind: type) -> str:
    """Return the SHA-256 of a class's source, in hexadecimal; empty where the source is not available."""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def failure_of(error: BaseException, kind: type) -> list[Any]:
    """Return the fields of a `Failure` for an exception of an actor of class `kind`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = inspect.getsourcefile(kind) if kind.__module__ != "__main__" else None
    where = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    file, line = (where.filename, where.lineno or 0) if where is not None else ("", 0)
    return [type(error).__name__, str(error), file, line, "".join(traceback.format_exception(error))]
