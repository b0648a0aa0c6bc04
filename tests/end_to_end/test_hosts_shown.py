"""A run over hosts shows them: in `orchestra ps`, in its config, and in `hosts.json` once it is over."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestra.hosts.shape import this_machine

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux")]


def over(launch: Any, hosts: int, *words: str) -> Any:
    scratch = Path(launch.folder) / "scratch"
    flags = (
        "--launch",
        "local",
        "--hosts",
        str(hosts),
        "--scratch",
        str(scratch),
        "--workers",
        "1",
        "--proxy-fan-out",
        "2",
    )
    launched = launch(*flags, "--code", "installed", "--as", "job", "--checkpoint-interval", "300", *words)
    launched.patience_s = 120.0
    return launched


@pytest.mark.minutes
def test_hosts_are_shown_while_they_play_and_recorded_when_they_are_fewer(launch: Any) -> None:
    """The run is interrupted, and goes on with one host in place of two: nothing of the other is left in it.

    Its proxies form a tree, whose upper ones are dialled from other hosts.
    """
    first = over(launch, 2, "--steps", "1000000000")
    first.until_playing()
    launch.until_all_play(first, "host-1", "host-2")
    first.until(lambda: list(first.run.glob("state/steps-*[0-9]/worker-2-0.*")))
    first.until(lambda: {1, 2} <= {host["slot"] for host in first.json("hosts.json")["hosts"] if "env_steps" in host})
    shown = launch.command("ps", first.run, "--json", "--seconds", "0.5")
    assert shown.ends() == 0, shown.story("failed")
    hosts = json.loads(shown.out)["hosts"]
    assert [(host["slot"], host["name"], host["state"], host["plays"]) for host in hosts] == [
        (0, this_machine().name, "playing", False),
        (1, "local-1", "playing", True),
        (2, "local-2", "playing", True),
    ]
    assert [host["nodes"] for host in hosts] == [
        ["learner", "evaluator", "proxies-0", "proxies-1"],
        ["host-1", "worker-1-0"],
        ["host-2", "worker-2-0"],
    ]
    assert [host["running"] for host in hosts] == [4, 2, 2]
    assert all(host["cores_used"] > 0 and host["env_steps"] > 0 and host["policy_lag"] >= 0 for host in hosts[1:])
    nodes = {node["node"]: node for node in json.loads(shown.out)["nodes"]}
    assert not [name for name, node in nodes.items() if not node["answered"]]
    assert set(nodes) == {"learner", *(name for host in hosts for name in host["nodes"])}
    config = first.json("config.json")
    assert [host["slot"] for host in config["hosts"]] == [0, 1, 2]
    assert config["placement"]["worker-2-0"] == 2
    first.process.send_signal(signal.SIGTERM)
    assert first.ends() == 75, first.story("failed")
    steps = first.records()[-1]["env_steps"]
    assert sum(host["env_steps"] for host in first.json("hosts.json")["hosts"]) == steps
    events = first.json("hosts.json")["events"]
    for slot in (1, 2):
        states = [event["state"] for event in events if event["slot"] == slot]
        assert [state for state in states if state in ("joined", "playing")] == ["joined", "playing"]
    second = over(launch, 1, "--steps", str(steps + 1500))
    assert second.ends() == 0, second.story("failed")
    assert second.run == first.run
    (dropped,) = [line for line in second.log() if line["event"].startswith("states of actors that the run no longer")]
    assert dropped["states"] == ["worker-2-0.worker"]
    assert [line for line in second.log() if line["event"].startswith("continues without workers")] == []
    assert second.json("config.json")["placement"] == {
        "learner": 0,
        "evaluator": 0,
        "proxies-0": 0,
        "host-1": 1,
        "worker-1-0": 1,
    }
    records = second.records()
    assert [record["env_steps"] for record in records] == sorted(record["env_steps"] for record in records)
    assert records[-1]["env_steps"] >= steps + 1500
