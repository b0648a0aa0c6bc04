"""Runs over the nodes of real SLURM jobs: submitted, preempted, cancelled, hit by faults, and gone when over."""

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_runs import ENDLESS, EXPERIMENTS, PATIENCE_S, QUICK, ROOT, SHARED, Command
from slurm_cluster import KILL_WAIT_S, SlurmCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXPERIMENT = EXPERIMENTS / "qmix_8m.py"


LEARNER = '''
"""A learner with a loop of its own over environments on two nodes of a job."""

import sys

import numpy as np

from components.cluster_env import ClusterEnv
from orchestra import SlurmConfig


class Leaning:
    def __init__(self) -> None:
        self.weight = np.ones(1, np.float32)

    def act(self, obs):
        return (obs[:, 2] * self.weight[0] > 0).astype(np.int64), {}

    def get_parameters(self):
        return {"weight": self.weight}

    def set_parameters(self, parameters):
        self.weight = parameters["weight"]


if __name__ == "__main__":
    config = SlurmConfig(nodes=2, time_limit="00:20:00")
    envs = ClusterEnv({"env_name": "CartPole-v1", "envs_per_node": 3}, config).launch()
    envs.reset(seed=7)
    agent, steps = Leaning(), 0
    while steps != int(sys.argv[1]):
        reward = envs.step(agent)[1]
        steps += 1
        print(f"step {steps}: a reward of {reward.sum():g} from {len(reward)} environments", flush=True)
    envs.close()
'''


