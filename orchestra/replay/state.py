"""Compares the state of two objects, in one process or in two: attributes, items and arrays, at any depth."""

import asyncio
import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.trace.analysis.values import ValueDifference, exact_text, value_difference

LARGE = 1 << 20
"""Bytes from which an array counts as large."""
_ATOMS = (type(None), bool, int, float, complex, str, bytes, Enum, PurePath, Ref, np.generic, np.dtype)
_OPAQUE = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, asyncio.Future, io.IOBase)
_LEFT_OUT = frozenset({"_context"})
"""Attributes that the runtime sets."""

Step = tuple[str, Any]
"""`attr` or `item`, and its name, index or key."""
Leaf = tuple[str, str | np.ndarray[Any, Any]]
"""A place as an expression, and what is there: an array, or a text that differs where the values differ."""


@dataclass(frozen=True, slots=True)
class StateDifference:
    """One place where two objects differ."""

    steps: tuple[Step, ...]
    one: Any
    other: Any
    difference: ValueDifference

    @property
    def path(self) -> str:
        """The place as an expression: `_policy._optimizer.param_groups[0]['lr']`."""
        return path_text(self.steps)

    @property
    def simple(self) -> bool:
        """True if both values are plain, so that one can be set."""
        return isinstance(self.one, _ATOMS) and isinstance(self.other, _ATOMS)

    def assign(self, root: Any) -> None:
        """Set this place of `root` to the value `other`.

        Raises:
            LookupError, AttributeError, TypeError: `root` has no such place, or the place cannot be set.
        """
        holder = root
        for sort, name in self.steps[:-1]:
            holder = getattr(holder, name) if sort == "attr" else holder[name]
        sort, name = self.steps[-1]
        if sort == "attr":
            setattr(holder, name, self.other)
        else:
            holder[name] = self.other


def state_differences(one: Any, other: Any) -> Iterator[StateDifference]:
    """Yield the places where two objects differ: attributes, items of containers, arrays.

    Args:
        one: an object.
        other: another of the same class.
    """
    # The objects are kept in the values, so that no other object gets their ids meanwhile.
    seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def compare(steps: tuple[Step, ...], one: Any, other: Any) -> Iterator[StateDifference]:
        if one is other or isinstance(one, _OPAQUE) or (id(one), id(other)) in seen:
            return
        difference: ValueDifference | None = None
        if type(one) is not type(other):
            difference = ValueDifference("", exact_text(one), exact_text(other))
        elif isinstance(one, _ATOMS):
            difference = value_difference(_plain(one), _plain(other))
        else:
            seen[id(one), id(other)] = one, other
            left, right = _as_array(one), _as_array(other)
            if left is not None and right is not None:
                difference = value_difference(left, right)
            else:
                parts, others = _parts(one), _parts(other)
                if [step for step, _ in parts] == [step for step, _ in others]:
                    for (step, part), (_, counterpart) in zip(parts, others, strict=True):
                        yield from compare((*steps, step), part, counterpart)
                else:
                    difference = _other_parts(parts, others)
        if difference is not None:
            yield StateDifference(steps, one, other, difference)

    return compare((), one, other)


def path_text(steps: Sequence[Step]) -> str:
    """Return the place that some steps lead to as an expression: `_policy.layers[0]`."""
    return "".join(f".{name}" if sort == "attr" else f"[{name!r}]" for sort, name in steps).removeprefix(".")


def state_leaves(root: Any, *, large: bool = True) -> Iterator[Leaf]:
    """Yield every value in the state of an object. Two processes compare an object by its leaves.

    Args:
        root: the object.
        large: whether to yield large arrays.
    """
    seen: dict[int, Any] = {}  # the objects are kept, so that no other one gets their ids meanwhile

    def leaves(steps: tuple[Step, ...], value: Any) -> Iterator[Leaf]:
        if isinstance(value, _OPAQUE) or id(value) in seen:
            return
        if isinstance(value, _ATOMS):
            yield path_text(steps), f"{_plain(value)!r}"
            return
        seen[id(value)] = value
        array = _as_array(value)
        if array is not None:
            if large or array.nbytes < LARGE:
                yield path_text(steps), array
            return
        parts = _parts(value)
        if isinstance(value, set | frozenset) and not all(isinstance(item, _ATOMS) for item in value):
            # Such items have no order that two processes share: their leaves are sorted.
            found = sorted(f"{path}: {leaf}" for item in value for path, leaf in leaves((), item))
            yield path_text(steps), f"{type(value).__name__} of {', '.join(found)}"
            return
        yield path_text(steps), f"{type(value).__name__} with {', '.join(str(name) for (_, name), _ in parts)}"
        for step, part in parts:
            yield from leaves((*steps, step), part)

    return leaves((), root)


