"""Recorded values as text for people, and as JSON for programs."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from orchestra.actors.ref import Ref
from orchestra.trace.format.effects import Effect, MessageId, MessageType
from orchestra.trace.format.records import Digest

SHORT = 6
"""Elements of an array up to which they are shown."""


def value_text(value: Any) -> str:
    """Return a value in short: `float32[24, 3] 0 … 1.5`, `<worker-0/worker>`."""
    match value:
        case np.ndarray():
            return _array_text(value)
        case Digest():
            return str(value)
        case Ref():
            return f"<{value.address}>"
        case float():
            return f"{value:.6g}"
        case Mapping():
            return "{" + ", ".join(f"{key}={value_text(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(value_text, value)) + "]"
    return repr(value)


def fields_text(fields: Mapping[str, Any] | None) -> str:
    """Return a message's fields in one line."""
    if fields is None:
        return "(not recorded)"
    return "  ".join(f"{name}={value_text(value)}" for name, value in fields.items())


def seconds_text(seconds: float) -> str:
    """Return a duration with a unit that suits it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1.0 else f"{seconds:.2f} s"


def effect_text(effect: Effect) -> str:
    """Return an effect in one line, without its time."""
    parts = []
    for field in dataclasses.fields(effect)[1:]:
        value = getattr(effect, field.name)
        match value:
            case MessageType():
                parts.append(value.name)
            case MessageId():
                parts.append(f"{field.name} {value}")
            case _ if field.name == "fields":
                parts.append(fields_text(value))
            case int() if field.name == "number":
                parts.append(f"#{value & 0xFFFFFFFF}")
            case bool():
                parts += [field.name] if value else []
            case _:
                parts.append(f"{field.name}={value_text(value)}" if not isinstance(value, str) else value)
    return f"{_words(type(effect).__name__)}: {' '.join(part for part in parts if part)}"


def as_json(value: Any, *, arrays: int = 64) -> Any:
    """Return `value` as something that JSON can hold; arrays of more than `arrays` elements in short."""
    match value:
        case np.ndarray():
            if value.size <= arrays:
                return value.tolist()
            return {"array": f"{value.dtype}{list(value.shape)}"}
        case Digest():
            return {"array": f"{value.dtype}{list(value.shape)}", "digest": value.digest.hex()}
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
        case Mapping():
            return {str(key): as_json(item, arrays=arrays) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item, arrays=arrays) for item in value]
        case float():
            return value if np.isfinite(value) else str(value)
        case Effect():
            told = {
                field.name: as_json(getattr(value, field.name), arrays=arrays) for field in dataclasses.fields(value)
            }
            return {"effect": type(value).__name__, **told}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name), arrays=arrays) for field in dataclasses.fields(value)}
    return value


def _array_text(array: np.ndarray[Any, Any]) -> str:
    kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    if array.size <= SHORT:
        inner = " ".join(f"{item:.6g}" if isinstance(item, float) else str(item) for item in array.reshape(-1).tolist())
        return f"{kind} {inner}"
    if array.dtype == np.bool_:
        return f"{kind} {int(array.sum())} true"
    if np.issubdtype(array.dtype, np.complexfloating):
        return kind
    low, high = array.min(), array.max()
    return f"{kind} {float(low):.6g} … {float(high):.6g}"


def _words(name: str) -> str:
    """`SendFailed` as words: `send failed`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
