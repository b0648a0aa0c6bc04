"""Messages: frozen data with a type, validated by pydantic wherever one is made or arrives.

A message never shares mutable state with its sender. Immutable fields are handed over as they are. Arrays are handed
over if they are read-only all the way down (`freeze`) and copied otherwise. A message with any other mutable field is
encoded and decoded even within a node.
"""

import enum
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import core_schema

from orchestra.actors.axes import AnyArray, Arrays, Axes, check_axes
from orchestra.actors.weights import may_be_long, weigher
from orchestra.errors import HandlerError

R_co = TypeVar("R_co", covariant=True)

REGISTRY: dict[str, type["Message"]] = {}
"""Every message class that can travel, by tag."""

_ATOMS = (int, float, str, bytes, bool, type(None), enum.Enum, PurePath)


class Lane(enum.IntEnum):
    """The way in which messages of a class queue in a mailbox."""

    SYSTEM = 0
    """Before all others, and accepted by a full mailbox."""
    ORDERED = 1
    """In the order of sending; waits for room."""
    LATEST = 2
    """Ordered, but replaces an unread older message of the same type and sender."""
    SOLICITED = 3
    """Ordered, and accepted by a full mailbox: for messages that the receiver requested and thereby limits. In a
    cycle of actors that send to each other, the replies need this lane, or all may wait for each other."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The runtime's view of a message class."""

    tag: str
    """Its name on the wire and in traces: the distribution it belongs to and its qualified name."""
    fingerprint: bytes
    """Digest of its schema, 8 bytes. Peers with equal fingerprints can decode each other. It names no module, so that
    classes can move between modules."""
    fields: tuple[str, ...]
    """Its fields, in the order in which they travel."""
    array_fields: tuple[str, ...]
    """The fields that hold an array."""
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """The array fields with the names of their axes."""
    immutable: bool
    """True if only its arrays could change after the message was made."""
    small: bool
    """True if its messages travel in batches, many in a frame: without arrays, in the ordered lane."""
    weigh: "Callable[[Message], int] | None"
    """Returns the bytes of a message without its arrays; None if that is `FLAT` for all of them."""


class Message(BaseModel):
    """Base class of all messages. Subclasses are frozen; their names end in `Msg` by convention.

    Its tag consists of the distribution, which is the top package of its module (or the module, outside of packages),
    and the qualified name. Two classes of one distribution therefore cannot share a name. A class that is defined
    again in its module replaces the older one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, ser_json_inf_nan="constants")

    lane: ClassVar[Lane] = Lane.ORDERED
    wire: ClassVar[Wire]
    """The runtime's view of the class."""

    def array_pieces(self) -> Iterable[tuple[AnyArray, AnyArray]]:
        """Return arrays that consist of pieces which other messages repeat, such as episodes drawn more than once.

        Each comes with the number of rows of its pieces, (pieces,) int, in order. A trace writes a piece once.
        """
        return ()

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
                f"{cls.__qualname__} is a request and cannot use Lane.LATEST: a replaced request would get no answer"
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
            elif may_be_long(field.annotation):
                loose.append(name)
        tag = f"{_distribution(cls.__module__)}.{cls.__qualname__}"
        other = REGISTRY.get(tag)
        if other is not None and other.__module__ != cls.__module__:
            raise HandlerError(
                f"two message classes are named {tag}: one in {other.__module__}, one in {cls.__module__}; rename one"
            )
        fingerprint = hashlib.sha256(_describe(cls).encode()).digest()[:8]
        weigh = weigher(tuple(sized), tuple(loose))
        kinds = [field.annotation for field in cls.model_fields.values()]
        small = not arrays and cls.lane is Lane.ORDERED and Arrays not in kinds
        cls.wire = Wire(tag, fingerprint, tuple(cls.model_fields), tuple(arrays), tuple(axes), immutable, small, weigh)
        REGISTRY[tag] = cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        schema = handler(source)
        fields = getattr(cls, "__pydantic_fields__", {}).values()
        if sum(any(isinstance(entry, Axes) for entry in field.metadata) for field in fields) > 1:
            return core_schema.no_info_after_validator_function(check_axes, schema)
        return schema


class Request(Message, Generic[R_co]):
    """Message that is answered with an `R_co`: `class CountMsg(Request[int])`."""

    @classmethod
    @cache
    def answer_adapter(cls) -> TypeAdapter[Any]:
        """Return the validator of answers from other nodes."""
        return TypeAdapter(_answer_type(cls), config=config_for(_answer_type(cls)))


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
    """Return the schema of a message class as text."""
    fields = [
        f"{name}: {_type_text(field.annotation)} {[m for m in field.metadata if isinstance(m, Axes)]}"
        for name, field in cls.model_fields.items()
    ]
    answer = f" -> {_type_text(_answer_type(cls))}" if issubclass(cls, Request) else ""
    return f"{cls.__qualname__}({'; '.join(fields)}){answer} lane={cls.lane}"


def _type_text(annotation: Any) -> str:
    """Return an annotation as text that names types without their modules."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None:
        return getattr(annotation, "__qualname__", None) or ("..." if annotation is Ellipsis else str(annotation))
    if origin is Literal:
        return f"Literal{list(args)}"
    if origin is Annotated:
        return _type_text(args[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type_text, args))
    return f"{_type_text(origin)}[{', '.join(map(_type_text, args))}]"


def _distribution(module: str) -> str:
    """Return the top package of a module, or the module itself if it is in none."""
    top = module.partition(".")[0]
    is_package = getattr(sys.modules.get(top), "__file__", None) is not None  # a namespace package has no file
    return top if is_package else module


def _answer_type(cls: type[Request[Any]]) -> Any:
    for base in cls.__mro__:
        metadata = getattr(base, "__pydantic_generic_metadata__", None)
        if metadata and metadata["origin"] is Request:
            return metadata["args"][0]
    raise _no_answer(cls)


def _no_answer(cls: type[Message]) -> HandlerError:
    return HandlerError(f"{cls.__qualname__} does not name the type of its answer; write Request[X]")


def config_for(kind: Any) -> ConfigDict | None:
    """Return the configuration of a `TypeAdapter`; None for a model, which brings its own."""
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return None if is_model else ConfigDict(arbitrary_types_allowed=True)
