"""A resumed run has every setting of the run that it continues, unless another one is given."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory, UsageError
from orchestra.cli.main import main
from orchestra.runs.api import carry_out
from orchestra.runs.plan import OPTIONS, PlannedRun, plan

FILE = """
from orchestra import Actor, Hosts, Message, Topology, on

class GoMsg(Message):
    pass

class Boss(Actor[GoMsg]):
    async def started(self):
        self.stop()

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...

def experiment(*, hosts: Hosts, workers: int = 1, api_token: str | None = None) -> Topology:
    topology = Topology("short")
    topology.until(topology.node("root").spawn("boss", Boss))
    for number in range(workers):
        topology.node(f"w{number}")
    return topology
"""
# A value of each option that is not its default, and the other options that it requires.
OTHER: dict[str, dict[str, Any]] = {
    "seed": {"seed": 7},
    "runs_dir": {"runs_dir": Path("elsewhere")},
    "single_process": {"single_process": True},
    "listen": {"listen": "tcp://localhost:0"},
    "tls_dir": {"tls_dir": Path("certificates"), "listen": "tls://127.0.0.1:0"},
    "tls": {"tls": "off"},
    "shared_memory": {"shared_memory": 3},
    "log_level": {"log_level": "warning"},
    "quiet": {"quiet": True},
    "trace": {"trace": "full"},
    "trace_include": {"trace_include": ("root/*", "Go*")},
    "trace_exclude": {"trace_exclude": ("*/system",)},
    "trace_flight_mib": {"trace_flight_mib": 2},
    "trace_at_end": {"trace_at_end": True},
    "hosts": {"hosts": "cpu1,cpu2"},
    "launch": {"launch": "ssh", "hosts": "cpu1"},
    "min_hosts": {"min_hosts": 1, "hosts": "2", "launch": "local"},
    "max_hosts": {"max_hosts": 3, "hosts": "cpu1"},
    "join_timeout": {"join_timeout": 7.0, "hosts": "cpu1"},
    "grace": {"grace": 30.0, "hosts": "cpu1"},
    "orphan_timeout": {"orphan_timeout": 9.0, "hosts": "cpu1"},
    "port": {"port": "41000-41010", "hosts": "cpu1"},
    "advertise": {"advertise": ("head.example.org",), "hosts": "cpu1"},
    "token": {"token": Path("token"), "hosts": "cpu1"},
    "scratch": {"scratch": "/scratch", "hosts": "2", "launch": "local"},
    "python": {"python": "/opt/python3", "hosts": "cpu1"},
    "setup": {"setup": "module load cuda", "hosts": "cpu1"},
    "ssh": {"ssh": "ssh -F config", "hosts": "cpu1"},
    "ssh_parallel": {"ssh_parallel": 4, "hosts": "cpu1"},
    "tunnel": {"tunnel": True, "hosts": "cpu1"},
    "ship": {"ship": ("maps",), "hosts": "cpu1"},
    "code": {"code": "installed", "hosts": "cpu1"},
    "allow_mixed_python": {"allow_mixed_python": True, "hosts": "cpu1"},
}
SLURM: dict[str, Any] = {
    **dict.fromkeys(("partition", "head_partition", "account", "qos", "constraint", "reservation", "exclude"), "gpu"),
    **dict.fromkeys(("gpu_type", "job_name"), "gpu"),
    **dict.fromkeys(("cpus_per_task", "gpus_per_node", "head_gpus", "head_cores", "max_restarts", "sweep_parallel"), 2),
    **dict.fromkeys(("once", "detach", "debug", "head_here"), True),
    "time": "10:00",
    "mem": "4G",
    "sbatch": ("--mail-type=END",),
    "sweep": ("seed=0..3",),
}
OTHER |= {name: {name: value, "launch": "slurm", "hosts": "3"} for name, value in SLURM.items()}
KUBERNETES: dict[str, Any] = {
    **dict.fromkeys(("image", "namespace", "volume", "write"), "runs"),
    **dict.fromkeys(("jobset", "pack"), True),
    "head_memory": "4Gi",
}
OTHER |= {
    name: {"image": "runs", name: value, "launch": "kubernetes", "hosts": "3"} for name, value in KUBERNETES.items()
}
RAY: dict[str, Any] = {
    "ray_address": "head:6379",
    "runtime_env_json": '{"pip": ["cowsay"]}',
    "host_cores": 2,
    "host_gpus": 1,
    "host_memory": "4Gi",
}
OTHER |= {name: {name: value, "launch": "ray", "hosts": "3"} for name, value in RAY.items()}
RESUMED = [flag.name for flag in OPTIONS if flag.name not in ("resume", "as_", "head")]
"""`--as` says where a run is, and `--head` starts the whole command elsewhere."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificates: Callable[..., Path]) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder in ("certificates", "others"):
        (tmp_path / folder).symlink_to(certificates("ours"))
    path = tmp_path / "short.py"
    path.write_text(FILE)
    return path


