"""Which actors are recorded, and of which types the fields."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True, slots=True)
class Filters:
    """Patterns with `*` and `?`. One with a slash names actors by address, any other names message types.

    An actor that is left out is not recorded at all. A type that is left out is recorded without its fields, so that
    counts, times and journeys stay whole.
    """

    include: Sequence[str] = ()
    """Where this names actors, only these are recorded; where it names types, only these keep their fields."""
    exclude: Sequence[str] = ()
    """What is left out in any case."""

    def records(self, actor: str) -> bool:
        """Whether the actor at this address is recorded."""
        return _passes(actor, _actors(self.include), _actors(self.exclude))

    def keeps(self, type_name: str) -> bool:
        """Whether the fields of this message type are recorded."""
        return _passes(type_name, _types(self.include), _types(self.exclude))


def _actors(patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if "/" in pattern]


def _types(patterns: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if "/" not in pattern]


def _passes(name: str, include: list[str], exclude: list[str]) -> bool:
    if include and not any(fnmatchcase(name, pattern) for pattern in include):
        return False
    return not any(fnmatchcase(name, pattern) for pattern in exclude)
