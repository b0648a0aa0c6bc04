"""Actors that send each other typed messages, on one machine or many."""

from orchestra.actor import Actor, on
from orchestra.clock import Clock, RealClock
from orchestra.errors import (
    ActorStopped,
    AskCycle,
    AskFailed,
    DeliveryError,
    HandlerError,
    MailboxFull,
    NotUnderstood,
    OrchestraError,
    Unreachable,
    UsageError,
    WireError,
)
from orchestra.message import Axes, Lane, Message, Request, freeze
from orchestra.node import Node
from orchestra.ref import Ref
from orchestra.run_directory import RunDirectory
from orchestra.supervision import Escalate, Restart, Stop, Supervision
from orchestra.system import NodeStatistics, StatisticsMsg, TerminatedMsg
from orchestra.topology import Topology

__all__ = [
    "Actor",
    "ActorStopped",
    "AskCycle",
    "AskFailed",
    "Axes",
    "Clock",
    "DeliveryError",
    "Escalate",
    "HandlerError",
    "Lane",
    "MailboxFull",
    "Message",
    "Node",
    "NodeStatistics",
    "NotUnderstood",
    "OrchestraError",
    "RealClock",
    "Ref",
    "Request",
    "Restart",
    "RunDirectory",
    "StatisticsMsg",
    "Stop",
    "Supervision",
    "TerminatedMsg",
    "Topology",
    "Unreachable",
    "UsageError",
    "WireError",
    "freeze",
    "on",
]
