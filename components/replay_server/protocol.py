"""What replay servers, proxies and clients say to each other.

What is refused is an answer too: nothing that a client sends makes a server's actor fail.
"""

from typing import Annotated, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from components.replay_buffers.closed import Closed
from components.replay_buffers.federated import ClientSample, SampledUnion
from components.replay_buffers.invalid import InvalidExperience, NameTaken, UnknownClient
from components.replay_server.bounded_queue import Full
from orchestra import Axes, Message, Ref, Request, freeze

PROTOCOL = 2
"""Of what arrays mean; a server and a client of different ones part at once. 2: episodes travel back to back."""

DESK = "replay"
"""The actor of a server, or of a proxy, that clients speak to."""
AGENT = "agent"
"""The actor of a client that the server speaks to."""

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
"""Arrays by the names of fields."""
Indices = Annotated[NDArray[np.int64], Axes("int64", "items")]


class RefusedMsg(Message):
    """An answer: no, and why. What was asked for did not happen."""

    error: str
    """The name of the exception."""
    text: str

    def throw(self) -> NoReturn:
        """Raise it where it was asked."""
        raise REFUSALS.get(self.error, InvalidExperience)(self.text)


def refusal(error: Exception) -> RefusedMsg:
    """Return the answer that raises `error` where it was asked."""
    known = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in REFUSALS), "")
    return RefusedMsg(error=known, text=str(error))


# Clients to the server ------------------------------------------------------------------------------------------------


class ShareMsg(Message):
    """A `ClientSample`: items that were drawn, maybe none, and how much is held."""

    batch: Arrays
    indices: Indices
    generations: Indices
    weights: Annotated[NDArray[np.float64], Axes("float64", "items")]
    total: float
    held: int
    inserted: int
    number: int
    """Which of the client's shares it is: an answer may overtake what was told before it."""
    refused: str = ""
    """Why priorities that came with what was asked for were refused, if they were."""

    @classmethod
    def of(cls, share: ClientSample, number: int, refused: str = "") -> "ShareMsg":
        """Return the message that says it; its arrays are given away."""
        return cls(
            batch={name: freeze(array) for name, array in share.batch.items()},
            indices=freeze(share.indices),
            generations=freeze(share.generations),
            weights=freeze(share.weights),
            total=share.total,
            held=share.held,
            inserted=share.inserted,
            number=number,
            refused=refused,
        )

    @property
    def share(self) -> ClientSample:
        """What it says."""
        return ClientSample(
            self.batch, self.indices, self.generations, self.weights, self.total, self.held, self.inserted
        )


class WelcomeMsg(Message):
    """A client has joined."""

    layout: dict[str, Any]
    paced: bool
    """Whether a client that keeps its memory itself has to ask before it inserts."""


class DrawMsg(Request[ShareMsg]):
    """Draw so many items, maybe none, and send them."""

    n: int


class RouteMsg(Request[ShareMsg]):
    """Update the priorities of items that were sent, and then draw so many; all that is answered follows on that."""

    n: int
    indices: Indices
    generations: Indices
    priorities: Annotated[NDArray[np.float64], Axes("float64", "items")]


class PublicationMsg(Request[None]):
    """Something was published; answered when it has found room."""

    topic: str
    data: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class AliveMsg(Request[None]):
    """Are you there?"""


ClientMsg = DrawMsg | RouteMsg | PublicationMsg | AliveMsg
"""What a client's agent understands."""


class EnterMsg(Request[WelcomeMsg | RefusedMsg]):
    """A client wants to join."""

    client: str
    agent: Ref[ClientMsg]


class LeaveMsg(Request[RefusedMsg | None]):
    """A client leaves, and its memory with it."""

    client: str


class InsertMsg(Request[RefusedMsg | None]):
    """Insert entries into the memory that the server keeps for a client; answered when they may be, and are."""

    client: str
    rows: Arrays
    priorities: Annotated[NDArray[np.float64], Axes("float64", "items")]
    """One for each; or none, and they enter with the largest so far."""
    writer: int
    """Which object inserts,"""
    number: int
    """and which of its chunks the first of these is: one may be sent again when the answer was lost."""
    sizes: tuple[int, ...] = ()
    """Entries of each chunk, where several come together; each of them is admitted, and refused, by itself."""


class AdmitMsg(Request[RefusedMsg | None]):
    """May a client insert so many entries into its own memory? Answered when it may, and has to."""

    client: str
    n: int


class HoldingMsg(Request[RefusedMsg | None]):
    """How much a client holds now."""

    client: str
    share: ShareMsg
    inserted_bytes: int
    """Bytes of all entries that it has inserted."""


class SampledMsg(Message):
    """A batch from the union of all memories, as by `FederatedReplay.draw`."""

    batch: Arrays
    weights: Annotated[NDArray[np.float32], Axes("float32", "items")]
    clients: tuple[str, ...]
    whose: Indices
    """Whose each is: an index of `clients`."""
    indices: Indices
    generations: Indices

    @classmethod
    def of(cls, sampled: SampledUnion) -> "SampledMsg":
        """Return the message that says it; its arrays are given away."""
        return cls(
            batch={name: freeze(array) for name, array in sampled.batch.items()},
            weights=freeze(sampled.weights),
            clients=sampled.names,
            whose=freeze(sampled.whose),
            indices=freeze(sampled.indices),
            generations=freeze(sampled.generations),
        )

    @property
    def sampled(self) -> SampledUnion:
        """What it says."""
        return SampledUnion(self.batch, self.weights, self.clients, self.whose, self.indices, self.generations)


class SampleMsg(Request[SampledMsg | RefusedMsg]):
    """Draw a batch; answered when there is one."""

    batch_size: int


class UpdateMsg(Request[RefusedMsg | None]):
    """New priorities of items that were drawn."""

    clients: tuple[str, ...]
    whose: Indices
    indices: Indices
    generations: Indices
    priorities: Annotated[NDArray[np.float64], Axes("float64", "items")]


class SubscribeMsg(Request[RefusedMsg | None]):
    """Tell an agent what is published on a topic from now on, and what was last."""

    topic: str
    agent: Ref[PublicationMsg]


class UnsubscribeMsg(Request[RefusedMsg | None]):
    """Tell it no more."""

    topic: str
    agent: Ref[PublicationMsg]


class PublishMsg(Request[RefusedMsg | None]):
    """Publish something to all who have subscribed to a topic."""

    topic: str
    data: Annotated[NDArray[np.uint8], Axes("uint8", "bytes")]


class LineMsg(Request[RefusedMsg | None]):
    """Write a line into the server's log file."""

    client: str
    text: str


DeskMsg = (
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
    | LineMsg
)
"""What a server understands, and a proxy passes on."""
