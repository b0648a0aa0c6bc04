"""Messages between replay servers, proxies and clients.

A refusal is an answer: no message of a client makes an actor of the server fail.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from components.replay_buffers.closed import Closed
from components.replay_buffers.federated import ClientSample, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay_server.bounded_queue import Full
from orchestra import Axes, Message, Ref, Request, freeze

T = TypeVar("T")

PROTOCOL = 3
"""Version of these messages and of the meaning of their arrays. A server refuses clients of another version."""

SERVER = "replay"
"""Name of the actor that receives requests of clients, at a server or at a proxy."""
CLIENT = "client"
"""Name of the actor that receives requests of a server, at a client or at a proxy."""

REFUSALS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (Closed, Full, InvalidExperience, NameTaken, UnknownClient, ValueError, TimeoutError)
}


def _check_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name}: expected an array, got {type(array).__name__}")
    return arrays


Arrays = Annotated[dict[str, Any], AfterValidator(_check_arrays)]
"""Arrays by field name."""
Indices = Annotated[NDArray[np.int64], Axes("int64", "items")]
Priorities = Annotated[NDArray[np.float64], Axes("float64", "items")]
Bytes = Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


def frozen(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays, frozen, as a message may hold them."""
    return {name: freeze(array) for name, array in arrays.items()}


def _message_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with slots by name, its arrays frozen."""
    values = {name: getattr(record, name) for name in record.__slots__}
    arrays = frozen({name: value for name, value in values.items() if isinstance(value, np.ndarray)})
    return values | arrays | {"batch": frozen(record.batch)}


# Answers --------------------------------------------------------------------------------------------------------------


class RefusedMsg(Message):
    """A request was refused and not carried out."""

    error: str
    """Name of the exception type."""
    text: str

    @classmethod
    def of(cls, error: Exception) -> "RefusedMsg":
        """Return the answer that makes the sender of the request raise `error`."""
        known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in REFUSALS), "")
        return cls(error=known, text=str(error))

    def throw(self) -> NoReturn:
        """Raise the exception."""
        raise REFUSALS.get(self.error, InvalidExperience)(self.text)


def accepted(answer: T | RefusedMsg) -> T:
    """Return the answer; if it is a refusal, raise its exception."""
    if isinstance(answer, RefusedMsg):
        answer.throw()
    return answer


# Server to client -----------------------------------------------------------------------------------------------------


class ClientSampleMsg(Message):
    """A `ClientSample`: items drawn from a client's buffer, maybe none, and how much the buffer holds."""

    batch: Arrays
    indices: Indices
    generations: Indices
    weights: Priorities
    total: float
    held: int
    inserted: int
    number: int
    """Serial number of this client's samples, because an answer may overtake an earlier message."""
    refused: str = ""
    """Reason for which the priorities of the request were refused; empty if they were not."""

    @classmethod
    def of(cls, sample: ClientSample, number: int, refused: str = "") -> "ClientSampleMsg":
        """Return the message of a sample, whose arrays are frozen."""
        return cls(**_message_fields(sample), number=number, refused=refused)

    @property
    def sample(self) -> ClientSample:
        """The sample."""
        return ClientSample(
            self.batch, self.indices, self.generations, self.weights, self.total, self.held, self.inserted
        )


class DrawMsg(Request[ClientSampleMsg]):
    """Update priorities of items drawn earlier, if any are given; then draw `n` items, maybe none."""

    n: int
    indices: Indices
    generations: Indices
    priorities: Priorities


class PublicationMsg(Request[None]):
    """A publication; answered once the subscriber has room for it."""

    topic: str
    data: Bytes


class AliveMsg(Request[None]):
    """A request to prove that the client is alive."""


ClientMsg = DrawMsg | PublicationMsg | AliveMsg
"""Requests that a server, or a proxy, sends to a client."""


# Client to server -----------------------------------------------------------------------------------------------------


class WelcomeMsg(Message):
    """A client has joined."""

    layout: dict[str, Any]
    paced: bool
    """True if a client that keeps its own buffer has to ask before it inserts."""


class EnterMsg(Request[WelcomeMsg | RefusedMsg]):
    """A client joins."""

    client: str
    ref: Ref[ClientMsg]


class LeaveMsg(Request[RefusedMsg | None]):
    """A client leaves."""

    client: str


class InsertMsg(Request[RefusedMsg | None]):
    """Insert entries into the buffer that the server keeps for a client; answered once they are inserted."""

    client: str
    rows: Arrays
    priorities: Priorities
    """One for each entry; if empty, entries get the largest priority so far."""
    writer: int
    """Random number of the client object that inserts."""
    number: int
    """Serial number of the first chunk. A chunk is sent again when its answer was lost, and inserted once."""
    sizes: tuple[int, ...] = ()
    """Entries of each chunk, if the message holds several. Each chunk is admitted, or refused, separately."""


class AdmitMsg(Request[RefusedMsg | None]):
    """Ask to insert `n` entries into the client's own buffer. Answered once the client may insert; it then has to."""

    client: str
    n: int


class HoldingMsg(Request[RefusedMsg | None]):
    """Reports how much a client holds now."""

    client: str
    sample: ClientSampleMsg
    inserted_bytes: int
    """Bytes of all entries that the client has inserted."""


class SampledMsg(Message):
    """A batch from the union of all buffers, as by `FederatedReplay.draw`."""

    batch: Arrays
    weights: Annotated[NDArray[np.float32], Axes("float32", "items")]
    names: tuple[str, ...]
    whose: Indices
    """For each item the index of its client in `names`."""
    indices: Indices
    generations: Indices

    @classmethod
    def of(cls, sampled: SampledUnion) -> "SampledMsg":
        """Return the message of a batch, whose arrays are frozen."""
        return cls(**_message_fields(sampled))

    @property
    def sampled(self) -> SampledUnion:
        """The batch."""
        return SampledUnion(self.batch, self.weights, self.names, self.whose, self.indices, self.generations)


class SampleMsg(Request[SampledMsg | RefusedMsg]):
    """Draw a batch; answered once there is one."""

    batch_size: int


class UpdateMsg(Request[RefusedMsg | None]):
    """New priorities of sampled items."""

    names: tuple[str, ...]
    whose: Indices
    indices: Indices
    generations: Indices
    priorities: Priorities


class SubscribeMsg(Request[RefusedMsg | None]):
    """Send the newest publication on a topic, and all later ones, to `ref`."""

    topic: str
    ref: Ref[PublicationMsg]


class UnsubscribeMsg(Request[RefusedMsg | None]):
    """Stop sending publications on a topic to `ref`."""

    topic: str
    ref: Ref[PublicationMsg]


class PublishMsg(Request[RefusedMsg | None]):
    """Publish bytes to all subscribers of a topic."""

    topic: str
    data: Bytes


class LogLineMsg(Request[RefusedMsg | None]):
    """Write a line into the server's log file."""

    client: str
    text: str


ServerMsg = (
    EnterMsg
    | LeaveMsg
    | InsertMsg
    | AdmitMsg
    | HoldingMsg
    | SampleMsg
    | UpdateMsg
    | SubscribeMsg
    | UnsubscribeMsg
    | PublishMsg
    | LogLineMsg
)
"""Requests that a client sends to a server, or to a proxy."""
