"""`--launch local`: agents on this machine that pretend to be hosts. Their processes share no memory with others."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from orchestra.errors import OrchestraError
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.launch.engine import AskedHosts, Engine, Settings, on_top
from orchestra.launch.events import HostEvents
from orchestra.launch.protocol import NEVER_AGAIN, HostEvent, HostRequest, Submission
from orchestra.launch.relay import relayed


class LocalLauncher:
    """Starts agents as processes of this one. Implements `Launcher`."""

    name = "local"
    replaces = False

    def __init__(self, scratch: str = "") -> None:
        self._scratch = ["--scratch", scratch] if scratch else []
        self._commands: dict[int, Sequence[str]] = {}
        self._token = ""
        self._agents: dict[int, asyncio.subprocess.Process] = {}
        self._watching: set[asyncio.Task[None]] = set()
        self._events = HostEvents(self._where)

    def submission(self, plan: RunPlan, requests: Sequence[HostRequest]) -> Submission:
        return Submission(files={}, commands=tuple(self._command(request) for request in requests))

    def _command(self, request: HostRequest) -> tuple[str, ...]:
        host = [sys.executable, "-m", "orchestra", "host", "--token", "-", "--slot", str(request.slot)]
        return (*host, "--name", request.name or f"local-{request.slot}", *self._scratch)

    async def start(self, submission: Submission, token: str) -> None:
        self._token = token
        for command in submission.commands:
            self._commands[int(command[command.index("--slot") + 1])] = command
        await asyncio.gather(*map(self._begin, self._commands))

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        if slot not in self._commands:
            raise OrchestraError(f"no agent of slot {slot} was started here")
        await self._begin(slot)

    async def stop(self, deadline: float) -> None:
        self._events.mute()
        for step in ("close", "terminate", "kill"):
            alive = [agent for agent in self._agents.values() if agent.returncode is None]
            for agent in alive:
                assert agent.stdin is not None
                {"close": agent.stdin.close, "terminate": agent.terminate, "kill": agent.kill}[step]()
            if alive:
                await asyncio.wait([asyncio.create_task(agent.wait()) for agent in alive], timeout=deadline)
        if self._watching:
            await asyncio.wait(self._watching)
        self._events.close()

    async def _begin(self, slot: int) -> None:
        try:
            agent = await asyncio.create_subprocess_exec(
                *self._commands[slot],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._events.tell(slot, "ended", f"cannot be started: {error.strerror or error}")
            return
        self._agents[slot] = agent
        assert agent.stdin is not None
        agent.stdin.write(self._token.encode())
        self._events.tell(slot, "started")
        task = asyncio.create_task(self._watch(slot, agent))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, slot: int, agent: asyncio.subprocess.Process) -> None:
        assert agent.stdout is not None
        last = await relayed(agent.stdout)
        code = await agent.wait()
        how = f"killed by signal {-code}" if code < 0 else f"exited with code {code}"
        self._events.tell(slot, "ended", f"{how}: {last}" if last else how, code, again=code not in NEVER_AGAIN)

    def _where(self, slot: int) -> str:
        agent = self._agents.get(slot)
        return f"local {slot}, pid {agent.pid}" if agent is not None else f"local {slot}"


def _launcher(hosts: Sequence[HostSettings], settings: Settings) -> LocalLauncher:
    return LocalLauncher(next((host.scratch for host in hosts), ""))


def _named(number: int | None, settings: Settings) -> AskedHosts:
    return AskedHosts(tuple(replace(host, name=f"local-{host.slot}") for host in on_top(number, settings).hosts))


ENGINE = Engine("local", _launcher, counted=_named, takes_file=True, join_timeout=60.0)
