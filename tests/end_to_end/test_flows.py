"""Who tells whom what, in real runs: the eight flows of the actors, and the few control messages beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Flows = set[tuple[str, str, str]]

EIGHT: Flows = {
    ("worker", "InsertTransitionMsg", "proxy"),  # 1
    ("proxy", "InsertTransitionMsg", "orchestrator"),  # 2
    ("orchestrator", "InsertTransitionMsg", "trajectories"),  # 3, and the sample, which names the trainer's address
    ("orchestrator", "SampleBatchMsg", "trajectories"),
    ("trajectories", "BatchTrainingDataMsg", "trainer"),  # 4
    ("trainer", "UpdatePriorityMsg", "trajectories"),  # 5
    ("trainer", "LoadParamsMsg", "orchestrator"),  # 6
    ("orchestrator", "LoadParamsMsg", "proxy"),  # 7
    ("proxy", "LoadParamsMsg", "worker"),  # 8
}
WITHOUT_PROXY: Flows = {flow for flow in EIGHT if "proxy" not in flow} | {
    ("worker", "InsertTransitionMsg", "orchestrator"),
    ("orchestrator", "LoadParamsMsg", "worker"),
}
TYPES = {kind for _, kind, _ in EIGHT}

CONTROL: Flows = {
    # who is there
    ("worker", "JoinMsg", "proxy"),
    ("proxy", "JoinMsg", "orchestrator"),
    ("trainer", "ClaimRoleMsg", "orchestrator"),
    ("evaluator", "ClaimRoleMsg", "orchestrator"),
    ("proxy", "WorkerCountMsg", "orchestrator"),
    # who shall go on
    ("orchestrator", "CollectMsg", "proxy"),
    ("proxy", "CollectMsg", "worker"),
    # how good the policy is
    ("orchestrator", "EvaluateMsg", "evaluator"),
    ("evaluator", "EvaluationResultMsg", "orchestrator"),
    ("orchestrator", "EvaluationResultMsg", "monitor"),
    # how the run is doing, and what is kept of it
    ("trainer", "TrainResultMsg", "orchestrator"),
    ("orchestrator", "CollectFilesMsg", "system"),
    ("orchestrator", "SaveCheckpointMsg", "trainer"),
    ("orchestrator", "SaveCheckpointMsg", "trajectories"),
    ("orchestrator", "SaveCheckpointMsg", "monitor"),
    ("orchestrator", "SaveStateMsg", "proxy"),
    ("proxy", "SaveStateMsg", "worker"),
    ("worker", "StateSavedMsg", "proxy"),
    ("proxy", "StateSavedMsg", "orchestrator"),
    ("orchestrator", "ProgressMsg", "monitor"),
    ("orchestrator", "PlayedMsg", "monitor"),
    # what an actor tells itself
    ("worker", "StepMsg", "worker"),
    ("monitor", "TickMsg", "monitor"),
    ("orchestrator", "StopMsg", "orchestrator"),
    # the runtime: who must know when another ends, where others are, how they are doing
    ("worker", "WatchMsg", "proxy"),
    ("proxy", "WatchMsg", "worker"),
    ("proxy", "WatchMsg", "orchestrator"),
    ("orchestrator", "WatchMsg", "proxy"),
    ("orchestrator", "WatchMsg", "trainer"),
    ("orchestrator", "WatchMsg", "evaluator"),
    ("outside", "LookupMsg", "directory"),
    ("monitor", "StatisticsMsg", "system"),
    ("outside", "FinalStatisticsMsg", "system"),
}
CONTROL_WITHOUT_PROXY: Flows = {flow for flow in CONTROL if "proxy" not in flow} | {
    ("worker", "JoinMsg", "orchestrator"),
    ("orchestrator", "CollectMsg", "worker"),
    ("orchestrator", "SaveStateMsg", "worker"),
    ("worker", "StateSavedMsg", "orchestrator"),
    ("worker", "WatchMsg", "orchestrator"),
    ("orchestrator", "WatchMsg", "worker"),
    ("orchestrator", "TerminatedMsg", "worker"),
}
MAYBE: Flows = {
    ("monitor", "WithdrawnMsg", "system"),  # a node that does not answer in time is asked no longer
    ("monitor", "StatisticsMsg", "system"),  # a look around takes a tick
    ("outside", "LookupMsg", "directory"),  # whoever was dialled first need not look the other up
    ("orchestrator", "CollectFilesMsg", "system"),  # what nodes of other hosts have saved
    ("orchestrator", "TerminatedMsg", "proxy"),  # at the very end
    ("orchestrator", "TerminatedMsg", "worker"),  # at the very end, when the worker may have said what it did
}
"""What a run may do without."""


def check(flows: Flows, mission: Flows, control: Flows) -> None:
    ours = {flow for flow in flows if flow[1] in TYPES}
    assert ours == mission
    assert flows - ours | MAYBE == control | MAYBE


def test_a_run_over_tcp_is_the_eight_flows_and_the_documented_control_messages(networked: Any, roles: Callable) -> None:
    check(roles(networked), EIGHT, CONTROL)


def test_each_worker_speaks_with_its_proxy_alone(networked: Any) -> None:
    rows = networked.json("message_counts.json")
    for worker in ("worker-0-0/worker", "worker-0-1/worker"):
        heard = {row["sender"] for row in rows if row["recipient"] == worker}
        spoken = {row["recipient"] for row in rows if row["sender"] == worker and row["type"] in TYPES}
        assert {"host-0/proxy"} <= heard <= {"host-0/proxy", worker}
        assert spoken <= {"host-0/proxy"}  # one of them may have come too late to have anything to say


def test_the_proxy_makes_fewer_messages_of_many(networked: Any) -> None:
    rows = networked.json("message_counts.json")

    def count(kind: str, recipient: str) -> int:
        return sum(row["count"] for row in rows if (row["type"], row["recipient"]) == (kind, recipient))

    assert 0 < count("InsertTransitionMsg", "learner/orchestrator") <= count("InsertTransitionMsg", "host-0/proxy")
    # of the parameters, each worker is told at most what its proxy was
    loads = count("LoadParamsMsg", "host-0/proxy")
    for worker in ("worker-0-0/worker", "worker-0-1/worker"):
        assert 0 < count("LoadParamsMsg", worker) <= loads


def test_without_a_proxy_its_hops_are_gone_also_over_unix_sockets(launch: Any, roles: Callable, sockets: Path) -> None:
    launched = launch("--no-proxy", "--prioritized", "--listen", f"unix://{sockets}/run.sock")
    launched.until_connected("evaluator", "worker-0-0")
    names = sorted(path.name for path in sockets.iterdir())
    assert names == ["run.sock", "run.sock.evaluator", "run.sock.worker-0-0"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in sockets.iterdir())  # nobody else's business
    assert launched.ends() == 0, launched.story("failed")
    check(roles(launched), WITHOUT_PROXY, CONTROL_WITHOUT_PROXY)
    assert list(sockets.iterdir()) == []
