"""The command line: every exit code, and every refusal in one line."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from orchestra.cli.main import main
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.token import JoinToken
from orchestra.runs.plan import OPTIONS
from orchestra.wire.transports.registry import SCHEMES  # those of this process: a simulation adds one

_ADDED = sorted(point.name for point in entry_points(group="orchestra.commands"))
_OWN = [
    "run",
    "ls",
    "ps",
    "top",
    "logs",
    "dashboard",
    "scale",
    "config",
    "prune",
    "token",
    "host",
    "leave",
    "replay",
    "trace",
    "completion",
]
COMMANDS = ", ".join([*_OWN, *_ADDED])
SEED = "--seed: '-1' is not allowed: it must be greater than or equal to 0 (it takes int >= 0)"
EXPERIMENT = '''
from typing import Annotated, Literal

from pydantic import Field

from orchestra import Actor, Escalate, Message, Restart, Stop, Topology, on


class GoMsg(Message):
    """Begin."""


class Boss(Actor[GoMsg]):
    def __init__(self, fail: bool) -> None:
        self.fail = fail

    async def started(self) -> None:
        await self.me.tell(GoMsg())

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None:
        if self.fail:
            raise ValueError("had enough")
        self.stop()


class Helper(Actor[GoMsg]):
    def __init__(self, boss: object) -> None: ...

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...


def experiment(
    *,
    helpers: Annotated[int, Field(ge=0, description="how many")] = 2,
    fail: bool = False,
    supervision: Literal["Stop", "Escalate", "Restart"] = "Stop",
) -> Topology:
    Boss.supervision = {"Stop": Stop(), "Escalate": Escalate(), "Restart": Restart(limit=1, backoff=0.01)}[supervision]
    topology = Topology("errand")
    boss = topology.node("root").spawn("boss", Boss, fail)
    topology.until(boss)
    for number in range(helpers):
        topology.node(f"h{number}").spawn("helper", Helper, boss)
    return topology
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with an experiment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "errand.py").write_text(EXPERIMENT)
    return tmp_path


@pytest.fixture
def nothing_is_made(here: Path) -> Iterator[None]:
    yield
    assert {path.name for path in here.iterdir()} <= {"errand.py", "occupied", "__pycache__"}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Do what is a misuse, and return what it says, which is one line."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("orchestra: error: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("orchestra: error: ").rstrip("\n")


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--help", "-h", "help"):
        assert main([word]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        assert printed.out.startswith("usage: orchestra COMMAND ...\n")
        assert re.search(r"\n  run FILE \[flags\] +run an experiment\n", printed.out)
        assert "\n  evaluate " in printed.out
        assert " node " not in printed.out  # not for people


def test_no_command_at_all_is_a_misuse_that_gets_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: orchestra COMMAND ...\n")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"orchestra {version('orchestra-rl')}\n", "")


def test_the_package_can_be_run_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestra", "fly"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"orchestra: error: there is no command 'fly'; the commands are {COMMANDS}\n"


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fly"], f"there is no command 'fly'; the commands are {COMMANDS}"),
        (["--seed", "1"], f"there is no command '--seed'; the commands are {COMMANDS}"),
        (
            ["run"],
            "orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py",
        ),
        (
            ["run", "--seed", "3"],
            "orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py",
        ),
        (
            ["run", "--steps", "3"],
            "orchestra run needs the file of an experiment, as in: orchestra run experiments/qmix_8m.py; there is no "
            "file '3'",
        ),
        (["runn"], f"there is no command 'runn' (did you mean run?); the commands are {COMMANDS}"),
        (["run", "errand.py", "--", "--seed", "1"], "unexpected argument '--'"),
        (["run", "--sed", "errand.py"], "unknown flag --sed (did you mean --seed?)"),
        (["run", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["run", "."], "'.' is a directory; name the experiment's file"),
        (["run", "errand.py", "--seed", "-1"], SEED),
        (["run", "errand.py", "--seed=-1"], SEED),
        (["run", "errand.py", "--seed", "1.5"], None),
        (["run", "errand.py", "--seed"], None),
        (["run", "errand.py", "--log-level", "loud"], None),
        (
            ["run", "errand.py", "--shared-memory", "-1"],
            "--shared-memory: '-1' is not allowed: it must be greater than or equal to 0 "
            "(it takes int >= 0, <= 1048576)",
        ),
        (["run", "errand.py", "--helpers", "-1"], None),
        (["run", "errand.py", "--helpers", "many"], None),
        (["run", "errand.py", "--helper", "1"], "unknown flag --helper (did you mean --helpers?)"),
        (["run", "errand.py", "twice.py"], None),
        (
            ["run", "errand.py", "--listen", "udp://x"],
            "cannot use the address 'udp://x': it must begin with one of SCHEMES",
        ),
        (
            ["run", "errand.py", "--listen", "memory://x"],
            "--listen: no other process reaches memory://x; write tcp://HOST:PORT or unix:///PATH",
        ),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_a_misuse_is_told_in_one_line_and_leaves_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str | None
) -> None:
    got = refusal(capsys, *words)
    if said is None:  # the wording is the flags' own, and tested there; it names the flag at least
        assert words[2] in got
    else:
        assert got == said.replace("SCHEMES", ", ".join(f"{scheme}://" for scheme in SCHEMES))


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize("mode", [[], ["--single-process"]], ids=["processes", "one process"])
@pytest.mark.parametrize(
    "address", ["tcp://nowhere", "tcp://:80", "tcp://127.0.0.1:99999", "unix://relative", "unix:///no/such/folder/x"]
)
def test_an_address_that_is_malformed_is_told_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], address: str, mode: list[str]
) -> None:
    said = refusal(capsys, "run", "errand.py", "--listen", address, *mode)
    if address.endswith("folder/x"):
        assert said == f"cannot listen at {address}: there is no folder '/no/such/folder'"
    else:
        assert said.startswith(f"cannot use the address '{address}': ")


@pytest.mark.usefixtures("nothing_is_made")
def test_a_runs_folder_that_cannot_be_is_told_in_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "occupied").write_text("")

    assert refusal(capsys, "run", "errand.py", "--runs-dir", "occupied") == (
        "cannot make a run directory in 'occupied': Not a directory"
    )


def test_what_is_to_be_done_before_the_start_is_done_once_in_the_first_process_and_not_in_a_dry_run(here: Path) -> None:
    prepared = here / "prepared"
    once = f"topology.before_start(lambda: os.mkdir({str(prepared)!r}))\n    return topology"
    (here / "errand.py").write_text("import os\n" + EXPERIMENT.replace("return topology", once))
    assert main(["run", "errand.py", "--dry-run"]) == 0
    assert not prepared.exists()
    assert main(["run", "errand.py", "--helpers", "1"]) == 0
    assert prepared.exists()


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize(
    "words",
    [
        ["--shared-memory", "0", "errand.py"],
        ["--trace-include", "x", "--trace", "full", "--single-process", "errand.py"],
        ["--helpers", "2", "errand.py"],
        ["--seed", "1", "--fail", "errand.py", "--helpers", "2"],
        ["--supervision", "Stop", "--no-fail", "errand.py"],
        ["--helpers=2", "--seed=1", "errand.py"],
    ],
    ids=" ".join,
)
def test_flags_may_stand_before_the_file(here: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["run", *words, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith("topology 'errand'\n  root\n")


@pytest.mark.usefixtures("nothing_is_made")
def test_no_flag_of_a_run_hides_the_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in OPTIONS:
        if flag.name in ("resume", "head"):
            continue  # no file is expected, or it is on another host
        value = [] if flag.base is bool else [str(flag.choices[0]) if flag.choices else "7"]
        main(["run", flag.option, *value, "gone.py"])
        said = capsys.readouterr().err
        assert "there is no file 'gone.py'" in said, flag


@pytest.mark.usefixtures("nothing_is_made")
def test_a_dry_run_prints_the_topology_and_makes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "errand.py", "--dry-run", "--helpers", "1"]) == 0
    assert capsys.readouterr() == (
        "topology 'errand'\n  root\n    boss: Boss   (the run ends with it)\n  h0\n    helper: Helper -> root/boss\n",
        "",
    )


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize("words", [["run", "--help"], ["run", "errand.py", "--help"]], ids=" ".join)
def test_the_help_of_a_run_lists_its_flags_and_those_of_the_experiment(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()

    assert ended.value.code == 0
    assert printed.err == ""
    for flag in ("--seed", "--runs-dir", "--dry-run", "--single-process", "--listen", "--shared-memory"):
        assert flag in printed.out
    assert ("--helpers" in printed.out) is (len(words) == 3)


def test_a_run_that_went_well_ends_with_0_and_is_silent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "errand.py", "--single-process"]) == 0
    assert capsys.readouterr() == ("", "")
    assert len(list(here.glob("runs/errand/*-seed0/config.json"))) == 1


def test_a_failure_that_is_mended_is_a_warning_and_the_last_one_is_the_end(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "errand.py", "--single-process", "--fail", "--supervision", "Restart"]) == 1
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("WARNING root/boss  actor failed and is started again  after=0.01  ValueError: had enough")
    assert last.startswith("orchestra: the run failed: root/boss (Boss) failed; ")


def test_a_run_of_one_node_needs_no_address_that_others_reach(here: Path) -> None:
    assert main(["run", "errand.py", "--helpers", "0", "--listen", "memory://x"]) == 0


@pytest.mark.parametrize("supervision", ["Stop", "Escalate"])
@pytest.mark.parametrize("mode", [["--single-process"], ["--helpers", "1"]], ids=["one process", "processes"])
def test_a_run_that_fails_ends_with_1_and_says_why_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], mode: list[str], supervision: str
) -> None:
    assert main(["run", "errand.py", *mode, "--fail", f"--supervision={supervision}"]) == 1
    printed = capsys.readouterr()
    (log,) = here.glob("runs/errand/*/logs/root.jsonl")

    assert printed.out.startswith("trace: ")
    assert printed.out.count("\n") == 1
    assert printed.err == (
        "orchestra: the run failed: root/boss (Boss) failed; last deliveries, newest last: GoMsg from root/boss "
        f"(ValueError: had enough); traceback in {log.relative_to(here)}\n"
    )
    assert "Traceback" in log.read_text()


# A launched process, which no person starts

PLAN = RunPlan(Path("errand.py"), [], 0, Path())
NODE = ["node", "h0", "--listen", "tcp://127.0.0.1:0", "--plan"]
TOKEN = JoinToken.new("errand", ("tcp://127.0.0.1:1",), tls=None)


def plan(**changes: object) -> str:
    """The last word of the command line of a launched process."""
    return replace(PLAN, **changes).command("h0", "")[-1]


@contextlib.contextmanager
def given(line: str) -> Iterator[None]:
    """While the block runs, have `line` on standard input."""
    reads, writes = os.pipe()
    before = os.dup(0)
    os.dup2(reads, 0)
    os.close(reads)
    os.write(writes, line.encode())
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(writes)


@pytest.mark.usefixtures("nothing_is_made")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\n", "standard input holds no join token: it is empty; `orchestra token RUN_DIR` prints one"),
        ("no token\n", "standard input holds no valid join token: it is no JSON document of a token"),
    ],
)
def test_a_launched_process_without_a_token_is_a_misuse(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, text: str
) -> None:
    with given(line):
        assert refusal(capsys, *NODE, plan()) == text


@pytest.mark.usefixtures("nothing_is_made")
def test_a_launched_process_that_is_started_wrongly_says_so_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        with given(TOKEN.line()):
            return refusal(capsys, *words)

    assert "node" in said("node")
    assert "--listen" in said("node", "h0")
    assert said(*NODE, "{}").startswith("--plan: not the plan of a run: experiment: Field required")
    assert said(*NODE, plan(experiment=None)) == "--plan: it names no experiment"
    other = ["node", "h9", *NODE[2:]]
    assert said(*other, plan()) == "topology 'errand' has no node 'h9'; its nodes are root, h0, h1"
    assert said(*NODE, plan(flags=["--helpers", "none"])).startswith("--helpers")


def test_a_launched_process_whose_root_is_gone_fails_in_one_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "errand.py", "--single-process"]) == 0
    (run,) = here.glob("runs/errand/*")

    with given(TOKEN.line()):
        assert main([*NODE, plan(run_directory=run)]) == 1
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if line.startswith("orchestra: ")]
    assert line.startswith("orchestra: node h0 failed: no process answers at tcp://127.0.0.1:1: Connection refused")
    assert line.endswith(f"; traceback in {run}/logs/h0.jsonl")
    assert "Traceback" not in printed


ENDS = """
import atexit
import sys
import threading

from orchestra.cli import main as cli

sys.argv[1:] = ["nonsense"]
atexit.register(print, "what was registered is done")
threading.Thread(target=threading.Event().wait).start()  # one that never ends
cli.program()
"""


def test_a_process_ends_with_its_command_after_what_was_registered_for_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stdout == "what was registered is done\n"
    assert done.stderr.startswith("orchestra: error: there is no command 'nonsense'")
