"""What is asked of Ray, as text, and what is refused before. `tests/engines/test_ray.py` asks a real cluster."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from orchestra.errors import UsageError
from orchestra.hosts.token import JoinToken
from orchestra.launch.engine import HeadJob, bytes_of
from orchestra.launch.engines import ENGINES
from orchestra.launch.protocol import HostRequest
from orchestra.launch.ray import GROUP, RayLauncher, hosts_of, with_address
from orchestra.launch.ray_job import RaySubmitter

PLAN = cast("Any", None)
OUTSIDE = {"ray_address": "http://head:8265"}


def submission(settings: dict[str, Any], number: int = 2) -> Any:
    hosts = hosts_of(number, settings).hosts
    launcher = RayLauncher(hosts, python=settings.get("python", ""))
    requests = [HostRequest(host.slot, host.name, host.cores, host.gpus, host.memory) for host in hosts]
    return launcher.submission(PLAN, requests)


def test_each_host_is_a_bundle_on_a_node_of_its_own() -> None:
    asked = submission({"host_cores": 4, "host_gpus": 1, "host_memory": "2Gi"})
    agent = ["python", "-m", "orchestra", "host", "--token", "-", "--bound", "--slot"]
    assert json.loads(asked.files[GROUP]) == {
        "strategy": "STRICT_SPREAD",
        "bundles": [{"CPU": 4, "GPU": 1, "memory": 2 << 30}] * 2,
        "agents": {"1": [*agent, "1"], "2": [*agent, "2"]},
    }
    assert asked.commands == ()


def test_a_host_for_which_nothing_is_asked_has_one_core_and_no_gpu() -> None:
    assert json.loads(submission({}).files[GROUP])["bundles"] == [{"CPU": 1}] * 2
    assert [(host.cores, host.gpus) for host in hosts_of(2, {}).hosts] == [(1, 0)] * 2


def test_agents_try_the_address_that_ray_knows_first() -> None:
    token = JoinToken.new("run", ("tls://10.0.0.1:4100", "tls://10.9.0.1:4100"), tls=None)
    found = JoinToken.parse(with_address(token.line(), "10.9.0.1").encode(), source="test")
    assert found.join == ("tls://10.9.0.1:4100", "tls://10.0.0.1:4100")
    assert JoinToken.parse(with_address(token.line(), "fd00::1").encode(), source="test").join[0] == (
        "tls://[fd00::1]:4100"
    )


def job(settings: dict[str, Any], name: str | None = "try") -> HeadJob:
    hosts = hosts_of(2, OUTSIDE | settings)
    words = ("a.py", "--launch", "ray", "--hosts", "2")
    return HeadJob("a", words, name, False, "/shared/runs/a", hosts, OUTSIDE | settings, 119.5)


def test_a_job_has_the_grace_of_the_run_and_the_threads_of_its_machine() -> None:
    (command,) = RaySubmitter("http://head:8265").submission(job({"runtime_env_json": '{"pip": ["x"]}'})).commands
    place = command.index("--runtime-env-json")
    assert json.loads(command[place + 1]) == {"pip": ["x"], "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "120"}}
    assert (*command[:place], *command[place + 2 :]) == (
        *("ray", "job", "submit", "--address", "http://head:8265", "--working-dir", "."),
        *("--entrypoint-num-cpus", "1", "--", "env", "OMP_NUM_THREADS=1"),
        *("python", "-m", "orchestra", "run", "a.py", "--launch", "ray", "--hosts", "2"),
        *("--runs-dir", "/shared/runs", "--as", "try"),
    )


def test_the_runs_of_the_folder_are_not_sent_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hosts = hosts_of(2, OUTSIDE)
    inside = HeadJob("a", ("a.py",), "try", False, "my/runs/a", hosts, OUTSIDE, 120.0)
    (command,) = RaySubmitter("http://head:8265").submission(inside).commands
    assert json.loads(command[command.index("--runtime-env-json") + 1])["excludes"] == ["/my/runs/"]


def test_the_learner_gets_the_gpu_and_the_cores_that_are_asked_for_the_head() -> None:
    (command,) = RaySubmitter("http://head:8265").submission(job({"head_gpus": 1, "head_cores": 8}, None)).commands
    text = " ".join(command)
    assert "--entrypoint-num-cpus 8 --entrypoint-num-gpus 1 " in text
    assert " -- env OMP_NUM_THREADS=8 python " in text
    assert "--as" not in command


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ray_address": "ray://h:10001"}, "client protocol"),
        ({"head_gpus": 1}, "--head-gpus is for a job that is submitted: add --ray-address http"),
        ({"runtime_env_json": "pip"}, "--runtime-env-json is no JSON"),
        ({"runtime_env_json": "[]"}, "must be an object"),
        ({"host_memory": "5Potatoes"}, "--host-memory: '5Potatoes' is no amount of memory"),
    ],
)
def test_what_cannot_be_asked_of_ray_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        hosts_of(2, settings)


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    launcher = ENGINES["ray"].launcher(hosts_of(2, {}).hosts, {})
    with pytest.raises(UsageError, match=r"pip install 'orchestra-rl\[ray\]'"):
        asyncio.run(launcher.start(submission({}), "{}"))


@pytest.mark.parametrize(("text", "nbytes"), [("", 0), ("7", 7), ("2G", 2 * 10**9), ("3Mi", 3 << 20)])
def test_amounts_of_memory_are_read_as_kubernetes_writes_them(text: str, nbytes: int) -> None:
    assert bytes_of("--host-memory", text) == nbytes
