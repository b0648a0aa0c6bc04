"""Transports: ways for bytes from node to node, by the scheme of an address. `SCHEMES` lists them, and takes others."""

from orchestra.wire.transports.base import Connection, Listener, Transport
from orchestra.wire.transports.memory import MemoryConnection, MemoryTransport
from orchestra.wire.transports.registry import SCHEMES

__all__ = ["SCHEMES", "Connection", "Listener", "MemoryConnection", "MemoryTransport", "Transport"]
