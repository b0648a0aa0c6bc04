"""Actors that send each other typed messages, on one machine or many."""

from orchestra.actors.actor import Actor, State, on
from orchestra.actors.message import Axes, Lane, Message, Request, freeze
from orchestra.actors.offload import cancelled
from orchestra.actors.ref import Ref
from orchestra.actors.supervision import (
    AllForOne,
    Escalate,
    OneForOne,
    Restart,
    RestForOne,
    Stop,
    Strategy,
    Supervision,
)
from orchestra.actors.system_messages import (
    InterruptMsg,
    NodeStatistics,
    StatisticsMsg,
    TerminatedMsg,
)
from orchestra.clock import Clock, RealClock
from orchestra.errors import (
    ActorFailed,
    ActorStopped,
    AskCycle,
    AskFailed,
    DeliveryError,
    HandlerError,
    MailboxFull,
    NotUnderstood,
    OrchestraError,
    ReplayDiverged,
    SpawnRefused,
    Unreachable,
    UsageError,
    WireError,
)
from orchestra.nodes.node import Node
from orchestra.replay.replay import Replay
from orchestra.runs.run_directory import RunDirectory
from orchestra.runs.topology import Topology

__all__ = [
    "Actor",
    "ActorFailed",
    "ActorStopped",
    "AllForOne",
    "AskCycle",
    "AskFailed",
    "Axes",
    "Clock",
    "DeliveryError",
    "Escalate",
    "HandlerError",
    "InterruptMsg",
    "Lane",
    "MailboxFull",
    "Message",
    "Node",
    "NodeStatistics",
    "NotUnderstood",
    "OneForOne",
    "OrchestraError",
    "RealClock",
    "Ref",
    "Replay",
    "ReplayDiverged",
    "Request",
    "RestForOne",
    "Restart",
    "RunDirectory",
    "SpawnRefused",
    "State",
    "StatisticsMsg",
    "Stop",
    "Strategy",
    "Supervision",
    "TerminatedMsg",
    "Topology",
    "Unreachable",
    "UsageError",
    "WireError",
    "cancelled",
    "freeze",
    "on",
]
