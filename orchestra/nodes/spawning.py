"""Spawning on another node: the request for an actor, its arguments, and the checks on both sides.

Nothing is pickled, and a peer cannot cause an import. A class travels as its import name, `module:qualname`, and the
other node looks it up among the actor classes that its own process has defined: those of orchestra, of its experiment
file, and of the modules that these import. Arguments travel as the fields of a message do, and are converted to the
types that the constructor is annotated with.
"""

import asyncio
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, get_origin

import numpy as np
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from structlog.typing import FilteringBoundLogger

from orchestra.actors.actor import ACTORS, Actor, actor_class
from orchestra.actors.addresses import node_of
from orchestra.actors.asks import PendingAsks
from orchestra.actors.cell import Cell
from orchestra.actors.codec import Encoder
from orchestra.actors.host import Spawner
from orchestra.actors.message import Message
from orchestra.actors.ref import Ref
from orchestra.actors.supervisor import STOP_S
from orchestra.actors.system_messages import SYSTEM, SpawnedMsg, SpawnMsg, StopActorMsg, StopMsg
from orchestra.errors import ActorFailed, OrchestraError, SpawnRefused, UsageError
from orchestra.nodes.peers import Peers

STOP_REMOTE_S = 3 * STOP_S
"""Seconds a child on another node may take to stop. Its own node gives it less, first to stop, then to abort."""
_PLAIN = (type(None), bool, int, float, str, bytes, np.ndarray, Ref)
"""Types that arrive as they were sent, whatever the annotation."""


async def spawn(
    parent: Spawner, node: str, name: str, kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Ref[Any]:
    """Start a child of `parent` on the node of that name, and watch it there.

    Raises:
        SpawnRefused: the arguments do not fit or cannot travel, or the other node refuses.
        Unreachable: there is no such node, or it is gone.
    """
    if node == node_of(parent.address):
        return parent.spawn_child(name, kind, partial(kind, *args, **kwargs))
    address = child_address(parent.address, node, name)
    message = request(address.partition("/")[2], kind, args, kwargs, parent.address)
    child: Ref[Any] = Ref(accepted(node, message, await parent.ask(f"{node}/{SYSTEM}", message)))
    parent.watch(child)
    return child


def child_address(parent: str, node: str, name: str) -> str:
    """Return the address of the child `name` that an actor has on another node."""
    return f"{node}/{parent.replace('/', '.')}:{name}"


def accepted(node: str, message: SpawnMsg, spawned: SpawnedMsg) -> str:
    """Return the address of the started actor.

    Raises:
        SpawnRefused: the other node refused.
    """
    if spawned.refusal:
        raise SpawnRefused(f"node {node!r} does not start {message.name!r}: {spawned.refusal}")
    return spawned.address


def class_name(kind: type[Actor[Any]]) -> str:
    """Return the name under which an actor class travels."""
    return f"{kind.__module__}:{kind.__qualname__}"


def request(
    name: str, kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any], parent: str
) -> SpawnMsg:
    """Return the request to start `kind(*args, **kwargs)` as `name` for `parent`.

    Raises:
        SpawnRefused: the arguments do not fit the constructor, or cannot travel.
    """
    for parameter, value in _assigned(kind, args, kwargs):
        annotated = parameter.annotation is not inspect.Parameter.empty
        what = f"argument {parameter.name!r} of {kind.__name__}"
        if not annotated and not _is_plain(value):
            raise SpawnRefused(
                f"{what} is a {type(value).__name__}, which would arrive as something else: annotate the parameter"
            )
        try:
            Encoder().encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpawnRefused(f"{what} cannot travel: {error}") from error
    return SpawnMsg(name=name, kind=class_name(kind), parent=parent, args=list(args), kwargs=dict(kwargs))


