"""What is asked of Kubernetes, as objects, YAML and a script. `tests/engines/test_kubernetes.py` runs the pods."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import UsageError
from orchestra.launch.engine import HeadJob
from orchestra.launch.kubernetes import KubernetesSubmitter, hosts_of
from orchestra.launch.kubernetes_yaml import yaml_of

GOLDEN = Path(__file__).with_name("kubernetes.yaml")
GOLDEN_JOB_SET = GOLDEN.with_name("kubernetes_jobset.yaml")
IMAGE = {"image": "registry.example/rl:1"}


def job(settings: dict[str, Any], *, name: str | None = "monday", resumes: bool = False) -> HeadJob:
    words = ("experiments/qmix_8m.py", "--launch", "kubernetes", "--hosts", "3")
    return HeadJob("qmix_8m", words, name, resumes, "runs/qmix_8m", hosts_of(3, settings, {}), settings, 119.5)


def files(settings: dict[str, Any], **more: Any) -> tuple[str, str]:
    """Return the YAML and the script of a run."""
    asked = KubernetesSubmitter().submission(job(IMAGE | settings, **more))
    found, script = asked.files.values()
    return found, script


def test_the_yaml_of_a_run_is_as_checked_on_a_cluster() -> None:
    found, _ = files({"host_cores": 4, "host_memory": "8Gi", "head_gpus": 1, "volume": "runs"})
    assert found == GOLDEN.read_text()


def test_a_run_without_a_volume_keeps_its_directory_as_long_as_its_pod() -> None:
    assert "claimName" not in files({})[0]
    assert files({})[0].count("emptyDir: {}") == 3


def test_the_learner_alone_asks_for_a_gpu() -> None:
    head, hosts = files({"head_gpus": 2})[0].split("---\n")[1:]
    assert head.count('nvidia.com/gpu: "2"') == 2, "a request, and a limit"
    assert "nvidia.com/gpu" not in hosts


def test_hosts_are_replaced_however_they_end_and_the_head_is_not_if_that_is_useless() -> None:
    head, hosts = files({})[0].split("---\n")[1:]
    assert "values: [2, 76, 77]" in head
    assert "podFailurePolicy" not in hosts
    assert "backoffLimit: 60" in hosts
    assert "terminationGracePeriodSeconds: 130" in head


def test_a_job_set_has_the_same_jobs_and_names_pods_by_its_own_rule() -> None:
    found, script = files({"jobset": True})
    assert found == GOLDEN_JOB_SET.read_text()
    assert "kind: JobSet" in found
    assert "kind: Service" not in found
    assert found.count("subdomain: monday") == 1, "the JobSet gives it to its pods"
    assert "--join tls://monday-head-0-0.monday:41000" in script
    assert "patch job" not in script.replace("patch jobset", "")


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with a kubectl and an orchestra that write down how they were called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    text = '#!/bin/sh\necho "$*" >>"$0.called"\n'
    (programs / "kubectl").write_text(
        text + 'case "$*" in *create\\ secret*) cat >"$0.input";; *get\\ job*) printf 17-a;; esac\n'
    )
    (programs / "orchestra").write_text(text + 'echo \'{"secret": "abc"}\'\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    return programs


def test_the_script_gives_the_token_to_kubectl_by_a_pipe_alone(commands: Path, tmp_path: Path) -> None:
    found, script = files({"namespace": "team"})
    (tmp_path / "monday.yaml").write_text(found)
    (tmp_path / "monday.sh").write_text(script)
    path = {"PATH": f"{commands}:{os.environ['PATH']}"}
    subprocess.run(["sh", str(tmp_path / "monday.sh")], check=True, env={**os.environ, **path})
    assert (commands / "kubectl.input").read_text() == '{"secret": "abc"}\n'
    assert (commands / "orchestra.called").read_text() == (
        "token --new --name monday --join tls://monday-head-0.monday:41000\n"
    )
    called = (commands / "kubectl.called").read_text().splitlines()
    assert "abc" not in "".join(called) + found + script
    owner = (
        '{"metadata":{"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"monday-head","uid":"17-a"}]}}'
    )
    assert called == [
        "--namespace team create -f monday.yaml",
        "--namespace team create secret generic monday --from-file=token=/dev/stdin",
        "--namespace team get job/monday-head -o jsonpath={.metadata.uid}",
        *(
            f"--namespace team patch {each} --type=merge -p {owner}"
            for each in ("secret/monday", "service/monday", "job/monday-hosts")
        ),
        *(
            f'--namespace team patch job/monday-{part} --type=merge -p {{"spec":{{"suspend":false}}}}'
            for part in ("head", "hosts")
        ),
    ]


def test_nothing_is_made_if_there_is_no_token(commands: Path, tmp_path: Path) -> None:
    (commands / "orchestra").write_text("#!/bin/sh\nexit 2\n")
    (tmp_path / "monday.sh").write_text(files({})[1])
    path = {"PATH": f"{commands}:{os.environ['PATH']}"}
    assert subprocess.run(["sh", str(tmp_path / "monday.sh")], env={**os.environ, **path}, check=False).returncode == 2
    assert not (commands / "kubectl.called").exists()


def test_the_head_in_its_pod_asks_for_nothing() -> None:
    assert not hosts_of(3, {}, {"JOB_COMPLETION_INDEX": "0"}).head_elsewhere
    assert hosts_of(3, {}, {}).head_elsewhere


@pytest.mark.parametrize(
    ("settings", "more", "text"),
    [
        ({"image": ""}, {}, "needs --image"),
        ({}, {"name": "Monday_1"}, "--as Monday_1: it names pods, too"),
        ({}, {"name": "m" * 41}, "at most 40"),
        ({}, {"resumes": True}, "--as NAME goes on there"),
        ({"host_memory": "5Potatoes"}, {}, "no amount of memory"),
    ],
)
def test_what_kubernetes_could_not_take_is_refused(settings: dict[str, Any], more: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        files(settings, **more)


def test_a_run_without_a_name_has_that_of_its_experiment() -> None:
    assert list(KubernetesSubmitter().submission(job(IMAGE, name=None)).files) == ["qmix-8m.yaml", "qmix-8m.sh"]


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=8)


@given(TEXTS | st.booleans() | st.none() | st.integers())
def test_every_scalar_is_read_as_what_it_is(value: Any) -> None:
    written = yaml_of([{"value": value}]).removeprefix("value: ").removesuffix("\n")
    if written == value:  # without quotes
        assert re.fullmatch(r"[A-Za-z/][\w./-]*", written, re.ASCII)
        assert written.lower() not in {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
    else:
        assert json.loads(written) == value
