"""What a run over hosts does when processes and hosts die, come and go; each of these tests takes a minute or so."""

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hosted_accounts import check_message_counts, check_trace
from hosted_runs import LONG, Hosted, crowded, lives
from virtual_network.namespaces import until

from orchestra import RunDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.minutes,
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux"),
]


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


@pytest.fixture
def over_hosts(launch: Any) -> Callable[..., Hosted]:
    return lambda *flags, **more: Hosted(launch, *flags, **more)


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


def test_what_dies_is_noticed_and_replaced_within_seconds(over_hosts: Callable[..., Hosted]) -> None:
    hosted = over_hosts(*LONG)
    hosted.until_workers(2)
    hosted.until_all_run(1, 2)
    took: dict[str, float] = {}

    def after(begun: float, what: str, condition: Callable[[], object]) -> None:
        hosted.run.until(condition)
        took[what] = time.monotonic() - begun

    worker = hosted.processes(1)["worker-1-0"]
    worker.kill()
    after(time.monotonic(), "worker", lambda: hosted.processes(1).get("worker-1-0", worker) != worker)
    hosted.until_workers(2)
    nodes = hosted.processes(1)
    hosted.agents()[1].kill()
    killed = time.monotonic()
    after(killed, "nodes", lambda: not any(map(lives, nodes.values())))
    after(killed, "known", lambda: hosted.events("host gone"))
    after(time.monotonic(), "agent", lambda: len(hosted.events("host joined")) == 3)
    hosted.until_all_run(1, 2)
    hosted.run.look_for_children()
    hosted.run.process.kill()
    assert hosted.run.left_over(2.0 * crowded()) == []
    assert hosted.left() == []
    bounds = {"worker": 1.0, "nodes": 1.0, "known": 1.0, "agent": 5.0}
    print({what: f"{seconds:.2f} s" for what, seconds in took.items()}, f"{crowded():.1f} times slower")
    assert {what: seconds for what, seconds in took.items() if seconds > bounds[what] * crowded()} == {}


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
