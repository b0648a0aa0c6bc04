"""What a run over hosts does when processes, hosts, disks and networks fail; each of these tests takes a minute or so.

Hosts are agents on this machine, or network namespaces where the kernel matters.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hosted_accounts import check_message_counts, check_trace
from virtual_network.namespaces import Network, until

from orchestra import RunDirectory
from orchestra.nodes.dialling import STAGGER_S
from orchestra.wire.addresses import is_loopback, is_wildcard, parse_address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("ORCHESTRA_FAULTS"), reason="takes minutes: ORCHESTRA_FAULTS=1 includes it"),
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux"),
]

LONG = ("--steps", "1000000000")
MORTAL = '''
"""QMIX with workers that cannot start again once a file says so."""

from pathlib import Path

from components import Worker
from orchestra import Escalate, Hosts, Topology, extends, load_experiment


class Mortal(Worker):
    supervision = Escalate()

    async def started(self) -> None:
        if Path("DOOMED").exists():
            print("the disk of the game is gone", flush=True)
            raise RuntimeError("no game to play")
        await super().started()


@extends(load_experiment(Path("STANDARD")))
def experiment(topology: Topology) -> Topology:
    topology.group("workers").each(lambda index, node: node.replace("worker", Mortal))
    return topology
'''


class Hosted:
    """A run over agents on this machine."""

    def __init__(self, launch: Any, *flags: str, hosts: int = 2, scratch: Path | None = None, **more: Any) -> None:
        self.launch = launch
        self.scratch = scratch or Path(launch.folder) / "scratch"
        self.scratch.mkdir(exist_ok=True)
        words = ("--launch", "local", "--hosts", str(hosts), "--scratch", str(self.scratch), "--workers", "1")
        self.run = launch(*words, "--code", "installed", *flags, **more)
        self.run.patience_s = 300.0

    def agents(self) -> dict[int, psutil.Process]:
        """The agents by slot."""
        found = {}
        for process in self.run.process.children():
            words = process.cmdline()
            if "host" in words and "--slot" in words:
                found[int(words[words.index("--slot") + 1])] = process
        return found

    def processes(self, slot: int) -> dict[str, psutil.Process]:
        """The processes of the nodes of a host, by node."""
        found = {}
        for process in self.agents()[slot].children(recursive=True):
            try:
                words = " ".join(process.cmdline()).split()
            except psutil.Error:
                continue
            if "node" in words:
                found[words[words.index("node") + 1]] = process
        return found

    def until_all_run(self, *slots: int) -> None:
        for slot in slots:
            self.run.until(lambda slot=slot: sorted(self.processes(slot)) == [f"host-{slot}", f"worker-{slot}-0"])

    def until_workers(self, number: int) -> None:
        self.run.until(lambda: self.run.records() and self.run.records()[-1]["workers"] == number)

    def goes_on(self, steps: int = 1000) -> None:
        before = self.run.records()[-1]["env_steps"]
        self.run.until(lambda: self.run.records()[-1]["env_steps"] > before + steps)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.run.log() if line["event"] == event]

    def until_said(self, node: str, what: str, times: int = 1) -> None:
        """Wait for so many lines of the hosts' logs."""

        def lines() -> list[str]:
            logs = [path.read_text() for path in (self.run.run / "logs" / "hosts").glob("*.log")]
            return [line for log in logs for line in log.splitlines() if node in line and what in line]

        self.run.until(lambda: len(lines()) >= times)

    def interrupted(self) -> None:
        """End the run in order, and check that nothing is left of it."""
        self.run.process.send_signal(signal.SIGINT)
        assert self.run.ends() == 130, self.run.story("ended in another way")
        assert self.left() == []

    def left(self) -> list[Path]:
        """Sockets and folders of agents, but for the unpacked code that later runs share."""
        return [path for path in self.scratch.rglob("*") if "code" not in path.parts[len(self.scratch.parts) :][:2]][1:]


@pytest.fixture
def over_hosts(launch: Any) -> Callable[..., Hosted]:
    return lambda *flags, **more: Hosted(launch, *flags, **more)


