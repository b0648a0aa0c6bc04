"""`orchestra replay`: run one actor of a recorded run again, compared with its record or in a debugger."""

import bdb
import contextlib
import io
import pdb  # noqa: T100 (--pdb)
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestra.actors.actor import Actor
from orchestra.cli.exit_codes import FAILED
from orchestra.errors import CannotReplay, ReplayDiverged, UsageError
from orchestra.hosts.bundle import Bundle
from orchestra.replay import recorded_code
from orchestra.replay.determinism import HASH_SEEDS, first_mismatch
from orchestra.replay.effects import ReplayedActivation
from orchestra.replay.rebuild import address_of
from orchestra.replay.regression import make_test
from orchestra.replay.replay import Options as ReplayOptions
from orchestra.replay.replay import Replay
from orchestra.replay.state_condition import StateCondition, attribute_names
from orchestra.replay.what_if import edited_class, what_if
from orchestra.runs.flag_parser import FlagParser
from orchestra.trace.analysis.values import fields_text
from orchestra.trace.format.records import Delivery
from orchestra.trace.reading.query import condition_values
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where

_HELP = """Run one actor of a recorded run again: the real class, with its recorded inputs. Its outputs are compared
with the record, byte for byte. The first difference is printed with its causes, and the exit code is 1.

Without --at, --type or --where the whole record is replayed. With one of them the matching deliveries are printed; with
--pdb, the debugger stops at the first line of their handlers."""

PROGRESS_INTERVAL_S = 1.0


def parser() -> FlagParser:
    """Return the parser of the command line."""
    parser = FlagParser(
        prog="orchestra replay", description=_HELP, usage="orchestra replay RUN --actor ADDRESS [flags]"
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run directory, a folder of traces, or a trace file")
    parser.add_argument("--actor", metavar="ADDRESS", help="the actor, as in learner/trainer")
    parser.add_argument(
        "--process", type=int, metavar="N",
        help="the process of its node, from 0: a run that is resumed, and a process that dies, is followed by another "
        "(default: the first recorded)",
    )  # fmt: skip
    parser.add_argument(
        "--incarnation", type=int, metavar="N",
        help="the restart within that process, from 0 (default: the first recorded)",
    )  # fmt: skip
    where = parser.add_argument_group("where to stop")
    where.add_argument("--at", type=int, metavar="N", help="the delivery of this number")
    where.add_argument("--type", metavar="T", help="every message of this type")
    where.add_argument("--where", metavar="EXPR", help="every message whose fields match: 'version > 120'")
    where.add_argument(
        "--until", metavar="N|EXPR",
        help="end before this delivery, or as soon as a condition on the actor's attributes holds: "
        "'state.env_steps > 1000'",
    )  # fmt: skip
    where.add_argument("--pdb", action="store_true", help="stop in the debugger (default: at the first delivery)")
    how = parser.add_argument_group("how to compare")
    how.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X",
        help="relative and absolute tolerance of floating-point numbers, for another machine or number of threads "
        "(default: 0, equal bytes)",
    )  # fmt: skip
    how.add_argument(
        "--check-determinism", action="store_true",
        help="replay in five fresh processes with different hash seeds, and compare them with each other",
    )  # fmt: skip
    changed = parser.add_argument_group("what to change")
    changed.add_argument("--experiment", type=Path, metavar="FILE", help="the experiment, if its file has moved")
    changed.add_argument(
        "--allow-changes", action="store_true", help="accept an experiment that has changed since the run"
    )
    changed.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
        help="change a flag of the experiment or an argument of the actor, from birth or from --at on, and count how "
        "the outputs differ",
    )  # fmt: skip
    changed.add_argument(
        "--class",
        metavar="FILE.py:CLASS",
        dest="edited",
        help="replace the actor's class, and count how the outputs differ",
    )
    parser.add_argument(
        "--make-test", type=Path, metavar="FILE", help="write a test that replays the actor, with the trace it needs"
    )
    return parser


