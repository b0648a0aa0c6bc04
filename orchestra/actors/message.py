"""Messages: frozen data with a type, checked by pydantic wherever one is made or arrives.

A message never shares mutable state with its sender. What cannot change is handed over as it is; arrays are handed
over when they are read-only all the way down (`freeze`), and copied otherwise; a message with any other mutable field
goes through the codec even within a node.
"""

import enum
import hashlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import PydanticCustomError, core_schema

from orchestra.errors import HandlerError

M = TypeVar("M", bound="Message")
R_co = TypeVar("R_co", covariant=True)
AnyArray = NDArray[Any]

REGISTRY: dict[str, type["Message"]] = {}
"""Every message class that may travel, by tag. A class defined again under one name replaces the older one."""

FLAT = 128
"""Bytes that any message is taken to need in a mailbox, whatever is in it."""
ENTRY = 16
"""Bytes that an entry of a tuple is taken to need."""

_ATOMS = (int, float, str, bytes, bool, type(None), enum.Enum, PurePath)


class Lane(enum.IntEnum):
    """How a message queues in a mailbox."""

    SYSTEM = 0
    """Before everything else, and never kept out by a full mailbox."""
    ORDERED = 1
    """In the order of its sender; waits for room."""
    LATEST = 2
    """Ordered, but an unread older message of the same type and sender gives way to it."""
    SOLICITED = 3
    """Ordered, and let in although there is no room: for what somebody asked for, who so has bounded how much there is.
    In a circle of actors that tell each other, what comes back has to be such, lest all wait for each other."""


class Axes:
    """Annotates an array field with its dtype and the names of its axes.

    `obs: Annotated[NDArray[np.float32], Axes("float32", "steps", "agents", "features")]` accepts an array of that
    dtype with three axes; an axis name that occurs in several fields of a message has one length in all of them.
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
        """Return `value` if it is an array of this dtype and rank."""
        if not isinstance(value, np.ndarray):
            raise PydanticCustomError("array_type", "expected an array {want}, got {got}", self._facts(type(value)))
        if value.dtype != self.dtype:
            raise PydanticCustomError(
                "array_dtype", "expected an array {want}, got dtype {got}", self._facts(value.dtype)
            )
        if value.ndim != len(self.names):
            raise PydanticCustomError(
                "array_rank", "expected an array {want}, got shape {got}", self._facts(value.shape)
            )
        return value

    def _facts(self, got: object) -> dict[str, str]:
        name = got.__name__ if isinstance(got, type) else str(got)
        return {"want": f"{self.dtype}[{', '.join(self.names)}]", "got": name}


@dataclass(frozen=True, slots=True)
class Wire:
    """What the runtime knows of a message class."""

    tag: str
    """Its name on the wire."""
    fingerprint: bytes
    """A digest of its schema: peers that agree on it decode each other."""
    fields: tuple[str, ...]
    """Its fields, in the order in which they travel."""
    array_fields: tuple[str, ...]
    """The fields that hold an array."""
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """The same, with the names of their axes."""
    immutable: bool
    """Whether nothing but its arrays could change after the message was made."""
    small: bool
    """Whether such messages travel in runs, many in a frame: those without arrays, in the ordered lane."""
    weigh: "Callable[[Message], int] | None"
    """Returns how many bytes a message takes, its arrays aside; None where that is `FLAT` for all of them."""


class Message(BaseModel):
    """The base of everything that is told. Subclasses are frozen; their names end in `Msg` by convention."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    lane: ClassVar[Lane] = Lane.ORDERED
    wire: ClassVar[Wire]
    """What the runtime knows of the class."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        generic = cls.__pydantic_generic_metadata__
        if generic["parameters"] and not generic["origin"] and "__orig_bases__" not in vars(cls):
            raise _no_answer(cls)  # `class CountMsg(Request)`
        if generic["args"] or generic["parameters"]:
            return  # Request[X] is a class to pydantic, but no message to us
        if issubclass(cls, Request) and cls.lane is Lane.LATEST:
            raise HandlerError(
                f"{cls.__qualname__} is a request: a newer one cannot take its place, somebody waits for it"
            )
        arrays, axes, sized, loose = [], [], [], []
        immutable = True
        for name, field in cls.model_fields.items():
            if named := [entry.names for entry in field.metadata if isinstance(entry, Axes)]:
                arrays.append(name)
                axes.append((name, named[0]))
            elif field.annotation in (str, bytes):
                sized.append(name)
            elif not _is_immutable(field.annotation):
                immutable = False
            elif _may_be_long(field.annotation):
                loose.append(name)
        tag = f"{cls.__module__}.{cls.__qualname__}"
        fingerprint = hashlib.sha256(_describe(cls).encode()).digest()[:8]
        weigh = _weigher(tuple(sized), tuple(loose))
        small = not arrays and cls.lane is Lane.ORDERED
        fields = tuple(cls.model_fields)
        cls.wire = Wire(tag, fingerprint, fields, tuple(arrays), tuple(axes), immutable, small, weigh)
        REGISTRY[tag] = cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = handler(source)
        fields = getattr(cls, "__pydantic_fields__", {}).values()
        if sum(any(isinstance(entry, Axes) for entry in field.metadata) for field in fields) > 1:
            return core_schema.no_info_after_validator_function(_check_axes, schema)
        return schema


class Request(Message, Generic[R_co]):
    """A message that is answered with an `R_co`: `class CountMsg(Request[int])`."""

    @classmethod
    def answer_adapter(cls) -> TypeAdapter[Any]:
        """Return what validates an answer when it arrives from another node."""
        adapter = _ANSWERS.get(cls)
        if adapter is None:
            adapter = _ANSWERS[cls] = TypeAdapter(_answer_type(cls), config=_config_for(_answer_type(cls)))
        return adapter


_ANSWERS: dict[type[Request[Any]], TypeAdapter[Any]] = {}


def isolated(message: M) -> M:
    """Return `message` with every array that its sender could still write to replaced by a copy."""
    copies = {name: frozen_copy(array) for name, array in _arrays(message) if not is_frozen(array)}
    return message.model_copy(update=copies) if copies else message


def size_of(message: Message) -> int:
    """Return about how many bytes an immutable message takes: its arrays, texts and tuples, and `FLAT` for the rest."""
    weigh = message.wire.weigh
    flat = FLAT if weigh is None else weigh(message)
    return flat + sum(array.nbytes for _, array in _arrays(message)) if message.wire.array_fields else flat


def _weigher(sized: tuple[str, ...], loose: tuple[str, ...]) -> Callable[["Message"], int] | None:
    """What weighs messages with these fields of text or bytes, and these that may hold some. Most have one or two."""
    if loose:

        def weigh_all(message: Message) -> int:
            fields = message.__dict__
            return FLAT + sum(len(fields[name]) for name in sized) + sum(_length(fields[name]) for name in loose)

        return weigh_all
    if not sized:
        return None
    first, *others = sized
    if not others:
        return lambda message: FLAT + len(message.__dict__[first])
    second = others[0]

    def weigh_two(message: Message) -> int:
        fields = message.__dict__
        return FLAT + len(fields[first]) + len(fields[second])

    def weigh_many(message: Message) -> int:
        fields = message.__dict__
        return FLAT + sum([len(fields[name]) for name in sized])

    return weigh_two if len(sized) == 2 else weigh_many


def _length(value: Any) -> int:
    """About how many bytes a value takes; what is in a tuple is not looked at, only how much of it there is."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, tuple | frozenset):
        return ENTRY * len(value)
    return size_of(value) if isinstance(value, Message) else 0


