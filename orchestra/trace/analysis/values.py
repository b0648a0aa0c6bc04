"""Recorded values compared, worded for people, and turned into JSON for programs."""

import dataclasses
import enum
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import numpy as np

from orchestra.actors.axes import AnyArray
from orchestra.actors.codec import REF, Encoder, values_of
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.sparse_array import SparseArray, is_record
from orchestra.trace.format import effects
from orchestra.trace.format.effects import Effect, MessageId, MessageType
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Digest

FEW_ELEMENTS = 6
"""Arrays of at most this many elements are worded element by element."""
EXACT_TEXT = 120
"""Characters of an exact text."""

FindArray = Callable[[Digest], AnyArray | None]
"""Returns the bytes of an array that was recorded by digest (uint8), or None where they are unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class ValueDifference:
    """One place in which two values differ."""

    path: str
    """The place: `priorities`, `metrics[2].seconds`; empty for the value itself."""
    left: str
    """The first value in words."""
    right: str


def recorded_form(value: Any) -> Any:
    """Return `value` as a trace holds it: lists, dicts by field name, refs, arrays, and plain msgpack values.

    Raises:
        TypeError: part of the value cannot be encoded.
    """
    header, arrays = Encoder().encode(value)
    remaining = iter(arrays)

    def extension(code: int, data: bytes) -> Any:
        return Ref(data.decode()) if code == REF else next(remaining)

    return msgpack.unpackb(header, ext_hook=extension, raw=False, strict_map_key=False)


def recorded_fields(message: Message) -> dict[str, Any]:
    """Return a message's fields by name, as a trace holds them."""
    return dict(zip(message.wire.fields, recorded_form(values_of(message)), strict=True))


def value_difference(
    left: Any, right: Any, *, tolerance: float = 0.0, find_array: FindArray = lambda _: None
) -> ValueDifference | None:
    """Return the first place in which two values differ, or None where they are equal byte for byte.

    Args:
        left: a value in its recorded form; arrays may be digests.
        right: another.
        tolerance: relative and absolute tolerance of floating-point numbers; 0 compares bytes.
        find_array: looks up the array of a digest.
    """
    return next(_differences("", left, right, tolerance, find_array), None)


def value_text(value: Any) -> str:
    """Return a value in short: `float32[24, 3] 0 … 1.5`, `<worker-0/worker>`; floats with six digits."""
    return _text(value, "{:.6g}".format)


def exact_text(value: Any) -> str:
    """Return a value with every digit of its floats, cut after `EXACT_TEXT` characters."""
    return shortened(_text(value, repr), EXACT_TEXT)


def fields_text(fields: Mapping[str, Any] | None) -> str:
    """Return a message's fields in one line: `version=3, params=float32[857] 8e664f96`."""
    if fields is None:
        return "(not recorded)"
    return ", ".join(f"{name}={value_text(value)}" for name, value in fields.items())


def message_text(action: str, address: str, kind: str, content: Any) -> str:
    """Return an action on a message in one line: `told learner/trainer PauseMsg(number=3)`.

    Args:
        action: what was done, as `told`.
        address: the other actor.
        kind: name of the message class.
        content: the message's fields by name, None where they were not recorded, or the value of an answer.
    """
    if content is None or isinstance(content, Mapping):
        return f"{action} {address} {kind}({'…' if content is None else fields_text(content)})"
    return f"{action} {address} {kind}({value_text(content)})"


def effect_text(effect: Effect) -> str:
    """Return an effect in one line, without its time and its message number."""
    match effect:
        case effects.Sent(recipient=address, type=kind, fields=fields):
            return message_text("told", address, kind.name, fields)
        case effects.Asked(recipient=address, type=kind, fields=fields):
            return message_text("asked", address, kind.name, fields)
        case effects.TimerSet(delay=delay, type=kind, fields=fields):
            return message_text(f"set a timer of {delay:g} s for", "itself", kind.name, fields)
        case effects.AnswerGiven(request=request, value=value):
            return f"answered {request}: {value_text(value)}"
        case effects.Offloaded(index=index, error=error):
            return f"offloaded call {index} {f'raised {error}' if error else 'returned'}"
        case effects.StopRequested(graceful=graceful):
            return "requested a stop" if graceful else "requested an abort"
    return _EFFECT_TEXTS[type(effect)].format(effect)


