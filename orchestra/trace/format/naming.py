"""How a trace names messages and their types."""

from dataclasses import dataclass
from typing import NamedTuple

GENERATION_SHIFT = 32
"""Bits of a message's number below its generation."""


class MessageId(NamedTuple):
    """The name of a message."""

    sender: str
    number: int

    @property
    def serial(self) -> int:
        """Which of its sender's messages it is, from 1."""
        return self.number & ((1 << GENERATION_SHIFT) - 1)

    @property
    def generation(self) -> int:
        """The generation of the sender's process."""
        return self.number >> GENERATION_SHIFT

    def __str__(self) -> str:
        return f"{self.sender}#{self.serial}" if self.number else f"{self.sender}#?"


@dataclass(frozen=True, slots=True)
class MessageType:
    """What a trace knows of a message class, so that it can be read without the code."""

    tag: str
    """Its name on the wire: module and qualified name."""
    fingerprint: bytes
    """A digest of its schema."""
    fields: tuple[str, ...]
    request: bool
    """Whether it is answered."""

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.tag.rpartition(".")[2]