def _may_be_long(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal:
        return False
    if origin in (Annotated, Union, types.UnionType):
        return any(_may_be_long(arm) for arm in get_args(annotation))
    kind = origin or annotation
    return isinstance(kind, type) and issubclass(kind, str | bytes | tuple | frozenset | Message)


def _arrays(message: Message) -> Iterator[tuple[str, AnyArray]]:
    for name in message.wire.array_fields:
        value = getattr(message, name)
        if value is not None:
            yield name, value


def freeze(array: AnyArray) -> AnyArray:
    """Make `array` read-only and return it: a promise that nobody writes to it again, so that telling needs no copy.

    A view of memory that is itself writable is copied, since its owner could still change it.
    """
    array.flags.writeable = False
    return array if is_frozen(array) else frozen_copy(array)


def frozen_copy(array: AnyArray) -> AnyArray:
    """Return a contiguous read-only copy."""
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy


def is_frozen(array: AnyArray) -> bool:
    """Whether no numpy array can write to this memory."""
    link: Any = array
    while isinstance(link, np.ndarray):
        if link.flags.writeable:
            return False
        link = link.base
    return link is None or isinstance(link, bytes) or (isinstance(link, memoryview) and link.readonly)


def _check_axes(message: Message) -> Message:
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


def _is_immutable(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if annotation is Any or isinstance(annotation, TypeVar):
        return False
    if origin is Annotated:
        return _is_immutable(get_args(annotation)[0])
    if origin is Literal:
        return True
    if origin in (Union, types.UnionType):
        return all(_is_immutable(arm) for arm in get_args(annotation))
    if origin in (tuple, frozenset):
        return all(arm is Ellipsis or _is_immutable(arm) for arm in get_args(annotation))
    kind = origin or annotation
    if not isinstance(kind, type):
        return False
    if issubclass(kind, Message):
        return kind.wire.immutable and not kind.wire.array_fields
    return issubclass(kind, _ATOMS) or getattr(kind, "orchestra_immutable", False)


def _describe(cls: type[Message]) -> str:
    """The schema of a message as text: two processes that agree on it decode each other."""
    fields = [
        f"{name}: {_type_text(field.annotation)} {[m for m in field.metadata if isinstance(m, Axes)]}"
        for name, field in cls.model_fields.items()
    ]
    answer = f" -> {_type_text(_answer_type(cls))}" if issubclass(cls, Request) else ""
    return f"{cls.__qualname__}({'; '.join(fields)}){answer} lane={cls.lane}"


def _type_text(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)


def _answer_type(cls: type[Request[Any]]) -> Any:
    for base in cls.__mro__:
        metadata = getattr(base, "__pydantic_generic_metadata__", None)
        if metadata and metadata["origin"] is Request:
            return metadata["args"][0]
    raise _no_answer(cls)


def _no_answer(cls: type[Message]) -> HandlerError:
    return HandlerError(f"{cls.__qualname__} does not say what it is answered with; write Request[X]")


def _config_for(kind: Any) -> ConfigDict | None:
    # A model brings its own configuration, and pydantic refuses a second one.
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return None if is_model else ConfigDict(arbitrary_types_allowed=True)
