"""The YAML of a run against the published schemas, and its pods, run by the rules that were seen on a real cluster."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pod_runner import PodRunner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("1.29", "1.32", "1.35")
PATIENCE_S = 240.0
QUICK = [
    *("--scenario", "3m", "--steps", "600", "--workers", "1", "--envs-per-worker", "4", "--learning-starts", "8"),
    *("--batch-size", "4", "--updates-per-episode", "0.05", "--hidden-size", "8", "--eval-interval", "1000000"),
    *("--final-eval-episodes", "4", "--epsilon-steps", "1000", "--target-update-interval", "10", "--code", "installed"),
]
ENDLESS = ["--steps", "100000000"]
VALIDATE = """
import json, sys, yaml, kubernetes_validate
documents = list(yaml.safe_load_all(sys.stdin))
for document in documents:
    for version in sys.argv[1:]:
        kubernetes_validate.validate(document, version, strict=True)
print(json.dumps(documents))
"""


def validated(python: Path, text: str) -> list[dict[str, Any]]:
    """Return the documents of YAML that all versions take."""
    done = subprocess.run(
        [str(python), "-c", VALIDATE, *VERSIONS], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def written(folder: Path, *words: str) -> str:
    """Return the YAML that `orchestra run --write` writes."""
    experiment = [sys.executable, "-m", "orchestra", "run", "experiments/qmix_8m.py", *QUICK, "--as", "mine"]
    kubernetes = ["--launch", "kubernetes", "--image", "rl:1", "--volume", "runs", "--write", str(folder), *words]
    subprocess.run([*experiment, *kubernetes], cwd=ROOT, check=True, timeout=120, capture_output=True)
    return (folder / "mine.yaml").read_text()


def test_the_yaml_is_taken_by_the_published_schemas_and_a_misspelt_field_is_not(
    kubernetes_python: Path, tmp_path: Path
) -> None:
    text = written(tmp_path, "--hosts", "3", "--head-gpus", "1", "--host-memory", "2Gi")
    assert [each["kind"] for each in validated(kubernetes_python, text)] == ["Service", "Job", "Job"]
    with pytest.raises(AssertionError, match="completionz"):
        validated(kubernetes_python, text.replace("completions:", "completionz:", 1))


class Cluster:
    """A run of pods."""

    def __init__(self, runner: PodRunner, secret: str) -> None:
        self.runner, self.secret = runner, secret
        self.head, self.hosts = runner.jobs["head"], runner.jobs["hosts"]

    @property
    def run(self) -> Path:
        return self.runner.claim / "qmix_3m" / "mine"

    def until(self, condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
        """Let the pods run until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.runner.step()
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.1)

    def until_playing(self, *slots: int) -> None:
        self.until(lambda: {host["slot"] for host in self.shown() if host.get("env_steps")} >= set(slots))

    def shown(self) -> list[dict[str, Any]]:
        path = self.run / "hosts.json"
        found: list[dict[str, Any]] = json.loads(path.read_text())["hosts"] if path.exists() else []
        return found

    def log(self, event: str) -> list[dict[str, Any]]:
        path = self.run / "logs" / "learner.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [each for each in map(json.loads, lines) if each["event"] == event]

    def story(self) -> str:
        logs = "".join(f"\n--- {path}\n{path.read_text()[-3000:]}" for path in self.run.glob("logs/learner.jsonl"))
        return self.runner.story() + logs


Start = Callable[..., Cluster]


@pytest.fixture
def start(pods: None, kubernetes_python: Path, tmp_path: Path) -> Iterator[Start]:
    runners: list[PodRunner] = []

    def begin(*words: str, wrong: bool = False) -> Cluster:
        documents = validated(kubernetes_python, written(tmp_path, *words))
        script = (tmp_path / "mine.sh").read_text()
        (address,) = [line.split("--join ")[1].rstrip(")") for line in script.splitlines() if "--join" in line]
        make = [sys.executable, "-m", "orchestra", "token", "--new", "--name", "mine", "--join", address]
        tokens = [subprocess.run(make, check=True, capture_output=True, text=True).stdout for _ in range(1 + wrong)]
        folder = tmp_path / "pods"
        folder.mkdir()
        runners.append(PodRunner(folder, documents, {"mine": {"token": tokens[0]}}))
        cluster = Cluster(runners[-1], json.loads(tokens[0])["secret"])
        if wrong:  # the hosts get another secret than the head
            cluster.head.step()
            runners[-1].secrets["mine"]["token"] = tokens[1]
        return cluster

    yield begin
    for runner in runners:
        runner.close()


def test_a_run_over_pods_completes_both_jobs_and_the_secret_is_nowhere_else(start: Start, tmp_path: Path) -> None:
    cluster = start("--hosts", "2")
    cluster.until(lambda: (cluster.head.state, cluster.hosts.state) == ("Complete", "Complete"))
    assert cluster.head.codes == [(0, 0)]
    assert sorted(cluster.hosts.codes) == [(0, 0), (1, 0)]
    assert [host["slot"] for host in cluster.shown()] == [1, 2]
    for path in [tmp_path / "mine.yaml", tmp_path / "mine.sh", *tmp_path.glob("pods/*/log"), *cluster.run.rglob("*")]:
        assert not path.is_file() or cluster.secret not in path.read_text(errors="replace"), path


def test_the_pod_of_a_host_that_is_deleted_leaves_with_75_and_another_takes_its_index(start: Start) -> None:
    cluster = start("--hosts", "2", *ENDLESS)
    cluster.until_playing(1, 2)
    cluster.hosts.pod(1).delete()
    cluster.until(lambda: (1, 75) in cluster.hosts.codes)
    cluster.until(lambda: len(cluster.log("host joined")) == 3)
    assert cluster.head.codes == []
    assert cluster.hosts.failures == 1


def test_a_deleted_head_saves_and_another_one_goes_on_with_the_hosts(start: Start) -> None:
    cluster = start("--hosts", "2", *ENDLESS)
    cluster.until_playing(1, 2)
    cluster.head.pod(0).delete()
    cluster.until(lambda: cluster.head.codes)
    assert cluster.head.codes == [(0, 75)]
    assert list((cluster.run / "state").iterdir()), "it has saved"
    assert cluster.head.failures == 0, "that counts as none"
    joined = len(cluster.log("host joined"))
    cluster.until(lambda: len(cluster.log("host joined")) >= joined + 2)
    assert cluster.hosts.state == "Running"


def test_hosts_with_another_secret_end_with_77_and_are_tried_a_limited_number_of_times(start: Start) -> None:
    cluster = start("--hosts", "1", wrong=True)
    cluster.hosts.spec["backoffLimit"] = 1
    cluster.until(lambda: cluster.hosts.state == "Failed")
    assert cluster.hosts.codes == [(0, 77), (0, 77)]