def crowded() -> float:
    """Return how many processes want each processor of this machine, at least 1: all of it goes slower by so much."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of so many MB at `folder` while the block runs."""
    folder.mkdir(parents=True)
    words = ("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    if os.geteuid() or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("NOT TESTED HERE: a small disk needs the right to mount one")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


# Processes that die


def test_a_run_whose_workers_die_on_all_hosts_fails_within_seconds_and_quotes_them(
    over_hosts: Callable[..., Hosted], launch: Any, tmp_path: Path
) -> None:
    doomed, file = tmp_path / "doomed", tmp_path / "mortal_on_hosts.py"
    file.write_text(MORTAL.replace("STANDARD", str(launch.experiment)).replace("DOOMED", str(doomed)))
    hosted = over_hosts(*LONG, experiment=file)
    hosted.until_workers(2)
    doomed.touch()
    for slot in (1, 2):
        hosted.processes(slot)[f"worker-{slot}-0"].kill()
    until(lambda: hosted.run.process.poll() is not None, 120, "the run goes on without a worker")
    ended = time.time()
    assert hosted.run.ends() == 1, hosted.run.story("ended in another way")
    for slot in (1, 2):
        assert f"last error of worker-{slot}-0: worker-{slot}-0/worker failed: RuntimeError: no game" in hosted.run.err
        words = hosted.run.err[hosted.run.err.index(f"last output of worker-{slot}-0:") :].splitlines()
        assert "    the disk of the game is gone" in words[1:]
    logs = [path.read_text() for path in (hosted.run.run / "logs" / "hosts").glob("*.log")]
    assert len(logs) == 2
    given_up = [line for log in logs for line in log.splitlines() if "the disk of the game is gone" in line]
    last = max(line.split()[0] for line in given_up)
    took = ended - datetime.fromisoformat(last).timestamp()
    print(f"the run ended {took:.1f} s after the last worker")
    assert took < 5.0 * crowded(), "the last worker died long before the run ended"
    state = RunDirectory(hosted.run.run).newest_state()
    assert (state / "learner.trajectories.npz").exists()
    assert hosted.left() == []


def test_a_killed_proxy_and_a_killed_environment_are_replaced_and_the_worker_joins_again(
    over_hosts: Callable[..., Hosted],
) -> None:
    asynchronous = ("--asynchronous", "--envs-per-worker", "4", "--eval-interval", "1000000000")
    hosted = over_hosts(*LONG, *asynchronous)
    hosted.until_workers(2)
    hosted.until_all_run(1, 2)
    worker = hosted.processes(1)["worker-1-0"]

    def environments() -> set[psutil.Process]:
        return {each for each in worker.children(recursive=True) if "environment" in " ".join(each.cmdline())} or set(
            worker.children(recursive=True)
        )

    hosted.run.until(environments)
    victim = max(environments(), key=lambda process: process.create_time())
    victim.kill()
    replaced = "an environment failed and is replaced"
    hosted.run.until(lambda: [line for line in hosted.run.log("worker-1-0") if line["event"] == replaced])
    hosted.goes_on()

    proxy = hosted.processes(1)["host-1"]
    proxy.kill()
    hosted.run.until(lambda: hosted.processes(1).get("host-1", proxy) != proxy)
    hosted.until_workers(2)
    hosted.goes_on(3000)
    hosted.interrupted()
    check_message_counts(hosted.run.run, restarted={"host-1"})


# Hosts that come and go


def test_counts_agree_with_the_trace_when_a_host_comes_late_one_leaves_and_one_is_killed(
    over_hosts: Callable[..., Hosted], launch: Any
) -> None:
    hosted = over_hosts(*LONG, "--trace", "full", "--min-hosts", "1", "--max-hosts", "3")
    hosted.until_workers(2)
    token = launch.command("token", hosted.run.run)
    assert token.ends() == 0, token.story("failed")
    path = Path(launch.folder) / "token"
    path.touch(0o600)
    path.write_text(token.out)
    late = launch.command("host", "--token", path, "--name", "late", "--scratch", hosted.scratch)
    late.patience_s = 300.0
    hosted.until_workers(3)
    refused = launch.command("host", "--token", path, "--name", "fourth", "--scratch", hosted.scratch)
    assert refused.ends() == 75
    assert "the run has 3 hosts, and --max-hosts allows 3" in refused.err
    hosted.goes_on()
    leaving = launch.command("leave", hosted.run.run, "2")
    assert leaving.ends() == 0, leaving.story("failed")
    hosted.goes_on()
    nodes = hosted.processes(1)
    hosted.agents()[1].kill()
    _, alive = psutil.wait_procs(nodes.values(), timeout=12)
    assert not alive, "the nodes of a killed agent go on"
    hosted.run.until(lambda: len([line for line in hosted.events("host joined") if line["slot"] == 1]) == 2)
    hosted.until_workers(2)
    hosted.goes_on()
    hosted.run.process.send_signal(signal.SIGINT)
    assert hosted.run.ends() == 130, hosted.run.story("ended in another way")
    assert late.ends() == 75, "the host may be asked for again"
    assert hosted.left() == []
    accounts = check_trace(hosted.run.run)
    assert set(accounts.arrived) == {"host-1", "host-2", "host-3"}
    assert accounts.processes["host-1/proxy"] == 2
    assert accounts.compared >= 3  # all but that of the killed agent's proxy
    states = [(event["slot"], event["state"]) for event in hosted.run.json("hosts.json")["events"]]
    assert {(2, "left"), (1, "gone"), (3, "joined")} <= set(states)


def test_nothing_is_counted_twice_by_a_run_that_goes_on_with_fewer_hosts(
    over_hosts: Callable[..., Hosted], launch: Any
) -> None:
    hosted = over_hosts(*LONG, "--trace", "full", "--as", "job", hosts=3)
    hosted.until_workers(3)
    hosted.goes_on()
    hosted.run.process.terminate()
    assert hosted.run.ends() == 75, hosted.run.story("failed")
    before = check_trace(hosted.run.run)
    assert set(before.arrived) == {"host-1", "host-2", "host-3"}
    steps = hosted.run.json("summary.json")["env_steps"]
    again = Hosted(launch, *LONG, "--trace", "full", "--as", "job", hosts=2)
    again.run.until(lambda: again.run.records()[-1]["env_steps"] > steps + 1000)
    again.run.process.terminate()
    assert again.run.ends() == 75, again.run.story("failed")
    after = check_trace(again.run.run)  # of both parts
    assert after.arrived.total() > before.arrived.total()
    assert after.processes == {"host-1/proxy": 2, "host-2/proxy": 2, "host-3/proxy": 1}
    played = [record["env_steps"] for record in again.run.records()]
    assert played == sorted(played)


def test_two_runs_on_the_same_hosts_do_not_see_each_other(over_hosts: Callable[..., Hosted], launch: Any) -> None:
    one = over_hosts(*LONG, "--as", "one")
    (runs,) = [Path(launch.folder) / "runs"]
    one.run.until(lambda: list(runs.glob("*/one/join.json")))
    words = ("--launch", "local", "--hosts", "2", "--scratch", str(one.scratch), "--workers", "1", "--as", "other")
    other = launch(*words, "--code", "installed", *LONG)
    other.patience_s = 300.0
    other.until(lambda: list(runs.glob("*/other/join.json")))
    for name in ("one", "other"):
        (run,) = runs.glob(f"*/{name}")
        launch.until_all_play(SimpleNamespace(run=run, until=other.until), "host-1", "host-2")
        shown = launch.command("ps", run, "--json", "--seconds", "0.1")
        assert shown.ends() == 0, shown.story("failed")
        pids = {node["node"]: node["pid"] for node in json.loads(shown.out)["nodes"] if node.get("pid")}
        process = one.run.process if name == "one" else other.process
        assert set(pids.values()) <= {process.pid, *(each.pid for each in process.children(recursive=True))}
        assert {"learner", "worker-1-0", "worker-2-0"} <= set(pids)
    for launched in (other, one.run):
        launched.process.send_signal(signal.SIGINT)
        launched.process.wait(120)
        assert launched.process.poll() == 130
    assert one.left() == []
    for run in runs.glob("*/o*"):
        check_message_counts(run)


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


# Disks that are full


def test_a_host_without_room_for_the_code_ends_the_run_that_needs_it_and_says_why(launch: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", 1) as disk:
        hosted = Hosted(launch, *LONG, hosts=1, scratch=disk)
        assert hosted.run.ends() == 74, hosted.run.story("ended in another way")
    (line,) = [line for line in hosted.run.err.splitlines() if line.startswith("orchestra: the run failed: ")]
    assert "its host local-1 is gone: needs " in line
    assert re.search(r"needs \d+ MB in '\S+', has \d+", line)


def test_a_full_disk_at_the_head_leaves_the_last_whole_checkpoint(launch: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", 400) as disk:
        hosted = Hosted(launch, *LONG, "--checkpoint-interval", "1000", "--trace", "off", hosts=1)
        hosted.run.until(lambda: list(disk.glob("*/*/state/steps-*[0-9]")))
        (run,) = disk.glob("*/*")
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 16))
                ballast.flush()
        assert hosted.run.ends() == 74, hosted.run.story("ended in another way")
        (disk / "ballast").unlink()
        steps = int(RunDirectory(run).newest_state().name.removeprefix("steps-"))
        again = launch.command(
            *("run", "--resume", run, "--steps", str(steps + 300), "--launch", "local", "--hosts", "1"),
            *("--scratch", hosted.scratch),
        )
        again.patience_s = 120.0
        assert again.ends() == 0, again.story("failed")


def test_a_disk_of_a_host_that_fills_up_ends_its_trace_and_neither_the_run_nor_its_logs(
    launch: Any, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "filling", 800) as disk:
        hosted = Hosted(launch, *LONG, "--trace", "full", hosts=1, scratch=disk)
        hosted.until_workers(1)
        hosted.goes_on()
        with (disk / "ballast").open("wb") as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(1 << 16))
                ballast.flush()
        stopped = "the trace has stopped; what comes is dropped and counted"
        hosted.until_said("worker-1-0", stopped)
        for _ in range(3):
            hosted.goes_on()
        hosted.processes(1)["worker-1-0"].kill()
        hosted.until_said("worker-1-0", stopped, times=2)  # its next process says so, too: the log goes on
        (disk / "ballast").unlink()
        hosted.goes_on()
        hosted.interrupted()
    check_message_counts(hosted.run.run)


