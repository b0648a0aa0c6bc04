"""Runs over a real Ray cluster: started, submitted, stopped, hit by faults, and gone when over."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import ADDRESSES, CPUS, RayCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240.0
QUICK = [
    *("--scenario", "3m", "--steps", "600", "--workers", "1", "--envs-per-worker", "4", "--learning-starts", "8"),
    *("--batch-size", "4", "--updates-per-episode", "0.05", "--hidden-size", "8", "--eval-interval", "1000000"),
    *("--final-eval-episodes", "4", "--epsilon-steps", "1000", "--target-update-interval", "10", "--code", "installed"),
]
ENDLESS = ["--steps", "100000000"]
GROUPS = "from ray.util import placement_group_table as t; print([g['state'] for g in t().values()])"
ACTORS = "from ray.util.state import list_actors; print([a.state for a in list_actors(limit=9999)])"


class Command:
    """A command of a user of the cluster, in a folder with the experiment and the runs."""

    def __init__(self, ray: RayCluster, folder: Path, *words: str) -> None:
        self.folder = folder
        self._ray = ray
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        shutil.copy(ROOT / "experiments" / "train.py", folder / "mine.py")
        command = [str(ray.python), "-m", "orchestra", "run", "mine.py", *QUICK, "--launch", "ray", *words]
        self.process = psutil.Popen(
            command,
            cwd=folder,
            env=ray.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def out(self) -> str:
        self._out.seek(0)
        return self._out.read()

    @property
    def run(self) -> Path:
        """The directory of the run."""
        self.until(lambda: list(self.folder.glob("runs/*/*/config.json")))
        return next(self.folder.glob("runs/*/*/config.json")).parent

    def agents(self) -> dict[str, psutil.Process]:
        """The agents of the cluster, by the number of their slot."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "--bound" in words and process.environ().get("RAY_ADDRESS", "") in ("", self._ray.address):
                    found[words[words.index("--slot") + 1]] = process
        return found

    def until_playing(self) -> list[psutil.Process]:
        """Wait until the workers of both hosts play; return all processes of the hosts."""
        self.until(lambda: self.playing() == [1, 2])
        return [each for agent in self.agents().values() for each in (agent, *agent.children(recursive=True))]

    def playing(self) -> list[int]:
        steps = [json.loads(path.read_text())["hosts"] for path in self.folder.glob("runs/*/*/hosts.json")]
        return sorted(host["slot"] for hosts in steps for host in hosts if host.get("env_steps"))

    def hosts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.run / "hosts.json").read_text())["hosts"]
        return found

    def log(self, event: str) -> list[dict[str, Any]]:
        lines = (self.run / "logs" / "learner.jsonl").read_text().split("\n")[:-1]
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it took too long\n{self.story()}"
            time.sleep(0.2)

    def ends(self) -> int:
        try:
            return int(self.process.wait(PATIENCE_S))
        except psutil.TimeoutExpired:
            pytest.fail(self.story())

    def story(self) -> str:
        logs = "".join(
            f"\n--- {path}\n{path.read_text()[-3000:]}"
            for pattern in ("logs/learner.jsonl", "hosts.json")
            for path in self.folder.glob(f"runs/*/*/{pattern}")
        )
        return f"{self.process.args}\n{self.out}{logs}"

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.process.wait(10)
        self._out.close()


Start = Callable[..., Command]


@pytest.fixture
def start(ray: RayCluster, tmp_path: Path) -> Iterator[Start]:
    started: list[Command] = []

    def begin(*words: str) -> Command:
        started.append(Command(ray, tmp_path, *words))
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


def test_threads_and_gpus_are_as_placed_and_not_as_ray_sets_them(ray: RayCluster, start: Start) -> None:
    engine = json.dumps({"env_vars": {"OMP_NUM_THREADS": "7"}})
    asked = ("--host-cores", "2", "--host-gpus", "1", "--workers", "2", "--runtime-env-json", engine)
    run = start("--hosts", "2", *ENDLESS, *asked)
    run.until_playing()
    agent = run.agents()["1"]
    assert agent.environ()["OMP_NUM_THREADS"] == "7", "what the engine has set reaches the agent, and no node"
    workers = [each for each in agent.children(recursive=True) if "worker-1-0" in each.cmdline()]
    assert {each.environ()["OMP_NUM_THREADS"] for each in workers} == {"1"}
    assert {each.environ()["CUDA_VISIBLE_DEVICES"] for each in workers} == {""}
    assert [(host["cores"], host["gpus"]) for host in run.hosts()] == [(2, 1), (2, 1)]
    run.process.send_signal(signal.SIGINT)
    assert run.ends() == 130, run.story()


def test_the_agent_of_a_killed_actor_ends_and_another_takes_its_slot(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2", *ENDLESS)
    run.until_playing()
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
    processes = run.until_playing()
    run.process.kill()
    _, alive = psutil.wait_procs(processes, timeout=20)
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


def test_a_job_that_is_stopped_saves_and_goes_on_under_its_name(ray: RayCluster, start: Start) -> None:
    submit = ("--hosts", "2", "--ray-address", ray.dashboard, "--as", "mine", *ENDLESS)
    first = start(*submit)
    first.until_playing()
    first.until(lambda: (first.run / "metrics.jsonl").exists())
    head = psutil.Process(json.loads((first.run / "join.json").read_text())["pid"])
    assert "OMP_NUM_THREADS" not in head.environ(), "Ray sets it to 1 in the process of a job"
    (job,) = set(re.findall(r"raysubmit_\w+", first.out))
    ray.ask("job", "stop", "--address", ray.dashboard, job)
    first.ends()
    steps = state_steps(first.run)
    assert steps > 0, first.story()
    assert nothing_is_left(ray)
    second = start(*submit[:-1], str(steps + 200))
    assert second.ends() == 0, second.story()
    assert second.run == first.run
    assert [each["env_steps"] for each in metrics(second.run)][-1] >= steps + 200


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().split("\n")[:-1]]


def state_steps(run: Path) -> int:
    """The environment steps of the last record before the run was stopped."""
    assert list((run / "state").iterdir()), "it has saved"
    return int(metrics(run)[-1]["env_steps"])


def test_the_secret_is_nowhere_in_ray(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "2", "--ray-address", ray.dashboard, "--as", "hidden", *ENDLESS)
    run.until_playing()
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
    (job,) = set(re.findall(r"raysubmit_\w+", run.out))
    ray.ask("job", "stop", "--address", ray.dashboard, job)
    run.ends()
    assert nothing_is_left(ray)


def test_the_head_keeps_its_own_handlers_of_signals(ray: RayCluster, start: Start) -> None:
    run = start("--hosts", "1", "--as", "told", *ENDLESS)
    run.until(lambda: run.playing() == [1] and (run.run / "metrics.jsonl").exists() and metrics(run.run))
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.ends() == 75, run.story()
    assert list((run.run / "state").iterdir())
