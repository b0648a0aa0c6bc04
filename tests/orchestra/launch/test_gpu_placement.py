"""The learner is where a GPU was asked for, and workers are where none was, on each engine that starts the head."""

import re
from pathlib import Path
from typing import Any

import pytest

from orchestra.cli.main import main

EXPERIMENT = Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py"


def asked_for(engine: str, text: str) -> tuple[int, int]:
    """Return the GPUs that a submission asks for the head and for each host."""
    if engine == "slurm":
        head, hosts = (re.findall(r"--gpus-per-node=(\d+)", part) for part in text.split("#SBATCH hetjob"))
        return int((head or [0])[0]), int((hosts or [0])[0])
    if engine == "kubernetes":
        head, hosts = (re.findall(r'nvidia.com/gpu: "(\d+)"', part) for part in text.split("name: gpu-hosts")[:2])
        return int((head or [0])[0]), int((hosts or [0])[0])
    found: Any = re.findall(r"--entrypoint-num-gpus (\d+)", text)
    return int((found or [0])[0]), int((re.findall(r"--host-gpus (\d+)", text) or [0])[0])


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("slurm", ["--cpus-per-task", "4"]),
        ("ray", ["--ray-address", "http://head:8265"]),
        ("kubernetes", ["--image", "rl:1"]),
    ],
)
def test_the_learner_is_on_the_host_with_the_gpu_and_no_worker_is(
    engine: str, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    words = ["run", str(EXPERIMENT), "--launch", engine, "--hosts", "3", "--as", "gpu", "--head-gpus", "1", *flags]
    assert main([*words, "--device", "cuda", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert asked_for(engine, out) == (1, 0)
    learner = re.search(r"learner +on host (\d)", out)
    assert learner is not None
    gpus = dict(re.findall(r"host (\d) \(.*?\): .* cores?(?:, (\d) GPU)?", out))
    assert gpus == {"0": "1", "1": "", "2": ""} | ({"3": ""} if engine != "slurm" else {})
    assert learner[1] == "0"
    assert set(re.findall(r"worker-\d-\d +on host (\d)", out)) >= {"1", "2"}
