"""Where a replayed actor is: the line of its own code that is being run."""

import asyncio
import sys
from pathlib import Path

from orchestra.replay.event_loop import QuietLoop

_OTHERS_CODE = (str(Path(__file__).resolve().parents[1]), str(Path(asyncio.__file__).parent))
"""Where code is that is no actor's."""


def place() -> str:
    """Return the innermost line of the actor's own that is being run."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_OTHERS_CODE):
        if frame.f_code is QuietLoop.run_ready.__code__ or frame.f_back is None:
            return ""  # a task of its own that was begun elsewhere
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}:{frame.f_lineno} in {frame.f_code.co_name}"
