"""Where two values part, as they travel: byte for byte, or within a tolerance."""

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from orchestra.actors.codec import REF, Encoder, values_of
from orchestra.actors.message import AnyArray, Message
from orchestra.actors.ref import Ref
from orchestra.trace.format.layout import digest_of
from orchestra.trace.format.records import Digest

_SHOWN = 120

Lookup = Callable[[Digest], AnyArray | None]
"""Finds the values of an array that was recorded by its digest, or None."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not what was recorded."""

    path: str
    """Where: `priorities`, `metrics[2][1]`; empty for the value itself."""
    recorded: str
    replayed: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}recorded {self.recorded}, replayed {self.replayed}"


def travelled(value: Any) -> Any:
    """Return `value` as a trace tells it: lists, dicts with fields by name, refs, arrays, and what msgpack knows.

    Raises:
        TypeError: something in it cannot travel.
    """
    header, arrays = Encoder().encode(value)
    waiting = iter(arrays)

    def extension(code: int, data: bytes) -> Any:
        return Ref(data.decode()) if code == REF else next(waiting)

    return msgpack.unpackb(header, ext_hook=extension, raw=False, strict_map_key=False)


def fields_as_travelled(message: Message) -> dict[str, Any]:
    """Return a message's fields by name, as a trace tells them."""
    return dict(zip(message.wire.fields, travelled(values_of(message)), strict=True))


def first_difference(
    recorded: Any, replayed: Any, *, tolerance: float = 0.0, values: Lookup = lambda _: None
) -> Difference | None:
    """Return the first place where two values, as they travelled, are not the same; None if they are.

    Args:
        recorded: from a trace; large arrays may be digests.
        replayed: from `travelled`.
        tolerance: relative and absolute, of floating-point numbers; 0 for equal bytes.
        values: finds what a digest stands for.
    """
    return next(_differences("", recorded, replayed, tolerance, values), None)


def _differences(path: str, old: Any, new: Any, tolerance: float, values: Lookup) -> Iterator[Difference]:
    if isinstance(old, Digest | np.ndarray) and isinstance(new, np.ndarray):
        found = _array_difference(path, old, new, tolerance, values)
        if found is not None:
            yield found
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else str(key)
            if key in old and key in new:
                yield from _differences(inner, old[key], new[key], tolerance, values)
            else:
                yield Difference(inner, *(shown(side[key]) if key in side else "nothing" for side in (old, new)))
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from _differences(f"{path}[{index}]", one, other, tolerance, values)
        if len(old) != len(new):
            yield Difference(path, f"{len(old)} entries: {shown(old)}", f"{len(new)} entries: {shown(new)}")
    elif not _same(old, new, tolerance):
        yield Difference(path, shown(old), shown(new))


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, float):
        if struct.pack("<d", old) == struct.pack("<d", new):
            return True
        return tolerance > 0 and math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new)


def _array_difference(
    path: str, old: AnyArray | Digest, new: AnyArray, tolerance: float, values: Lookup
) -> Difference | None:
    if old.dtype != new.dtype or tuple(old.shape) != new.shape:
        return Difference(path, _kind_of(old), _kind_of(new))
    digest = digest_of(new)
    if isinstance(old, Digest):
        if old.digest == digest:
            return None
        known = values(old)
        if known is None:
            said = "; its values were not recorded" if tolerance else ""
            return Difference(
                path, f"{_kind_of(old)} {old.digest.hex()[:8]}{said}", f"{_kind_of(new)} {digest.hex()[:8]}"
            )
        old = known.view(old.dtype).reshape(old.shape)
    # Compared as bytes: a NaN is the same as itself, 0.0 is not -0.0.
    flat_old, flat_new = np.ascontiguousarray(old).reshape(-1), np.ascontiguousarray(new).reshape(-1)
    width = old.dtype.itemsize
    differ = (flat_old.view(np.uint8).reshape(-1, width) != flat_new.view(np.uint8).reshape(-1, width)).any(1)
    if tolerance and old.dtype.kind in "fc":
        differ &= ~np.isclose(flat_old, flat_new, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not differ.any():
        return None
    first = int(differ.argmax())
    where = "".join(f"[{index}]" for index in np.unravel_index(first, old.shape)) if old.ndim else ""
    more = f"  ({int(differ.sum()):,} of {differ.size:,} differ)"
    return Difference(f"{path}{where}", shown(flat_old[first].item()), shown(flat_new[first].item()) + more)


def shown(value: Any) -> str:
    """Return a value in short, for people."""
    match value:
        case np.ndarray():
            text = f"{_kind_of(value)} {np.array2string(value.reshape(-1)[:4], separator=', ')}"
        case Ref():
            text = value.address
        case Mapping():
            text = ", ".join(f"{key}={shown(item)}" for key, item in value.items())
        case list() | tuple():
            text = f"[{', '.join(map(shown, value))}]"
        case Digest():
            text = str(value)
        case _:
            text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _kind_of(array: AnyArray | Digest) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def renamed(value: Any, old: str, new: str) -> Any:
    """Return `value` with `new` in the place of `old` in all texts."""
    match value:
        case str():
            return value.replace(old, new)
        case dict():
            return {key: renamed(item, old, new) for key, item in value.items()}
        case list():
            return [renamed(item, old, new) for item in value]
    return value
