"""What a run over several hosts was asked to do, from flags and from a file; a slip is named with its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import orchestra
from orchestra import Replay, UsageError, recorded_hosts
from orchestra.cli.main import main
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HostShape
from orchestra.runs.api import carry_out
from orchestra.runs.hosts_options import HOST_FLAGS, HostsOptions, hosts_options
from orchestra.runs.plan import plan

THIS = HostShape(0, "here", 8, 1, 16 << 30)
FILE = """
[launch]
join-timeout = 90
min_hosts = 1
python = "/opt/py/bin/python3"
tunnel = true

[[host]]
name = "here"
cores = 4

[[host]]
name = "cpu1"
memory = "1.5 GiB"

[[host]]
name = "me@cpu3:2222"
cores = 16
gpus = 2
python = "/usr/bin/python3"
setup = "module load cuda"
scratch = "/scratch/me"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(**given: Any) -> HostsOptions:
    found = hosts_options(given)
    assert found is not None
    return found


def written(text: str) -> str:
    Path("hosts.toml").write_text(text)
    return "hosts.toml"


def test_names_are_hosts_for_ssh_and_here_is_the_head_that_plays() -> None:
    options = asked(hosts="here,cpu1,me@cpu3:2222,[fd00::5]:22")
    assert (options.engine, options.head_plays) == ("ssh", True)
    assert options.hosts == (
        HostSettings(1, "cpu1"),
        HostSettings(2, "cpu3", user="me", port=2222),
        HostSettings(3, "fd00::5", port=22),
    )
    assert (options.min_hosts, options.join_timeout, options.grace, options.orphan_timeout) == (3, 60, 120, 300)
    assert [(host.slot, host.name, host.cores, host.plays) for host in options.shapes(THIS)] == [
        *((0, "here", 8, True), (1, "cpu1", 0, True), (2, "cpu3", 0, True), (3, "fd00::5", 0, True))
    ]


def test_a_number_is_so_many_pretended_hosts_that_play_beside_the_head() -> None:
    options = asked(hosts="3", launch="local", min_hosts=2, max_hosts=5)
    assert [host.slot for host in options.hosts] == [1, 2, 3]
    assert [host.plays for host in options.shapes(THIS)] == [False, True, True, True]
    assert (options.min_hosts, options.max_hosts) == (2, 5)


def test_a_file_has_the_settings_of_each_host_and_a_flag_beats_it() -> None:
    options = asked(hosts=written(FILE), join_timeout=7.0, tunnel=False)
    assert options.hosts == (
        HostSettings(1, "cpu1", memory=3 << 29, python="/opt/py/bin/python3"),
        HostSettings(
            *(2, "cpu3", "me", 2222, 16, 2),
            python="/usr/bin/python3",
            setup="module load cuda",
            scratch="/scratch/me",
        ),
    )
    assert (options.join_timeout, options.min_hosts, options.settings) == (7, 1, {"python": "/opt/py/bin/python3"})
    assert asked(hosts="hosts.toml").settings == {"python": "/opt/py/bin/python3", "tunnel": True}
    head, _, other = options.shapes(THIS)
    assert head == HostShape(0, "here", 4, 1, 16 << 30)
    assert other == HostShape(2, "cpu3", 16, 2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"launch": "local"}, "--launch is for a run over several hosts; add --hosts"),
        ({"min_hosts": 2}, "--min-hosts is for a run over several hosts; add --hosts"),
        ({"hosts": "3"}, "--hosts 3: a number needs --launch, one of local, slurm, ray, kubernetes; for ssh write "),
        (
            {"hosts": "3", "launch": "ssh"},
            "--hosts 3: a number needs --launch, one of local, slurm, ray, kubernetes; ",
        ),
        ({"hosts": "0", "launch": "local"}, "--hosts: 0 hosts are not allowed; 1 to 1024 are"),
        ({"hosts": "a,b", "launch": "local"}, "--launch local takes a number of hosts or a file, got --hosts a,b"),
        ({"hosts": "a,,b"}, "--hosts: '' is no host: write NAME, USER@NAME or USER@NAME:PORT, and IPv6 in brackets; a"),
        ({"hosts": "-oProxyCommand=x"}, "--hosts: '-oProxyCommand=x' is no host: write NAME"),
        ({"hosts": "a@-b"}, "--hosts: 'a@-b' is no host: write NAME"),
        ({"hosts": "a:99999"}, "--hosts: 'a:99999': port 99999 is not allowed; 1 to 65535 are"),
        ({"hosts": "gone.toml"}, "--hosts: cannot read 'gone.toml': No such file or directory"),
        ({"hosts": "a,b", "min_hosts": 3}, "--min-hosts: 3 is more than the 2 hosts of the run"),
        ({"hosts": "a,b", "max_hosts": 1}, "--max-hosts: 1 is less than the 2 hosts of the run"),
        (
            {"hosts": "2", "launch": "local", "python": "py"},
            "--python is for --launch ssh, slurm, ray and kubernetes, not for local",
        ),
        ({"hosts": "2", "launch": "local", "tunnel": True}, "--tunnel is for --launch ssh, not for local"),
        ({"hosts": "a", "head": "gpu1"}, "--head starts the command orchestra run on another host; from Python, "),
    ],
)
def test_flags_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts_options(given)
    assert str(caught.value).startswith(said)


