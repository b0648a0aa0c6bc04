"""Monitor: shows progress and writes the metrics, curve and summary of a run."""

import asyncio
import contextlib
import math
from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from components.checkpoints import run_state
from components.reporting.display import Display
from components.reporting.event_file import EventFile
from components.reporting.metrics_writer import MetricsWriter
from components.reporting.progress import Progress
from components.reporting.win_rate import SOLVED, WINDOW, solved_at, wilson_interval, win_rate_text
from components.trackers.background import BackgroundLogger
from components.trackers.logger import Logger, LoggerFactory
from messages import EvaluationResultMsg, NotSavedMsg, ProgressMsg, SaveCheckpointMsg
from orchestra import (
    Actor,
    Message,
    NodeStatistics,
    OrchestraError,
    PlayedMsg,
    Ref,
    RunDirectory,
    StatisticsMsg,
    host_lines,
    host_rows,
    log,
    on,
    write_json,
)

HOSTS_SHOWN = 12
"""Hosts that the display shows; if there are more, it shows those with problems first, and a sum."""
TICK_S = 0.5
RECORD_S = 5.0
CURVE_S = 120.0
RATE_S = 15.0
"""Seconds over which rates are taken."""
ANSWER_S = 1.0
"""Seconds within which a node must answer; a busy node is asked again at the next tick."""
FAR_S = 10.0
"""Seconds between two questions to a node of another host."""
MOST_FAR = 12
"""Nodes of other hosts that are asked at a tick."""
ENDED = ("done", "interrupted", "stopped", "failed")
"""States in which a run ends. The Orchestrator of an aborted run reports none of them."""
_SAME = [field.name for field in fields(Progress) if field.name in ProgressMsg.model_fields and field.name != "sync"]


class TickMsg(Message):
    """Ask the nodes for statistics, and show progress."""