_EFFECT_TEXTS: dict[type[Effect], str] = {
    effects.SendCompleted: "its tell completed",
    effects.SendFailed: "its tell raised {0.error}: {0.text}",
    effects.AnswerReceived: "received the answer",
    effects.AskRaised: "its ask raised {0.error}: {0.text}",
    effects.AnswerRefused: "refused {0.request}: {0.error}: {0.text}",
    effects.Spawned: "spawned {0.address}, a {0.kind}",
    effects.TimerCancelled: "cancelled a timer",
    effects.MonotonicRead: "read the monotonic clock: {0.value!r} s",
    effects.NowRead: "read the wall clock: {0.value}",
    effects.Watched: "watched {0.address}",
    effects.Withdrawn: "{0.request} was withdrawn",
}


def seconds_text(seconds: float) -> str:
    """Return a duration with a suitable unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def shortened(text: str, length: int) -> str:
    """Return `text`, cut to `length` characters where it is longer."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def as_json(value: Any, *, arrays: int = 64) -> Any:
    """Return `value` as JSON types; of an array with more than `arrays` elements only its dtype and shape."""
    match value:
        case np.ndarray() if value.size <= arrays:
            return value.tolist()
        case np.ndarray():
            return {"array": _kind_of(value)}
        case Digest():
            return {"array": _kind_of(value), "digest": value.digest.hex()}
        case Ref():
            return {"ref": value.address}
        case MessageType():
            return value.name
        case MessageId():
            return {"sender": value.sender, "number": value.number}
        case bytes():
            return {"bytes": len(value)}
        case enum.Enum():
            return value.name
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(key): as_json(item, arrays=arrays) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item, arrays=arrays) for item in value]
    if dataclasses.is_dataclass(value):
        begins = {"effect": type(value).__name__} if isinstance(value, Effect) else {}
        names = (field.name for field in dataclasses.fields(value))
        return begins | {name: as_json(getattr(value, name), arrays=arrays) for name in names}
    return value


# Comparing


def _differences(path: str, left: Any, right: Any, tolerance: float, find: FindArray) -> Iterator[ValueDifference]:
    match left, right:
        case (np.ndarray() | Digest(), np.ndarray() | Digest()):
            yield from _array_differences(path, left, right, tolerance, find)
        case _ if is_record(left) or is_record(right):
            yield from _sparse_differences(path, left, right, tolerance, find)
        case Mapping(), Mapping():
            for key in {**left, **right}:
                inner = f"{path}.{key}" if path else str(key)
                if key in left and key in right:
                    yield from _differences(inner, left[key], right[key], tolerance, find)
                else:
                    yield ValueDifference(
                        inner, *(exact_text(side[key]) if key in side else "nothing" for side in (left, right))
                    )
        case (list() | tuple(), list() | tuple()):
            for index, (one, other) in enumerate(zip(left, right, strict=False)):
                yield from _differences(f"{path}[{index}]", one, other, tolerance, find)
            if len(left) != len(right):
                yield ValueDifference(path, *(f"{len(side)} entries: {exact_text(side)}" for side in (left, right)))
        case _ if not _same(left, right, tolerance):
            yield ValueDifference(path, exact_text(left), exact_text(right))


def _same(left: Any, right: Any, tolerance: float) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        if struct.pack("<d", left) == struct.pack("<d", right):
            return True
        return tolerance > 0 and math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    return bool(left == right)


