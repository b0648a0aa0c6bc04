"""Messages of experience of a cooperative team, made from flat arrays by name."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from messages import BatchTrainingDataMsg, InsertTransitionMsg
from orchestra import Arrays

FRAMES, STEPS, SEGMENTS = ("obs", "state", "available"), ("actions", "reward"), ("epsilon",)


def team_episodes(**arrays: Any) -> InsertTransitionMsg:
    """Return whole episodes; the fields of a team and the other arguments of `of_episodes` by name."""
    return InsertTransitionMsg.of_episodes(**_groups(arrays))


def team_batch(**arrays: Any) -> BatchTrainingDataMsg:
    """Return a batch of whole episodes; the fields of a team and the other fields of the message by name."""
    reward: NDArray[np.float32] = arrays["reward"]
    own = {"truncated": ~arrays["terminated"], "versions": np.zeros(reward.shape, np.int32)}
    groups = {name: Arrays(group) if name.startswith("per_") else group for name, group in _groups(arrays).items()}
    return BatchTrainingDataMsg(**{**own, **groups})


def _groups(arrays: dict[str, Any]) -> dict[str, Any]:
    named = {"per_frame": FRAMES, "per_step": STEPS, "per_segment": SEGMENTS}
    groups = {group: {name: arrays.pop(name) for name in names} for group, names in named.items()}
    return {**groups, **arrays}
