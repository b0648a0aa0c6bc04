"""Greedy tests that were asked for and have not come back: who plays each, and which wait for somebody to play them."""

from collections.abc import Mapping, Sequence
from typing import Any

from messages import EvaluateMsg
from orchestra import Ref


class EvaluationQueue:
    """Remembers who was asked to play what, so that the tests of one that dies can be asked of another."""

    def __init__(self) -> None:
        self._underway: list[tuple[EvaluateMsg, str]] = []
        self._waiting: list[EvaluateMsg] = []
        self.turn = 0
        """How many tests have been given out: whose turn it is."""

    def add(self, message: EvaluateMsg) -> None:
        """Take note of a test that nobody plays yet."""
        self._waiting.append(message)

    def assign(self, players: Sequence[Ref[Any]]) -> list[tuple[Ref[Any], EvaluateMsg]]:
        """Give each waiting test to one of `players`, in turn; return who is to be told what."""
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
        """Return all that it remembers, for `restore`."""
        return {"underway": list(self._underway), "waiting": list(self._waiting), "turn": self.turn}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what `state` returned; messages in it may be dicts of their fields."""
        self._underway = [(EvaluateMsg.model_validate(message), player) for message, player in state["underway"]]
        self._waiting = [EvaluateMsg.model_validate(message) for message in state["waiting"]]
        self.turn = state["turn"]

    @property
    def idle(self) -> bool:
        """Whether nobody plays a test now."""
        return not self._underway

    def lost(self, player: str) -> None:
        """Have the tests of the one at this address wait for another: it is gone, or has started anew."""
        self._waiting += [message for message, address in self._underway if address == player]
        self._underway = [(message, address) for message, address in self._underway if address != player]

    def finished(self, env_steps: int) -> EvaluateMsg | None:
        """Return, and forget, the oldest test under way that was asked for at `env_steps`; None if there is none."""
        for index, (message, _) in enumerate(self._underway):
            if message.env_steps == env_steps:
                del self._underway[index]
                return message
        return None
