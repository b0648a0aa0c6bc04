"""Evaluation queue: evaluations that were requested and have no result yet, with the player of each."""

from collections.abc import Mapping, Sequence
from typing import Any

from messages import EvaluateMsg
from orchestra import Ref


class EvaluationQueue:
    """Assigns evaluations to players in turn, and those of a dead player to another one."""

    def __init__(self) -> None:
        self._underway: list[tuple[EvaluateMsg, str]] = []
        self._waiting: list[EvaluateMsg] = []
        self.turn = 0
        """Number of evaluations assigned so far, which decides whose turn it is."""

    def add(self, message: EvaluateMsg) -> None:
        """Add an evaluation without a player."""
        self._waiting.append(message)

    def assign(self, players: Sequence[Ref[Any]]) -> list[tuple[Ref[Any], EvaluateMsg]]:
        """Assign each waiting evaluation to one of `players`, in turn; return the messages to send."""
        if not players:
            return []
        given = []
        for message in self._waiting:
            self.turn += 1
            player = players[self.turn % len(players)]
            self._underway.append((message, player.address))
            given.append((player, message))
        self._waiting.clear()
        return given

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        return {"underway": list(self._underway), "waiting": list(self._waiting), "turn": self.turn}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a `state`, in which messages may be dicts of their fields."""
        self._underway = [(EvaluateMsg.model_validate(message), player) for message, player in state["underway"]]
        self._waiting = [EvaluateMsg.model_validate(message) for message in state["waiting"]]
        self.turn = state["turn"]

    @property
    def idle(self) -> bool:
        """True while no evaluation is assigned."""
        return not self._underway

    def lost(self, player: str) -> None:
        """Return the evaluations of the player at this address to the queue: it is gone, or was restarted."""
        self._waiting += [message for message, address in self._underway if address == player]
        self._underway = [(message, address) for message, address in self._underway if address != player]

    def finished(self, env_steps: int) -> EvaluateMsg | None:
        """Remove and return the oldest assigned evaluation that was requested at `env_steps`; None if there is none."""
        for index, (message, _) in enumerate(self._underway):
            if message.env_steps == env_steps:
                del self._underway[index]
                return message
        return None
