"""Replay buffers across processes: a server, its clients, and proxies between them."""

from components.replay_server.bounded_queue import Full, OverflowPolicy
from components.replay_server.client import ClientStatistics, ReplayClient
from components.replay_server.layouts import AnyLayout, EpisodeLayout, Layout
from components.replay_server.proxy import ProxyStatistics, ReplayProxy
from components.replay_server.publications import Subscription
from components.replay_server.reconnect import Disconnected
from components.replay_server.server import ReplayServer, ServerStatistics

__all__ = [
    "AnyLayout",
    "ClientStatistics",
    "Disconnected",
    "EpisodeLayout",
    "Full",
    "Layout",
    "OverflowPolicy",
    "ProxyStatistics",
    "ReplayClient",
    "ReplayProxy",
    "ReplayServer",
    "ServerStatistics",
    "Subscription",
]