def without_unwritten(array: np.ndarray[Any, Any], fill: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return an array with zeros in the place of elements that no code wrote, and where those are.

    Args:
        array: a contiguous array of numbers.
        fill: the byte that filled uninitialised memory.
    """
    width = min(array.itemsize, 8)
    words = array.reshape(-1).view(f"u{width}").reshape(-1, array.itemsize // width)
    never = (words == int.from_bytes(bytes([fill]) * width, "little")).all(1)
    if never.any():
        array = array.reshape(-1).copy()
        array[never] = 0
    return array, never


def array_difference(
    one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], unwritten: tuple[int, int]
) -> ValueDifference | None:
    """Return the first difference between two arrays, without elements that no code wrote.

    Args:
        one: a contiguous array of numbers.
        other: another.
        unwritten: the byte that fills uninitialised memory in each of the two.
    """
    found = value_difference(one, other)
    if found is None or one.shape != other.shape or one.dtype != other.dtype:
        return found
    left, right = (array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize) for array in (one, other))
    never = (left == unwritten[0]).all(1) & (right == unwritten[1]).all(1)
    agreed = other.reshape(-1).copy()
    agreed[never] = one.reshape(-1)[never]
    return value_difference(one, agreed.reshape(one.shape))


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) and not isinstance(value, np.void) else value


def plain_value(value: Any) -> Any:
    """Return the array of a tensor, the number of a scalar of an array library, and anything else as it is."""
    array = _as_array(value)
    return _plain(value) if array is None else array


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the elements of an array, or of a tensor of any library; None for anything else."""
    detach: Callable[[], Any] | None = getattr(value, "detach", None)
    if callable(detach) and hasattr(value, "dtype"):  # the `detach` of a file would close it
        value = detach()
    if isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "dtype")):
        array = np.ascontiguousarray(np.asarray(value))
        return array if array.dtype.kind in "biufc" else None
    return None


def _parts(value: Any) -> list[tuple[Step, Any]]:
    """Return the attributes and items of an object, each with the step that leads to it."""
    match value:
        case np.random.Generator():
            return [(("attr", "state"), repr(value.bit_generator.state))]
        case Mapping():
            return [
                (("item", key if isinstance(key, _ATOMS) else f"{type(key).__name__} {index}"), item)
                for index, (key, item) in enumerate(value.items())
            ]
        case list() | tuple() | deque():
            return [(("item", index), item) for index, item in enumerate(value)]
        case set() | frozenset():
            return [(("item", index), item) for index, item in enumerate(sorted(value, key=repr))]
        case Message():
            return [(("attr", name), getattr(value, name)) for name in value.wire.fields]
    names = dict.fromkeys(getattr(value, "__dict__", ()))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    return [
        (("attr", name), getattr(value, name))
        for name in names
        if name not in _LEFT_OUT and not name.startswith("__") and hasattr(value, name)
    ]


def _other_parts(one: list[tuple[Step, Any]], other: list[tuple[Step, Any]]) -> ValueDifference:
    only = [[str(name) for (_, name) in (step for step, _ in side)] for side in (one, other)]
    lacks = [[name for name in only[side] if name not in only[1 - side]] for side in (0, 1)]
    if any(lacks):
        return ValueDifference("", *(f"has {', '.join(names[:4])}" if names else "lacks it" for names in lacks))
    return ValueDifference("", *(f"in the order {', '.join(names[:4])}" for names in only))
