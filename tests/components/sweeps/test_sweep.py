"""A sweep runs every configuration with every seed once, and tells mean and interval of each."""

import asyncio
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from components.sweeps import command
from components.sweeps.configurations import Choices, Configuration, Range, checked, configuration, grid, space_of
from components.sweeps.results import as_csv, as_markdown, as_text, mean_interval, ranked
from components.sweeps.sweep import SearchedSweep, Sweep, run_name
from orchestra import RunQueue, UsageError

EXPERIMENT = """
from typing import Annotated, Literal

from pydantic import Field

from orchestra import Topology


def experiment(
    *,
    rate: Annotated[float, Field(gt=0)] = 0.5,
    layers: int = 1,
    double_q: bool = True,
    kind: Literal["a", "b"] = "a",
) -> Topology:
    return Topology("swept")
"""
STAND_IN = '''
"""What a run leaves behind whose return is --rate plus a tenth of its seed: three tests. A rate above 8 fails."""
import json, signal, sys, time
from pathlib import Path

words = sys.argv[1:]
rate = float(next(word for word in words if word.startswith("--rate")).partition("=")[2])
seed = int(words[words.index("--seed") + 1])
run = Path(words[words.index("--runs-dir") + 1]) / "swept" / words[words.index("--as") + 1]
run.mkdir(parents=True, exist_ok=True)
(run / "config.json").write_text(json.dumps({"flags": {"rate": rate}, "seed": seed}))
with (run / "starts").open("a") as starts:
    starts.write("start\\n")


def stopped(*_):
    (run / "summary.json").write_text(json.dumps({"state": "stopped"}))
    sys.exit(75)


signal.signal(signal.SIGTERM, stopped)
if rate > 8:
    sys.exit(1)
with (run / "metrics.jsonl").open("w") as metrics:
    for test in (1, 2, 3):
        earned = rate + seed / 10
        record = dict.fromkeys(["elapsed_s", "updates", "tests"], test)
        record |= {"env_steps": 100 * test, "test_env_steps": 100 * test}
        metrics.write(json.dumps({**record, "test_win_rate": None, "test_return": earned}) + "\\n")
while rate < 0.01 and seed == 1:  # until it is stopped
    time.sleep(0.01)
(run / "summary.json").write_text(json.dumps({"state": "done"}))
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "swept_experiment.py"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def sweep_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sweep]:
    monkeypatch.setattr("orchestra.runs.run_queue.TICK_S", 0.01)  # seconds
    program = tmp_path / "swept_stand_in.py"
    program.write_text(STAND_IN)

    def made(seeds: Sequence[int] = (1, 2), parallel: int = 2) -> Sweep:
        queue = RunQueue(tmp_path / "sweep", parallel=parallel, command=(sys.executable, "-S", str(program)))
        return Sweep(queue, seeds, lambda of, seed: [*of.words, "--seed", str(seed)], None)

    return made


def starts(sweep: Sweep, name: str) -> int:
    run = sweep.queue.directory(name)
    return 0 if run is None else (run.path / "starts").read_text().count("start")


def test_a_space_is_lists_and_ranges() -> None:
    assert space_of(["rate=1e-3,5e-4", "--double-q=true", "layers=1..4", "x=0.1..10:log", "n=1..100:log"]) == {
        "rate": Choices(("1e-3", "5e-4")),
        "double_q": Choices(("true",)),
        "layers": Range(1, 4, whole=False, log=False),
        "x": Range(0.1, 10, whole=False, log=True),
        "n": Range(1, 100, whole=False, log=True),
    }


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["rate"], "'rate' is not allowed: write NAME=VALUE"),
        (["rate="], "'rate=' is not allowed"),
        (["a b=1"], "'a b=1' is not allowed"),
        (["rate=2..1"], "'rate=2..1' is no range"),
        (["rate=1..x"], "is no range"),
        (["rate=1..inf"], "is no range"),
        (["rate=1..2:lin"], "is no range"),
        (["rate=0..1:log"], "a logarithmic scale begins above 0"),
        (["rate=1", "rate=2"], "'rate' is there twice"),
        (["seed=1,2"], "'seed' is not allowed: the sweep sets it; --seeds N says how many seeds there are"),
    ],
)
def test_what_is_no_space_is_refused(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        space_of(texts)
    assert said in str(raised.value)


def test_a_grid_is_every_combination_of_checked_values(file: Path) -> None:
    found = grid(file, [], space_of(["rate=1e-3,0.5", "double_q=true,false"]))
    assert [(each.name, each.values, each.words) for each in found] == [
        ("rate-0.001_double_q-True", {"rate": 0.001, "double_q": True}, ("--rate=0.001", "--double-q")),
        ("rate-0.001_double_q-False", {"rate": 0.001, "double_q": False}, ("--rate=0.001", "--no-double-q")),
        ("rate-0.5_double_q-True", {"rate": 0.5, "double_q": True}, ("--rate=0.5", "--double-q")),
        ("rate-0.5_double_q-False", {"rate": 0.5, "double_q": False}, ("--rate=0.5", "--no-double-q")),
    ]
    (alone,) = grid(file, [], {})
    assert (alone.name, alone.label, alone.words) == ("defaults", "(defaults)", ())


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["rat=1"], "unknown flag --rat (did you mean --rate?)"),
        (["rate=1,-1"], "--rate: '-1' is not allowed: it must be greater than 0"),
        (["kind=a,c"], "--kind: unknown choice 'c'"),
        (["rate=1,1.0"], "--set: a value is there twice"),
        (["rate=1..2"], "'rate' has a range, which only --search optuna can search"),
    ],
)
def test_values_that_the_experiment_does_not_take_are_refused_before_any_run(
    file: Path, texts: list[str], said: str
) -> None:
    with pytest.raises(UsageError) as raised:
        grid(file, [], space_of(texts))
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "rate=1,2", "--rate", "3"], "--rate is not allowed: --set rate gives it its values"),
        (["--set", "double_q=True", "--no-double-q"], "--no-double-q is not allowed: --set double_q gives it"),
        (["--set"], "--set: expected one argument"),
        (["--metric", "wins"], "--metric: invalid choice: 'wins'"),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_refused_before_any_run(
    file: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    with pytest.raises(UsageError) as raised:
        command.command([str(file), *words])
    assert str(raised.value).startswith(said)
    assert not Path("sweeps").exists()


def test_both_ends_of_a_range_are_checked_before_any_run(file: Path) -> None:
    found = checked(file, [], space_of(["rate=1..2", "layers=1..3", "kind=a,b"]))
    assert found["rate"] == Range(1, 2, whole=False, log=False)  # as the flag, which takes fractions
    assert found["layers"] == Range(1, 3, whole=True, log=False)
    with pytest.raises(UsageError, match=r"--rate: -1\.0 is not allowed"):
        checked(file, [], space_of(["rate=-1..1", "layers=1..3"]))
    with pytest.raises(UsageError, match=r"--layers: 2\.5 is not"):
        checked(file, [], space_of(["layers=1..2.5"]))
    with pytest.raises(UsageError, match=r"--set: 'kind' takes no numbers, so it has no range"):
        checked(file, [], space_of(["kind=1..2"]))
    with pytest.raises(UsageError, match=r"unknown flag --rat "):
        checked(file, [], space_of(["rat=1..2"]))


def test_the_interval_of_a_mean_is_student_s() -> None:
    assert mean_interval([1.0]) is None
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0]) or (0, 0)
    # 3 ± 2.776 · 1.5811 / √5
    assert (low, high) == pytest.approx((1.0368, 4.9632), abs=1e-3)
    low, high = mean_interval([0.0, 1.0] * 30) or (0, 0)
    assert high - low == pytest.approx(2 * 2.0010 * 0.50422 / math.sqrt(60), rel=1e-3)


def test_a_sweep_runs_each_configuration_with_each_seed_once_and_goes_on(file: Path, sweep_of) -> None:
    configurations = grid(file, [], space_of(["rate=1,2"]))
    for _ in range(2):
        sweep = sweep_of()
        for each in configurations:
            sweep.add(each)
        asyncio.run(sweep.queue.work())
    assert {name: starts(sweep, name) for name in sweep.queue.entries} == {
        "rate-1.0-seed1": 1,
        "rate-1.0-seed2": 1,
        "rate-2.0-seed1": 1,
        "rate-2.0-seed2": 1,
    }
    best, other = ranked(sweep.results())
    assert best.configuration.values == {"rate": 2.0}
    assert best.scores == pytest.approx({1: 2.1, 2: 2.2})
    assert best.mean == pytest.approx(2.15)
    assert best.interval == pytest.approx((2.15 - 12.706 * 0.05, 2.15 + 12.706 * 0.05))
    assert [each.mean for each in ranked([best, other], minimise=True)] == pytest.approx([1.15, 2.15])
    assert as_text([best, other]).splitlines()[1] == "rate=2         2 of 2  2.15  1.515 to 2.785"
    assert as_csv([best]) == ("configuration,rate,seed,score\nrate-2.0,2.0,1,2.1\nrate-2.0,2.0,2,2.2\n")
    assert "| rate=2 | 2 of 2 | 2.15 | 1.515 to 2.785 |  |" in as_markdown([best, other], "orchestra sweep")


def test_a_run_that_fails_is_named_and_others_count(file: Path, sweep_of) -> None:
    sweep = sweep_of(seeds=(1,))
    for each in grid(file, [], space_of(["rate=9,1"])):
        sweep.add(each)
    asyncio.run(sweep.queue.work())
    good, bad = ranked(sweep.results())
    assert (good.configuration.values["rate"], bad.configuration.values["rate"]) == (1.0, 9.0)
    assert (bad.scores, bad.note) == ({}, "seed 1 failed (1)")


class Scripted:
    """A search with given rates, which prunes what is below 0.01."""

    def __init__(self, rates: Sequence[float]) -> None:
        self.rates = rates
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.told: dict[int, float | str | None] = {}
        self.seen: dict[int, list[float]] = {}

    def trials(self) -> list[tuple[int, dict[str, Any]]]:
        return list(self.asked)

    def ask(self) -> tuple[int, dict[str, Any]]:
        self.asked.append((len(self.asked), {"rate": self.rates[len(self.asked)]}))
        return self.asked[-1]

    def has_ended(self, number: int) -> bool:
        return number in self.told

    def was_pruned(self, number: int) -> bool:
        return self.told.get(number) == "pruned"

    def should_prune(self, number: int, scores: Sequence[float]) -> bool:
        self.seen[number] = list(scores)
        return len(scores) == 3 and scores[0] < 0.2

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        assert number not in self.told
        self.told[number] = "pruned" if pruned else value


def searched(file: Path, sweep: Sweep, search: Any, *, trials: int, prune: bool = False) -> None:
    def make(number: int, values: Mapping[str, Any]) -> Configuration:
        return configuration(file, [], values, f"trial-{number:03}")

    filled = SearchedSweep(sweep, search, trials=trials, prune=prune, make=make)
    sweep.queue.on_tick = filled.tick
    filled.tick()
    asyncio.run(sweep.queue.work())
    filled.tick()


def test_a_search_is_told_the_mean_over_the_seeds_and_which_trials_failed(file: Path, sweep_of) -> None:
    sweep, search = sweep_of(), Scripted([1.0, 9.0, 3.0])
    searched(file, sweep, search, trials=3)
    assert search.told == {0: pytest.approx(1.15), 1: None, 2: pytest.approx(3.15)}


def test_the_first_seed_decides_whether_a_trial_is_pruned_and_others_never_begin(file: Path, sweep_of) -> None:
    sweep, search = sweep_of(), Scripted([1.0, 0.001, 3.0])
    searched(file, sweep, search, trials=3, prune=True)
    assert search.told == {0: pytest.approx(1.15), 1: "pruned", 2: pytest.approx(3.15)}
    assert search.seen[1] == pytest.approx([0.101] * 3)
    assert set(sweep.queue.entries) == {
        *("trial-000-seed1", "trial-000-seed2", "trial-001-seed1", "trial-002-seed1", "trial-002-seed2")
    }
    assert [each.note for each in sweep.results()] == ["", "pruned", ""]


def test_a_search_that_was_interrupted_goes_on_with_its_trials(file: Path, sweep_of) -> None:
    search = Scripted([1.0, 2.0, 3.0])
    search.ask()
    search.ask()
    search.told[0] = 1.15
    sweep = sweep_of()
    searched(file, sweep, search, trials=3)
    assert search.told == {0: 1.15, 1: pytest.approx(2.15), 2: pytest.approx(3.15)}
    assert len(sweep.configurations) == 3


def test_optuna_remembers_its_trials_and_prunes_below_the_median(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from components.sweeps.optuna_search import OptunaSearch

    space = {
        "rate": Range(1e-4, 1, whole=False, log=True),
        "layers": Range(1, 3, whole=True, log=False),
        "kind": Choices(("a", "b")),
    }
    search = OptunaSearch(tmp_path / "journal", space, minimise=False)
    for value in range(5):
        number, values = search.ask()
        assert 1e-4 <= values["rate"] <= 1
        assert values["layers"] in (1, 2, 3)
        assert values["kind"] in ("a", "b")
        assert not search.should_prune(number, [float(value + 1)])
        search.tell(number, float(value + 1))
    number, _ = search.ask()

    search = OptunaSearch(tmp_path / "journal", space, minimise=False)
    assert [known for known, _ in search.trials()] == list(range(6))
    assert [search.has_ended(each) for each in range(6)] == [True] * 5 + [False]
    assert not search.should_prune(number, [4.0])
    assert search.should_prune(search.ask()[0], [0.5])
    search.tell(number, None, pruned=True)
    assert search.was_pruned(number)


def test_optuna_finds_better_values_than_its_first_ones(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from components.sweeps.optuna_search import OptunaSearch

    search = OptunaSearch(tmp_path / "journal", space_of(["x=-5.0..5"]), minimise=True)
    scores = []
    for _ in range(30):
        number, values = search.ask()
        scores.append((values["x"] - 2) ** 2)
        search.tell(number, scores[-1])
    assert min(scores[10:]) < min(scores[:10])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "0"], "--seeds: 0 is not allowed: it must be 1 or more"),
        (["--prune"], "--prune needs --search optuna"),
        (["--trials", "3"], "--trials needs --search optuna"),
        (["--search", "optuna"], "--search needs --set NAME=VALUES"),
        (["--seed", "3"], "--seed is not allowed: the sweep sets it; --seeds N says how many seeds there are"),
        (["--as=x"], "--as is not allowed: the sweep sets it"),
        (["--set", "rate=0"], "--rate: '0' is not allowed"),
    ],
)
def test_a_slip_is_said_before_anything_is_written(
    file: Path, tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as raised:
        command.command([str(file), *words])
    assert said in str(raised.value)
    assert not (tmp_path / "sweeps").exists()


def test_a_folder_has_one_sweep(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "check_run", lambda *_: None)
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "sweep.json").write_text(json.dumps({"file": str(file), "flags": ["--steps", "5"], "search": None}))
    with pytest.raises(
        UsageError, match=r"has a sweep with another flags: \['--steps', '5'\], not \[\]; choose another"
    ):
        command.command([str(file), "--folder", str(folder)])


@pytest.mark.minutes
def test_two_by_two_runs_are_trained_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from components.reporting import compare

    small = ["--scenario", "3m", "--steps", "800", "--envs-per-worker", "8", "--final-eval-episodes", "8"]
    small += ["--eval-episodes", "8", "--learning-starts", "8", "--eval-interval", "400", "--single-process"]
    words = ["train", "--set", "learning_rate=1e-3,5e-4", "--seeds", "2", *small, "--folder", str(tmp_path / "s")]
    assert command.command(words) == 0
    said = capsys.readouterr().out
    assert "learning_rate=0.001   2 of 2" in said
    assert "learning_rate=0.0005  2 of 2" in said
    assert compare.command([str(tmp_path / "s"), "--output", str(tmp_path / "curves.png")]) == 0
    assert capsys.readouterr().out.count("seeds                2") == 2
    assert len(list((tmp_path / "s" / "runs").glob("*/*/config.json"))) == 4
    assert run_name(Configuration("x", {}, ()), 3) == "x-seed3"
