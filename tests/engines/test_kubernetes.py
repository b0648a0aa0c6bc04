"""The YAML of a run against the published schemas, and its pods, run by the rules that were seen on a real cluster."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_runs import ENDLESS, QUICK, ROOT, SHARED, WatchedRun
from hosted_accounts import check_message_counts
from pod_runner import PodRunner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VERSIONS = ("1.29", "1.32", "1.35")
VALIDATE = """
import json, sys, yaml, kubernetes_validate
documents = list(yaml.safe_load_all(sys.stdin))
for document in documents:
    for version in sys.argv[1:]:
        kubernetes_validate.validate(document, version, strict=True)
print(json.dumps(documents))
"""


JOB_SET = """
import json, sys, yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
(sent,) = yaml.safe_load_all(sys.stdin)
print(json.dumps([sent, JobsetV1alpha2JobSet.from_dict(sent).to_dict()]))
"""
"""A model drops the fields that it does not know."""


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


def test_a_job_set_is_taken_whole_by_the_published_models_and_a_misspelt_field_is_not(
    kubernetes_python: Path, tmp_path: Path
) -> None:
    text = written(tmp_path, "--hosts", "3", "--head-gpus", "1", "--jobset")

    def lost(text: str) -> list[str]:
        words = [str(kubernetes_python), "-c", JOB_SET]
        done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=True)
        return [each.partition(":")[0] for each in lacking(*json.loads(done.stdout))]

    assert lost(text) == []
    assert lost(text.replace("replicas:", "replicaz:", 1)) == [".spec.replicatedJobs[0].replicaz"]


class Cluster(WatchedRun):
    """A run of pods."""

    def __init__(self, runner: PodRunner, secret: str) -> None:
        self.runner, self.secret = runner, secret
        self.head, self.hosts_job = runner.jobs["head"], runner.jobs["hosts"]

    @property
    def run(self) -> Path:
        return self.runner.claim / "qmix_3m" / "mine"

    def look(self) -> None:
        self.runner.step()

    def story(self) -> str:
        return self.runner.story() + super().story()


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
    cluster = start("--hosts", "3", *SHARED)
    cluster.until(lambda: (cluster.head.state, cluster.hosts_job.state) == ("Complete", "Complete"))
    assert cluster.head.codes == [(0, 0)]
    assert sorted(cluster.hosts_job.codes) == [(0, 0), (1, 0), (2, 0)]
    assert cluster.senders() == {"host-1", "host-2", "host-3"}
    for path in [tmp_path / "mine.yaml", tmp_path / "mine.sh", *tmp_path.glob("pods/*/log"), *cluster.run.rglob("*")]:
        assert not path.is_file() or cluster.secret not in path.read_text(errors="replace"), path


def test_the_pod_of_a_host_that_is_deleted_leaves_with_75_and_another_takes_its_index(start: Start) -> None:
    cluster = start("--hosts", "2", *ENDLESS)
    cluster.until_playing(1, 2)
    cluster.hosts_job.pod(1).delete()
    cluster.until(lambda: (1, 75) in cluster.hosts_job.codes)
    cluster.until(lambda: len(cluster.log("host joined")) == 3)
    assert cluster.head.codes == []
    assert cluster.hosts_job.failures == 1


def test_a_deleted_head_saves_and_another_one_goes_on_with_the_same_hosts(start: Start) -> None:
    cluster = start("--hosts", "2", *ENDLESS)
    cluster.until_playing(1, 2)
    cluster.until_playing()
    cluster.head.pod(0).delete()
    cluster.until(lambda: cluster.head.codes)
    assert cluster.head.codes == [(0, 75)]
    assert cluster.saved()
    assert cluster.head.failures == 0, "that counts as none"
    joined, saved = len(cluster.log("host joined")), max(cluster.steps())
    cluster.until(lambda: len(cluster.log("host joined")) >= joined + 2)
    cluster.until(lambda: max(cluster.steps()) > saved)
    steps = cluster.steps()
    assert all(step >= saved for step in steps[steps.index(saved) :]), "the run goes on from what it has saved"
    assert cluster.hosts_job.codes == [], "no agent has ended"
    assert cluster.hosts_job.state == "Running"


def test_a_host_whose_node_comes_back_is_told_to_end_for_another_has_its_index(start: Start) -> None:
    cluster = start("--hosts", "2", *ENDLESS)
    cluster.until_playing(1, 2)
    lost = cluster.hosts_job.pod(1)
    lost.freeze()
    cluster.until(lambda: len(cluster.log("host joined")) == 3)
    before = max(cluster.steps())
    cluster.until(lambda: max(cluster.steps()) > before)
    assert cluster.hosts_job.codes == [], "the node does not answer"
    lost.thaw()
    cluster.until(lambda: cluster.hosts_job.codes)
    assert cluster.hosts_job.codes == [(1, 75)], cluster.story()
    assert len([pod for pod in cluster.hosts_job.pods if pod.index == 1]) == 1
    cluster.head.pod(0).delete()
    cluster.until(lambda: cluster.head.codes)
    check_message_counts(cluster.run, restarted={"host-2"})


def test_hosts_with_another_secret_end_with_77_and_are_tried_a_limited_number_of_times(start: Start) -> None:
    cluster = start("--hosts", "1", wrong=True)
    cluster.hosts_job.spec["backoffLimit"] = 1
    cluster.until(lambda: cluster.hosts_job.state == "Failed")
    assert cluster.hosts_job.codes == [(0, 77), (0, 77)]


def test_a_head_that_cannot_read_its_secret_fails_its_job_at_once(start: Start) -> None:
    cluster = start("--hosts", "1")
    cluster.runner.secrets["mine"]["token"] = "no token"
    cluster.until(lambda: cluster.head.state == "Failed")
    assert cluster.head.codes == [(0, 2)]
    assert cluster.head.failures == 0, "a rule has failed it, and not a number of tries"


Kubectl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def kubectl() -> Kubectl:
    """A kubectl whose cluster is that of `KUBECONFIG`."""
    if not os.environ.get("KUBECONFIG") or shutil.which("kubectl") is None:
        pytest.skip("NOT TESTED HERE: there is no KUBECONFIG with a cluster, or no kubectl")

    def ask(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(("kubectl", *words), input=text, capture_output=True, text=True, timeout=60, check=False)

    return ask


APPLY = ("apply", "--dry-run=server", "--validate=strict", "--output=json", "--filename=-")


def test_a_server_takes_what_is_written_as_it_stands_and_refuses_slips(
    kubectl: Kubectl, kubernetes_python: Path, tmp_path: Path
) -> None:
    text = written(tmp_path, "--hosts", "3", "--head-gpus", "1", "--host-memory", "2Gi")
    done = kubectl(*APPLY, text=text)
    assert done.returncode == 0, done.stderr
    for sent, back in zip(validated(kubernetes_python, text), json.loads(done.stdout)["items"], strict=True):
        assert lacking(sent, back) == []
    for right, wrong in (("completions:", "completionz:"), ("restartPolicy: Never", "restartPolicy: OnFailure")):
        assert kubectl(*APPLY, text=text.replace(right, wrong)).returncode != 0, wrong


def test_a_server_that_knows_job_sets_takes_one_and_refuses_a_misspelt_field(kubectl: Kubectl, tmp_path: Path) -> None:
    if kubectl("get", "crd", "jobsets.jobset.x-k8s.io").returncode:
        pytest.skip("NOT TESTED HERE: the cluster of KUBECONFIG knows no JobSet")
    text = written(tmp_path, "--hosts", "3", "--jobset")
    done = kubectl(*APPLY, text=text)
    assert done.returncode == 0, done.stderr
    assert kubectl(*APPLY, text=text.replace("replicas:", "replicaz:", 1)).returncode != 0


def lacking(sent: Any, back: Any, where: str = "") -> list[str]:
    """Return the places of what was sent that did not come back."""
    if isinstance(sent, dict):
        return [each for key, value in sent.items() for each in lacking(value, (back or {}).get(key), f"{where}.{key}")]
    if isinstance(sent, list):
        pairs = zip(sent, [*(back or ()), *[None] * len(sent)], strict=False)
        return [each for place, (one, other) in enumerate(pairs) for each in lacking(one, other, f"{where}[{place}]")]
    return [] if str(sent) == str(back) else [f"{where}: sent {sent!r}, and {back!r} came back"]
