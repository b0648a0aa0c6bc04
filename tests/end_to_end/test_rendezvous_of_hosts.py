"""Rendezvous in network namespaces: many slots over few ssh servers, and a head of which one address can be reached."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hosted_runs import crowded
from virtual_network.namespaces import Network

from orchestra.nodes.dialling import STAGGER_S
from orchestra.wire.addresses import is_loopback, is_wildcard, parse_address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.minutes,
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux"),
]


RENDEZVOUS = """
import asyncio, statistics, sys, time
from pathlib import Path
import psutil
from orchestra import Node
from orchestra.clock import RealClock
from orchestra.hosts.collected_code import make
from orchestra.hosts.output import HostLogs
from orchestra.hosts.messages import HEAD
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.token import JoinToken
from orchestra.launch.engines import ENGINES
from orchestra.launch.protocol import HostRequest
from orchestra.runs.head import Head
from orchestra.runs.head_actor import HeadActor
from orchestra.runs.hosts_options import hosts_options
from orchestra.runs.runner import Stopping

def words_of(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []

async def main(ssh, scratch, slots):
    names = ",".join(f"cpu{2 + slot % 2}" for slot in range(slots))
    options = hosts_options({"hosts": names, "ssh": ssh, "scratch": scratch, "join_timeout": 200.0})
    launcher = ENGINES["ssh"].launcher(options.hosts, options.settings)
    token = JoinToken.new("a-run", (), tls=None)
    async with Node("learner", listen="tcp://10.231.0.1:0", secret=token.secret, unencrypted=True).running() as node:
        code = make(Path(__file__), installed=True)
        logs = HostLogs(Path(scratch), RealClock())
        head = Head(node, "a-run", options, launcher, lambda: node.listening, logs, code, Stopping())
        node.spawn(HEAD, HeadActor, head)
        following = asyncio.create_task(head.follow())
        plan = RunPlan(experiment=None, flags=(), seed=0, run_directory=Path())
        requests = [HostRequest(host.slot, host.name) for host in options.hosts]
        begun = time.monotonic()
        await launcher.start(launcher.submission(plan, requests), token.joining(node.listening).line())
        shapes = await head.rendezvous()
        took = time.monotonic() - begun
        agents = [each for each in psutil.process_iter() if {"host", "--token", scratch} <= set(words_of(each))]
        used = statistics.median(sum(each.cpu_times()[:2]) for each in agents)
        print(len(shapes), took, used, flush=True)
        await head.end(75, "the test is over", deadline=2.0)
        await following

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_thirty_two_slots_over_two_ssh_servers_are_all_joined(lab: Any, launch: Any, tmp_path: Path) -> None:
    """More log-ins at once than a ssh server lets be under way (`MaxStartups`): those that it drops try again."""
    file = tmp_path / "rendezvous.py"
    file.write_text(RENDEZVOUS)
    words = (str(file), lab.servers.client, str(lab.scratch))
    taken, used = {}, {}
    for slots in (1, 32):
        rendezvous = launch.python(f"import runpy, sys; del sys.argv[0]; runpy.run_path({str(file)!r})", *words, slots)
        rendezvous.patience_s = 240.0
        assert rendezvous.ends() == 0, rendezvous.story("failed")
        joined, *seconds = rendezvous.out.split()
        assert int(joined) == slots
        taken[slots], used[slots] = map(float, seconds)
        lab.until_nothing_is_left(20)
    expected = taken[1] + 32 * used[1] / (os.cpu_count() or 1)
    print(f"one has joined after {taken[1]:.1f} s and {used[1]:.2f} s of a processor, 32 after {taken[32]:.1f} s")
    assert taken[32] <= 1.5 * expected * crowded()


LISTENS = """
import asyncio, sys
from orchestra import Node

async def main():
    async with Node("learner", listen="tcp://*:0", secret=bytes(32), unencrypted=True).running() as node:
        print(node.listening, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
JOINS = """
import asyncio, sys, time
from orchestra import Node

async def main():
    begun = time.monotonic()
    async with Node("leaf", join=sys.argv[1], secret=bytes(32), unencrypted=True).running() as node:
        print(node.root, node.peers.joined_by, time.monotonic() - begun, flush=True)

asyncio.run(main())
"""


def test_a_head_with_three_interfaces_is_joined_by_the_one_that_can_be_reached(virtual_network: None) -> None:
    with Network(3) as network:
        for number in (1, 2):  # packets to these end silently at host 3, which passes nothing on
            device = ("ip", "-n", network[1].namespace)
            subprocess.run((*device, "link", "add", f"a{number}", "type", "bridge"), check=True)
            subprocess.run((*device, "addr", "add", f"10.99.{number}.1/24", "dev", f"a{number}"), check=True)
            subprocess.run((*device, "link", "set", f"a{number}", "up"), check=True)
        route = ("route", "add", "10.99.0.0/16", "via", network[3].address)
        subprocess.run(("ip", "-n", network[2].namespace, *route), check=True)
        head = subprocess.Popen(
            network[1].command(sys.executable, "-c", LISTENS), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with head:
            assert head.stdout is not None
            told = head.stdout.readline().strip().split(",")
            hosts = {parse_address(each).host for each in told}
            assert {"10.99.1.1", "10.99.2.1", network[1].address} <= hosts
            assert not any(is_wildcard(host) or is_loopback(host) for host in hosts)
            last = sorted(told, key=lambda each: network[1].address in each)  # the worst order
            words = network[2].command(sys.executable, "-c", JOINS, ",".join(last))
            joined = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert joined.returncode == 0, joined.stderr
            root, by, seconds = joined.stdout.split()
            head.kill()
        assert (root, parse_address(by).host) == ("learner", network[1].address)
        print(f"joined after {seconds} s by the last of {len(told)} addresses")
        assert float(seconds) < STAGGER_S * len(told) + 2.0  # a silent address alone would take longer
