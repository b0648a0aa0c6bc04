"""Axes: the dtype and shape of the array fields of messages, checked when a message is made; and arrays by name."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, LiteralString

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from orchestra.actors import lazy_numpy as np

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

    An array that its owner could still write to is copied.

    Raises:
        TypeError: a name is no text, or a value is no array.
    """

    __slots__ = ("_arrays",)
    orchestra_immutable = True

    def __init__(self, arrays: Mapping[str, AnyArray] | None = None, /, **named: AnyArray) -> None:
        given = {**(arrays or {}), **named}
        for name, array in given.items():
            if not isinstance(name, str) or not isinstance(array, np.ndarray):
                raise TypeError(f"expected arrays by name, got {name!r}: {type(array).__name__}")
        self._arrays = {name: a if is_frozen(a) else frozen_copy(a) for name, a in given.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum([array.nbytes for array in self._arrays.values()])

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Arrays":
        """Return a record of arrays whose values are arrays or stand-ins for arrays; nothing is checked."""
        made = cls()
        made._arrays = values
        return made

    def plain(self) -> dict[str, AnyArray]:
        """Return the arrays as a dict, which the caller must not change."""
        return self._arrays

    def __getitem__(self, name: str) -> AnyArray:
        return self._arrays[name]

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
