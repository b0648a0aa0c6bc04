"""The script of a job asks SLURM for what was asked of orchestra and for nothing else, and holds no secret."""

import shlex
import subprocess
import sys
import tempfile
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.launch.engine import AskedHosts, HeadJob
from orchestra.launch.slurm import ENGINE
from orchestra.launch.slurm_queue import SlurmSubmitter, config_of
from orchestra.launch.slurm_script import FLAGS, SlurmConfig, job_script, seconds_of, sweep_of

WHOLE = f"""#!/bin/bash
#SBATCH --job-name=orchestra-qmix_8m
#SBATCH --output=runs/qmix_8m/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=04:00:00
#SBATCH --partition=cpu
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --no-kill
cd -- "$SLURM_SUBMIT_DIR" || exit 2
module load cuda
exec {shlex.quote(sys.executable)} -m orchestra run qmix_8m.py --launch=slurm --hosts=8 --as "slurm-$SLURM_JOB_ID"
"""


def asked(hosts: int = 8, **more: Any) -> HeadJob:
    given: dict[str, Any] = {
        "experiment": "qmix_8m",
        "words": ("qmix_8m.py", "--launch=slurm", f"--hosts={hosts}"),
        "name": None,
        "resumes": False,
        "folder": "runs/qmix_8m",
        "hosts": AskedHosts(
            tuple(HostSettings(slot) for slot in range(1, hosts)), HostSettings(0), head_elsewhere=True
        ),
        "settings": {},
        "grace": 120.0,
    }
    return HeadJob(**given | more)


def script(hosts: int = 8, **more: Any) -> str:
    return SlurmSubmitter().submission(asked(hosts, **more)).files["job.sbatch"]


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def test_the_script_is_this_one() -> None:
    settings = {"partition": "cpu", "time": "04:00:00", "cpus_per_task": 16, "setup": "module load cuda"}
    submission = SlurmSubmitter().submission(asked(settings=settings))
    assert submission.files == {"job.sbatch": WHOLE}
    assert submission.commands == (("sbatch", "--parsable"),)
    assert str(submission) == f"--- job.sbatch\n{WHOLE.rstrip()}\n---\nsbatch --parsable < job.sbatch"


def test_only_what_was_asked_for_is_written() -> None:
    names = {line.partition("=")[0] for line in directives(script())}
    assert names == {
        *(
            "--job-name",
            "--output",
            "--open-mode",
            "--nodes",
            "--ntasks-per-node",
            "--signal",
            "--requeue",
            "--no-kill",
        ),
    }


def test_each_flag_of_slurm_has_its_place_in_the_config_and_each_field_a_flag() -> None:
    known = {name for name in ENGINE.flags.__annotations__ if name != "return"}
    assert set(FLAGS) | {"nodes", "grace", "requeue"} == {field.name for field in fields(SlurmConfig)}
    assert set(FLAGS.values()) | {"once", "max_restarts", "sweep", "sweep_parallel", "detach", "head_here"} == known
    assert ENGINE.submit_flags <= known


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"gpus_per_node": 2}, "--gpus-per-node=2"),
        ({"gpus_per_node": 2, "gpu_type": "a100"}, "--gpus-per-node=a100:2"),
        ({"account": "lab"}, "--account=lab"),
        ({"qos": "high"}, "--qos=high"),
        ({"constraint": "avx512"}, "--constraint=avx512"),
        ({"reservation": "mine"}, "--reservation=mine"),
        ({"exclude": "n[3-5],n9"}, "--exclude=n[3-5],n9"),
        ({"mem": "16G"}, "--mem=16G"),
        ({"job_name": "x"}, "--job-name=x"),
        ({"once": True}, "--no-requeue"),
        ({"sbatch": ("--mail-type=END",)}, "--mail-type=END"),
    ],
)
def test_what_was_asked_for_is_written(settings: dict[str, Any], written: str) -> None:
    assert written in directives(script(settings=settings))


def test_an_option_of_the_user_comes_last_and_so_wins() -> None:
    written = directives(script(2, settings={"sbatch": ("--signal=B:TERM@30",), "head_gpus": 1}))
    head, others = written[: written.index("hetjob")], written[written.index("hetjob") :]
    assert head[-1] == others[-1] == "--signal=B:TERM@30"
    assert "--signal=B:TERM@120" in head


def test_a_head_with_a_gpu_gets_a_node_of_its_own_kind() -> None:
    settings = {"head_gpus": 1, "gpu_type": "a100", "head_partition": "gpu", "partition": "cpu", "cpus_per_task": 16}
    written = directives(script(4, settings={**settings, "time": "60"}))
    apart = written.index("hetjob")
    head, others = written[:apart], written[apart + 1 :]
    assert {"--nodes=1", "--gpus-per-node=a100:1", "--partition=gpu", "--time=60"} <= set(head)
    assert {"--nodes=3", "--cpus-per-task=16", "--partition=cpu", "--time=60"} <= set(others)
    assert not [line for line in others if "gpu" in line.lower()]


