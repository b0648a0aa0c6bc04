"""Messages of experience of a cooperative team, made from flat arrays by name."""

from typing import Any

import numpy as np

from components.policies.chunks import real_rows
from messages import BatchTrainingDataMsg, InsertTransitionMsg
from orchestra import Arrays

FRAMES, STEPS, SEGMENTS = ("obs", "state", "available"), ("actions", "reward"), ("epsilon",)


def team_episodes(**arrays: Any) -> InsertTransitionMsg:
    """Return whole episodes; the fields of a team and the other arguments of `of_episodes` by name."""
    return InsertTransitionMsg.of_episodes(**_groups(arrays))


def team_batch(**arrays: Any) -> BatchTrainingDataMsg:
    """Return a batch of whole episodes; the padded fields of a team and the other fields of the message by name."""
    reward, lengths = arrays["reward"], arrays["lengths"]
    versions = arrays.pop("versions", np.zeros(reward.shape, np.int32))
    arrays["truncated"] = arrays.get("truncated", ~arrays["terminated"])
    groups = _groups(arrays)
    for group, more in (("per_frame", 1), ("per_step", 0)):
        groups[group] = {name: real_rows(array, lengths + more) for name, array in groups[group].items()}
    named = {name: Arrays(group) if name.startswith("per_") else group for name, group in groups.items()}
    return BatchTrainingDataMsg(versions=real_rows(versions, lengths), **named)


def joined(parts: list[InsertTransitionMsg]) -> InsertTransitionMsg:
    """Return the segments of messages with the same fields in one message, sparse fields as arrays."""
    groups: dict[str, Any] = {}
    for group in ("per_frame", "per_step", "per_segment"):
        fields = [getattr(part, group) for part in parts]
        groups[group] = Arrays({name: np.concatenate([each[name] for each in fields]) for name in fields[0]})
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in parts[0].wire.array_fields}
    return parts[0].model_copy(update=groups | arrays)


def _groups(arrays: dict[str, Any]) -> dict[str, Any]:
    named = {"per_frame": FRAMES, "per_step": STEPS, "per_segment": SEGMENTS}
    groups = {group: {name: arrays.pop(name) for name in names} for group, names in named.items()}
    return {**groups, **arrays}
