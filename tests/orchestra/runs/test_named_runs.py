"""`--as NAME` begins a run, and goes on with it once it has saved anything; what no longer belongs to it is counted."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import orchestra
from orchestra import RunDirectory, Topology, UsageError
from orchestra.cli.main import main
from orchestra.runs.plan import plan
from orchestra.runs.resumption import unplanned
from orchestra.runs.run_lock import Holder, holder_of, locked

FILE = """
from pathlib import Path
from orchestra import Actor, Message, Topology, on

class GoMsg(Message):
    pass

class Boss(Actor[GoMsg]):
    async def started(self):
        (self.run_directory / "began").write_text("anew" if self.resume_from is None else self.resume_from.name)
        state = self.run_directory / "state" / "steps-1"
        state.mkdir(parents=True, exist_ok=True)
        for name in ("root.boss.npz", "root.boss.more.npz", "w1.worker.npz", "w1.worker.more.npz", "w10.worker.npz"):
            (state / name).touch()
        self.stop()

    @on(GoMsg)
    def go(self, msg: GoMsg) -> None: ...

def experiment(*, workers: int = 1, size: int = 3) -> Topology:
    topology = Topology("named")
    topology.until(topology.node("root").spawn("boss", Boss))
    for number in range(workers):
        topology.node(f"w{number}").spawn("worker", Boss)
    return topology
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "named_run.py"
    path.write_text(FILE)
    return path


def carried_out(file: Path, **options: Any) -> RunDirectory:
    return orchestra.run(file, single_process=True, quiet=True, **options).directory


def began(run: RunDirectory) -> str:
    return (run.path / "began").read_text()


def test_a_name_begins_a_run_and_goes_on_with_it_once_it_has_saved_anything(file: Path) -> None:
    first = carried_out(file, as_="job-17", seed=4, size=5)
    assert first.path == Path("runs/named/job-17")
    assert began(first) == "anew"
    again = carried_out(file, as_="job-17", seed=4)
    assert again.path.resolve() == first.path.resolve()
    assert began(again) == "steps-1"
    assert again.config()["flags"] == {"workers": 1, "size": 5}  # as the run had it
    assert [path.name for path in Path("runs/named").iterdir()] == ["job-17"]


def test_the_command_line_takes_the_name_as_as(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", str(file), "--as", "job", "--single-process", "--quiet", "--seed", "2"]
    assert [main(words), main(words)] == [0, 0]
    assert began(RunDirectory(Path("runs/named/job"))) == "steps-1"
    assert main(["run", "--resume", "runs/named/job", "--quiet"]) == 0  # the name is no option of the run itself
    assert main(["run", "--resume", "runs/named/job", "--as", "other"]) == 2
    said = "orchestra: error: --as cannot be combined with --resume: a resumed run keeps its original value\n"
    assert capsys.readouterr().err.endswith(said)


def test_a_run_that_has_saved_nothing_is_set_aside_and_begun_again(file: Path) -> None:
    for expected in (["job"], ["job", "job-1"], ["job", "job-1", "job-2"]):
        run = carried_out(file, as_="job")
        assert began(run) == "anew"
        for path in (run.state / "steps-1").iterdir():
            path.unlink()
        (run.state / "steps-1").rmdir()
        assert sorted(path.name for path in Path("runs/named").iterdir()) == expected
    assert not list(Path("runs").rglob("lock.json"))


def test_two_heads_do_not_share_a_name(file: Path) -> None:
    run = RunDirectory(Path("runs/named/job"))
    run.path.mkdir(parents=True)
    with locked(run), pytest.raises(UsageError, match=rf"^process {os.getpid()} on .* runs in 'runs/named/job' "):
        carried_out(file, as_="job")
    assert [path.name for path in Path("runs/named").iterdir()] == ["job"]


def test_a_name_of_another_run_is_refused(file: Path) -> None:
    carried_out(file, as_="job", seed=4)
    other = file.with_name("named_other.py")
    other.write_text(FILE)
    with pytest.raises(UsageError, match=rf"^--as: the run 'job' is one of '{file}', not of '{other}'$"):
        carried_out(other, as_="job")
    with pytest.raises(UsageError, match=r"^--seed: the run 'job' goes on with its seed, 4, not with 5$"):
        carried_out(file, as_="job", seed=5)
    for name in ("", "..", "a/b", "-x"):
        with pytest.raises(UsageError, match=r"^--as: .* cannot name a folder: use letters, digits and - _ \.$"):
            carried_out(file, as_=name)


def test_a_name_goes_on_with_a_copy_of_its_experiment_though_the_first_one_is_gone(file: Path) -> None:
    first = carried_out(file, as_="job", size=5)
    copy = file.parent / "unpacked" / file.name
    copy.parent.mkdir()
    file.rename(copy)
    again = carried_out(copy, as_="job")
    assert again.path.resolve() == first.path.resolve()
    assert began(again) == "steps-1"
    assert again.config()["flags"] == {"workers": 1, "size": 5}
    edited = file.parent / "edited" / file.name
    edited.parent.mkdir()
    edited.write_text(FILE + "# another\n")
    with pytest.raises(UsageError, match=rf"^--as: the run 'job' is one of '{copy}', not of '{edited}'$"):
        carried_out(edited, as_="job")


def test_a_lock_of_an_earlier_boot_is_stale_though_its_process_number_is_in_use(file: Path) -> None:
    run = RunDirectory(file.parent / "run")
    run.path.mkdir()
    with locked(run):
        written = json.loads(run.lock.read_bytes())
        assert not Holder(**written).dead
        assert Holder(**(written | {"boot": "another"})).dead
        held = holder_of(run)
        assert held is not None
        assert held.boot == written["boot"]


def test_states_of_actors_that_are_no_more_are_dropped_and_counted(file: Path) -> None:
    run = carried_out(file, as_="job", workers=12)
    assert unplanned(run.state / "steps-1", Topology("empty")) == ["root.boss", "w1.worker", "w10.worker"]
    carried_out(file, as_="job", workers=2)
    (line,) = [
        record
        for record in map(json.loads, (run.logs / "root.jsonl").read_text().splitlines())
        if record["event"] == "states of actors that the run no longer has are dropped"
    ]
    assert (line["count"], line["states"]) == (1, ["w10.worker"])


def test_a_run_whose_head_an_engine_starts_keeps_its_name_for_that_head_to_go_on_with(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    carried_out(file, as_="job")
    file.write_text(FILE.replace("import Actor", "import Actor, Hosts", 1).replace("(*, ", "(*, hosts: Hosts, ", 1))
    planned = plan(file, as_="job", launch="slurm", hosts="2")
    assert planned.name == "job", "the job would begin a run without a name"
    assert planned.resumed is None
    with pytest.raises(UsageError, match="cannot name a folder"):
        plan(file, as_="..", launch="slurm", hosts="2")
