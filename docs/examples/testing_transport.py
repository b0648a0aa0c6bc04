"""A custom transport, checked against the contract that nodes rely on."""

import asyncio

from orchestra.testing import check_transport
from orchestra.wire.transports import SCHEMES, MemoryConnection, MemoryTransport


class CountingTransport(MemoryTransport):
    """Connections within this process, counted."""

    dialled = 0

    async def dial(self, address: str) -> MemoryConnection:
        connection = await super().dial(address)
        CountingTransport.dialled += 1
        return connection


def test_a_counting_transport_is_a_transport() -> None:
    SCHEMES["counting"] = CountingTransport
    try:
        asyncio.run(check_transport("counting://here"))
    finally:
        del SCHEMES["counting"]
    assert CountingTransport.dialled > 0
