"""What led to a delivery: who sent it while doing what, and why that was being done."""

from orchestra.replay.report import named
from orchestra.trace.format.effects import MessageId
from orchestra.trace.format.records import Activation, Delivery
from orchestra.trace.reading.run_trace import RunTrace

MOST = 6
"""Links of the chain that are told."""


def causes_of(trace: RunTrace, delivery: Delivery | None) -> tuple[str, ...]:
    """Return, newest first, what the senders were doing when they sent what led to `delivery`."""
    told: list[str] = []
    while delivery is not None and delivery.id.number and len(told) < MOST:
        sender = _sender(trace, delivery.id)
        if sender is None:
            told.append(f"{delivery.id.sender}, of which nothing more is recorded")
            break
        told.append(f"{delivery.id.sender} sent it in its delivery {sender.n}, {named(sender.delivery, sender.phase)}")
        delivery = sender.delivery
    return tuple(told)


def _sender(trace: RunTrace, message: MessageId) -> Activation | None:
    """Return the activation in which a message was sent."""
    for life in trace.incarnations(message.sender):
        if life.header.generation != message.generation:
            continue
        for index in trace.recording(life).indexes:
            for n, incarnation in index.sent_in(message.sender, message.number):
                if incarnation == life.birth.incarnation:
                    return trace.activation(life, n)
    return None
