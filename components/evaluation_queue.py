"""Evaluation queue: evaluations that were requested and have no result yet, with the player of each."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from pydantic.dataclasses import dataclass

from messages import EvaluateMsg, EvaluationResultMsg
from orchestra import Ref


@dataclass
class EvaluationQueue:
    """Assigns evaluations to players in turn, and those of a dead player to another one.

    Its fields are its state. The constructor also takes messages that are dicts of their fields.
    """

    underway: list[tuple[EvaluateMsg, str]] = field(default_factory=list)
    """Assigned evaluations, with the addresses of their players."""
    waiting: list[EvaluateMsg] = field(default_factory=list)
    """Evaluations without a player."""
    turn: int = 0
    """Number of evaluations assigned so far, which decides whose turn it is."""

    def add(self, message: EvaluateMsg) -> None:
        """Add an evaluation without a player."""
        self.waiting.append(message)

    def assign(self, players: Sequence[Ref[Any]]) -> list[tuple[Ref[Any], EvaluateMsg]]:
        """Assign each waiting evaluation to one of `players`, in turn; return the messages to send."""
        if not players:
            return []
        given = []
        for message in self.waiting:
            self.turn += 1
            player = players[self.turn % len(players)]
            self.underway.append((message, player.address))
            given.append((player, message))
        self.waiting.clear()
        return given

    @property
    def idle(self) -> bool:
        """True while no evaluation is assigned."""
        return not self.underway

    @property
    def empty(self) -> bool:
        """True while no evaluation is assigned or waits for a player."""
        return not self.underway and not self.waiting

    @property
    def final(self) -> bool:
        """True while the final evaluation is assigned or waits for a player."""
        return any(message.final for message in (*self.waiting, *(message for message, _ in self.underway)))

    def lost(self, player: str) -> None:
        """Return the evaluations of the player at this address to the queue: it is gone, or was restarted."""
        self.waiting += [message for message, address in self.underway if address == player]
        self.underway = [(message, address) for message, address in self.underway if address != player]

    def finished(self, result: EvaluationResultMsg) -> EvaluateMsg | None:
        """Remove and return the oldest assigned evaluation that `result` answers; None if there is none."""
        for index, (message, _) in enumerate(self.underway):
            if (message.env_steps, message.final) == (result.env_steps, result.final):
                del self.underway[index]
                return message
        return None