QUEUED = """
[launch]
launch = "slurm"
hosts = 4
time = "02:00:00"
sbatch = ["--mail-type=END", "--nice"]
setup = "module load cuda"
join-timeout = 90
allow-mixed-python = true
python = "/opt/py"
"""


def test_a_file_has_the_number_of_hosts_and_the_settings_of_an_engine_that_chooses_them() -> None:
    options = asked(hosts=written(QUEUED), time="10")
    assert (options.engine, options.head_elsewhere, [host.slot for host in options.hosts]) == ("slurm", True, [1, 2, 3])
    assert (options.join_timeout, options.settings["time"]) == (90, "10"), "a flag beats the file"
    assert options.settings["sbatch"] == ("--mail-type=END", "--nice")


def test_the_job_of_a_head_gets_what_a_file_says_as_flags_and_not_the_file() -> None:
    options = asked(hosts=written(QUEUED), python="/usr/bin/python3")
    assert options.file_words == (*("--hosts=4", "--launch=slurm", "--join-timeout=90", "--allow-mixed-python"),), (
        "without those that are for sbatch, and the one that is a flag already"
    )


def test_settings_of_a_file_that_ask_for_a_job_are_left_out_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOB_ID": "7", "JOB_NUM_NODES": "4", "JOB_CPUS_PER_NODE": "8(x4)"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    options = asked(hosts=written(QUEUED))
    assert not options.head_elsewhere
    assert "time" not in options.settings
    assert options.hosts[0].setup == "module load cuda"
    with pytest.raises(UsageError, match="--time is for a job that is submitted, and this is job 7; leave it out"):
        asked(hosts="hosts.toml", time="10")


def test_a_file_of_hosts_is_refused_by_an_engine_that_chooses_them() -> None:
    with pytest.raises(
        UsageError, match=r"--launch slurm takes a number of hosts, or a file with hosts = N in \[launch\], got"
    ):
        hosts_options({"hosts": written("[[host]]\nname = 'a'"), "launch": "slurm"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "hosts.toml: not TOML: Invalid value (at end of document)"),
        ("", "hosts.toml: it has no host; write [[host]] and name = ... for each"),
        ("[hosts]\na = 1", "hosts.toml: there is no table 'hosts'; write [launch], and [[host]] for each host"),
        ("[[host]]\ncores = 1", "hosts.toml, host 1: its name is missing"),
        (
            "[[host]]\nname = 'a'\ncore = 1",
            "hosts.toml, host 1: there is no setting 'core'; the settings are name, cores, gpus, memory, python, "
            "setup, scratch",
        ),
        ("[[host]]\nname = 'a'\ncores = 'many'", "hosts.toml, host 1: cores is 'many': it must be a valid integer"),
        (
            "[[host]]\nname = 'a'\nmemory = '3 apples'",
            "hosts.toml, host 1: memory is '3 apples': write bytes or a size such as '64 GiB'; the units are B, KiB, "
            "MiB, GiB, TiB",
        ),
        ("[[host]]\nname = 'a b'", "hosts.toml, host 1: 'a b' is no host: write NAME, USER@NAME or USER@NAME:PORT"),
        ("[[host]]\nname = 'here'\n[[host]]\nname = 'here'", "hosts.toml, host 2: 'here' is named twice"),
        ("launch = 3\n[[host]]\nname = 'a'", "hosts.toml: launch must be a table, [launch]"),
        (
            "[launch]\njoin-timeout = 'soon'\n[[host]]\nname = 'a'",
            "hosts.toml, [launch]: --join-timeout: 'soon' is not a finite number (it takes float > 0)",
        ),
        ("[launch]\nhosts = 'a'\n[[host]]\nname = 'a'", "hosts.toml, [launch]: hosts is 'a': it must be a"),
        ("[launch]\nhosts = 2\n[[host]]\nname = 'a'", "hosts.toml: [launch] asks for 2 hosts, and [[host]] names some"),
        ("[launch]\nhosts = 2", "--hosts 2: a number needs --launch, one of local, slurm, "),
        ("[launch]\nhosts = 0\nlaunch = 'local'", "--hosts: 0 hosts are not allowed"),
        (
            "[launch]\nlaunch = 'local'\nsetup = 'x'\n[[host]]\nname = 'a'",
            "hosts.toml, [launch]: --setup is for --launch ssh and slurm, not for local",
        ),
    ],
)
def test_a_slip_in_the_file_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        hosts_options({"hosts": written(text)})
    assert str(caught.value).startswith(said)


