"""Table III, Fig. 8 and Fig. 9 of DMCAF: its modes on four scenarios of SMAC and in air combat, in two settings.

    python benchmarks/dmcaf.py                                      all of it, below runs/dmcaf
    python benchmarks/dmcaf.py --parts table --settings game        Table III at game speed: minutes
    python benchmarks/dmcaf.py --parts maca                         Fig. 9: hierarchical QMIX in air combat
    python benchmarks/dmcaf.py --list                               the runs, and how long they take

The settings are the simulator as it is (`simulator`), and the simulator at the speed of StarCraft II (`game`,
`components/envs/game_speed.py`). The experiments are in `experiments/dmcaf`; those that play and learn in turn run with
`--single-process`.

- The table measures the environment steps that each mode collects in a second while it learns, for `--seconds` each.
- The figure needs whole runs, of equally many environment steps in each mode. Each scenario has a picture: win rate and
  return of greedy tests, against environment steps and against minutes.
- Fig. 9 needs whole runs, too: Hierq-1, AWL-hierq-4, AWL-hierq-12, and flat QMIX on the workers of the last. Its table
  says when each mode reached a win rate of 80 % against the rules, and how often the best parameters of each run win.

Finished measurements and runs are not repeated, so a command that was stopped can be started again. The output goes to
`--output`: `table.md`, `table.json`, and `SETTING_SCENARIO.png` with its table beside it; for Fig. 9 `SETTING_maca.md`.

The rates are those of this machine: let nothing else run on it.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray
from steady_run import EXPERIMENTS, rates

from components.envs.game_speed import MEAN_S
from components.reporting.compare import as_markdown
from components.reporting.comparison import Group, read_trial, table
from components.reporting.figure import comparison_figure
from components.reporting.win_rate import WINDOW

HERE = Path(__file__).resolve().parent
STEPS = {"3m": 400_000, "8m": 1_000_000, "2s3z": 1_500_000, "5m_vs_6m": 3_000_000}
"""Environment steps of the runs of the figure, as in `learning.py`."""
PAPER = {"3m": (1.8, 6.6), "8m": (1.6, 6.5), "2s3z": (1.8, 7.6), "5m_vs_6m": (2.0, 6.4)}
"""Speeds of AW-QMIX and AWL-QMIX in the paper, as multiples of QMIX's: quotients from its Table III."""
SETTINGS = {"simulator": "--no-game-speed", "game": "--game-speed"}
PARTS = ("table", "figure", "maca")
POLL_S = 5.0


@dataclass(frozen=True, slots=True)
class Mode:
    """One line of the table or the figure."""

    label: str
    experiment: str
    envs: int
    in_turn: bool
    """Whether one process plays and learns in turn."""
    env: str = ""
    """Prefix of its scenarios in `--env`, `air_combat:`; empty for scenarios of SMAC."""
    flags: tuple[str, ...] = ()
    """Further flags of `orchestra run`."""

    def words(self, setting: str, scenario: str, seed: int) -> list[str]:
        """Return the arguments of `orchestra run`, the experiment first."""
        where = ["--env", self.env + scenario] if self.env else ["--scenario", scenario]
        flags = [*where, SETTINGS[setting], *self.flags, "--seed", str(seed)]
        return [str(EXPERIMENTS / "dmcaf" / self.experiment), *flags, *(["--single-process"] if self.in_turn else [])]


QMIX = Mode("QMIX", "qmix.py", 1, in_turn=True)
AW = Mode("AW-QMIX", "aw_qmix.py", 4, in_turn=True)
AWL = Mode("AWL-QMIX", "awl_qmix.py", 12, in_turn=False)
COMA = Mode("COMA", "coma.py", 12, in_turn=False)
TABLE = (QMIX, AW, AWL)
FIGURE = (QMIX, AW, AWL, COMA)
AIR = "air_combat:"
OF_AIR = ("--updates-per-episode", "0.5")
"""Flags of air combat. With 1 update per episode, a learner that shares two cores with the workers keeps up with only
about 500 steps a second."""
MACA = (
    Mode("Hierq-1", "maca_hierq.py", 1, in_turn=True, env=AIR, flags=OF_AIR),
    Mode("AWL-hierq-4", "maca_awl_hierq_4.py", 4, in_turn=False, env=AIR, flags=OF_AIR),
    Mode("AWL-hierq-12", "maca_awl_hierq_12.py", 12, in_turn=False, env=AIR, flags=OF_AIR),
    Mode("flat QMIX", "maca_qmix.py", 12, in_turn=False, env=AIR, flags=OF_AIR),
)
MACA_MAP, MACA_STEPS = "fighter10v10", 400_000
LEVEL = 0.8
"""Mean win rate of tests in succession at which the rules of the simulator count as beaten."""


