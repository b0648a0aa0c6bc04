"""Axes: the dtype and shape of the array fields of messages, checked when a message is made."""

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
