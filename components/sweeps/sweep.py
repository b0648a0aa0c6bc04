"""A sweep: keeps a queue filled with the runs of its configurations, and reads their scores."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from components.sweeps.configurations import Configuration
from components.sweeps.results import Metric, Result, curve, read_tests, score
from orchestra import QueuedRun, RunQueue

Words = Callable[[Configuration, int], Sequence[str]]
"""A function that returns the arguments of `orchestra run` for a configuration and a seed."""


class Search(Protocol):
    """Interface for the choice of configurations; `OptunaSearch` implements it."""

    def trials(self) -> list[tuple[int, dict[str, Any]]]:
        """Return number and values of all trials so far."""

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Begin a trial."""

    def has_ended(self, number: int) -> bool:
        """Return whether a trial has ended."""

    def was_pruned(self, number: int) -> bool:
        """Return whether a trial was pruned."""

    def should_prune(self, number: int, scores: Sequence[float]) -> bool:
        """Return whether a trial should be pruned."""

    def tell(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        """End a trial."""


class Sweep:
    """Configurations, each with the same seeds, as runs of a queue.

    Args:
        queue: the queue.
        seeds: seeds of each configuration.
        words: makes the arguments of a run.
        metric: metric of the score; None for the win rate if episodes can be won, else the return.
    """

    def __init__(self, queue: RunQueue, seeds: Sequence[int], words: Words, metric: Metric | None) -> None:
        self.queue, self.seeds, self.metric = queue, seeds, metric
        self.configurations: list[Configuration] = []
        self._words = words

    def add(self, configuration: Configuration, seeds: Sequence[int] | None = None) -> None:
        """Put the runs of a configuration into the queue, except those already there."""
        if configuration not in self.configurations:
            self.configurations.append(configuration)
        for seed in self.seeds if seeds is None else seeds:
            name = run_name(configuration, seed)
            if name not in self.queue.entries:
                self.queue.add(QueuedRun(name, self._words(configuration, seed)))

    def result(self, configuration: Configuration) -> Result:
        """Return the result of a configuration: the scores of its runs that are done, or were stopped."""
        scores, notes = {}, []
        for seed in self.seeds:
            entry = self.queue.entries.get(run_name(configuration, seed))
            if entry is None:
                continue
            if entry.state == "stopped":
                notes.append("pruned")
            elif entry.state == "failed":
                notes.append(f"seed {seed} failed ({entry.exit_code})")
            if entry.state in ("done", "stopped"):
                trial = read_tests(self.queue.directory(entry.run.name))
                if trial is not None:
                    scores[seed] = score(trial, self.metric)
        return Result(configuration, scores, len(self.seeds), ", ".join(dict.fromkeys(notes)))

    def results(self) -> list[Result]:
        """Return the result of each configuration."""
        return [self.result(each) for each in self.configurations]


class SearchedSweep:
    """Fills a sweep with trials of a search, as many at a time as the queue runs at a time.

    Args:
        sweep: the sweep, empty.
        search: chooses configurations.
        trials: total number of trials.
        prune: True to prune trials. The first seed of a trial decides; its other seeds begin when the first is done.
        make: makes a configuration of a trial's number and values.
    """

    def __init__(
        self,
        sweep: Sweep,
        search: Search,
        *,
        trials: int,
        prune: bool,
        make: Callable[[int, dict[str, Any]], Configuration],
    ) -> None:
        self._sweep, self._search, self._most, self._prune, self._make = sweep, search, trials, prune, make
        self._open: dict[int, Configuration] = {}
        self._tests: dict[int, int] = {}
        """Number of tests of the first seed that were evaluated, for each open trial."""
        known = search.trials()
        self._begun = len(known)
        for number, values in known:
            configuration = make(number, values)
            if search.has_ended(number):
                sweep.add(configuration, sweep.seeds[:1] if search.was_pruned(number) else None)
            else:
                self._begin(number, configuration)

    def tick(self) -> None:
        """Check the runs: end trials, prune them, begin others. It is a callback for `RunQueue.on_tick`."""
        for number, configuration in list(self._open.items()):
            self._look_at(number, configuration)
        while self._begun < self._most and self._wanted():
            number, values = self._search.ask()
            self._begun += 1
            self._begin(number, self._make(number, values))

    def _wanted(self) -> bool:
        """Return whether the queue has a free place and no waiting run for it."""
        counts = self._sweep.queue.counts()
        return counts["waiting"] + counts["running"] < self._sweep.queue.parallel

    def _begin(self, number: int, configuration: Configuration) -> None:
        self._open[number] = configuration
        self._sweep.add(configuration, self._sweep.seeds[:1] if self._prune else None)

    def _look_at(self, number: int, configuration: Configuration) -> None:
        sweep, queue = self._sweep, self._sweep.queue
        first = queue.entries[run_name(configuration, sweep.seeds[0])]
        names = [run_name(configuration, seed) for seed in sweep.seeds]
        entries = [queue.entries[name] for name in names if name in queue.entries]
        if any(entry.state == "failed" for entry in entries):
            for entry in entries:
                queue.stop(entry.run.name)
            self._end(number, None)
        elif first.state == "stopped":
            self._end(number, None, pruned=True)
        elif self._prune and first.state == "running" and self._falls_behind(number, first.run.name):
            queue.stop(first.run.name)
        elif first.state == "done":
            sweep.add(configuration)
            if all(queue.entries[name].state == "done" for name in names):
                mean = sweep.result(configuration).mean
                self._end(number, None if math.isnan(mean) else mean)

    def _falls_behind(self, number: int, name: str) -> bool:
        trial = read_tests(self._sweep.queue.directory(name))
        scores = [] if trial is None else curve(trial, self._sweep.metric)
        if len(scores) == self._tests.get(number, 0):
            return False
        self._tests[number] = len(scores)
        return self._search.should_prune(number, scores)

    def _end(self, number: int, value: float | None, *, pruned: bool = False) -> None:
        self._search.tell(number, value, pruned=pruned)
        del self._open[number]


def run_name(configuration: Configuration, seed: int) -> str:
    """Return the name of a run."""
    return f"{configuration.name}-seed{seed}"