class Remaining:
    """Prints the current part of the work, its rate, and the remaining time.

    Args:
        seconds: expected duration of each part.
    """

    def __init__(self, seconds: Sequence[float]) -> None:
        self._left = list(seconds)
        self._count = len(self._left)
        self._expected = self._spent = 0.0  # seconds of the finished parts
        self._since = 0.0

    def begin(self, what: str) -> None:
        self._since = monotonic()
        number = self._count - len(self._left) + 1
        print(f"{number} of {self._count}: {what}; {as_time(sum(self._left) * self._pace)} left", flush=True)

    def advance(self, steps: int, goal: int, rate: float) -> None:
        """Print the progress of a run."""
        rest = max(goal - steps, 0) / rate if rate > 0 else self._left[0] * self._pace
        later = sum(self._left[1:]) * self._pace
        text = (
            f"  {steps:,} of {goal:,} steps, {rate:,.0f} steps/s, {as_time(rest)} left; of all {as_time(rest + later)}"
        )
        print(text, flush=True)

    def end(self) -> None:
        self._expected += self._left.pop(0)
        self._spent += monotonic() - self._since

    @property
    def _pace(self) -> float:
        """Actual seconds per expected second."""
        return self._spent / self._expected if self._expected else 1.0


def as_time(seconds: float) -> str:
    """Return it as hours, minutes and seconds: `1:05:09`."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


# Table III ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement."""

    setting: str
    scenario: str
    mode: Mode
    seed: int

    @property
    def key(self) -> str:
        return f"{self.setting} {self.scenario} {self.mode.label} seed {self.seed}"


def measure(cells: Sequence[Cell], seconds: float, file: Path) -> dict[str, dict[str, float]]:
    """Return the rates of all cells; measure those that `file` does not have, and add each to it at once."""
    done: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    missing = [cell for cell in cells if _key(cell, seconds) not in done]
    remaining = Remaining([2 * seconds] * len(missing))
    for cell in missing:
        remaining.begin(f"table, {cell.key}")
        flags = cell.mode.words(cell.setting, cell.scenario, cell.seed)
        run = rates(Path(flags[0]), *flags[1:], seconds=seconds)
        key = _key(cell, seconds)
        done[key] = {
            "steps_per_s": run.rate("env_steps"),
            "updates_per_s": run.rate("updates"),
            "episodes_per_s": run.rate("episodes"),
            "seconds": run.seconds,
        }
        remaining.end()
        print(f"  {done[key]['steps_per_s']:,.0f} steps/s, {done[key]['updates_per_s']:.1f} updates/s", flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(done, indent=1))
        unfinished.replace(file)
    return {cell.key: done[_key(cell, seconds)] for cell in cells}


def _key(cell: Cell, seconds: float) -> str:
    return f"{cell.key}, {seconds:g} s"


