"""Runs over a real Ray cluster: started, submitted, stopped, hit by faults, and gone when over."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import telling_experiment
from engine_runs import ENDLESS, EXPERIMENTS, QUICK, Command
from ray_cluster import ADDRESSES, CPUS, RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GROUPS = "from ray.util import placement_group_table as t; print([g['state'] for g in t().values()])"
ACTORS = "from ray.util.state import list_actors; print([a.state for a in list_actors(limit=9999)])"


class RayCommand(Command):
    """A command of a user of the cluster, in a folder with the experiment and the runs."""

    def __init__(
        self, ray: RayCluster, folder: Path, *words: str, experiment: Sequence[str] = ("qmix_8m.py", *QUICK)
    ) -> None:
        shutil.copytree(EXPERIMENTS, folder, dirs_exist_ok=True)
        command = [str(ray.python), "-m", "orchestra", "run", *experiment, "--launch", "ray", *words]
        self._ray = ray
        super().__init__(folder, command, ray.environment)

    def agents(self) -> dict[str, psutil.Process]:
        """The agents of the cluster, by the number of their slot."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "--bound" in words and process.environ().get("RAY_ADDRESS", "") in ("", self._ray.address):
                    found[words[words.index("--slot") + 1]] = process
        return found

    def processes(self) -> list[psutil.Process]:
        """All processes of the hosts."""
        return [each for agent in self.agents().values() for each in (agent, *agent.children(recursive=True))]

    def job(self) -> str:
        """The number of the job, once it is submitted."""
        self.until(lambda: re.search(r"raysubmit_\w+", self.out))
        (found,) = set(re.findall(r"raysubmit_\w+", self.out))
        return str(found)


Start = Callable[..., RayCommand]


@pytest.fixture
def start(ray: RayCluster, tmp_path: Path) -> Iterator[Start]:
    started: list[RayCommand] = []

    def begin(*words: str, **options: Any) -> RayCommand:
        started.append(RayCommand(ray, tmp_path, *words, **options))
        return started[-1]

    yield begin
    for each in started:
        each.close()


def nothing_is_left(ray: RayCluster) -> bool:
    """Return whether Ray has neither an actor nor a placement group of any run."""
    return "ALIVE" not in ray.tell(ACTORS) and set(re.findall(r"'(\w+)'", ray.tell(GROUPS))) <= {"REMOVED"}


