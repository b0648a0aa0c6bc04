"""A head that runs outside of SLURM has a job whose tasks are the agents, and that ends with the run."""

import asyncio
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from orchestra import SlurmConfig, UsageError
from orchestra.errors import OrchestraError
from orchestra.hosts.run_plan import RunPlan
from orchestra.launch import slurm_hosts
from orchestra.launch.protocol import HostEvent, HostRequest
from orchestra.launch.slurm import hosts_of
from orchestra.launch.slurm_hosts import SlurmHostsLauncher
from orchestra.runs.hosts_options import hosts_options

Run = Callable[[Coroutine[Any, Any, Any]], Any]
SETTINGS = {"head_here": True, "cpus_per_task": 4, "gpus_per_node": 1, "time": "30", "python": "py", "setup": "ml cuda"}


class Slurm:
    """Answers as SLURM does: each question about the queue by the next of its states, and then that all is over."""

    def __init__(self, *states: str, refuses: str = "") -> None:
        self._states, self._refuses = list(states), refuses
        self.asked: list[tuple[str, ...]] = []
        self.script = ""

    def __call__(self, *command: str, text: str = "") -> str:
        self.asked.append(command)
        match command[0]:
            case "sbatch":
                self.script = text
                if self._refuses:
                    raise OrchestraError(self._refuses)
                return "7;cluster\n"
            case "squeue":
                if not self._states:
                    raise OrchestraError("slurm_load_jobs error: Invalid job id specified")
                return self._states.pop(0) + "\n"
            case "scontrol":
                return "JobId=7 JobState=FAILED ExitCode=3:0"
        return ""


def launcher(slurm: Slurm) -> SlurmHostsLauncher:
    config = SlurmConfig.of(SETTINGS, job_name="orchestra", nodes=2, grace=120.0)
    return SlurmHostsLauncher(hosts_of(2, SETTINGS, {}).hosts, config, slurm)


def plan_in(folder: Path) -> RunPlan:
    return RunPlan(experiment=None, flags=(), seed=0, run_directory=folder)


async def started(given: SlurmHostsLauncher, folder: Path) -> None:
    await given.start(given.submission(plan_in(folder), [HostRequest(1), HostRequest(2)]), "the secret\n")


async def until_ended(given: SlurmHostsLauncher) -> list[HostEvent]:
    found: list[HostEvent] = []
    async for event in given.events():
        found.append(event)
        if [each.state for each in found].count("ended") == 2:
            return found
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_hosts, "ASK_S", 0.001)


def test_the_script_is_one_step_with_an_agent_on_each_node(tmp_path: Path) -> None:
    script = launcher(Slurm()).submission(plan_in(tmp_path), [HostRequest(1), HostRequest(2)]).files["hosts.sbatch"]
    assert (
        script
        == f"""#!/bin/bash
#SBATCH --job-name=orchestra
#SBATCH --output={tmp_path}/slurm-hosts.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=1
#SBATCH --time=30
#SBATCH --signal=B:TERM@120
#SBATCH --no-requeue
#SBATCH --no-kill
ml cuda
exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --cpu-bind=none --mpi=none --export=ALL --no-kill \
--wait=0 --kill-on-bad-exit=0 --label sh -c 'exec "$0" -m orchestra host --token {tmp_path}/token \
--slot $((SLURM_PROCID + 1)) --name "$SLURMD_NODENAME"' py
"""
    )


def test_the_token_is_in_a_file_of_its_user_alone_and_gone_when_the_run_is_over(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        slurm = Slurm("PENDING Priority", "RUNNING None", "RUNNING None")
        given = launcher(slurm)
        await started(given, tmp_path)
        assert (tmp_path / "token").read_text() == "the secret\n"
        assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
        assert "the secret" not in slurm.script + str(slurm.asked)
        await given.stop(5.0)
        assert not (tmp_path / "token").exists()
        assert slurm.asked[-1] == ("scancel", "7")

    run(main())


def test_what_slurm_says_of_the_job_is_said_of_each_host(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        given = launcher(Slurm("PENDING Priority", "PENDING Priority", "RUNNING None"))
        await started(given, tmp_path)
        found = await until_ended(given)
        assert [(each.state, each.reason) for each in found if each.slot == 1] == [
            ("asked", ""),
            ("queued", "PENDING (Priority)"),
            ("started", ""),
            ("ended", "job 7 is FAILED, exit code 3"),
        ]
        assert {(each.where, each.again) for each in found if each.state == "ended"} == {
            ("job 7 task 0", False),
            ("job 7 task 1", False),
        }
        with pytest.raises(OrchestraError, match="job 7 starts each of its agents once"):
            await given.again(1)
        await given.stop(5.0)

    run(main())


def test_a_job_that_can_never_start_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        given = launcher(Slurm(*["PENDING PartitionConfig"] * 3))
        await started(given, tmp_path)
        found = await until_ended(given)
        assert found[-1].reason == "PENDING (PartitionConfig): will never start"
        assert not found[-1].again
        await given.stop(5.0)

    run(main())


def test_a_stop_does_not_wait_longer_than_it_may_for_a_job_that_goes_on(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        slurm = Slurm(*["RUNNING None"] * 10**6)
        given = launcher(slurm)
        await started(given, tmp_path)
        await given.stop(0.05)
        assert slurm.asked[-1] == ("scancel", "7")
        assert [event async for event in given.events()][-1].state in ("asked", "started")

    run(main())


def test_a_job_that_sbatch_refuses_leaves_no_token(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sbatch does not take the job: Invalid account"):
        run(started(launcher(Slurm(refuses="Invalid account")), tmp_path))
    assert not (tmp_path / "token").exists()


def test_flags_for_a_job_with_the_head_are_refused_beside_a_head_that_is_here() -> None:
    with pytest.raises(UsageError, match="--sweep is for a job that has the head, too; leave out --head-here"):
        hosts_of(2, SETTINGS | {"sweep": ("seed=1,2",)}, {})


def test_the_options_of_a_configuration_are_keywords_of_a_run_that_ask_for_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    config = SlurmConfig(
        nodes=3, gpus_per_node=2, gpu_type="a100", partition="gpu", mem="16G", extra=("--nice",), cpus_per_task=8
    )
    options = hosts_options({**config.options(), "hosts": str(config.nodes)})
    assert options is not None
    assert (len(options.hosts), options.head_plays, options.head_elsewhere) == (3, False, False)
    assert SlurmConfig.of(options.settings, job_name="orchestra", nodes=3, grace=options.grace) == config


def test_the_task_of_the_launcher_ends_with_it(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        given = launcher(Slurm(*["RUNNING None"] * 10**6))
        await started(given, tmp_path)
        await given.stop(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())
