"""ClusterEnv: requests to the environments of a node, and their answers."""

from typing import Any, Literal

from orchestra import Arrays, Message, Ref


class UseAgentMsg(Message):
    """Act with an agent of this class from now on; sent downwards before its parameters."""

    name: str
    """Name of a class, or of a function that makes an agent, in the file of the agent."""


class PlayEnvsMsg(Message):
    """Reset all environments of a node, or make one step in each; sent downwards."""

    node: int
    """Number of the node, from 0."""
    number: int
    """Number of the request to this node, from 0. A request is repeated if its process was lost."""
    what: Literal["reset", "step"]
    seed: int | None
    """For a reset: the seed of the node's environments; None to keep their random state."""
    actions: Arrays
    """For a step: `actions` (B, …); if empty, the agent acts."""


class EnvsPlayedMsg(Message):
    """The answer of a node's environments to a `PlayEnvsMsg`; sent upwards. B environments."""

    node: int
    number: int
    ref: Ref[Any]
    version: int
    """Version of the parameters that acted; -1 without any."""
    arrays: Arrays
    """`obs` (B, …). For a step also `reward`, `terminated`, `truncated` (B,), `actions` (B, …), `policy/NAME` (B, …) of
    each output of the agent, `final_obs` (E, …) of the episodes that ended, and `ended` (E,): their environments."""
    lost: bool
    """True if the process was restarted, so that all environments are at the start of an episode."""
    error: str
    """Error of the agent or of an environment, in words; empty if there is none."""