def command(arguments: list[str]) -> int:
    """Run an actor of a recorded run again."""
    options = parser().parse_strictly(arguments)
    _check(options)
    if (code := _recorded_code(options)) is not None:
        print(
            "note: the code has changed since the run; this is a replay of the run's own (--allow-changes takes the "
            "present code)",
            file=sys.stderr,
        )
        return recorded_code.carry_out(code, ["replay"], arguments)
    generation = None if options.process is None else _generation(options)

    selected = ReplayOptions(
        generation=generation, incarnation=options.incarnation, experiment=options.experiment,
        allow_changes=options.allow_changes, tolerance=options.tolerance,
    )  # fmt: skip

    def opened(*, strict: bool = True) -> Replay[Any]:
        chosen: ReplayOptions = {**selected, "strict": strict}
        return Replay(str(options.run), str(options.actor), **chosen)

    if options.check_determinism:
        return _check_determinism(options, selected)
    if options.settings or options.edited:
        return _what_if(options, opened)
    with opened() as replay:
        for note in (*_other_incarnations(options, replay), *replay.notes):
            print(f"note: {note}", file=sys.stderr)
        if options.make_test:
            return _make_test(options, replay)
        try:
            if options.at is not None or options.type or options.where:
                return _stop_at(options, replay)
            if isinstance(options.until, StateCondition):
                return _stop_where(options, options.until, replay)
            return _whole(options, replay)
        except ReplayDiverged as diverged:
            print(diverged)
            return FAILED
        except bdb.BdbQuit:
            return 0


def _check(options: Namespace) -> None:
    if not options.actor:
        raise UsageError("orchestra replay needs --actor, as in: orchestra replay RUN --actor learner/trainer")
    targets = [name for name in ("at", "type", "where") if getattr(options, name) is not None]
    if len(targets) > 1:
        raise UsageError(f"--{targets[0]} and --{targets[1]} both select deliveries; give one of them")
    for name in ("check_determinism", "settings", "edited", "make_test"):
        if getattr(options, name) and options.pdb:
            raise UsageError(f"--pdb cannot be combined with {_FLAGS[name]}")
    if options.until is not None:
        options.until = int(options.until) if options.until.isdecimal() else StateCondition(options.until)
    for name, flag in _FLAGS.items():
        if getattr(options, name) and isinstance(options.until, StateCondition):
            raise UsageError(f"{flag} takes the number of a delivery as --until, got {str(options.until)!r}")
    if not options.tolerance >= 0:  # nan is neither
        raise UsageError(f"--tolerance: {options.tolerance} is not allowed; it must be 0 or more")
    if options.pdb and not targets and not isinstance(options.until, StateCondition):
        options.at = 1


def _recorded_code(options: Namespace) -> Bundle | None:
    """Return the code of the run if it is to take the place of the present code."""
    if options.allow_changes or options.experiment is not None or options.make_test is not None:
        return None  # a test tests the present code
    with RunTrace(options.run) as trace:
        address = address_of(trace, options.actor)
        experiments = [each.header.experiment for each in trace.incarnations(address)]
    return None if not experiments or experiments[0] is None else recorded_code.changed(options.run, experiments[0])


_FLAGS = {
    "check_determinism": "--check-determinism", "settings": "--set", "edited": "--class", "make_test": "--make-test",
}  # fmt: skip


def _generation(options: Namespace) -> int:
    """Return the generation of the process that `--process` selects."""
    process: int = options.process
    with RunTrace(options.run) as trace:
        address = address_of(trace, options.actor)
        found = list(dict.fromkeys(each.header.generation for each in trace.incarnations(address)))
    if not 0 <= process < len(found):
        raise UsageError(
            f"--process: {address} was recorded in {len(found)} processes, numbered from 0; there is no process "
            f"{process}"
        )
    return found[process]


def _other_incarnations(options: Namespace, replay: Replay[Any]) -> list[str]:
    """Return a note if none of several recorded incarnations was selected."""
    count = len(replay.trace.incarnations(replay.address))
    if count < 2 or options.process is not None or options.incarnation is not None:
        return []
    return [
        f"{count} incarnations of {replay.address} were recorded, and this is the first: --process and --incarnation "
        "select another"
    ]


def _whole(options: Namespace, replay: Replay[Any]) -> int:
    with _quietly(), _Progress(replay.address) as progress:
        replay.run(until=options.until, each=progress.add)
    print(f"{progress.summary()}: all as recorded")
    failed = replay.failure_record
    if failed is not None:
        print(f"it fails as recorded: {failed.type}: {failed.text}  ({failed.file}:{failed.line})")
    return 0


def _stop_where(options: Namespace, condition: StateCondition, replay: Replay[Any]) -> int:
    """Run until a condition on the actor's state holds."""
    held = False

    def holds(actor: Actor[Any]) -> bool:
        nonlocal held
        held = condition(actor)
        return held

    with _quietly(), _Progress(replay.address) as progress:
        replay.run(until=holds, each=progress.add)
    if not held:
        raise CannotReplay(
            f"{condition} never holds: {progress.summary()}; the attributes of {replay.address} are "
            f"{', '.join(attribute_names(replay.actor)) or 'none'}"
        )
    print(f"{progress.summary()}: all as recorded")
    print(f"{condition} holds {_place(replay)}")
    if replay.delivery is not None:
        print(f"next: {_delivery_text(replay.delivery)}")
    if options.pdb:
        replay.step(debugger=pdb.Pdb())
    return 0


