"""Shards: experience stays on the host where it was played, and sampled episodes travel to the learner."""

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from messages.experience import InsertTransitionMsg
from orchestra import Axes, Lane, Message, Ref


class ShardSizeMsg(Message):
    """Current contents of a shard. A newer message replaces an unread one."""

    lane: ClassVar[Lane] = Lane.LATEST

    shard: Ref[Any]
    total: float
    """Sum of the weights by which its episodes are drawn."""
    held: int
    """Number of episodes that it holds."""
    inserted: int
    """Number of episodes inserted into it so far."""


class ShardEpisodesMsg(Message):
    """Reply to `DrawEpisodesMsg`: episodes that a shard has drawn in proportion to their weights, in random order."""

    lane: ClassVar[Lane] = Lane.SOLICITED

    size: ShardSizeMsg
    episodes: InsertTransitionMsg | None
    """None if the shard holds nothing that can be drawn."""
    indices: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    generations: Annotated[NDArray[np.int64], Axes("int64", "episodes")]
    weights: Annotated[NDArray[np.float64], Axes("float64", "episodes")]


class DrawEpisodesMsg(Message):
    """Draw episodes, and send them in a `ShardEpisodesMsg` to the actor to which the shard reports its size."""

    episodes: int
