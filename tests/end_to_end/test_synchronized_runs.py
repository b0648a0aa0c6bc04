"""A run whose workers load by divergence counts what it has sent, and its decisions are replayed bit for bit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import orchestra
from orchestra import Replay, RunDirectory, UsageError, read_records

pytestmark = pytest.mark.skipif(
    not int(os.environ.get("ORCHESTRA_FAULTS", "0")), reason="takes ten seconds: ORCHESTRA_FAULTS=1"
)
EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "train.py"
WORKERS = ("worker-0-0/worker", "worker-0-1/worker")
TINY: dict[str, Any] = {
    "scenario": "3m",
    "steps": 500,
    "workers": 2,
    "envs_per_worker": 2,
    "learning_starts": 4,
    "batch_size": 4,
    "updates_per_episode": 1.0,
    "hidden_size": 8,
    "eval_interval": 10**9,
    "eval_episodes": 1,
    "final_eval_episodes": 1,
    "quiet": True,
    "seed": 5,
    "single_process": True,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.mktemp("kl"))
        result = orchestra.run(EXPERIMENT, sync="kl:0.0001", trace="full", **TINY)
        return RunDirectory.open(result.directory.path.absolute())


def replayed(finished: RunDirectory, actor: str, kind: str) -> list[dict[str, Any]]:
    """Return the messages of a kind that an actor sends when it is replayed, which must be those that it has sent."""
    fields: list[dict[str, Any]] = []
    with Replay(finished.path, actor) as replay:
        replay.run(each=lambda each: fields.extend(out.fields for out in each.outputs if out.kind == kind))
        assert replay.activation is None
        assert replay.notes == ()
    return fields


def test_the_decisions_of_a_run_are_replayed_and_its_figures_agree_with_them(finished: RunDirectory) -> None:
    sync = json.loads(finished.summary.read_text())["sync"]
    last = read_records(finished.metrics)[-1]
    assert {name: last[f"sync/{name}"] for name in sync} == sync
    decisions = [
        each for worker in WORKERS for told in replayed(finished, worker, "SyncMsg") for each in told["decisions"]
    ]
    assert (len(decisions), sum(loads for *_, loads in decisions)) == (sync["decisions"], sync["loads"])
    assert 2 < sync["loads"] < sync["decisions"]
    for own, version, divergence, _, loads in decisions:
        assert loads or (divergence is not None and divergence <= 0.0001)
        assert own is None or own < version
    sent = replayed(finished, "host-0/proxy", "LoadParamsMsg")  # to both workers, of what crossed to the host once
    assert len(sent) == sync["loads"]
    size = sent[0]["params"].nbytes
    assert sync["params_bytes"] == sync["params_sent"] * size < sync["versions"] * size / 2
    assert sync["params_sent"] == len({message["version"] for message in sent})


def test_the_digests_of_a_run_are_replayed(finished: RunDirectory) -> None:
    digests = replayed(finished, "learner/trainer", "VersionMsg")
    probes = replayed(finished, "learner/trainer", "ProbesMsg")
    assert len(probes) == -(-len(digests) // 10) > 1


def test_a_rule_that_is_none_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--sync: it must be always, every:N, kl:THRESHOLD or greedy:THRESHOLD"):
        orchestra.run(EXPERIMENT, sync="often", **TINY)
    assert list(tmp_path.iterdir()) == []
