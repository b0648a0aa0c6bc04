"""The launcher with the real ssh and real servers, each on a host of its own: a network namespace."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from virtual_network.namespaces import Network
from virtual_network.ssh_servers import SshServers

from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.launch.protocol import HostEvent, HostRequest
from orchestra.launch.ssh import SshLauncher

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("virtual_network")]

AGENT = """#!{python}
import json, os, pathlib, socket, sys
token = json.loads(sys.stdin.readline())
path = token["join"][-1].removeprefix("tunnel://")
with socket.socket(socket.AF_UNIX) as client:
    client.connect(path)
    answer = client.recv(100).decode()
os.unlink(path)
client_address = os.environ["SSH_CONNECTION"].split()[0]
print(json.dumps([os.getpid(), answer, client_address, os.environ["OF_THE_SERVER"]]), flush=True)
print(*sys.argv[1:], flush=True)
sys.stdin.read()
print("the head is gone", flush=True)
"""
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(2) as network:
        yield network


@pytest.fixture
def servers(network: Network, tmp_path: Path) -> Iterator[SshServers]:
    with SshServers(tmp_path / "ssh", network.hosts, {"OF_THE_SERVER": "a word"}) as servers:
        yield servers


def launcher_of(network: Network, servers: SshServers, hosts: list[HostSettings]) -> tuple[SshLauncher, Any]:
    """Return a launcher whose `ssh` runs on host 1, and what it would submit."""
    launcher = SshLauncher(hosts, ssh=" ".join(network[1].command(*servers.client.split())))
    plan = RunPlan(experiment=None, flags=(), seed=0, run_directory=Path())
    return launcher, launcher.submission(plan, [HostRequest(host.slot, host.name) for host in hosts])


def test_each_host_that_cannot_be_used_has_its_own_reason(
    run: Run, network: Network, servers: SshServers, tmp_path: Path
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    names = ["refused", "wrong-key", "unknown", "nowhere", "cpu1", "cpu1", "cpu2"]
    pythons = {5: "/nowhere/python3", 6: str(bare), 7: str(servers.config)}
    hosts = [HostSettings(slot, name, python=pythons.get(slot, "")) for slot, name in enumerate(names, 1)]

    async def main() -> dict[int, HostEvent]:
        launcher, submission = launcher_of(network, servers, hosts)
        await launcher.start(submission, json.dumps({"join": ["tls://10.231.0.1:41000"]}))
        ended: dict[int, HostEvent] = {}
        async for event in launcher.events():
            if event.state == "ended":
                ended[event.slot] = event
            if len(ended) == len(hosts):
                break
        await launcher.stop(5.0)
        return ended

    ended = run(main())
    assert not any(event.again for event in ended.values())
    reasons = [ended[slot].reason for slot in range(1, 8)]
    assert reasons[:4] == [
        "Connection refused, 4 tries",
        "Permission denied (publickey)",
        "its host key is not known: log in once, with: ssh unknown",
        "Could not resolve hostname nowhere.invalid: Temporary failure in name resolution, 4 tries",
    ]
    assert reasons[4].startswith("its Python cannot be started: ")
    assert "/nowhere/python3: not found" in reasons[4]
    assert reasons[5].startswith("orchestra is not installed for ")
    assert reasons[6].startswith("its Python cannot be started: ")
    assert [ended[slot].code for slot in range(1, 8)] == [None] * 4 + [127, 1, 126]
    assert len(network[1].pids()) == len(network[2].pids()) == 1  # the servers


def test_an_agent_reaches_the_head_through_its_ssh_and_sees_the_end_of_the_launcher(
    run: Run, network: Network, servers: SshServers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = tmp_path / "agent"
    agent.write_text(AGENT.format(python=sys.executable))
    agent.chmod(0o755)
    server = tmp_path / "head.py"
    server.write_text(
        "import socket, sys\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "while True:\n"
        "    listener.accept()[0].sendall(b'the head')\n"
    )

    async def main() -> list[str]:
        head = await asyncio.create_subprocess_exec(
            *network[1].command(sys.executable, str(server)), stdout=asyncio.subprocess.PIPE
        )
        assert head.stdout is not None
        port = int(await head.stdout.readline())
        launcher, submission = launcher_of(network, servers, [HostSettings(1, "cpu2", python=str(agent))])
        said: list[str] = []
        launcher._log = Heard(said)  # type: ignore[assignment]
        await launcher.start(submission, json.dumps({"join": [f"tls://10.231.0.1:{port}"]}))
        events = launcher.events()
        assert [(await anext(events)).state, (await anext(events)).state] == ["asked", "started"]
        while len(said) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert len(network[2].pids()) > 1
        begun = time.monotonic()
        await launcher.stop(20.0)
        assert time.monotonic() - begun < 15  # the agent ended by itself
        head.kill()
        await head.wait()
        return said

    first, arguments, last = run(main())
    pid, answer, client, word = json.loads(first)
    assert (answer, client, word) == ("the head", "10.231.0.1", "a word")
    assert arguments == "-m orchestra host --token - --slot 1 --name cpu2"
    assert last == "the head is gone"
    assert not psutil.pid_exists(pid)


class Heard:
    """Keeps what a host said, in place of the log."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def info(self, event: str, *, text: str, **fields: object) -> None:
        self._said.append(text)
