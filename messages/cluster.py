"""ClusterEnv: what a node's environments are to do, and what came of it."""

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
    """Number of the request to this node, from 0. One that comes again has been made in vain: a process was lost."""
    what: Literal["reset", "step"]
    seed: int | None
    """Of a reset: the seed of the node's environments; None to go on with theirs."""
    actions: Arrays
    """Of a step: `actions` (B, …), or nothing, and the agent acts."""


class EnvsPlayedMsg(Message):
    """What the environments of a node answer to a `PlayEnvsMsg`; sent upwards. B environments."""

    node: int
    number: int
    ref: Ref[Any]
    version: int
    """Version of the parameters that acted; -1 without any."""
    arrays: Arrays
    """`obs` (B, …). Of a step `reward`, `terminated`, `truncated` (B,), `actions` (B, …), `policy/NAME` (B, …) for each
    output of the agent, `final_obs` (E, …) of the episodes that ended, and `ended` (E,): their environments."""
    lost: bool
    """True if the process was started anew, so that all environments are at the start of an episode."""
    error: str
    """Why the agent or an environment failed, in words; empty if they did not."""