def _place(replay: Replay[Any]) -> str:
    return "at the end" if replay.activation is None else f"before delivery {replay.activation.n:,}"


def _stop_at(options: Namespace, replay: Replay[Any]) -> int:
    fits = _predicate(options, replay)
    found = 0
    with _Progress(replay.address) as progress:
        while (activation := replay.activation) is not None:
            delivery = activation.delivery
            if isinstance(options.until, int) and activation.n >= options.until:
                break
            if (
                isinstance(options.until, StateCondition)
                and activation.n > replay.first
                and options.until(replay.actor)
            ):
                break
            if delivery is None or not fits(delivery):
                with _quietly():
                    replayed = replay.step()
                if replayed is not None:
                    progress.add(replayed)
                continue
            found += 1
            progress.clear()
            print(_delivery_text(delivery))
            replayed = replay.step(debugger=pdb.Pdb() if options.pdb else None)
            for output in replayed.outputs if replayed is not None else ():
                print(f"  {output}")
            if options.at is not None:
                break
    if not found:
        raise CannotReplay(f"{replay.address} got no matching delivery; {progress.summary()}")
    return 0


def _predicate(options: Namespace, replay: Replay[Any]) -> Callable[[Delivery], bool]:
    if options.at is not None:
        return lambda delivery: bool(delivery.n == options.at)
    if options.type:
        return lambda delivery: bool(delivery.type.name == options.type)
    condition = Where(options.where)
    return lambda delivery: condition(condition_values(delivery, replay.trace.array))


def _check_determinism(options: Namespace, selected: ReplayOptions) -> int:
    with _quietly():
        count, mismatch = first_mismatch(options.run, options.actor, until=options.until, **selected)
    if mismatch is None:
        print(f"{options.actor}: {count:,} activations, the same in {len(HASH_SEEDS)} processes")
        return 0
    print(mismatch)
    return FAILED


def _what_if(options: Namespace, opened: Any) -> int:
    settings = {}
    for each in options.settings:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"--set takes NAME=VALUE, got {each!r}")
        settings[name.strip().replace("-", "_")] = text
    edited = edited_class(options.edited) if options.edited else None
    with _quietly(), _Progress(options.actor) as progress:
        report = what_if(
            lambda: opened(strict=False), begin=options.at or 0, settings=settings, edited=edited, until=options.until,
            each=progress.add,
        )  # fmt: skip
    print(report)
    return 0


def _make_test(options: Namespace, replay: Replay[Any]) -> int:
    try:
        with _quietly():
            trace, size = make_test(replay, options.make_test, until=options.until)
    except ReplayDiverged as diverged:
        print(diverged)
        print("no test was written, because it would fail")
        return FAILED
    print(f"wrote {options.make_test} and {trace} ({size:,} bytes)")
    return 0


def _delivery_text(delivery: Delivery) -> str:
    fields = "…" if delivery.fields is None else fields_text(delivery.fields)
    return f"delivery {delivery.n:,}: {delivery.type.name}({fields}) from {delivery.id}"


def _quietly() -> contextlib.redirect_stdout[io.StringIO]:
    """Suppress the printed output of actors: the run printed it already."""
    return contextlib.redirect_stdout(io.StringIO())


class _Progress(contextlib.AbstractContextManager["_Progress"]):
    """The progress of a replay, shown on a terminal."""

    def __init__(self, actor: str) -> None:
        self._actor = actor
        self._since = self._shown = time.monotonic()
        self._activations = 0
        self._outputs = 0
        self._shows = sys.stderr.isatty()

    def __exit__(self, *_: object) -> None:
        self.clear()

    def add(self, replayed: ReplayedActivation) -> None:
        """Count an activation."""
        self._activations += 1
        self._outputs += len(replayed.outputs)
        now = time.monotonic()
        if self._shows and now - self._shown > PROGRESS_INTERVAL_S:
            self._shown = now
            print(f"\r{self.summary()}\x1b[K", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line."""
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """Return the amount and the speed of the replay."""
        seconds = max(time.monotonic() - self._since, 1e-9)
        rate = f"{self._activations / seconds:,.0f}/s"
        return f"{self._actor}: {self._activations:,} activations, {self._outputs:,} messages, {seconds:.1f} s, {rate}"