def _array_differences(
    path: str, left: AnyArray | Digest, right: AnyArray | Digest, tolerance: float, find: FindArray
) -> Iterator[ValueDifference]:
    if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
        yield ValueDifference(path, _kind_of(left), _kind_of(right))
        return
    sides = (left, right)
    if any(isinstance(side, Digest) for side in sides):
        digests = [side.digest if isinstance(side, Digest) else digest_of(np.ascontiguousarray(side)) for side in sides]
        if digests[0] == digests[1]:
            return
        found = [find(side) if isinstance(side, Digest) else np.ascontiguousarray(side) for side in sides]
        if found[0] is None or found[1] is None:
            why = "; its values were not recorded" if tolerance else ""
            words = (f"{_kind_of(left)} {digest.hex()[:8]}" for digest in digests)
            yield ValueDifference(path, next(words) + why, next(words))
            return
        first, second = (array.view(left.dtype).reshape(-1) for array in found if array is not None)
    else:
        first, second = (np.ascontiguousarray(side).reshape(-1) for side in sides)
    # Bytes are compared: a NaN equals itself, and 0.0 differs from -0.0.
    first_bytes, second_bytes = (side.view(np.uint8).reshape(-1, left.dtype.itemsize) for side in (first, second))
    if np.array_equal(first_bytes, second_bytes):
        return
    differ = (first_bytes != second_bytes).any(1)
    if tolerance and left.dtype.kind in "fc":
        differ &= ~np.isclose(first, second, rtol=tolerance, atol=tolerance, equal_nan=True)
    if differ.any():
        at = int(differ.argmax())
        where = "".join(f"[{index}]" for index in np.unravel_index(at, left.shape))
        count = f"  ({int(differ.sum()):,} of {differ.size:,} differ)"
        yield ValueDifference(f"{path}{where}", exact_text(first[at].item()), exact_text(second[at].item()) + count)


def _sparse_differences(
    path: str, left: Any, right: Any, tolerance: float, find: FindArray
) -> Iterator[ValueDifference]:
    """Compare values of which at least one is the record of a sparse array."""
    sides = [_dense(side, find) for side in (left, right)]
    if all(isinstance(side, np.ndarray) for side in sides):
        yield from _array_differences(path, sides[0], sides[1], tolerance, find)
    elif is_record(left) and is_record(right):
        for name in left:
            yield from _differences(f"{path}.{name}", left[name], right[name], 0.0, find)
    else:
        yield ValueDifference(path, exact_text(left), exact_text(right))


def _dense(side: Any, find: FindArray) -> Any:
    """Return the array of the record of a sparse array if its parts are known, of a digest likewise; else `side`."""
    if isinstance(side, Digest):
        found = find(side)
        return side if found is None else found.view(side.dtype).reshape(side.shape)
    if not is_record(side):
        return side
    parts = {name: _dense(part, find) for name, part in side.items()}
    return side if any(isinstance(part, Digest) for part in parts.values()) else SparseArray(**parts).dense()


# Wording


def _text(value: Any, float_text: Callable[[float], str]) -> str:
    match value:
        case np.ndarray():
            return f"{_kind_of(value)} {_elements_text(value, float_text)}".rstrip()
        case Digest():
            return f"{_kind_of(value)} {value.digest.hex()[:8]}"
        case Ref():
            return f"<{value.address}>"
        case float():
            return float_text(value)
        case _ if is_record(value):
            dense, values = _dense(value, lambda _: None), value["values"]
            if isinstance(dense, np.ndarray):
                return _text(dense, float_text)
            digests = " ".join(part.digest.hex()[:8] for part in value.values() if isinstance(part, Digest))
            return f"{values.dtype}[{', '.join(map(str, value['shape']))}] {digests}"
        case Mapping():
            return "{" + ", ".join(f"{key}={_text(item, float_text)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_text(item, float_text) for item in value) + "]"
    return repr(value)


def _elements_text(array: AnyArray, float_text: Callable[[float], str]) -> str:
    """The elements of a small array; of a larger one how many are true, or the least and the largest."""
    if array.size <= FEW_ELEMENTS:
        return " ".join(_text(item, float_text) for item in array.reshape(-1).tolist())
    if array.dtype == np.bool_:
        return f"{int(array.sum())} true"
    if np.issubdtype(array.dtype, np.complexfloating):
        return ""
    return f"{float_text(float(array.min()))} … {float_text(float(array.max()))}"


def _kind_of(array: AnyArray | Digest) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
