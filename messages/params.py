"""Downwards: the parameters of the acting policy; versions, probes and digests where workers decide when to load."""

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from orchestra import Arrays, Axes, Lane, Message, Ref


class LoadParamsMsg(Message):
    """A version of the acting parameters. A newer one replaces an unread one, so a slow worker skips versions."""

    lane: ClassVar[Lane] = Lane.LATEST

    version: int
    """Number of the publication; 0 for the initial parameters."""
    params: Annotated[NDArray[np.float32], Axes("float32", "parameters")]
    env_steps: int | None
    """Environment steps of the run so far, by which workers schedule exploration. The Orchestrator adds the number,
    because the Trainer, which publishes the parameters, does not know it."""


class ProbesMsg(Message):
    """Inputs of the policy, drawn from experience, on which versions are compared."""

    number: int
    """Version of the parameters published with these probes."""
    inputs: Arrays
    """`last_actions`, and `frames/NAME` for each field per frame that the policy reads: K probes of W consecutive
    frames each, (K, W, …). Each begins with the policy's empty recurrent state and is compared in its last frame."""


class VersionMsg(Message):
    """Announcement of a version of the acting parameters, which workers may request; and its digest.

    A newer one replaces an unread one, so a slow worker skips versions.
    """

    lane: ClassVar[Lane] = Lane.LATEST

    version: int
    required: int
    """Workers whose own version is older than this one load in any case."""
    env_steps: int | None
    """As in `LoadParamsMsg`."""
    probes: int | None
    """Number of the `ProbesMsg` that `outputs` belong to; None without a digest."""
    outputs: Arrays
    """The digest: outputs of this version's policy for each probe, (K, A, …); empty without a digest."""


class PullParamsMsg(Message):
    """Send the parameters of `version` or a newer one."""

    version: int
    ref: Ref[Any]
    """Receives one `LoadParamsMsg`, as soon as it is available."""


Decision = tuple[int | None, int, float | None, float | None, bool]
"""Decision of a worker about a version: its own version before, None if it had none; the announced version; the
divergence of the worker's policy from that version, None if they were not compared; the running average of this, which
is compared with the threshold; and whether the worker loads."""


class SyncMsg(Message):
    """Decisions of a worker about loading parameters since its last `SyncMsg`; sent upwards."""

    worker: str
    """Address of the worker."""
    decisions: tuple[Decision, ...]
