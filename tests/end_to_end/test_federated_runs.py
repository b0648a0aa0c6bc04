"""A run whose experience stays on two hosts learns from both, and goes on from its checkpoint."""

import os
import signal
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().sysname != "Linux", reason="agents run on Linux"),
    pytest.mark.skipif("ORCHESTRA_FAULTS" not in os.environ, reason="takes a minute: ORCHESTRA_FAULTS=20 includes it"),
]
SHARDS = {"host-1/shard", "host-2/shard"}


def senders(launched: Any, kind: str, recipients: set[str]) -> set[str]:
    """The addresses from which messages of a type came to the recipients."""
    rows = launched.json("message_counts.json")
    return {row["sender"] for row in rows if row["type"] == kind and row["recipient"] in recipients and row["count"]}


def updates(launched: Any) -> int:
    return int(max((record["updates"] for record in launched.records()), default=0))


def test_a_run_learns_from_the_shards_of_two_hosts_and_resumes_with_them(launch: Any) -> None:
    scratch = launch.folder / "scratch"
    scratch.mkdir()
    hosts = ("--launch", "local", "--hosts", "2", "--scratch", str(scratch), "--code", "installed")
    endless = ("--workers", "1", "--federated", "--prioritized", "--steps", "1000000000")
    launched = launch(*hosts, *endless, "--checkpoint-interval", "2000")
    launched.patience_s = 240.0
    launched.until(lambda: updates(launched) > 20)
    launched.process.send_signal(signal.SIGINT)
    assert launched.ends() == 130, launched.story("failed")
    assert senders(launched, "ShardEpisodesMsg", {"learner/trajectories"}) == SHARDS
    assert senders(launched, "UpdatePriorityMsg", SHARDS) == {"learner/trajectories"}
    assert senders(launched, "InsertTransitionMsg", SHARDS) == {"host-1/proxy", "host-2/proxy"}
    (state,) = launched.run.glob("state/*")
    assert {path.name for path in state.glob("*.shard.replay.npz")} == {f"host-{n}.shard.replay.npz" for n in (1, 2)}

    learned = updates(launched)
    resumed = launch.command("run", "--resume", launched.run, *hosts)
    resumed.patience_s = 240.0
    resumed.until(lambda: updates(launched) > learned + 20)
    resumed.process.send_signal(signal.SIGINT)
    assert resumed.ends() == 130, resumed.story("failed")
