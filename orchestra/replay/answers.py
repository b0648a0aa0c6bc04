"""The answers that a replayed actor gives to requests: at once, later by a future, or never."""

import asyncio
from collections.abc import Callable
from typing import Any

from orchestra.errors import ActorStopped, AskFailed
from orchestra.replay.effects import Output, RecordedEffects
from orchestra.trace.analysis.values import recorded_form
from orchestra.trace.format.effects import AnswerGiven, Withdrawn
from orchestra.trace.format.records import Delivery

RequestKey = tuple[str, int, int]
"""Sender, number and correlation of a request."""


class ReplayedAnswers:
    """The answers of one incarnation.

    Args:
        address: the actor's address.
        emit: takes each answer as an output of the activation.
    """

    def __init__(self, address: str, emit: Callable[[Output], Output]) -> None:
        self._address = address
        self._emit = emit
        self._given: dict[RequestKey, dict[str, Any]] = {}
        self._parked: dict[RequestKey, asyncio.Future[Any]] = {}
        self._withdrawn: set[RequestKey] = set()

    def answer(self, delivery: Delivery, result: Any) -> None:
        """Give the result of a handler: a value, or a future of one."""
        request = request_key(delivery)
        if request in self._withdrawn:
            return  # it returned a value although it was cancelled
        if not isinstance(result, asyncio.Future):
            self._give(delivery, result)
            return
        self._parked[request] = result

        def settled(future: asyncio.Future[Any]) -> None:
            if self._parked.pop(request, None) is None:
                return
            if future.cancelled():
                self._refuse(delivery, ActorStopped(f"{self._address} gave up the answer"))
            elif (error := future.exception()) is not None:
                self.fail(delivery, error)
            else:
                try:
                    self._give(delivery, future.result())
                except TypeError as unfit:
                    self.fail(delivery, unfit)

        result.add_done_callback(settled)

    def fail(self, delivery: Delivery, error: BaseException) -> None:
        """Refuse a request because of an exception of its handler."""
        self._refuse(delivery, AskFailed(f"{self._address}: {type(error).__name__}: {error}"))

    def withdraw(self, effect: Withdrawn) -> None:
        """Drop the answer to a request whose asker gave up."""
        request = (*effect.request, effect.correlation)
        self._withdrawn.add(request)
        if (future := self._parked.pop(request, None)) is not None:
            future.cancel()

    def is_withdrawn(self, delivery: Delivery) -> bool:
        """Return whether the asker of this request gave up."""
        return request_key(delivery) in self._withdrawn

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

    def _give(self, delivery: Delivery, value: Any) -> None:
        output = self._emit(Output("answered", delivery.id.sender, delivery.type.name, recorded_form(value)))
        self._given[request_key(delivery)] = {"value": output.fields}

    def _refuse(self, delivery: Delivery, error: Exception) -> None:
        kind, text = type(error).__name__, str(error)
        self._emit(Output("refused", delivery.id.sender, delivery.type.name, f"{kind}: {text}"))
        self._given[request_key(delivery)] = {"error": kind, "text": text}


def request_key(delivery: Delivery) -> RequestKey:
    """Return the key of a delivered request."""
    return (*delivery.id, delivery.correlation)