def test_a_run_plays_on_two_nodes_of_ray_and_leaves_no_actor_and_no_group(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2")
    assert run.ends() == 0, run.story()
    where = [re.fullmatch(r"Ray node (\w+) at (\S+)", host["where"]) for host in run.hosts()]
    assert sorted(found[2] for found in where if found) == sorted(ADDRESSES)
    assert len({found[1] for found in where if found}) == 2
    assert nothing_is_left(ray)
    assert run.agents() == {}


def test_each_host_has_the_cores_and_gpus_that_were_asked_for(ray: RayCluster, start: Start) -> None:
    engine = json.dumps({"env_vars": {"OMP_NUM_THREADS": "7"}})
    asked = ("--host-cores", "2", "--host-gpus", "1", "--workers", "2", "--runtime-env-json", engine)
    run = start("--hosts", "2", *ENDLESS, *asked)
    run.until_playing(1, 2)
    agent = run.agents()["1"]
    assert agent.environ()["OMP_NUM_THREADS"] == "7", "what the user has Ray set reaches the agent"
    assert [(host["cores"], host["gpus"]) for host in run.hosts()] == [(2, 1), (2, 1)]
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.story()


@pytest.mark.parametrize("submitted", [False, True])
def test_processes_have_the_threads_and_gpus_that_were_planned_and_not_those_that_ray_sets(
    ray: RayCluster, start: Start, tmp_path: Path, submitted: bool
) -> None:
    shutil.copy(telling_experiment.__file__, tmp_path)
    where = ("--ray-address", ray.dashboard, "--head-cores", "2") if submitted else ()
    asked = ("--hosts", "2", "--host-cores", "2", "--host-gpus", "1", *where)
    run = start(*asked, experiment=("telling_experiment.py", "--gpus", "1"))
    assert run.ends() == 0, run.story()
    told = dict(re.findall(r"^.*?(\S+): (torch \d+, pools .+?)\r?$", run.out, re.MULTILINE))
    assert told["own-1/teller"] == told["own-2/teller"] == "torch 2, pools (2,), GPUs '0'"
    assert told["shared-1/teller"] == told["shared-2/teller"] == "torch 1, pools (1,), GPUs ''"
    without = [str(ray.python), "-c", "import torch; print(torch.get_num_threads())"]
    own = "2" if submitted else subprocess.run(without, check=True, capture_output=True, text=True).stdout.strip()
    assert told["head/listener"].startswith(f"torch {own},"), run.out


def test_the_agent_of_a_killed_actor_ends_and_another_takes_its_slot(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2", *ENDLESS)
    run.until_playing(1, 2)
    agent = run.agents()["1"]
    actor = agent.parent()
    assert actor is not None
    assert "ray::OrchestraAgent" in " ".join(actor.cmdline())
    family = [agent, *agent.children(recursive=True)]
    actor.kill()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    run.until(lambda: len(run.log("host joined")) == 3)
    run.until(lambda: run.agents().get("1", agent) != agent)
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.story()
    assert nothing_is_left(ray)


def test_nothing_is_left_when_the_driver_is_killed(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2", *ENDLESS)
    run.until_playing(1, 2)
    processes = run.processes()
    run.process.kill()
    _, alive = psutil.wait_procs(processes, timeout=5)
    assert not alive
    run.until(lambda: nothing_is_left(ray), 60)


def test_a_group_that_does_not_fit_is_said_with_what_the_nodes_have(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "3", "--join-timeout", "5")
    assert run.ends() == 69, run.story()
    said = " ".join(run.out.split())
    assert "Ray has no room for 3 hosts with 1 CPU each; its 2 nodes:" in said
    for address in ADDRESSES:
        assert f"{address} {CPUS} CPU, 1 GPU" in said
    assert nothing_is_left(ray)


def test_a_job_that_is_stopped_saves_leaves_nothing_and_goes_on_when_it_is_submitted_again(
    ray: RayCluster, start: Start
) -> None:
    first = start("--hosts", "2", "--ray-address", ray.dashboard, "--as", "mine", *ENDLESS)
    first.until_playing(1, 2)
    first.until_playing()
    ray.ask("job", "stop", "--address", ray.dashboard, first.job())
    first.ends()
    steps = max(int(path.name.removeprefix("steps-")) for path in first.saved())
    assert nothing_is_left(ray)
    (first.folder / "notes.txt").write_text("a folder that has changed is unpacked at another path")
    again = start("--hosts", "2", "--ray-address", ray.dashboard, "--as", "mine", *ENDLESS)
    again.until(lambda: again.steps()[-1:] > [steps])
    ray.ask("job", "stop", "--address", ray.dashboard, again.job())
    again.ends()
    assert [path.name for path in again.run.parent.iterdir()] == ["mine"]
    assert nothing_is_left(ray)


def test_the_secret_is_nowhere_in_ray(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2", "--ray-address", ray.dashboard, "--as", "hidden", *ENDLESS)
    run.until_playing(1, 2)
    secret = json.loads((run.run / "join.json").read_text())["token"]["secret"]
    assert len(secret) == 64
    shown = [
        *(ray.ask("job", "list", "--address", ray.dashboard), ray.ask("list", "actors", "--detail"), run.out),
        *(ray.ask("list", "tasks", "--detail"), ray.ask("list", "objects", "--detail")),
    ]
    assert "OrchestraAgent" in shown[1]
    assert not [text for text in shown if secret in text]
    for path in ray.folder.rglob("*"):
        with contextlib.suppress(OSError):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            folder = Path(f"/proc/{process.pid}")
            for name in ("cmdline", "environ"):
                assert secret.encode() not in (folder / name).read_bytes(), process
    ray.ask("job", "stop", "--address", ray.dashboard, run.job())
    run.ends()
    assert nothing_is_left(ray)


def test_the_head_keeps_its_own_handlers_of_signals(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "1", "--as", "told", *ENDLESS)
    run.until_playing()
    run.process.terminate()
    assert run.ends() == 75, run.story()
    assert run.saved()
    assert "SIGTERM received" not in run.out, "Ray's own handler ends the process three seconds later"
    assert nothing_is_left(ray)