def test_a_single_host_is_the_head() -> None:
    written = directives(script(1, settings={"head_gpus": 1, "cpus_per_task": 4}))
    assert "hetjob" not in written
    assert {"--nodes=1", "--gpus-per-node=1", "--cpus-per-task=4"} <= set(written)


@pytest.mark.parametrize(
    ("time", "warned"), [("", True), ("4:00:00", True), ("4", False), ("3-00", True), ("0:30", False)]
)
def test_a_short_job_is_not_told_of_its_end(time: str, warned: bool) -> None:
    settings = {"time": time} if time else {}
    assert ("--signal=B:TERM@120" in directives(script(settings=settings))) is warned


def test_a_run_with_a_name_keeps_it_and_one_that_is_resumed_gets_none() -> None:
    assert script(name="best").rstrip().endswith("--hosts=8 --as best")
    assert script(resumes=True, words=("--resume", "runs/x/y")).rstrip().endswith("run --resume runs/x/y")


def test_a_sweep_is_an_array_of_runs_with_flags_and_names_of_their_own() -> None:
    text = script(2, settings={"sweep": ("seed=0..1", "algorithm=qmix,vdn"), "sweep_parallel": 2})
    assert {"--array=0-3%2", "--output=runs/qmix_8m/slurm-%A-%a.log"} <= set(directives(text))
    start = text.index("case")
    body = text[start:].replace("exec ", "echo ")
    said = []
    for task in range(4):
        variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": str(task)}
        said.append(
            subprocess.run(["sh", "-c", body], env=variables, capture_output=True, text=True, check=True).stdout
        )
    assert [line.partition("--as ")[2].strip() for line in said] == [
        *("slurm-7-0 --seed=0 --algorithm=qmix", "slurm-7-1 --seed=0 --algorithm=vdn"),
        *("slurm-7-2 --seed=1 --algorithm=qmix", "slurm-7-3 --seed=1 --algorithm=vdn"),
    ]


def test_the_flags_of_a_sweep_are_checked() -> None:
    checked: list[list[str]] = []
    script(2, settings={"sweep": ("seed=0..1",)}, check=checked.append)
    assert checked == [["--seed=0"], ["--seed=1"]]
    with pytest.raises(UsageError, match="--sweep: a run that is resumed is one run"):
        script(2, settings={"sweep": ("seed=0..1",)}, resumes=True)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seed", "--sweep: 'seed' is no setting: write NAME=FIRST..LAST or NAME=VALUE,VALUE"),
        ("seed=", "--sweep: 'seed=' is no setting"),
        ("--seed=1", "--sweep: '--seed=1' is no setting"),
        ("seed=3..1", "--sweep: 'seed=3..1' has 0 values; 1 to 1000 are allowed"),
        ("seed=0..1000", "--sweep: 'seed=0..1000' has 1001 values"),
    ],
)
def test_a_sweep_that_is_none_is_refused(setting: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        sweep_of([setting])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, "nodes is 0: it must be 1 or more"),
        ({"gpus_per_node": -1}, "gpus_per_node is -1: it must be 0 or more"),
        ({"partition": "a b"}, "partition is 'a b': a value of an option of sbatch has no spaces"),
        ({"job_name": "a\n#SBATCH --wrap=x"}, "job_name is "),
        ({"extra": ("rm -rf",)}, "'rm -rf' is no option of sbatch"),
        ({"time_limit": "soon"}, "'soon' is no time: write MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES"),
    ],
)
def test_a_config_that_sbatch_would_not_take_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        SlurmConfig(**given)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("30", 1800), ("2:30", 150), ("1:00:00", 3600), ("1-00", 86400), ("1-02:30", 95400), ("1-02:30:01", 95401)),
        *(("", None), ("UNLIMITED", None)),
    ],
)
def test_a_time_is_read_as_sbatch_reads_it(text: str, seconds: int | None) -> None:
    assert seconds_of(text) == seconds


@given(words=st.lists(st.text(st.characters(min_codepoint=1, exclude_categories=("Cs",)), max_size=20), max_size=4))
def test_the_head_gets_every_word_as_it_was_typed(words: list[str]) -> None:
    text = job_script(SlurmConfig(python="printf"), asked(words=("%s\\0", *words), name="n"))
    line = text[text.index("exec ") :].replace("exec printf -m orchestra run", "exec printf", 1)
    with tempfile.TemporaryDirectory() as folder:  # where a word that is not quoted may do what it likes
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, cwd=folder)
    assert done.stdout == b"".join(word.encode() + b"\0" for word in [*words, "--as", "n"])


def test_the_settings_of_an_environment_of_a_cluster_are_those_of_the_command() -> None:
    flags = {"partition": "gpu", "gpus_per_node": 1, "gpu_type": "a100", "time": "2:00:00", "cpus_per_task": 4}
    config = SlurmConfig(
        job_name="orchestra-qmix_8m",
        nodes=3,
        partition="gpu",
        gpus_per_node=1,
        gpu_type="a100",
        time_limit="2:00:00",
        cpus_per_task=4,
    )
    assert config_of(asked(3, settings=flags)) == config