def carried_out(file: Path, **options: Any) -> tuple[PlannedRun, RunDirectory]:
    """Return a run in one process, as planned, and its directory, with a state from which it can be resumed."""
    planned = plan(file, **options)
    run = carry_out(replace(planned, listen=None, hosts=None)).directory
    (run.state / "steps-1").mkdir(parents=True, exist_ok=True)
    return planned, run


def settings(planned: PlannedRun) -> dict[str, Any]:
    """Return all that a planned run has been told, but for where it is, and the words that asked for it."""
    return {
        "launch": replace(planned.launch, flags=()),
        "listen": planned.listen,
        "values": planned.layout.values,
        "options": planned.options,
        "nodes": list(planned.topology.nodes),
        "hosts": planned.hosts,
        "shapes": planned.shapes,
    }


def test_every_option_has_another_value_in_this_test() -> None:
    assert set(OTHER) == set(RESUMED)
    for name, values in OTHER.items():
        assert values[name] != OPTIONS.defaults[name]


@pytest.mark.parametrize("name", RESUMED)
def test_a_resumed_run_has_every_option_of_the_run(file: Path, name: str) -> None:
    first, run = carried_out(file, **OTHER[name], workers=2)
    resumed = plan(resume=run.path)
    assert resumed.resumed is not None
    assert settings(resumed) == settings(first)
    again = carry_out(replace(resumed, listen=None, hosts=None)).directory  # and a run that is resumed once more
    assert again.path == run.path
    assert settings(plan(resume=run.path)) == settings(first)


@pytest.mark.parametrize("name", sorted(set(RESUMED) - {"seed"}))
def test_an_option_that_is_given_replaces_that_of_the_run(file: Path, name: str) -> None:
    needed = {other: value for other, value in OTHER[name].items() if other != name}
    _, run = carried_out(file, **OTHER[name])
    given = {**needed, name: Path("others") if name == "tls_dir" else OPTIONS.defaults[name]}
    assert settings(plan(resume=run.path, **given)) == settings(plan(file, **given))


def test_the_command_line_resumes_with_every_setting(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seed=7", "--single-process", str(file), "--quiet", "--trace=full", "--workers=2"]) == 0
    run = RunDirectory.newest(Path("runs"))
    (run.state / "steps-1").mkdir(parents=True)
    before = run.config()
    assert before["options"]["single_process"] is True
    for path in run.traces.iterdir():
        path.unlink()
    assert main(["run", "--resume", str(run.path)]) == 0
    assert capsys.readouterr().out.count("trace: ") == 2  # recorded, and in one process that has no join address
    assert {name: run.config()[name] for name in ("options", "flags", "seed")} == {
        name: before[name] for name in ("options", "flags", "seed")
    }


@pytest.mark.parametrize(("mode", "kept"), [("off", False), ("digest", True), ("full", True)])
def test_another_mode_of_recording_drops_what_it_does_not_allow(file: Path, mode: str, kept: bool) -> None:
    _, run = carried_out(file, trace_include=("root/*",), trace_at_end=True)
    trace = plan(resume=run.path, trace=mode).launch.trace  # type: ignore[arg-type]  # one of the modes
    assert (trace.mode, trace.at_end) == (mode, False)
    assert tuple(trace.include) == (("root/*",) if kept else ())


def test_a_secret_that_was_not_recorded_has_to_be_given_again(file: Path) -> None:
    _, run = carried_out(file, api_token="abc")
    with pytest.raises(UsageError) as caught:
        plan(resume=run.path)
    assert str(caught.value) == "--api-token: a secret is not recorded in a run directory; give it again"
    assert plan(resume=run.path, api_token="abc").layout.values["api_token"] == "abc"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (None, "its config.json lacks 'options'"),
        ({"trace": "loud"}, "its config.json is damaged: --trace: unknown choice 'loud'"),
        ({"sed": 1}, "its config.json is damaged: unknown flag --sed (did you mean --seed?)"),
    ],
)
def test_options_that_are_damaged_are_refused_in_one_sentence(file: Path, damage: Any, said: str) -> None:
    _, run = carried_out(file)
    run.config_path.write_text(json.dumps(run.config() | {"options": damage}))
    with pytest.raises(UsageError) as caught:
        plan(resume=run.path)
    assert str(caught.value).startswith(f"{str(run.path)!r}: {said}")
