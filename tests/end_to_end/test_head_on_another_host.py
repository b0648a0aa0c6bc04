"""`--head HOST` runs the head there by ssh: its display and its exit code are here, and Ctrl-C saves there."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from virtual_network.namespaces import Network, until
from virtual_network.ssh_servers import SshServers

from orchestra.hosts.settings import HostSettings
from orchestra.launch.ssh_head import head_command

pytestmark = pytest.mark.slow
Started = Callable[..., Any]


@pytest.fixture
def network(virtual_network: None) -> Iterator[Network]:
    with Network(2) as network:
        yield network


@pytest.fixture
def started(launch: Any, network: Network, tmp_path: Path) -> Iterator[Started]:
    """Start a quick run whose head is on host 2, from host 1."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with SshServers(tmp_path / "ssh", network.hosts, environment) as servers:
        client = " ".join(network[1].command(*servers.client.split()))

        def start(*flags: str) -> Any:
            return launch("--workers", "1", "--head", "cpu2", "--ssh", client, *flags)

        yield start


def nobody_is_left(network: Network) -> bool:
    return len(network[2].pids()) == 1  # the ssh server


def test_a_run_there_has_its_output_and_its_exit_code_here(started: Started, network: Network) -> None:
    launched = started("--steps", "600")
    launched.until(lambda: len(network[2].pids()) > 3)  # the head and its processes
    assert launched.ends() == 0, launched.story("failed")
    assert "600" in launched.out
    assert launched.json("summary.json")["state"] == "done"
    until(lambda: nobody_is_left(network), 10, "processes are left on the other host")


def test_ctrl_c_here_saves_there(started: Started, network: Network) -> None:
    launched = started("--steps", "1000000000")
    launched.until_playing()
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("ended in another way")
    assert launched.json("summary.json")["state"] == "interrupted"
    assert "continue with: " in launched.out
    until(lambda: nobody_is_left(network), 10, "processes are left on the other host")


def test_the_head_saves_and_ends_when_this_side_is_killed(started: Started, network: Network) -> None:
    launched = started("--steps", "1000000000")
    launched.until_playing()
    for process in [*launched.look_for_children(), launched.process]:
        process.kill()
    until(lambda: nobody_is_left(network), 60, "the head goes on")
    assert launched.json("summary.json")["state"] == "stopped"


def test_a_host_that_ssh_does_not_reach_is_a_missing_host(launch: Any, started: Started, tmp_path: Path) -> None:
    launched = started("--head", "refused")
    assert launched.ends() == 69, launched.story("ended in another way")
    assert "Connection refused" in launched.err
    assert "orchestra: the head on refused cannot be reached by ssh" in launched.err
    assert not list(tmp_path.glob("runs/*"))


def test_a_head_that_is_no_host_is_a_usage_error(launch: Any) -> None:
    launched = launch("--head", "-oProxyCommand=x")
    assert launched.ends() == 2
    assert "--head" in launched.err


def test_the_command_goes_to_the_same_folder_with_its_setup_and_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/py")
    host = HostSettings(0, "gpu1", user="me", port=22, setup="module load cuda;")
    command = head_command(host, ["run", "my game.py", "--steps=3"], Path("/home/me/a b"), ssh="ssh -v")
    assert command == [
        *("ssh", "-v", "-tt", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
        *("-p", "22", "--", "me@gpu1"),
        "exec sh -c 'cd -- '\"'\"'/home/me/a b'\"'\"' || exit 2; module load cuda; "
        "p=/opt/py; [ -x \"$p\" ] || p=python3; exec \"$p\" -m orchestra run '\"'\"'my game.py'\"'\"' --steps=3'",
    ]  # fmt: skip
