"""What a run does when the network between its hosts fails, and when a host does."""

import json
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import pytest
from hosted_accounts import check_message_counts, check_trace
from virtual_network.namespaces import until

pytestmark = pytest.mark.slow
FAULTS = int(os.environ.get("ORCHESTRA_FAULTS", "0"))
"""Faults drawn at random by the last test."""
minutes = pytest.mark.minutes
LONG = ("--steps", "1000000000")


def shown(lab: Any, launched: Any) -> dict[str, str]:
    """The state of each host, as `orchestra ps` shows it."""
    ps = lab._launch.command("ps", launched.run, "--json", "--seconds", "0.1")
    ps.patience_s = 120.0
    assert ps.ends() == 0, ps.story("failed")
    return {host["name"]: host["state"] for host in json.loads(ps.out)["hosts"]}


def events(launched: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in launched.log() if line["event"] == event]


def for_seconds(launched: Any, seconds: float) -> None:
    """Let the run go on."""
    end = time.monotonic() + seconds
    launched.until(lambda: time.monotonic() > end)


def goes_on(launched: Any) -> None:
    """Wait for further experience."""
    steps = launched.records()[-1]["env_steps"]
    launched.until(lambda: launched.records()[-1]["env_steps"] > steps + 200)


def interrupted(launched: Any, lab: Any, *, restarted: Collection[str] = ()) -> None:
    """End the run in order, and check its accounts, and that nothing is left.

    Args:
        launched: the run.
        lab: its hosts.
        restarted: nodes of proxies of which an earlier process has died.
    """
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("ended in another way")
    check_message_counts(launched.run, restarted=restarted)
    assert launched.json("summary.json")["env_steps"] == launched.records()[-1]["env_steps"]
    lab.until_nothing_is_left(30)


@minutes
def test_a_partition_of_ten_seconds_loses_nothing(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    lab.until_all_play(launched, "host-1", "host-2")
    cut_off = lab.network[2]
    before = lab.processes(cut_off)
    cut_off.lose(incoming=1, outgoing=1)
    for_seconds(launched, 10)
    cut_off.lose()
    lab.until_all_play(launched, "host-1", "host-2")
    assert lab.processes(cut_off) == before
    assert not events(launched, "host gone")
    interrupted(launched, lab)


@minutes
def test_a_dead_host_is_gone_after_twenty_seconds_and_its_slot_is_taken_when_it_is_back(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    dead = lab.network[2]
    dead.cut()
    dead.kill_all(but=[lab.servers.pid(dead)])
    launched.until(lambda: events(launched, "host gone"))
    goes_on(launched)  # with the other host
    dead.mend()
    launched.until(lambda: len(events(launched, "host joined")) == 3)
    launched.until(lambda: "worker-1-0" in lab.processes(dead))
    goes_on(launched)
    assert [line["host"] for line in events(launched, "host gone")] == ["cpu2"]
    interrupted(launched, lab, restarted={"host-1"})


@minutes
def test_a_host_that_was_cut_off_for_a_minute_is_back_with_fresh_nodes(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    cut_off = lab.network[2]
    before = lab.processes(cut_off)
    cut_off.lose(incoming=1, outgoing=1)
    launched.until(lambda: shown(lab, launched)["cpu2"] == "silent")  # before it is gone
    launched.until(lambda: events(launched, "host gone"))
    until(lambda: "worker-1-0" not in lab.processes(cut_off), 30, "its nodes go on though nobody hears them")
    for_seconds(launched, 30)
    cut_off.lose()
    launched.until(lambda: len(events(launched, "host joined")) == 3)
    launched.until(lambda: "worker-1-0" in lab.processes(cut_off))
    assert lab.processes(cut_off)["worker-1-0"].pid != before["worker-1-0"].pid
    goes_on(launched)
    interrupted(launched, lab, restarted={"host-1"})


@minutes
def test_a_host_whose_packets_are_lost_one_way_is_gone_and_comes_back(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    deaf = lab.network[3]
    deaf.lose(incoming=1)
    launched.until(lambda: events(launched, "host gone"))
    deaf.lose()
    launched.until(lambda: len(events(launched, "host joined")) == 3)
    launched.until(lambda: "worker-2-0" in lab.processes(deaf))
    interrupted(launched, lab, restarted={"host-2"})


@minutes
@pytest.mark.timeout(900)
def test_a_link_that_loses_some_packets_only_slows_a_run(lab: Any) -> None:
    """With `ORCHESTRA_FAULTS` of 100 or more, for five minutes."""
    launched = lab.run(*LONG)
    launched.patience_s = 800.0
    launched.until_playing()
    for host in lab.network.hosts[1:]:
        host.lose(incoming=0.05, outgoing=0.05)
    goes_on(launched)
    for_seconds(launched, 300 if FAULTS >= 100 else 20)
    goes_on(launched)
    assert not events(launched, "host gone")
    for host in lab.network.hosts[1:]:
        host.lose()
    interrupted(launched, lab)


@minutes
def test_a_slow_link_does_not_slow_the_other_host(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    lab.network[2].limit(1)
    for_seconds(launched, 10)
    goes_on(launched)
    assert not events(launched, "host gone")
    lab.network[2].limit(0)
    lab.until_all_play(launched, "host-1", "host-2")
    interrupted(launched, lab)


def may_die(deaths: list[float]) -> bool:
    """Return whether a node that died at these times may die again: after three times a minute it is given up."""
    return len([at for at in deaths if at > time.monotonic() - 75]) < 3


@minutes
@pytest.mark.timeout(300 + 90 * FAULTS)
def test_accounts_agree_after_random_faults(lab: Any) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # shown when the test fails
    draw = random.Random(seed)
    launched = lab.run(*LONG, "--trace", "full", "--game-speed", "--eval-interval", "1000000000")
    launched.patience_s = 120.0 + 90.0 * FAULTS
    launched.until_playing()
    agents = dict.fromkeys((2, 3), 0)
    deaths: dict[str, list[float]] = defaultdict(list)
    for _ in range(FAULTS):
        number = draw.choice((2, 3))
        host = lab.network[number]
        launched.until(lambda host=host, number=number: len(lab.processes(host)) == 3)
        processes = lab.processes(host)
        mortal = sorted(name for name in set(processes) - {"agent"} if may_die(deaths[name]))
        kinds = ["partition", "deaf", "loss", *["agent"] * (agents[number] < 3), *["node"] * bool(mortal)]
        fault = draw.choice(kinds)
        match fault:
            case "agent":
                agents[number] += 1
                processes["agent"].kill()
            case "node":
                victim = draw.choice(mortal)
                deaths[victim].append(time.monotonic())
                processes[victim].kill()
            case "partition" | "deaf":
                host.lose(incoming=1, outgoing=float(fault == "partition"))
                for_seconds(launched, draw.uniform(1, 6))
                host.lose()
            case "loss":
                host.lose(incoming=0.1, outgoing=0.1)
                for_seconds(launched, 3)
                host.lose()
        print(f"{time.monotonic():.1f} {fault} {number}", flush=True)
        goes_on(launched)
    lab.until_all_play(launched, "host-1", "host-2")
    interrupted(launched, lab, restarted={"host-1", "host-2"})
    accounts = check_trace(launched.run)
    print(accounts)
    assert set(accounts.arrived) == {"host-1", "host-2"}
    assert accounts.compared >= 2, "the last process of each proxy has a whole trace"
