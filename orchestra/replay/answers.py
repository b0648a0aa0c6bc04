"""The answers that a replayed actor gives to requests: at once, later by a future, or never."""

from collections.abc import Callable
from typing import Any

from structlog.typing import FilteringBoundLogger

from orchestra.actors.asks import PendingReplies
from orchestra.actors.mailbox import Envelope
from orchestra.actors.message import Message
from orchestra.replay.effects import Output, RecordedEffects
from orchestra.trace.analysis.values import recorded_form
from orchestra.trace.format.effects import AnswerGiven, Withdrawn
from orchestra.trace.format.records import Delivery

RequestKey = tuple[str, int, int]
"""Sender, number and correlation of a request."""


class ReplayedAnswers:
    """The answers of one incarnation, given as the runtime gives them.

    Args:
        address: the actor's address.
        emit: takes each answer as an output of the activation.
        log: the actor's.
    """

    def __init__(self, address: str, emit: Callable[[Output], Output], log: FilteringBoundLogger) -> None:
        self.replies = PendingReplies(address, self._give, self._refuse, None, log)
        self._address = address
        self._emit = emit
        self._open: dict[RequestKey, Envelope] = {}
        self._given: dict[RequestKey, dict[str, Any]] = {}

    async def handle(
        self, handler: Callable[[Any], Any], delivery: Delivery, request: Message, *, is_async: bool
    ) -> None:
        """Have a handler of the actor handle a request, and answer it."""
        number, sender = delivery.id.number, delivery.id.sender
        envelope = Envelope(self._address, sender, request, correlation=delivery.correlation, number=number)
        self._open[_key_of(envelope)] = envelope
        try:
            if is_async:
                await self.replies.answer(envelope, handler)
            else:
                self.replies.answer_at_once(envelope, handler)
        except Exception as error:
            self.replies.fail_in_hand(self.replies.blame(error))
            raise

    def withdraw(self, effect: Withdrawn) -> None:
        """Withdraw a request whose asker gave up."""
        if (envelope := self._open.pop((*effect.request, effect.correlation), None)) is not None:
            self.replies.withdraw(envelope)

    def compare(self, effects: RecordedEffects) -> None:
        """Compare the answers with those recorded in an activation."""
        for effect in effects.answers:
            given = self._given.pop((*effect.request, effect.correlation), None)
            if isinstance(effect, AnswerGiven):
                recorded = {"value": effect.value}
            elif effect.error == "ActorStopped":
                continue  # refused by the runtime when the actor had ended
            else:
                recorded = {"error": effect.error, "text": effect.text}
            effects.compare(f"the answer to {effect.request}", recorded, given)

    def _give(self, envelope: Envelope, value: Any) -> None:
        output = self._note("answered", envelope, recorded_form(value))
        self._given[_key_of(envelope)] = {"value": output.fields}

    def _refuse(self, envelope: Envelope, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        self._note("refused", envelope, f"{kind}: {text}")
        self._given[_key_of(envelope)] = {"error": kind, "text": text}

    def _note(self, verb: str, envelope: Envelope, content: Any) -> Output:
        self._open.pop(_key_of(envelope), None)
        return self._emit(Output(verb, envelope.sender, type(envelope.message).__name__, content))


def _key_of(envelope: Envelope) -> RequestKey:
    return (envelope.sender, envelope.number, envelope.correlation)
