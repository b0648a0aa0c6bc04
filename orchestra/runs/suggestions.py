"""Suggestions for mistyped names."""

import difflib
from collections.abc import Iterable

_CLOSE = 0.7
"""Similarity, from 0 to 1, from which a name counts as mistyped. At 0.6, as difflib has it, `discount` is `account`."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ` (did you mean NAME?)` for the known name that resembles `given`, or an empty text if none does.

    That is the one name that `given` begins, or whose words it is the initials of, or else the most similar one.
    Case does not matter, nor do dashes before a name.
    """
    names = {name.casefold().lstrip("-"): name for name in known}
    wanted = given.casefold().lstrip("-")
    beginning = [name for name in names if len(wanted) > 1 and name.startswith(wanted)]
    initials = [name for name in names if len(wanted) > 1 and _initials(name) == wanted]
    close = difflib.get_close_matches(wanted, names, n=1, cutoff=_CLOSE)
    for found in (beginning, initials, close):
        if len(found) == 1:
            return f" (did you mean {names[found[0]]}?)"
    return ""


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.replace("_", "-").split("-") if word)