def factory_of(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> partial[Actor[Any]]:
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
        hints = typing.get_type_hints(_constructor(kind), include_extras=True)
    except (NameError, TypeError):
        hints = {}  # names that only a type checker sees; their arguments arrive unchecked
    args, kwargs = list(given), dict(named)
    for index, (parameter, value) in enumerate(_assigned(kind, tuple(args), kwargs)):
        if parameter.name not in hints:
            continue
        try:
            fit = _fitted(hints[parameter.name], value)
        except ValidationError as error:
            problems = "; ".join(problem["msg"] for problem in error.errors())
            raise SpawnRefused(f"argument {parameter.name!r} of {kind.__name__}: {problems}") from error
        if index < len(args):
            args[index] = fit
        else:
            kwargs[list(kwargs)[index - len(args)]] = fit
    return partial(kind, *args, **kwargs)


class SpawningNode(Protocol):
    """A node, as spawning on other nodes, and for them, uses it."""

    asks: PendingAsks
    log: FilteringBoundLogger
    peers: Peers
    stopping: bool

    def start_cell(
        self, name: str, kind: type[Actor[Any]], factory: Callable[[], Actor[Any]], *, parent: str = ""
    ) -> Cell:
        """Start an actor."""

    def watch(self, watcher: str, target: str) -> None:
        """Notify `watcher` when `target` terminates."""


class RemoteSpawning:
    """Starts and stops children of a node's actors on other nodes, and actors of this node for others."""

    def __init__(self, node: SpawningNode) -> None:
        self._node = node

    async def spawn(
        self,
        parent: Spawner,
        node: str,
        name: str,
        kind: type[Actor[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Ref[Any]:
        """Start a child of `parent` on another node and watch it; a cancelled spawn stops it again."""
        try:
            return await spawn(parent, node, name, kind, args, kwargs)
        except asyncio.CancelledError:
            if (link := self._node.peers.find(node)) is not None:  # it may have been started
                link.post(parent.address, child_address(parent.address, node, name), StopMsg())
            raise

    async def stop(self, parent: str, address: str) -> list[ActorFailed]:
        """Stop a child of `parent` on another node; return the failures on the way."""
        peer = node_of(address)
        if self._node.peers.find(peer) is None:
            return []  # its node is lost, and it ends by itself
        try:
            async with asyncio.timeout(STOP_REMOTE_S):
                request = StopActorMsg(address=address)
                failures = await self._node.asks.ask(parent, f"{peer}/{SYSTEM}", request, (parent,))
        except (OrchestraError, TimeoutError) as error:
            # The child watches its parent, and ends by itself.
            level = self._node.log.info if self._node.stopping else self._node.log.warning
            level("a child on another node cannot be stopped", address=address, reason=str(error))
            return []
        return [ActorFailed(address, text) for text in failures]

    def spawn_for(self, message: SpawnMsg) -> SpawnedMsg:
        """Start an actor at the request of another node, as a child of `message.parent`."""
        try:
            factory = factory_of(message.kind, message.args, message.kwargs)
            cell = self._node.start_cell(message.name, actor_class(factory.func), factory, parent=message.parent)
        except UsageError as error:
            return SpawnedMsg(refusal=str(error))
        if cell.recorder is not None:
            cell.recorder.given(message.args, message.kwargs)
        self._node.watch(cell.address, message.parent)
        return SpawnedMsg(address=cell.address)


def _constructor(kind: type[Actor[Any]]) -> Callable[..., None]:
    return kind.__init__


def _assigned(
    kind: type[Actor[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[inspect.Parameter, Any]]:
    """Yield the parameter of every argument, in the order of the arguments."""
    signature = inspect.signature(_constructor(kind)) if _constructor(kind) is not object.__init__ else _NOTHING
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise SpawnRefused(f"{kind.__name__}{_shown(signature)} does not accept the arguments: {error}") from None
    _, *parameters = signature.parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    others = next((p for p in parameters if p.kind is p.VAR_KEYWORD), None)
    by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for index, value in enumerate(args):
        parameter = positional[index] if index < len(positional) else rest
        assert parameter is not None
        yield parameter, value
    for name, value in kwargs.items():
        parameter = by_name.get(name, others)
        assert parameter is not None
        yield parameter, value


def _nothing(self: Any) -> None:
    """The signature of a class without a constructor."""


_NOTHING = inspect.signature(_nothing)


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
    return type(value) in _PLAIN


def _fitted(annotation: Any, value: Any) -> Any:
    """Convert `value` to `annotation` where pydantic supports it; else check its class, where it has one."""
    is_model = isinstance(annotation, type) and hasattr(annotation, "model_config")
    config = None if is_model else ConfigDict(arbitrary_types_allowed=True)
    try:
        adapter = TypeAdapter(annotation, config=config)
    except (PydanticSchemaGenerationError, PydanticUserError):
        origin = get_origin(annotation)
        if not isinstance(origin, type):
            return value
        adapter = TypeAdapter(origin, config=config)
    return adapter.validate_python(value)