# Networks that fail

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


def test_nodes_end_when_the_network_of_the_head_is_cut_and_agents_when_they_are_orphans(lab: Any) -> None:
    launched = lab.run(*LONG, "--orphan-timeout", "10")
    launched.until_playing()
    hosts = lab.network.hosts[1:]
    for host in hosts:
        launched.until(lambda host=host: len(lab.processes(host)) == 3)
    lab.network[1].cut()
    begun = time.monotonic()
    until(lambda: all(set(lab.processes(host)) <= {"agent"} for host in hosts), 30, "nodes go on without a head")
    until(lambda: not any(lab.processes(host) for host in hosts), 25 + 10 + 15, "agents go on without a head")
    print(f"all gone after {time.monotonic() - begun:.1f} s")
    launched.process.kill()
    lab.network[1].mend()
    lab.until_nothing_is_left(60)


def test_the_rate_falls_by_the_share_of_a_host_that_is_gone(lab: Any) -> None:
    speed = ("--game-speed", "--envs-per-worker", "4", "--eval-interval", "1000000000", "--updates-per-episode", "0.1")
    launched = lab.run(*LONG, *speed)
    launched.until(lambda: launched.records() and launched.records()[-1]["workers"] == 2)

    def rate(seconds: float) -> float:
        begun, before = time.monotonic(), launched.records()[-1]["env_steps"]
        launched.until(lambda: time.monotonic() > begun + seconds)
        return float(launched.records()[-1]["env_steps"] - before) / (time.monotonic() - begun)

    rate(5.0)
    of_both = rate(15.0)
    dead = lab.network[2]
    dead.cut()
    dead.kill_all(but=[lab.servers.pid(dead)])
    of_one = rate(15.0)  # it is still not known that the other is gone
    launched.until(lambda: [line for line in launched.log() if line["event"] == "host gone"])
    of_one_left = rate(15.0)
    print(f"{of_both:.0f} steps/s with two hosts, {of_one:.0f} and {of_one_left:.0f} with one")
    dead.mend()
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("ended in another way")
    spread = 0.1 * crowded()  # the rates of a machine that has other things to do change by themselves
    for rate_of_one in (of_one, of_one_left):
        assert (0.5 - spread) * of_both < rate_of_one < (0.5 + spread) * of_both
