"""Downwards: the parameters of the acting policy."""

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from orchestra import Axes, Lane, Message


class LoadParamsMsg(Message):
    """A version of the acting parameters. A newer one replaces an unread one, so a slow worker skips versions."""

    lane: ClassVar[Lane] = Lane.LATEST

    version: int
    """Number of the publication; 0 for the initial parameters."""
    params: Annotated[NDArray[np.float32], Axes("float32", "parameters")]
    env_steps: int | None
    """Environment steps of the run so far, by which workers schedule exploration. The Orchestrator adds the number: the
    Trainer, which publishes the parameters, does not know it."""
