"""Runs over hosts that ssh reaches: each is a network namespace with a ssh server of its own. The head is on host 1."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hosted_runs import LONG, crowded
from virtual_network.namespaces import until
from virtual_network.ssh_servers import PORT as SSH_PORT

pytestmark = pytest.mark.slow


def test_a_run_over_two_hosts_learns_from_both_and_leaves_nothing(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    lab.until_all_play(launched, "host-1", "host-2")
    assert sorted(lab.processes(lab.network[2])) == ["agent", "host-1", "worker-1-0"]
    assert sorted(lab.processes(lab.network[3])) == ["agent", "host-2", "worker-2-0"]
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")
    lab.until_nothing_is_left(10)


def test_a_killed_ssh_changes_nothing_and_a_killed_head_ends_all_hosts(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    launched.until(lambda: "worker-1-0" in lab.processes(lab.network[2]))
    before = lab.processes(lab.network[2])
    lab.ssh_of("cpu2").kill()
    for _ in range(3):
        steps = launched.records()[-1]["env_steps"]
        launched.until(lambda steps=steps: launched.records()[-1]["env_steps"] > steps + 200)
    assert lab.processes(lab.network[2]) == before
    assert not [line for line in launched.log() if line["event"] == "host gone"]

    launched.process.kill()
    lab.until_nothing_is_left(10)  # far less than the 20 s after which hosts give up a head that is silent


def test_each_host_that_cannot_be_used_is_named_with_its_reason(lab: Any, tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    hosts = tmp_path / "hosts.toml"
    names = {"refused": "", "wrong-key": "", "unknown": "", "nowhere": "", "cpu1": "/nowhere/python3", "cpu2": bare}
    tables = [
        f'[[host]]\nname = "{name}"\n' + (f'python = "{python}"\n' if python else "") for name, python in names.items()
    ]
    hosts.write_text("\n".join([*tables, '[[host]]\nname = "cpu3"\n']))
    begun = time.monotonic()
    launched = lab.run(*LONG, hosts=str(hosts))
    assert launched.ends() == 69, launched.story("ended in another way")
    assert "6 of 7 hosts did not come" in launched.err
    for reason in (
        "refused (refused by ssh: Connection refused, 4 tries)",
        "wrong-key (wrong-key by ssh: Permission denied (publickey))",
        "unknown (unknown by ssh: its host key is not known: log in once, with: ssh unknown)",
        "nowhere (nowhere by ssh: Could not resolve hostname nowhere.invalid: ",
        "cpu1 (cpu1 by ssh: its Python cannot be started: ",
        "cpu2 (cpu2 by ssh: orchestra is not installed for ",
    ):
        assert reason in launched.err
    assert "cpu3 (" not in launched.err
    seconds = 15.0 * crowded() if os.environ.get("ORCHESTRA_FAULTS") else 60.0
    assert time.monotonic() - begun < seconds, "the run waited for hosts that cannot come"
    lab.until_nothing_is_left(10)


@pytest.mark.minutes
@pytest.mark.parametrize("flags", [pytest.param((), id="by itself"), pytest.param(("--tunnel",), id="on request")])
def test_hosts_that_reach_the_head_by_ssh_alone_play_through_it(lab: Any, flags: tuple[str, ...]) -> None:
    lab.network[1].lose(incoming=1, but_port=SSH_PORT)  # other packets than those of ssh do not arrive at the head
    launched = lab.run(*LONG, *flags, listen="tcp://*:0")
    launched.until_playing()
    lab.until_all_play(launched, "host-1", "host-2")
    clients = [lab.ssh_of(name).cmdline() for name in ("cpu2", "cpu3")]
    tunnels = [Path(words[words.index("-R") + 1].partition(":")[0]) for words in clients]
    assert all(path.is_socket() for path in tunnels)
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")
    until(lambda: not any(map(Path.exists, tunnels)), 10, "sockets of tunnels are left")
    lab.until_nothing_is_left(10)


def test_the_page_about_hosts_can_be_followed(lab: Any, tmp_path: Path) -> None:
    """A file of hosts, `here` among them, and no word about addresses: the second machine plays through ssh."""
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    toml = page[page.index("# hosts.toml") :].partition("```")[0]
    for theirs, ours in (
        ("me@cpu3:2222", "cpu3"),
        ("~/orchestra/bin/python", sys.executable),
        ("module load cuda", "true"),
        ("/scratch/me", str(lab.scratch)),
    ):
        assert theirs in toml
        toml = toml.replace(theirs, ours)
    (tmp_path / "hosts.toml").write_text(toml)
    launched = lab.run(*LONG, hosts=str(tmp_path / "hosts.toml"), listen="")
    launched.until_playing()
    lab.until_all_play(launched, "host-0", "host-1")
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")
    lab.until_nothing_is_left(10)
