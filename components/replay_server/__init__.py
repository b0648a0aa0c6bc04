"""Replay buffers across processes: a server, its clients, and proxies between them."""

from components.replay_server.bounded_queue import Full, Policy
from components.replay_server.client import ClientStatistics, ReplayClient
from components.replay_server.episode_layout import EpisodeLayout
from components.replay_server.host import ServerStatistics
from components.replay_server.layouts import AnyLayout, Layout
from components.replay_server.proxy import ProxyStatistics, ReplayProxy
from components.replay_server.reconnect import Disconnected
from components.replay_server.server import ReplayServer
from components.replay_server.subscription import Subscription

__all__ = [
    "AnyLayout",
    "ClientStatistics",
    "Disconnected",
    "EpisodeLayout",
    "Full",
    "Layout",
    "Policy",
    "ProxyStatistics",
    "ReplayClient",
    "ReplayProxy",
    "ReplayServer",
    "ServerStatistics",
    "Subscription",
]
