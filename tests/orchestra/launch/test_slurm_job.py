"""What SLURM tells of a job is understood: the nodes that it has, what it waits for, and whether it may begin again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestra.errors import OrchestraError, UsageError
from orchestra.launch import slurm_job
from orchestra.launch.slurm import hosts_of
from orchestra.launch.slurm_job import Allocation, JobState, cores_of, requeued
from orchestra.launch.slurm_queue import Following, follow

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}
BATCH = {**JOB, "SLURMD_NODENAME": "n1", "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}
TWO_KINDS = {
    "SLURM_JOB_ID": "7",
    "SLURMD_NODENAME": "g1",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "4",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "16(x2)",
}


@pytest.mark.parametrize(
    ("text", "nodes", "cores"),
    [("16(x2),8", 3, (16, 16, 8)), ("4", 1, (4,)), ("", 2, (0, 0)), ("2(x3)", 2, (2, 2)), ("?", 1, (0,))],
)
def test_the_cores_of_each_node_are_those_of_the_job(text: str, nodes: int, cores: tuple[int, ...]) -> None:
    assert cores_of(text, nodes) == cores


def test_the_head_is_on_the_first_node_of_its_job_and_plays() -> None:
    asked = hosts_of(None, {}, BATCH)
    assert asked.here is not None
    assert (asked.here.cores, [(host.slot, host.cores) for host in asked.hosts]) == (16, [(1, 16), (2, 8)])
    assert [host.slot for host in hosts_of(2, {}, BATCH).hosts] == [1]
    assert not asked.head_elsewhere


def test_a_head_beside_the_nodes_of_its_job_only_learns() -> None:
    asked = hosts_of(None, {}, JOB)
    assert asked.here is None
    assert [(host.slot, host.cores) for host in asked.hosts] == [(1, 16), (2, 16), (3, 8)]


def test_the_hosts_of_two_kinds_of_nodes_follow_each_other() -> None:
    asked = hosts_of(3, {}, TWO_KINDS)
    assert asked.here is not None
    assert (asked.here.cores, [host.cores for host in asked.hosts]) == (4, [16, 16])


def test_outside_of_a_job_the_hosts_are_those_that_will_be_asked_for() -> None:
    asked = hosts_of(3, {"cpus_per_task": 8, "head_gpus": 1}, {})
    assert asked.head_elsewhere
    assert asked.here is not None
    assert (asked.here.gpus, [(host.cores, host.gpus) for host in asked.hosts]) == (1, [(8, 0), (8, 0)])


@pytest.mark.parametrize(
    ("number", "settings", "environment", "said"),
    [
        (None, {}, {}, "--launch slurm: this is no job of SLURM; add --hosts N to submit one"),
        (4, {}, BATCH, "--hosts: job 7 has 3 nodes, not 4"),
        (3, {"head_gpus": 1}, BATCH, "--head-gpus is for a job that is submitted, and this is job 7; leave it out"),
        (None, {}, {**BATCH, "SLURM_NODEID": "1"}, "--launch slurm: this is not the first node of the job; start "),
        (
            *(None, {}, {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}),
            "--launch slurm: srun has started orchestra run in several tasks",
        ),
        (None, {}, {"SLURM_JOB_ID": "7"}, "--launch slurm: SLURM_JOB_NUM_NODES is not set, although SLURM_JOB_ID is"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(number: int, settings: dict, environment: dict, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts_of(number, settings, environment)
    assert str(caught.value).startswith(said)


SHOWN = "JobId=7 JobName=x JobState={} Reason=None Requeue={} Restarts={} BatchFlag={} ExitCode={} Comment=a b=c"


def test_the_state_of_a_job_is_read() -> None:
    assert JobState.parse(SHOWN.format("RUNNING", 1, 2, 1, "0:0")) == JobState("RUNNING", True, True, 2, 0)
    assert JobState.parse(SHOWN.format("FAILED", 0, 0, 0, "75:0")) == JobState("FAILED", False, False, 0, 75)
    assert JobState.parse(SHOWN.format("FAILED", 0, 0, 0, "0:9")).code == 137
    assert JobState.parse("").state == ""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `scontrol` that shows a job, and notes what else it is told."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\n[ "$1" = show ] && exec cat {tmp_path}/job\necho "$@" >> {tmp_path}/told\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_job.signal, "signal", lambda *_: None)  # it would ignore SIGTERM from here on
    return tmp_path


@pytest.mark.parametrize(
    ("state", "said", "again"),
    [
        (("RUNNING", 1, 0, 1), "job 7 is queued again, and goes on when it starts", True),
        (
            ("COMPLETING", 1, 0, 1),
            "job 7 is COMPLETING: it was cancelled, or SLURM itself queues it again",
            False,
        ),
        (("RUNNING", 1, 20, 1), "job 7 was started again 20 times, and --max-restarts allows no more", False),
        (("RUNNING", 0, 0, 1), "", False),
        (("RUNNING", 1, 0, 0), "", False),
    ],
)
def test_a_job_is_queued_again_unless_it_was_cancelled(slurm: Path, state: tuple, said: str, again: bool) -> None:
    (slurm / "job").write_text(SHOWN.format(*state, "0:0"))
    assert requeued(BATCH, 20).startswith(said)
    assert (slurm / "told").exists() is again
    if again:
        assert (slurm / "told").read_text() == "requeue 7\n"


def test_a_process_outside_of_the_nodes_of_a_job_does_not_queue_it_again(slurm: Path) -> None:
    (slurm / "job").write_text(SHOWN.format("RUNNING", 1, 0, 1, "0:0"))
    assert requeued(JOB, 20) == ""
    assert requeued({}, 20) == ""
    assert not (slurm / "told").exists()


def test_a_job_that_waits_says_why_once_and_whether_for_ever() -> None:
    following = Following("7")
    assert following.heard("PENDING Resources\n") == "job 7: PENDING (Resources)"
    assert following.heard("PENDING Resources\n") == ""
    assert following.heard("PENDING PartitionConfig\n") == (
        "job 7: PENDING (PartitionConfig): will never start; scancel 7 removes it"
    )
    assert following.heard("RUNNING None\n") == "job 7: RUNNING"
    assert following.heard("RUNNING None\nRUNNING None\nPENDING JobArrayTaskLimit\n") == (
        "job 7: 2 RUNNING, 1 PENDING (JobArrayTaskLimit)"
    )
    assert following.heard("") == ""


def test_a_job_is_followed_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "slurm-7.log"
    answers = iter(["PENDING Resources\n", OrchestraError("no contact"), "RUNNING None\n", "RUNNING None\n", ""])
    waits: list[float] = []

    def ask(*command: str) -> str:
        if command[0] == "scontrol":
            return SHOWN.format("FAILED", 1, 0, 1, "75:0")
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        if answer.startswith("RUNNING"):
            with log.open("a") as file:
                file.write("a line\n")
        return answer

    said: list[str] = []
    assert follow("7", log, said.append, ask=ask, pause=waits.append) == 75
    assert said == [
        *("job 7: PENDING (Resources)", "job 7: SLURM does not answer: no contact", "job 7: RUNNING"),
        "job 7: FAILED, exit code 75",
    ]
    assert capsys.readouterr().out == "a line\na line\n"
    assert len(waits) == 4


def test_an_array_has_failed_if_one_of_its_jobs_has() -> None:
    def ask(*command: str) -> str:
        if command[0] == "squeue":
            raise OrchestraError("slurm_load_jobs error: Invalid job id specified")
        return "\n".join([SHOWN.format("COMPLETED", 1, 0, 1, "0:0"), SHOWN.format("FAILED", 1, 0, 1, "1:0")])

    said: list[str] = []
    assert follow("7", None, said.append, ask=ask) == 1
    assert said == ["job 7: 1 jobs COMPLETED, exit code 0", "job 7: 1 jobs FAILED, exit code 1"]


def test_an_allocation_is_none_outside_of_a_job() -> None:
    assert Allocation.of({}) is None
