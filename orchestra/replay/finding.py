"""Which actor of a run is meant."""

import difflib
from typing import Any

from orchestra.actors.actor import Actor
from orchestra.errors import CannotReplay
from orchestra.trace.reading.run_trace import RunTrace


def address_of(trace: RunTrace, actor: str | type[Actor[Any]]) -> str:
    """Return the address that is meant: it itself, or that of the one actor of a class.

    Raises:
        CannotReplay: nothing was recorded of it, or several actors were of that class.
    """
    address = actor if isinstance(actor, str) else _only(trace, actor)
    _check_known(trace, address)
    return address


def _only(trace: RunTrace, kind: type[Actor[Any]]) -> str:
    """Return the address of the one actor of a class."""
    name = f"{kind.__module__}:{kind.__qualname__}"
    found = sorted({life.birth.actor for life in trace.incarnations() if life.birth.kind == name})
    if len(found) == 1:
        return found[0]
    which = f"{len(found)} actors are of it: {', '.join(found)}" if found else "no actor was of it"
    raise CannotReplay(f"{trace.path}: {kind.__name__} does not say which actor is meant; {which}")


def _check_known(trace: RunTrace, address: str) -> None:
    known = trace.actors()
    if address not in known:
        close = difflib.get_close_matches(address, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        every = ", ".join(known) or "none"
        raise CannotReplay(f"{trace.path}: nothing was recorded of {address!r}{hint}; the recorded actors are {every}")
