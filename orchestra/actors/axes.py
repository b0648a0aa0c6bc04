"""Axes: the dtype and shape of the array fields of messages, checked when a message is made; and arrays by name."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, LiteralString

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from orchestra.actors import lazy_numpy as np
from orchestra.actors.sparse_array import SparseArray, is_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    AnyArray = NDArray[Any]
else:
    AnyArray = Any  # without numpy


class Axes:
    """Annotation of an array field: its dtype and the names of its axes.

    `obs: Annotated[NDArray[np.float32], Axes("float32", "steps", "agents", "features")]` accepts an array of that
    dtype with three axes. An axis name that occurs in several fields of a message has one length in all of them.
    """

    __slots__ = ("dtype", "names")

    def __init__(self, dtype: str, *names: str) -> None:
        self.dtype = np.dtype(dtype)
        self.names = names

    def __repr__(self) -> str:
        return f"Axes({', '.join([str(self.dtype), *self.names])})"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def check(self, value: Any) -> AnyArray:
        """Return `value` if it is an array of this dtype and rank. Pydantic reports the error."""
        if not isinstance(value, np.ndarray):
            raise self._unfit("array_type", type(value).__name__)
        if value.dtype != self.dtype:
            raise self._unfit("array_dtype", f"dtype {value.dtype}")
        if value.ndim != len(self.names):
            raise self._unfit("array_rank", f"shape {value.shape}")
        return value

    def _unfit(self, error_type: LiteralString, got: str) -> PydanticCustomError:
        facts = {"want": f"{self.dtype}[{', '.join(self.names)}]", "got": got}
        return PydanticCustomError(error_type, "expected an array {want}, got {got}", facts)


class Arrays(Mapping[str, AnyArray]):
    """Read-only arrays by name: a message field for arrays whose names are known at run time only.

    An array that its owner could still write to is copied. A `SparseArray` stands for an array, which is made when
    it is first read.

    Raises:
        TypeError: a name is no text, or a value is no array.
        ValueError: a sparse array came with parts that do not fit together.
    """

    __slots__ = ("_arrays",)
    orchestra_immutable = True

    def __init__(
        self, arrays: "Mapping[str, AnyArray | SparseArray] | None" = None, /, **named: "AnyArray | SparseArray"
    ) -> None:
        given: dict[str, Any] = {**(arrays or {}), **named}
        for name, array in given.items():
            if is_record(array):
                given[name] = array = SparseArray(**array)
            if not isinstance(name, str) or not isinstance(array, np.ndarray | SparseArray):
                raise TypeError(f"expected arrays by name, got {name!r}: {type(array).__name__}")
        self._arrays = {name: _frozen(array) for name, array in given.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum([array.nbytes for array in self._arrays.values()])

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Arrays":
        """Return arrays by name, which may also be stand-ins for arrays; nothing is checked."""
        made = cls()
        made._arrays = values
        return made

    def plain(self) -> dict[str, Any]:
        """Return the arrays, sparse ones as they are, as a dict, which the caller must not change."""
        return self._arrays

    def __getitem__(self, name: str) -> AnyArray:
        held = self._arrays[name]
        return held.dense() if isinstance(held, SparseArray) else held

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Arrays({', '.join(f'{name}={a.dtype}{list(a.shape)}' for name, a in self._arrays.items())})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._validated)

    @classmethod
    def _validated(cls, value: Any) -> "Arrays":
        if isinstance(value, Arrays):
            return value
        try:
            return cls(value)
        except TypeError:
            facts = {"got": type(value).__name__}
            raise PydanticCustomError("arrays_type", "expected arrays by name, got {got}", facts) from None


def _frozen(held: "AnyArray | SparseArray") -> "AnyArray | SparseArray":
    """Return an array, or a sparse array, as `is_frozen` demands: itself, or with copies."""
    if isinstance(held, SparseArray):
        if is_frozen(held.bits) and is_frozen(held.values):
            return held
        return held.replaced(bits=_frozen(held.bits), values=_frozen(held.values))
    return held if is_frozen(held) else frozen_copy(held)


def is_frozen(array: AnyArray) -> bool:
    """Return whether no numpy array can write to this memory."""
    link: Any = array
    while isinstance(link, np.ndarray):
        if link.flags.writeable:
            return False
        link = link.base
    return link is None or isinstance(link, bytes) or (isinstance(link, memoryview) and link.readonly)


def frozen_copy(array: AnyArray) -> AnyArray:
    """Return a contiguous read-only copy."""
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy


def check_axes(message: Any) -> Any:
    """Return `message` if axes of the same name have the same length in all its arrays. Pydantic calls this."""
    lengths: dict[str, tuple[str, int]] = {}
    fields = message.__dict__
    for name, axes in message.wire.axes:
        array = fields[name]
        if array is None:
            continue
        for axis, length in zip(axes, array.shape, strict=True):
            first, expected = lengths.setdefault(axis, (name, length))
            if length != expected:
                raise PydanticCustomError(
                    "array_axes",
                    "axis {axis} has length {expected} in {first} but {length} in {name}",
                    {"axis": repr(axis), "expected": expected, "first": first, "length": length, "name": name},
                )
    return message