class JobCommand(Command):
    """A command of a user of the cluster that submits a job, or runs in one."""

    def __init__(self, slurm: SlurmCluster, folder: Path, words: list[str], name: str) -> None:
        self._slurm = slurm
        self._name = name
        variables = {**os.environ, **slurm.environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        super().__init__(folder, words, variables)

    @property
    def job(self) -> str:
        """The number of the job."""
        self.until(lambda: re.search(r"job (\d+)", self.out))
        found = re.search(r"job (\d+)", self.out)
        assert found is not None
        return found[1]

    @property
    def run(self) -> Path:
        return self.folder / "runs" / "qmix_3m" / (self._name or f"slurm-{self.job}")

    @property
    def printed(self) -> str:
        """What the job has printed."""
        log = self.run.with_name(f"slurm-{self.job}.log")
        return log.read_text() if log.exists() else ""

    @property
    def state(self) -> str:
        return self._slurm.state(self.job)["JobState"]

    def until_over(self) -> str:
        """Wait until SLURM is done with the job; return the state in which it has ended."""
        self.until(lambda: not self._slurm.ask("squeue", "-h", "-j", self.job).strip())
        return self.state

    def story(self) -> str:
        return f"{super().story()}\n{self._slurm.ask('squeue')}"

    def head(self) -> psutil.Process:
        """The process of the head."""
        (found,) = [
            process
            for process in self._slurm.processes_on(1)
            if "run" in process.cmdline() and "orchestra" in process.cmdline()
        ]
        return found


class User:
    """Has a cluster, a folder with runs, and a folder of scratch files on each node, which is one and the same here."""

    def __init__(self, slurm: SlurmCluster, folder: Path) -> None:
        self.slurm, self.folder, self.scratch = slurm, folder, folder / "scratch"
        self.scratch.mkdir()
        self._commands: list[JobCommand] = []

    def words(self, *flags: str) -> list[str]:
        words = ["run", str(EXPERIMENT), *QUICK, "--launch", "slurm", "--scratch", str(self.scratch), *flags]
        return [sys.executable, "-m", "orchestra", *words]

    def runs(self, *flags: str) -> JobCommand:
        """Have `orchestra run` submit a job; later flags win."""
        return self.types(*self.words("--hosts", "3", "--time", "20", *flags))

    def types(self, *words: str, name: str = "") -> JobCommand:
        """Have a command started whose run has this name; by default that of its job."""
        self._commands.append(JobCommand(self.slurm, self.folder, list(words), name))
        return self._commands[-1]

    def nothing_is_left(self) -> bool:
        """True once no job, no process on a node, and no file of a run but its code is left."""
        if self.slurm.ask("squeue", "-h") or any(self.slurm.processes_on(node) for node in (1, 2, 3)):
            return False
        return not [path for path in self.scratch.glob("*/*") if path.name != "code"]

    def close(self) -> None:
        for command in self._commands:
            command.close()
        self.slurm.ask("scancel", "--me")
        self.slurm.until(lambda: not self.slurm.ask("squeue", "-h"), KILL_WAIT_S + 30)
        self.slurm.until(lambda: len(self.slurm.idle()) == self.slurm.nodes, 30)


@pytest.fixture
def user(slurm: SlurmCluster, tmp_path: Path) -> Iterator[User]:
    found = User(slurm, tmp_path)
    yield found
    found.close()


def test_a_job_plays_on_each_of_its_nodes_and_leaves_nothing(user: User) -> None:
    dry = user.types(*user.words("--hosts", "3", "--time", "20", *SHARED, "--dry-run"))
    assert dry.ends() == 0
    assert not user.slurm.ask("squeue", "-h")
    run = user.runs(*SHARED)
    assert run.ends() == 0, run.story()
    assert run.senders() == {"host-0", "host-1", "host-2"}, run.story()
    hosts = json.loads((run.run / "hosts.json").read_text())["hosts"]
    assert [(host["slot"], host["name"], host["where"]) for host in hosts] == [
        (1, "vn2", f"job {run.job} on vn2"),
        (2, "vn3", f"job {run.job} on vn3"),
    ]
    assert (run.run / "logs" / "worker-2-0.jsonl").exists(), "the logs of all hosts are in the run directory"
    assert run.out.splitlines()[-1] == f"job {run.job}: COMPLETED, exit code 0"
    script = run.run.with_name(f"slurm-{run.job}.sbatch").read_text()
    assert f"--- job.sbatch\n{script}---\nsbatch --parsable < job.sbatch\n" in dry.out
    assert user.slurm.ask("scontrol", "write", "batch_script", run.job, "-").strip() == script.strip()
    run.until(user.nothing_is_left, 30)


def test_the_secret_is_nowhere_that_slurm_or_others_see(user: User) -> None:
    run = user.runs(*ENDLESS)
    run.until_playing()
    token = json.loads((run.run / "join.json").read_text())
    secrets = re.findall(r"[0-9a-f]{64}", json.dumps(token))
    assert secrets
    ask = user.slurm.ask
    shown = ask("scontrol", "show", "job", run.job, "-d") + ask("scontrol", "write", "batch_script", run.job, "-")
    for path in [*user.slurm.folder.rglob("*"), *user.folder.glob("runs/*/*.*"), *run.run.glob("logs/**/*")]:
        if path.is_file():
            shown += path.read_bytes().decode("latin-1")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            shown += "".join(process.cmdline()) + str(process.environ())
    assert not [secret for secret in secrets if secret in shown]
    assert "SLURM_JOB_ID" in shown, "the environments were looked at"
    ask("scancel", run.job)


def test_a_job_that_is_told_to_end_saves_is_queued_again_and_goes_on(user: User) -> None:
    run = user.runs(*ENDLESS)
    run.until_playing()
    user.slurm.ask("scancel", "--batch", "--signal=TERM", run.job)
    run.until(lambda: user.slurm.state(run.job).get("Restarts") == "1")
    saved = max(run.steps())
    assert run.saved(), run.story()
    assert f"job {run.job} is queued again, and goes on when it starts" in run.printed
    run.until(lambda: max(run.steps()) > saved)
    assert run.state == "RUNNING"
    steps = run.steps()
    assert all(step >= saved for step in steps[steps.index(saved) :]), "the run goes on from what it has saved"
    assert len(list(run.run.parent.glob("*/config.json"))) == 1, "both lives have one run directory"
    assert len(run.log("host joined")) == 4


def test_a_job_that_is_preempted_saves_and_goes_on_when_its_nodes_are_free_again(user: User) -> None:
    run = user.runs(*ENDLESS)
    run.until_playing()
    words = (
        "--partition=urgent",
        "--exclusive",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--output=/dev/null",
        "--wrap=sleep 600",
    )
    urgent = user.slurm.ask("sbatch", "--parsable", *words, folder=user.folder).strip()
    run.until(lambda: user.slurm.state(urgent)["JobState"] == "RUNNING")
    assert run.saved(), run.story()
    saved = max(run.steps())
    state = user.slurm.state(run.job)
    assert (state["JobState"], state["Restarts"]) == ("PENDING", "1")
    user.slurm.ask("scancel", urgent)
    run.until(lambda: max(run.steps()) > saved)
    steps = run.steps()
    assert all(step >= saved for step in steps[steps.index(saved) :]), "the run goes on from what it has saved"


def test_a_job_whose_time_is_over_is_told_before_saves_and_goes_on_in_its_next_time(user: User) -> None:
    run = user.runs(*ENDLESS, "--grace", "60")
    run.until_playing()
    user.slurm.ask("scontrol", "update", f"JobId={run.job}", "TimeLimit=2")  # for a test, five minutes are long
    run.until(lambda: user.slurm.state(run.job).get("Restarts") == "1")
    assert "stopping on signal SIGTERM" in run.printed
    assert "DUE TO TIME LIMIT" not in run.printed, "it was told before"
    assert run.saved(), run.story()
    saved = max(run.steps())
    run.until(lambda: max(run.steps()) > saved)


def test_a_job_that_is_cancelled_saves_and_does_not_come_back(user: User) -> None:
    run = user.runs(*ENDLESS)
    run.until_playing()
    user.slurm.ask("scancel", run.job)
    assert run.until_over() == "CANCELLED"
    assert run.saved(), run.story()
    assert json.loads((run.run / "summary.json").read_text())["state"] == "stopped", run.story()
    assert user.slurm.state(run.job)["ExitCode"] == "75:0"
    assert user.slurm.state(run.job).get("Restarts") == "0"
    assert run.ends() == 75
    run.until(user.nothing_is_left, 30)


def test_a_run_goes_on_at_the_rate_of_the_other_nodes_without_one_that_has_died(user: User) -> None:
    run = user.runs("--game-speed", "--steps", "40000", "--min-hosts", "1")
    run.until_playing(1, 2)
    before = rate(run, slot=1)
    user.slurm.kill_node(3)
    try:
        after = rate(run, slot=1)
        assert after > before / 2, "the other nodes have waited for the one that has died"
        run.until(lambda: run.log("host gone"))
        assert run.ends() == 0, run.story()
        assert run.out.splitlines()[-1] == f"job {run.job}: COMPLETED, exit code 0"
        assert max(run.steps()) >= 40000
    finally:
        user.slurm.start_node(3)


def rate(run: JobCommand, slot: int, least: int = 2000) -> float:
    """Return the steps per second of a host, measured over some of them."""

    def steps() -> int:
        return next(int(host["env_steps"]) for host in run.hosts() if host["slot"] == slot)

    first, since = steps(), time.monotonic()
    run.until(lambda: steps() >= first + least)
    return (steps() - first) / (time.monotonic() - since)


def test_an_agent_that_has_died_is_started_again_on_its_node(user: User) -> None:
    run = user.runs(*ENDLESS)
    run.until_playing()
    (agent,) = [process for process in user.slurm.processes_on(2) if "host" in process.cmdline()]
    agent.kill()
    run.until(lambda: [line["slot"] for line in run.log("host joined")].count(1) == 2)
    assert run.state == "RUNNING"


def test_nothing_is_left_of_a_job_whose_head_was_killed(user: User) -> None:
    run = user.runs(*ENDLESS, "--asynchronous", "--envs-per-process", "2")
    run.until_playing()
    run.head().kill()
    killed = time.monotonic()
    assert run.until_over() == "FAILED"
    assert time.monotonic() - killed < 10, "the job of a dead head stays"
    run.until(user.nothing_is_left, 30)
    assert run.ends() == 137


def test_a_job_that_can_never_start_is_called_so(user: User) -> None:
    run = user.runs("--hosts", "9")
    run.until(lambda: "PENDING (PartitionConfig): will never start" in run.out, 15)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 0
    assert run.state == "PENDING"


def test_what_sbatch_refuses_is_shown_in_its_words(user: User) -> None:
    run = user.runs("--partition", "gone")
    assert run.ends() == 2
    assert "orchestra: error: --launch slurm: sbatch does not take the job: " in run.out
    assert "invalid partition specified: gone" in run.out or "Invalid partition name" in run.out


def test_a_sweep_is_an_array_of_runs_of_which_some_run_at_a_time(user: User) -> None:
    sweep = user.runs("--hosts", "1", "--sweep", "seed=0..3", "--sweep-parallel", "2", "--steps", "2000")
    sweep.until(lambda: "JobArrayTaskLimit" in sweep.out)
    assert sweep.ends() == 0, sweep.story()
    configs = [json.loads(path.read_text()) for path in sweep.run.parent.glob(f"slurm-{sweep.job}-*/config.json")]
    assert sorted(config["seed"] for config in configs) == [0, 1, 2, 3]
    assert len(list(sweep.run.parent.glob(f"slurm-{sweep.job}-[0-3].log"))) == 4


def test_a_head_outside_of_slurm_has_a_job_of_hosts_that_is_over_with_the_run(user: User) -> None:
    run = user.types(*user.words("--hosts", "2", "--time", "20", "--head-here", "--as", "mine", *SHARED), name="mine")
    assert run.ends() == 0, run.story()
    assert run.senders() == {"host-1", "host-2"}
    assert not (run.run / "token").exists()
    run.until(user.nothing_is_left, 30)


def test_the_job_of_hosts_ends_when_the_head_outside_of_it_is_killed(user: User) -> None:
    run = user.types(*user.words("--hosts", "2", "--time", "20", "--head-here", "--as", "mine", *ENDLESS), name="mine")
    run.until_playing(1, 2)
    assert len(user.slurm.ask("squeue", "-h").splitlines()) == 1
    run.process.kill()
    run.until(user.nothing_is_left, 30)


def test_environments_of_a_learner_of_ones_own_are_on_the_nodes_of_a_job_that_ends_with_it(user: User) -> None:
    (user.folder / "own.py").write_text(LEARNER)
    learner = user.types(sys.executable, "own.py", "40")
    assert learner.ends() == 0, learner.story()
    assert "step 40: a reward of 6 from 6 environments" in learner.out
    user.slurm.until(user.nothing_is_left, 30)


def test_the_job_of_environments_ends_when_their_learner_is_killed(user: User) -> None:
    (user.folder / "own.py").write_text(LEARNER)
    learner = user.types(sys.executable, "own.py", "-1")
    user.slurm.until(lambda: "step 10: a reward of 6" in learner.out, PATIENCE_S)
    assert len(user.slurm.ask("squeue", "-h").splitlines()) == 1
    assert all(user.slurm.processes_on(node) for node in (1, 2))
    learner.process.kill()
    user.slurm.until(user.nothing_is_left, 30)


def test_two_jobs_on_the_same_nodes_do_not_meet(user: User) -> None:
    runs = [user.runs("--partition", "shared", *SHARED, "--seed", str(seed)) for seed in (1, 2)]
    assert [run.ends() for run in runs] == [0, 0], runs[0].story()
    assert {run.job for run in runs} == {path.name[6:] for path in runs[0].run.parent.iterdir() if path.is_dir()}


def test_inside_of_an_allocation_nothing_is_submitted_and_the_allocation_stays(user: User) -> None:
    run = shlex.join(user.words(*SHARED, "--as", "mine"))
    stays = "squeue -h -o '%i %T' | sed s/^/left:/"
    shell = user.types(
        "salloc",
        "--nodes=3",
        "--ntasks-per-node=1",
        "--time=20",
        "sh",
        "-c",
        f"{run}; echo code $?; {stays}",
        name="mine",
    )
    assert shell.ends() == 0, shell.story()
    assert "code 0" in shell.out, shell.story()
    assert re.findall(r"left:\d+ (\w+)", shell.out) == ["RUNNING"]
    assert shell.senders() == {"host-1", "host-2", "host-3"}, "the head outside of the nodes only learns"


def test_a_script_of_the_user_that_passes_no_environment_on_has_hosts_as_well(user: User) -> None:
    script = user.folder / "mine.sbatch"
    words = shlex.join(user.words(*SHARED, "--as", "mine"))
    home = shlex.quote(os.environ["PATH"])
    script.write_text(f"#!/bin/bash\nexport PYTHONPATH={ROOT} PATH={home} OMP_NUM_THREADS=1\nexec {words}\n")
    sbatch = ["sbatch", "--wait", "--export=NONE", "--nodes=3", "--ntasks-per-node=1", "--time=20", "--output=out"]
    submitted = user.types(*sbatch, str(script), name="mine")
    assert submitted.ends() == 0, submitted.story() + (user.folder / "out").read_text()
    assert submitted.senders() == {"host-0", "host-1", "host-2"}


def test_a_head_with_a_gpu_is_on_a_node_that_has_one_and_the_others_are_not(user: User) -> None:
    run = user.runs("--hosts", "2", "--head-gpus", "1", *SHARED)
    assert run.ends() == 0, run.story()
    config = json.loads((run.run / "config.json").read_text())
    assert [host["gpus"] for host in config["hosts"]] == [1, 0]
    assert run.senders() == {"host-0", "host-1"}, run.story()


def test_each_host_has_the_gpus_that_were_asked_for(user: User) -> None:
    run = user.runs("--hosts", "2", "--gpus-per-node", "1", "--steps", "5000")
    assert run.ends() == 0, run.story()
    config = json.loads((run.run / "config.json").read_text())
    assert [host["gpus"] for host in config["hosts"]] == [1, 1]
