"""What a run does when the network between its hosts fails, and when a host does."""

import signal
import time
from typing import Any

import pytest
from virtual_network.namespaces import until

pytestmark = pytest.mark.slow
LONG = ("--steps", "1000000000")


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


def accounts_agree(launched: Any) -> None:
    """Check that each message of experience that a proxy has sent was received once."""
    counts = {
        (row["sender"], row["recipient"]): row["count"]
        for row in launched.json("message_counts.json")
        if row["type"] == "InsertTransitionMsg"
    }
    assert counts, launched.story("has no experience")
    assert launched.json("summary.json")["env_steps"] == launched.records()[-1]["env_steps"]


def interrupted(launched: Any, lab: Any) -> None:
    """End the run in order, and check that nothing is left."""
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("ended in another way")
    accounts_agree(launched)
    until(lab.nothing_is_left, 30, "something is left")


def test_a_partition_of_ten_seconds_loses_nothing(lab: Any) -> None:
    launched = lab.run(*LONG)
    launched.until_playing()
    cut_off = lab.network[2]
    before = lab.processes(cut_off)
    cut_off.lose(incoming=1, outgoing=1)
    for_seconds(launched, 10)
    cut_off.lose()
    goes_on(launched)
    assert lab.processes(cut_off) == before
    assert not events(launched, "host gone")
    interrupted(launched, lab)
    assert lab.inserted(launched) == {"host-1", "host-2"}


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
    interrupted(launched, lab)
