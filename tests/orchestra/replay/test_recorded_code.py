"""A run keeps its code, and a replay is exact though the checkout was edited since."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import orchestra
from orchestra import Replay, RunDirectory
from orchestra.cli.main import main
from orchestra.errors import ExperimentChanged
from orchestra.hosts import bundle
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.collected_code import make

EXPERIMENT = """
from {rule} import FACTOR
from orchestra import Actor, Message, Ref, Topology, on

class TimesMsg(Message):
    number: int

class Multiplier(Actor[TimesMsg]):
    def __init__(self, board: Ref[TimesMsg]) -> None:
        self.board = board

    @on(TimesMsg)
    async def times(self, msg: TimesMsg) -> None:
        await self.board.tell(TimesMsg(number=FACTOR * msg.number))

class Board(Actor[TimesMsg]):
    def __init__(self, multiplier: Ref[TimesMsg] | None = None) -> None:
        self.multiplier = multiplier

    async def started(self) -> None:
        await self.multiplier.tell(TimesMsg(number=1))

    @on(TimesMsg)
    async def show(self, msg: TimesMsg) -> None:
        if msg.number > 1000:
            self.stop()
        else:
            await self.multiplier.tell(msg)

def experiment() -> Topology:
    topology = Topology("{name}")
    node = topology.node("head")
    board = Ref("head/board")
    multiplier = node.spawn("multiplier", Multiplier, board)
    topology.until(node.spawn("board", Board, multiplier))
    return topology
"""


def recorded(folder: Path, name: str, *, named: bool = False) -> tuple[RunDirectory, Path]:
    """A run of an experiment that imports a module beside it, all deliveries recorded; and its file.

    Args:
        folder: of everything.
        name: of the experiment.
        named: the module is one of another folder, which a flag names.
    """
    file = folder / "study" / f"{name}.py"
    file.parent.mkdir()
    text = EXPERIMENT.format(name=name, rule=f"{name}_rule")
    given = {}
    if named:
        (folder / "elsewhere").mkdir()
        given["rule"] = str(folder / "elsewhere" / "factor_of_a_flag.py")
        Path(given["rule"]).write_text("FACTOR = 3\n")
        text = text.replace(f"from {name}_rule import FACTOR", "from pathlib import Path").replace(
            "def experiment() -> Topology:\n",
            "def experiment(*, rule: str = '') -> Topology:\n"
            "    from orchestra import import_file\n"
            "    global FACTOR\n"
            "    FACTOR = import_file(Path(rule), 'rule').FACTOR\n",
        )
    else:
        file.with_name(f"{name}_rule.py").write_text("FACTOR = 3\n")
    file.write_text(text)
    result = orchestra.run(file, runs_dir=folder / "runs", single_process=True, trace="full", quiet=True, **given)
    return result.directory, file


def replay(run: RunDirectory, *flags: str) -> int:
    return main(["replay", str(run.path), "--actor", "head/multiplier", *flags])


def test_a_replay_is_exact_from_the_code_of_the_run_though_a_module_was_edited(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, file = recorded(tmp_path, "edited_module")
    assert replay(run) == 0
    assert "the code has changed" not in capfd.readouterr().err
    file.with_name("edited_module_rule.py").write_text("FACTOR = 4\n")
    assert replay(run) == 0
    told = capfd.readouterr()
    assert "the code has changed since the run; this is a replay of the run's own" in told.err
    assert "all as recorded" in told.out
    (tmp_path / "study").rename(tmp_path / "moved")
    assert replay(run) == 0


def test_a_replay_notices_that_a_file_that_a_flag_names_has_changed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, _ = recorded(tmp_path, "naming_flag", named=True)
    assert replay(run) == 0
    assert "the code has changed" not in capfd.readouterr().err
    (tmp_path / "elsewhere" / "factor_of_a_flag.py").write_text("FACTOR = 4\n")
    assert replay(run) == 0
    told = capfd.readouterr()
    assert "the code has changed since the run; this is a replay of the run's own" in told.err
    assert "all as recorded" in told.out
    assert replay(run, "--allow-changes") == 1


def test_the_present_code_is_replayed_on_request(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, file = recorded(tmp_path, "edited_actor")
    file.write_text(file.read_text().replace("FACTOR * msg.number", "1 + FACTOR * msg.number"))
    assert replay(run) == 0
    assert "all as recorded" in capfd.readouterr().out
    assert replay(run, "--allow-changes") == 1
    assert "head/multiplier" in capfd.readouterr().out


def test_a_replay_from_python_takes_the_experiment_of_the_run(tmp_path: Path) -> None:
    run, file = recorded(tmp_path, "edited_python")
    file.write_text("raise RuntimeError('edited')")
    script = "import sys; from orchestra import Replay; print(Replay(sys.argv[1], 'head/multiplier').run())"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    told = subprocess.run(
        [sys.executable, "-c", script, str(run.path)], text=True, capture_output=True, env=environment
    )
    assert int(told.stdout) > 3, told.stderr
    assert list(temporary.iterdir()) == []  # the script did not close the replay
    run.code.unlink()
    with pytest.raises(ExperimentChanged, match="has changed since the run"):
        Replay(str(run.path), "head/multiplier")


def test_a_resumed_run_keeps_the_code_of_each_of_its_parts(tmp_path: Path) -> None:
    run, file = recorded(tmp_path, "kept_parts")
    first = Bundle.read(run.code.read_bytes())
    run.write_code(first)
    file.with_name("kept_parts_rule.py").write_text("FACTOR = 5\n")
    second = make(file)
    run.write_code(second)
    assert run.read_code(first.digest) == first
    assert run.read_code(second.digest) == second
    assert run.read_code("0" * 64) is None
    assert len(list(run.path.glob("code*.zip"))) == 2


def test_code_that_is_too_large_is_not_kept_and_a_run_on_one_machine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "MOST_BYTES", 1000)
    run, _ = recorded(tmp_path, "too_large")
    assert not run.code.exists()
    assert "the code of the run is not kept" in (run.logs / "head.jsonl").read_text()
    assert replay(run) == 0
