"""Spawning on another node: the request for an actor, its arguments, and the checks on both sides.

Nothing is pickled, and a peer cannot cause an import. A class travels as its import name, `module:qualname`, and the
other node looks it up among the actor classes that its own process has defined: those of orchestra, of its experiment
file, and of the modules that these import. Arguments travel as the fields of a message do, and are converted to the
types that the constructor is annotated with.
"""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, get_origin

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from orchestra.actors import lazy_numpy as np
from orchestra.actors.actor import ACTORS, Actor, ActorFactory, Context, actor_class
from orchestra.actors.addresses import node_of
from orchestra.actors.codec import Encoder
from orchestra.actors.message import Message, config_for
from orchestra.actors.ref import Ref, Sender
from orchestra.actors.system_messages import SYSTEM, SpawnedMsg, SpawnMsg
from orchestra.errors import SpawnRefused

_NOTHING = inspect.signature(lambda self: None)
"""The signature of a class without a constructor."""
_PLAIN = (type(None), bool, int, float, str, bytes, Ref)
"""Types that, like arrays, arrive as they were sent, whatever the annotation."""


class Spawner(Context, Sender, Protocol):
    """An actor that starts a child on another node."""


async def spawn(parent: Spawner, node: str, name: str, factory: ActorFactory) -> Ref[Any]:
    """Start a child of `parent` on the node of that name, and watch it there.

    Raises:
        SpawnRefused: the arguments do not fit or cannot travel, or the other node refuses.
        Unreachable: there is no such node, or it is gone.
    """
    if node == node_of(parent.address):
        return parent.spawn_child(name, factory)
    address = child_address(parent.address, node, name)
    child: Ref[Any] = Ref(await start(parent, node, address.partition("/")[2], factory, parent.address))
    parent.watch(child)
    return child


def child_address(parent: str, node: str, name: str) -> str:
    """Return the address of the child `name` that an actor has on another node."""
    return f"{node}/{parent.replace('/', '.')}:{name}"


async def start(sender: Sender, node: str, name: str, factory: ActorFactory, parent: str) -> str:
    """Start an actor on the node of that name for the actor at `parent`; return its address.

    Raises:
        SpawnRefused: the arguments do not fit or cannot travel, or the other node refuses.
    """
    spawned: SpawnedMsg = await sender.ask(f"{node}/{SYSTEM}", request(name, factory, parent))
    if spawned.refusal:
        raise SpawnRefused(f"node {node!r} does not start {name!r}: {spawned.refusal}")
    return spawned.address


def class_name(kind: type[Actor[Any]]) -> str:
    """Return the name under which an actor class travels."""
    return f"{kind.__module__}:{kind.__qualname__}"


def request(name: str, factory: ActorFactory, parent: str) -> SpawnMsg:
    """Return the request to start an actor as `name` for `parent`.

    Raises:
        SpawnRefused: the arguments do not fit the constructor, or cannot travel.
    """
    kind = actor_class(factory.func)

    def check(parameter: inspect.Parameter, value: Any) -> Any:
        what = f"argument {parameter.name!r} of {kind.__name__}"
        if parameter.annotation is inspect.Parameter.empty and not _is_plain(value):
            raise SpawnRefused(
                f"{what} is a {type(value).__name__}, which would arrive as something else: annotate the parameter"
            )
        try:
            Encoder().encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpawnRefused(f"{what} cannot travel: {error}") from error
        return value

    _converted(factory, check)
    args, kwargs = list(factory.args), factory.keywords
    return SpawnMsg(name=name, kind=class_name(kind), parent=parent, args=args, kwargs=kwargs)


def factory_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorFactory:
    """Return the factory of an actor of the class that travels as `name`, with these arguments.

    Raises:
        SpawnRefused: this process has no such class, or the arguments do not fit its constructor.
    """
    kind = ACTORS.get(name)
    if kind is None:
        raise SpawnRefused(
            f"this process has not defined the actor class {name}; define or import it in the experiment's file"
        )
    try:
        hints = typing.get_type_hints(kind.__init__, include_extras=True)
    except (NameError, TypeError):
        hints = {}  # names that only a type checker sees; their arguments arrive unchecked

    def fit(parameter: inspect.Parameter, value: Any) -> Any:
        if parameter.name not in hints:
            return value
        try:
            return _fitted(hints[parameter.name], value)
        except ValidationError as error:
            problems = "; ".join(problem["msg"] for problem in error.errors())
            raise SpawnRefused(f"argument {parameter.name!r} of {kind.__name__}: {problems}") from error

    return _converted(partial(kind, *args, **kwargs), fit)


def _converted(factory: ActorFactory, convert: Callable[[inspect.Parameter, Any], Any]) -> ActorFactory:
    """Return the factory with every argument converted, given its parameter."""
    kind = actor_class(factory.func)
    constructor: Callable[..., None] = kind.__init__
    signature = _NOTHING if constructor is object.__init__ else inspect.signature(constructor)
    try:
        bound = signature.bind(None, *factory.args, **factory.keywords)
    except TypeError as error:
        raise SpawnRefused(f"{kind.__name__}{_shown(signature)} does not accept the arguments: {error}") from None
    for name, value in list(bound.arguments.items())[1:]:
        parameter = signature.parameters[name]
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                value = [convert(parameter, each) for each in value]
            case parameter.VAR_KEYWORD:
                value = {key: convert(parameter, each) for key, each in value.items()}
            case _:
                value = convert(parameter, value)
        bound.arguments[name] = value
    return partial(kind, *bound.args[1:], **bound.kwargs)


def _shown(signature: inspect.Signature) -> str:
    _, *parameters = signature.parameters.values()
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _is_plain(value: Any) -> bool:
    match value:
        case Message():
            return False
        case list():
            return all(map(_is_plain, value))
        case dict():
            return all(isinstance(key, str) and _is_plain(entry) for key, entry in value.items())
    return type(value) in _PLAIN or type(value) is np.ndarray


def _fitted(annotation: Any, value: Any) -> Any:
    """Convert `value` to `annotation` where pydantic supports it; else check its class, where it has one."""
    config = config_for(annotation)
    try:
        adapter = TypeAdapter(annotation, config=config)
    except (PydanticSchemaGenerationError, PydanticUserError):
        origin = get_origin(annotation)
        if not isinstance(origin, type):
            return value
        adapter = TypeAdapter(origin, config=config)
    return adapter.validate_python(value)
