"""How a replayed actor handles a message: as a cell has it done, or in a debugger."""

import asyncio
import bdb
import inspect
import sys
from collections.abc import Callable
from typing import Any

from orchestra.actors.message import Message
from orchestra.replay.context import Stage
from orchestra.trace.format.records import Delivery


async def handle(
    handler: Callable[[Any], Any], delivery: Delivery, message: Message, stage: Stage, debugger: bdb.Bdb | None
) -> None:
    """Have `message` handled, and tell the stage what is answered.

    Args:
        handler: the actor's.
        delivery: by which the message came.
        message: what the handler is given.
        stage: the actor's.
        debugger: stops at the first line of the handler.
    """
    is_async = inspect.iscoroutinefunction(handler)
    if debugger is not None:
        # The next frame that begins is the handler's, also of a coroutine: there it stops.
        debugger.reset()
        sys.settrace(debugger.trace_dispatch)
    try:
        result = handler(message)
        if is_async:
            result = await result
        if delivery.correlation:
            stage.answer(delivery, result)
    except asyncio.CancelledError:
        if not stage.given_up(delivery):
            raise
    except Exception as error:
        if delivery.correlation:
            stage.refuse(delivery, stage.blame(error))
        raise
    finally:
        if debugger is not None:
            sys.settrace(None)
