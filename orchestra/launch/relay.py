"""Shows what agents print before they have joined; the last line is quoted when an agent ends."""

import asyncio
import sys

from orchestra import log


async def relayed(output: asyncio.StreamReader) -> str:
    """Copy the lines of an agent to `sys.stderr` until their end; return the last one."""
    last = ""
    while True:
        try:
            line = await output.readline()
        except ValueError:  # a line longer than the reader's limit: asyncio has dropped it
            continue
        if not line:
            return last
        text = line.decode(errors="replace").rstrip()
        if text:
            last = text.removeprefix("orchestra: ")
        sys.stderr.write(log.fitted(text + "\n", sys.stderr))
        sys.stderr.flush()