EXPERIMENT = """
from orchestra import Actor, Hosts, Message, Topology, on

class GoMsg(Message):
    pass

class Boss(Actor[GoMsg]):
    def __init__(self, cores: int = 0) -> None:
        self.cores = cores

    async def started(self) -> None:
        for _ in range(self.cores):
            await self.me.tell(GoMsg())
        self.stop()

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...

def experiment({parameters}) -> Topology:
    topology = Topology("spread")
    topology.until(topology.node("root").spawn("boss", Boss, {cores}))
    {body}
    return topology
"""
SPREAD = {
    "parameters": "*, hosts: Hosts",
    "cores": "hosts[0].cores",
    "body": "[topology.node(f'far-{host.slot}-{host.cores}', on=host) for host in hosts.playing]",
}


def experiment_file(name: str, **parts: str) -> Path:
    Path(name).write_text(EXPERIMENT.format(**parts))
    return Path(name)


def test_a_plan_is_laid_out_for_the_hosts_as_asked_and_again_for_those_that_came() -> None:
    planned = plan(experiment_file("spread_asked.py", **SPREAD), hosts="2", launch="local")
    assert list(planned.topology.nodes) == ["root", "far-1-0", "far-2-0"]
    assert planned.hosts is not None
    came = planned.over(orchestra.Hosts([planned.shapes[0], HostShape(2, "b", 7), HostShape(1, "a", 5)]))
    assert list(came.topology.nodes) == ["root", "far-1-5", "far-2-7"]


def test_a_plan_on_one_machine_has_its_shape_and_one_core_in_one_process() -> None:
    file = experiment_file("spread_alone.py", **SPREAD)
    planned = plan(file)
    (this,) = planned.shapes
    assert list(planned.topology.nodes) == ["root", f"far-0-{this.cores}"]
    assert planned.hosts is None
    assert list(plan(file, single_process=True).topology.nodes) == ["root", "far-0-1"]


@pytest.mark.parametrize(
    ("parameters", "words", "said"),
    [
        ("*, hosts: Hosts", ["--single-process"], "--single-process: all nodes of such a run are in this process"),
        ("", [], "--hosts: experiment() runs on one host: it declares no parameter `hosts: Hosts` to spread over"),
    ],
)
def test_a_run_that_cannot_spread_is_refused(
    parameters: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = experiment_file(f"narrow_{len(words)}.py", parameters=parameters, cores="", body="")
    assert main(["run", str(file), "--hosts", "cpu1", *words, "--dry-run"]) == 2
    assert capsys.readouterr().err.startswith(f"orchestra: error: {said}")
    with pytest.raises(UsageError, match=r"^--hosts: no other process can import this experiment"):
        plan(orchestra.Topology("bare"), hosts="cpu1")


def test_python_takes_the_number_of_hosts_as_a_number() -> None:
    (flag,) = [flag for flag in HOST_FLAGS if flag.name == "hosts"]
    assert flag.validated(3) == "3"


def test_the_hosts_of_a_run_are_in_its_plan_its_config_and_its_trace() -> None:
    file = experiment_file("spread_recorded.py", **SPREAD)
    planned = plan(file, trace="full")
    (this,) = planned.shapes
    assert list(RunPlan.read(planned.launch.text()).hosts) == [this]
    assert planned.over(orchestra.Hosts([this, HostShape(1, "b", 7)])).launch.hosts == (this, HostShape(1, "b", 7))
    hosts = orchestra.Hosts([HostShape(0, "elsewhere", 3)])
    run = carry_out(replace(planned.over(hosts), listen=None)).directory
    config = run.config()
    assert config["hosts"] == [{"slot": 0, "name": "elsewhere", "cores": 3, "gpus": 0, "memory": 0, "plays": True}]
    assert config["placement"] == {"root": 0, "far-0-3": 0}
    assert recorded_hosts(run) == hosts
    with Replay(run.path, "root/boss") as replay:  # on this machine, which has another shape
        assert replay.run() > 0  # and it does exactly what it did
        assert replay.actor.cores == 3