class Monitor(Actor[ProgressMsg | PlayedMsg | EvaluationResultMsg | TickMsg | SaveCheckpointMsg]):
    """Shows and records progress. Other actors wait for it only during a checkpoint.

    Args:
        title: name of the run in the display.
        can_be_won: False if episodes have only returns. Win rates are then left out until an episode is won.
        reward_threshold: the mean return at which such an environment counts as solved; None if there is none.
        trackers: factories of further loggers, by name, besides `metrics.jsonl` and TensorBoard; a run without a
            directory has none.
        stream: receives the display; by default standard output, or nothing if the run is quiet.
    """

    def __init__(
        self,
        *,
        title: str,
        can_be_won: bool = True,
        reward_threshold: float | None = None,
        trackers: Mapping[str, LoggerFactory] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._display = Display(stream or log.display_stream(), title=title)
        self._title = title
        self._can_be_won, self._reward_threshold = can_be_won, reward_threshold
        self._run = None if self.run_directory is None else RunDirectory.open(self.run_directory)
        self._since = self.clock.monotonic()
        self._latest: ProgressMsg | None = None
        self._test: EvaluationResultMsg | None = None
        self._tests: list[tuple[int, float, float, int, float]] = []
        """Environment steps, win rate, mean return, updates, minutes of each test, in this order."""
        self._final: EvaluationResultMsg | None = None
        self._history: deque[tuple[float, int, int]] = deque()
        self._busiest: tuple[str, int] | None = None
        self._answered: dict[str, NodeStatistics] = {}
        """The statistics of the nodes that have answered."""
        self._asked: dict[str, float] = {}
        """Time at which each node of another host was last asked."""
        self._has_hosts = False
        """True if the run uses several hosts, which its node lists."""
        self._node = self.me.address.partition("/")[0]
        self._restarts = 0
        self._dead_letters = 0
        self._next_record = 0.0
        self._next_curve = CURVE_S
        env_steps = None if self.resume_from is None else self._resume(self.resume_from)
        self._trackers: list[BackgroundLogger] = []
        self._writer = None if self._run is None else self._opened(self._run, trackers or {}, env_steps)

    async def started(self) -> None:
        self.after(TICK_S, TickMsg())

    async def stopped(self) -> None:
        progress = None if self._latest is None else self._progress(self._latest)
        if progress is not None:
            if progress.state not in ENDED:
                progress = replace(progress, state="aborted")
            self._record(progress)
        if self._writer is not None:
            for tracker in self._trackers:
                await self.offload(tracker.close)
            with self._surviving_a_full_disk():
                self._writer.close()
        if progress is None:
            self._display.close()
            return
        if self._run is not None:
            with self._surviving_a_full_disk():
                _draw(self._title, self._run.metrics, self._run.curve)
            with self._surviving_a_full_disk():
                write_json(self._run.summary, self._summary(progress))
        self._display.finish(progress, self._words(), curve=None if self._run is None else self._run.curve)

    @on(ProgressMsg)
    def progress(self, msg: ProgressMsg) -> None:
        self._latest = msg
        self._can_be_won = self._can_be_won or bool(msg.train_win_rate)

    @on(PlayedMsg)
    async def played(self, msg: PlayedMsg) -> None:
        if self._has_hosts:
            hosts: Ref[PlayedMsg] = Ref(f"{self._node}/hosts")
            await hosts.tell(msg)

    @on(EvaluationResultMsg)
    def evaluated(self, msg: EvaluationResultMsg) -> None:
        self._can_be_won = self._can_be_won or msg.win_rate > 0
        if msg.final:
            self._final = msg
            return
        if self._latest is None:
            return
        self._test = msg
        minutes = (self.clock.monotonic() - self._since) / 60
        insort(self._tests, (msg.env_steps, msg.win_rate, msg.mean_return, self._latest.updates, minutes))
        self._record(self._progress(self._latest), test_length=msg.mean_length, test_env_steps=msg.env_steps)

    @on(TickMsg)
    async def tick(self, msg: TickMsg) -> None:
        await self._ask_nodes()
        if self._latest is not None:
            progress = self._progress(self._latest)
            self._display.show(progress)
            if progress.elapsed_s >= self._next_record:
                self._next_record = progress.elapsed_s + RECORD_S
                self._record(progress)
            if self._run is not None and progress.elapsed_s >= self._next_curve:
                self._next_curve = progress.elapsed_s + CURVE_S
                with self._surviving_a_full_disk():
                    await self.offload(partial(_draw, self._title), self._run.metrics, self._run.curve)
        self.after(TICK_S, TickMsg())

    @on(SaveCheckpointMsg)
    def save(self, msg: SaveCheckpointMsg) -> str | NotSavedMsg:
        test = None if self._test is None else self._test.model_dump()
        values = {
            "env_steps": 0 if self._latest is None else self._latest.env_steps,
            "elapsed_s": self.clock.monotonic() - self._since,
            "test": test,
            "tests": self._tests,
        }
        try:
            return str(run_state.write(self.run_directory, msg.env_steps, self.me.address, values))
        except OSError as error:
            return NotSavedMsg(error=run_state.reason(error))

    def _opened(
        self, run: RunDirectory, trackers: Mapping[str, LoggerFactory], resumes_at: int | None
    ) -> MetricsWriter:
        """Open the files and loggers of the figures."""
        self._trackers = [BackgroundLogger(partial(make, run, resumes_at), name) for name, make in trackers.items()]
        loggers: list[Logger] = [EventFile(run.tensorboard, resumes_at), *self._trackers]
        return MetricsWriter(run.metrics, loggers, resumes_at)

    def _resume(self, folder: Path) -> int:
        """Continue from a checkpoint; return its number of environment steps."""
        values, _ = run_state.read(folder, self.me.address)
        self._since -= values["elapsed_s"]
        self._next_record, self._next_curve = values["elapsed_s"], values["elapsed_s"] + CURVE_S
        self._test = None if values["test"] is None else EvaluationResultMsg.model_validate(values["test"])
        self._tests = [tuple(each) for each in values["tests"]]
        self._can_be_won = self._can_be_won or any(win_rate > 0 for _, win_rate, *_ in self._tests)
        return int(values["env_steps"])

    async def _ask_nodes(self) -> None:
        """Take the busiest mailbox, restarts and dead letters from the statistics of all nodes."""
        root = await self._ask_node(self._node)
        if root is None:
            return
        self._has_hosts = bool(root.hosts)
        self._display.notice = "unencrypted" if root.unencrypted else ""
        self._display.hosts = host_lines(host_rows(root), most=HOSTS_SHOWN)
        far = {name for host in root.hosts if host.agent for name in (host.agent, *host.nodes)}.intersection(root.peers)
        asked = [*(peer for peer in root.peers if peer not in far), *self._due(far)]
        answers = await asyncio.gather(*map(self._ask_node, asked))
        found = {name: self._answered.get(name) for name in far} | dict(zip(asked, answers, strict=True))
        self._answered = {name: node for name, node in found.items() if node is not None}
        nodes = [root, *self._answered.values()]
        depths = {cell.address: cell.mailbox.depth for node in nodes for cell in node.cells}
        if depths:
            busiest = max(depths, key=lambda address: depths[address])
            self._busiest = (busiest, depths[busiest])
        self._restarts = sum(process.restarts for process in root.processes)
        self._dead_letters = sum(node.dead_letters for node in nodes)

    def _due(self, far: Collection[str]) -> list[str]:
        """Return the nodes of other hosts to ask now: at most `MOST_FAR`, and each at most once in `FAR_S` seconds."""
        now = self.clock.monotonic()
        self._asked = {name: self._asked.get(name, -math.inf) for name in far}
        due = sorted((name for name in far if now - self._asked[name] >= FAR_S), key=lambda name: self._asked[name])
        self._asked |= dict.fromkeys(due[:MOST_FAR], now)
        return due[:MOST_FAR]

    async def _ask_node(self, node: str) -> NodeStatistics | None:
        system: Ref[StatisticsMsg] = Ref(f"{node}/system")
        try:
            async with asyncio.timeout(ANSWER_S):
                return await system.ask(StatisticsMsg())
        except (OrchestraError, TimeoutError) as error:
            self.log.debug("a node did not answer", peer=node, reason=str(error))
            return None

    def _progress(self, msg: ProgressMsg) -> Progress:
        now = self.clock.monotonic()
        self._history.append((now, msg.env_steps, msg.updates))
        while now - self._history[0][0] > RATE_S and len(self._history) > 2:
            self._history.popleft()
        then, steps, updates = self._history[0]
        span = max(now - then, 1e-9)
        test, won = self._test, self._can_be_won
        same = {name: getattr(msg, name) for name in _SAME}
        return Progress(
            **same | {"train_win_rate": msg.train_win_rate if won else None},
            elapsed_s=now - self._since,
            env_steps_per_s=(msg.env_steps - steps) / span,
            updates_per_s=(msg.updates - updates) / span,
            tests=len(self._tests),
            test_win_rate=test.win_rate if test is not None and won else None,
            test_return=None if test is None else test.mean_return,
            best_test_win_rate=max((win_rate for _, win_rate, *_ in self._tests), default=None) if won else None,
            best_test_return=max((mean for _, _, mean, *_ in self._tests), default=None),
            sync=dict(msg.sync),
            loss=dict(msg.metrics).get("loss"),
            busiest_actor=None if self._busiest is None else self._busiest[0],
            mailbox_depth=None if self._busiest is None else self._busiest[1],
            restarts=self._restarts,
        )

    def _record(self, progress: Progress, **more: float) -> None:
        if self._writer is None or self._latest is None:
            return
        own = {f"learner/{name}": value for name, value in self._latest.metrics}
        with self._surviving_a_full_disk():
            self._writer.write(progress, {**own, "train_length": self._latest.train_length, **more})

    @contextlib.contextmanager
    def _surviving_a_full_disk(self) -> Iterator[None]:
        """Log an error of the operating system in the block: the run continues without its figures."""
        try:
            yield
        except OSError as error:
            self.log.warning("figures cannot be written", error=repr(error))

    def _summary(self, progress: Progress) -> dict[str, object]:
        whole = max(progress.elapsed_s, 1e-9)
        return {
            **asdict(progress),
            "env_steps_per_s": progress.env_steps / whole,
            "updates_per_s": progress.updates / whole,
            "reached_goal": progress.env_steps >= progress.goal_steps,
            "solved": self._solved(),
            "best": self._best(),
            "dead_letters": self._dead_letters,
        }

    def _solved(self) -> dict[str, float] | None:
        """Return the point at which the scenario was solved; None if it was not."""
        first = None
        if self._can_be_won:
            first = solved_at([win_rate for _, win_rate, *_ in self._tests])
        elif self._reward_threshold is not None:
            first = solved_at([mean for _, _, mean, *_ in self._tests], self._reward_threshold)
        if first is None:
            return None
        env_steps, _, _, updates, minutes = self._tests[first]
        return {"env_steps": env_steps, "updates": updates, "minutes": minutes}

    def _best(self) -> dict[str, object] | None:
        """Return the result of the best parameters in the final evaluation; None if it was not played."""
        if self._final is None:
            return None
        result = self._final.model_dump(exclude={"final"})
        if not self._can_be_won:
            return {**result, "win_rate": None, "win_rate_interval": None}
        return {**result, "win_rate_interval": wilson_interval(_won(self._final), self._final.episodes)}

    def _words(self) -> list[str]:
        words, solved, best = [], self._solved(), self._final
        if solved is not None:
            words.append(
                f"solved       after {solved['env_steps']:,} steps, {solved['updates']:,} updates, "
                f"{solved['minutes']:.1f} minutes: from there every {WINDOW} tests "
                + (f"won {SOLVED:.0%}" if self._can_be_won else f"returned {self._reward_threshold:g}")
                + " on average"
            )
        if best is not None:
            played = (
                f"{win_rate_text(_won(best), best.episodes)}, return {best.mean_return:.2f}"
                if self._can_be_won
                else f"return {best.mean_return:.2f} on average of {best.episodes:,} greedy episodes"
            )
            words.append(f"best         {played}, parameters of step {best.env_steps:,}")
        sync = {} if self._latest is None else dict(self._latest.sync)
        if "loads" in sync:
            params, digests = (_mebibytes(sync[name]) for name in ("params_bytes", "digest_bytes"))
            loads = f"{sync['loads_per_worker']:,.1f} of {sync['versions']:,.0f} versions per worker"
            words.append(f"loads        {loads}; parameters {params}, digests {digests}")
        return words


def _won(result: EvaluationResultMsg) -> int:
    return round(result.win_rate * result.episodes)


def _mebibytes(n_bytes: float) -> str:
    return f"{n_bytes / (1 << 20):,.1f} MiB"


def _draw(title: str, metrics: Path, picture: Path) -> None:
    from components.reporting.curve import draw_curve  # slow: imports matplotlib, which only this process needs

    draw_curve(metrics, picture, title=title)
