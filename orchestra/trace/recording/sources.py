"""What a trace says of the code that ran: which class it was, and where it failed."""

import hashlib
import inspect
import traceback
from typing import Any


def source_hash(kind: type) -> str:
    """Return the SHA-256 of a class's source, in hexadecimal; empty where there is no source to be had."""
    try:
        return hashlib.sha256(inspect.getsource(kind).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


def failure_of(error: BaseException, kind: type) -> list[Any]:
    """Return the fields of the `Failure` that `error` was to an actor of class `kind`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = inspect.getsourcefile(kind) if kind.__module__ != "__main__" else None
    where = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    told = "".join(traceback.format_exception(error))
    file, line = (where.filename, where.lineno or 0) if where is not None else ("", 0)
    return [type(error).__name__, str(error), file, line, told]