def table_rows(cells: Sequence[Cell], done: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Return a row for each setting and scenario: medians over the seeds, and ratios of them."""
    rows = []
    for setting, scenario in dict.fromkeys((cell.setting, cell.scenario) for cell in cells):
        row: dict[str, Any] = {"setting": setting, "scenario": scenario}
        for mode in TABLE:
            mine = [done[c.key] for c in cells if (c.setting, c.scenario, c.mode) == (setting, scenario, mode)]
            row["seeds"] = len(mine)
            row[mode.label] = {name: median(cell[name] for cell in mine) for name in mine[0]}
        serial = row[QMIX.label]["steps_per_s"]
        row["ratios"] = {mode.label: row[mode.label]["steps_per_s"] / serial for mode in (AW, AWL)}
        row["paper"] = dict(zip((AW.label, AWL.label), PAPER[scenario], strict=True))
        rows.append(row)
    return rows


def table_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    head = ["setting", "scenario", *(mode.label for mode in TABLE)]
    head += [f"{mode.label} : QMIX (paper)" for mode in (AW, AWL)]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        of = [row[mode.label] for mode in TABLE]
        lines.append(
            [row["setting"], row["scenario"]]
            + [f"{each['steps_per_s']:,.0f} ({each['updates_per_s']:.1f})" for each in of]
            + [f"{row['ratios'][mode.label]:.2f} ({row['paper'][mode.label]})" for mode in (AW, AWL)]
        )
    seeds = max((row["seeds"] for row in rows), default=0)
    note = f"Environment steps a second, in brackets gradient steps a second; medians of n = {seeds}."
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", note, ""])


# Fig. 8 ---------------------------------------------------------------------------------------------------------------


def finished(runs: Path) -> dict[tuple[str, ...], Path]:
    """Return the finished runs below `runs`, by their arguments."""
    found = {}
    for summary in sorted(runs.glob("*/*/summary.json")):
        if json.loads(summary.read_text())["reached_goal"]:
            found[tuple(json.loads((summary.parent / "config.json").read_text())["command"][2:])] = summary.parent
    return found


def play(words: list[str], runs: Path, goal: int, remaining: Remaining) -> None:
    """Make a run to its end, and print its progress.

    Raises:
        SystemExit: the run failed.
    """
    before = set(runs.glob("*/*"))
    runs.mkdir(parents=True, exist_ok=True)
    said, output = -1, runs / "output.txt"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestra", "run", *words], stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                sleep(POLL_S)
                for file in (path / "metrics.jsonl" for path in set(runs.glob("*/*")) - before):
                    lines = file.read_text().split("\n")[:-1] if file.exists() else []
                    record = json.loads(lines[-1]) if lines else {"env_steps": 0}
                    if record["env_steps"] > said:
                        said = record["env_steps"]
                        remaining.advance(said, goal, record.get("env_steps_per_s", 0.0))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode:
        sys.exit(f"orchestra run ended with {process.returncode}: {output.read_text()[-2000:]}")


def curve_words(cell: Cell, steps: int, runs: Path) -> list[str]:
    """Return the arguments of `orchestra run` for a run of the figure."""
    words = cell.mode.words(cell.setting, cell.scenario, cell.seed)
    return [*words, "--steps", str(steps), "--runs-dir", str(runs / cell.setting / cell.scenario / cell.mode.label)]


def draw(cells: Sequence[Cell], steps: dict[str, int], runs: Path, output: Path) -> dict[str, list[Path]]:
    """Make the missing runs, and draw the runs of each setting and scenario once all of them are finished.

    Returns all runs, by setting and label: `game AWL-hierq-4`.
    """
    made: dict[str, list[Path]] = {}
    have = {words for folder in runs.glob("*/*/*") for words in finished(folder)}
    missing = [cell for cell in cells if tuple(curve_words(cell, steps[cell.scenario], runs)) not in have]
    remaining = Remaining([expected_s(cell, steps[cell.scenario]) for cell in missing])
    for setting, scenario in dict.fromkeys((cell.setting, cell.scenario) for cell in cells):
        mine = [cell for cell in cells if (cell.setting, cell.scenario) == (setting, scenario)]
        groups: dict[str, list[Any]] = {}
        for cell in mine:
            words = curve_words(cell, steps[scenario], runs)
            folder = Path(words[-1])
            if cell in missing:
                remaining.begin(f"figure, {cell.key}")
                play(words, folder, steps[scenario], remaining)
                remaining.end()
            run = finished(folder)[tuple(words)]
            made.setdefault(f"{setting} {cell.mode.label}", []).append(run)
            groups.setdefault(cell.mode.label, []).append(read_trial(run))
        lines = [Group(label, tuple(trials)) for label, trials in groups.items()]
        output.mkdir(parents=True, exist_ok=True)
        picture = output / f"{setting}_{scenario}.png"
        comparison_figure(lines).savefig(picture)
        picture.with_suffix(".md").write_text(as_markdown(table(lines)))
        print(f"curves  {picture}", flush=True)
    return made


def expected_s(cell: Cell, steps: int) -> float:
    """Return about how long a run takes: by the game's speed in that setting, else by some thousand steps a second."""
    return steps * MEAN_S / cell.mode.envs if cell.setting == "game" else steps / 2000


# Fig. 9 ---------------------------------------------------------------------------------------------------------------


def reached_at(win_rate: NDArray[np.float64]) -> int | None:
    """Return the last of the first `WINDOW` successive tests that average `LEVEL` or more; None if there are none."""
    if len(win_rate) < WINDOW:
        return None
    means = np.convolve(win_rate, np.full(WINDOW, 1.0 / WINDOW), "valid")
    enough = np.flatnonzero(means >= LEVEL - 1e-9)
    return int(enough[0]) + WINDOW - 1 if len(enough) else None


def maca_rows(runs: dict[str, list[Path]], setting: str) -> list[dict[str, Any]]:
    """Return a row for each mode: when its runs reached `LEVEL`, in medians, and how often their best parameters win.

    A run reaches `LEVEL` at the test that `reached_at` returns. A mode reaches it if more than half of its runs do.
    """
    rows: list[dict[str, Any]] = []
    for mode in MACA:
        folders = runs[f"{setting} {mode.label}"]
        trials = [read_trial(folder) for folder in folders]
        first = [reached_at(trial.win_rate) for trial in trials]
        # A run that never reached it counts as longer than every run that did.
        steps, minutes = (
            median([inf if k is None else float(axis[k]) for axis, k in zip(axes, first, strict=True)])
            for axes in ([trial.env_steps for trial in trials], [trial.minutes for trial in trials])
        )
        finals = [json.loads((folder / "summary.json").read_text())["best"]["win_rate"] for folder in folders]
        rows.append(
            {
                "runs": mode.label,
                "seeds": len(trials),
                "reached": sum(k is not None for k in first),
                "steps": steps,
                "minutes": minutes,
                "final": median(finals),
                "finals": finals,
            }
        )
    return rows


def maca_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table; each row says how many times sooner than the row before it was."""
    head = ["runs", f"at {LEVEL:.0%}", "after steps", "minutes", "sooner than the line before", "best parameters win"]
    lines, before = [head, ["---"] * len(head)], inf
    for row in rows:
        there = row["minutes"] < inf
        lines.append(
            [
                row["runs"],
                f"{row['reached']} of {row['seeds']}",
                f"{row['steps']:,.0f}" if there else "not",
                f"{row['minutes']:.1f}" if there else "not",
                f"{before / row['minutes']:.2f}" if there and before < inf else "",
                f"{row['final']:.1%} ({', '.join(f'{each:.1%}' for each in row['finals'])})",
            ]
        )
        before = row["minutes"]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# The command ----------------------------------------------------------------------------------------------------------


def cells_of(modes: Sequence[Mode], scenarios: Sequence[str], options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the measurements or runs, all modes of one seed before the next seed."""
    for setting in options.settings:
        for scenario in scenarios:
            for seed in options.seeds:
                for mode in modes:
                    yield Cell(setting, scenario, mode, seed)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--scenarios", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement of the table (default: 30)")
    parser.add_argument(
        "--steps", type=int, help="of each run of the figures (default: as in learning.py; 400,000 in air combat)"
    )
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/dmcaf"))
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "results" / "dmcaf")
    parser.add_argument("--list", action="store_true", help="say what the runs are, and make none")
    options = parser.parse_args(arguments)
    runs = options.runs_dir.resolve()
    steps = {scenario: options.steps or STEPS[scenario] for scenario in options.scenarios}
    measured, curves = (list(cells_of(modes, options.scenarios, options)) for modes in (TABLE, FIGURE))
    battles = list(cells_of(MACA, [MACA_MAP], options))
    steps[MACA_MAP] = options.steps or MACA_STEPS
    if options.list:
        for cell in measured if "table" in options.parts else ():
            print(f"table   {cell.key}  {as_time(2 * options.seconds)}")
        drawn = [("figure", each) for each in curves] + [("maca", each) for each in battles]
        for part, cell in drawn:
            if part in options.parts:
                print(f"{part:7} {cell.key}  {as_time(expected_s(cell, steps[cell.scenario]))}")
        return
    if "table" in options.parts:
        rows = table_rows(measured, measure(measured, options.seconds, runs / "table.json"))
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.output / "table.md").write_text(table_markdown(rows))
        print(table_markdown(rows))
    if "figure" in options.parts:
        draw(curves, steps, runs, options.output)
    if "maca" in options.parts:
        made = draw(battles, steps, runs, options.output)
        for setting in options.settings:
            page = maca_markdown(maca_rows(made, setting))
            (options.output / f"{setting}_maca.md").write_text(page)
            print(page)


if __name__ == "__main__":
    main()
