"""`orchestra trace`: ask what was recorded of a run."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.filesize import decimal
from rich.text import Text

from orchestra.cli import trace_export, trace_story
from orchestra.cli.trace_flags import add_filters, add_json, console_of, parser_of, query_of, table
from orchestra.errors import TraceError, UsageError
from orchestra.trace.analysis.stats import PERCENTILES, Tally, lags, tallies
from orchestra.trace.analysis.values import as_json, effect_text, fields_text, seconds_text, value_text
from orchestra.trace.format.records import Activation, Incarnation
from orchestra.trace.reading.query import Query, Seen, find_serial, follow
from orchestra.trace.reading.run_trace import RunTrace

LIMIT = 100


def command(arguments: list[str]) -> int:
    """Ask what was recorded of a run, in many ways."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    asked = QUESTIONS.get(arguments[0])
    if asked is None:
        raise UsageError(f"orchestra trace: there is no {arguments[0]!r}; there are {', '.join(QUESTIONS)}")
    try:
        return asked(arguments[1:])
    except BrokenPipeError:
        sys.stderr.close()  # whoever read, as `head` does, has seen enough
        return 0


def _overview() -> str:
    width = max(map(len, QUESTIONS)) + 2
    listed = "\n".join(f"  {name:<{width}}{(made.__doc__ or '').splitlines()[0]}" for name, made in QUESTIONS.items())
    return (
        "usage: orchestra trace QUESTION RUN_DIR ...\n\nAsks what was recorded of a run (`orchestra run --trace`).\n\n"
        f"questions:\n{listed}\n\n`orchestra trace QUESTION --help` says more."
    )


def ls(arguments: list[str]) -> int:
    """What was recorded: files, actors, how much of each."""
    parser = parser_of("ls", ls)
    add_json(parser)
    options = parser.parse_strictly(arguments)
    with RunTrace(options.run) as trace:
        counted: dict[str, tuple[int, int, int]] = {}
        for tally in tallies(trace, Query()):
            count, nbytes, failed = counted.get(tally.actor, (0, 0, 0))
            counted[tally.actor] = (count + tally.count, nbytes + tally.nbytes, failed + tally.failed)
        lives = trace.incarnations()
        notes = [note for recording in trace.recordings for note in recording.notes()]
        notes += [f"{path.name}: an older flight record; name this file to see it" for path in trace.older]
        if options.json:
            print(json.dumps(_ls_json(trace, lives, counted, notes)))
            return 0
        console = console_of()
        files = table("file", "node", "mode", "size", "from", "written because")
        for recording in trace.recordings:
            for file in recording.files:
                header = file.header
                began = f"{header.at(header.monotonic):%Y-%m-%d %H:%M:%S}"
                files.add_row(file.path.name, header.node, header.mode, decimal(file.nbytes), began, header.reason)
        console.print(files)
        actors = table("actor", "class", "lives", "deliveries", "bytes", "failed", "ended")
        for address in trace.actors():
            own = [life for life in lives if life.birth.actor == address]
            count, nbytes, failed = counted.get(address, (0, 0, 0))
            kind = own[-1].birth.kind if own else "(born before the record begins)"
            ended = (own[-1].end.reason if own[-1].end else "not yet, or not recorded") if own else ""
            actors.add_row(address, kind, str(len(own)), f"{count:,}", decimal(nbytes), str(failed or ""), ended)
        console.print(actors)
        for note in notes:
            console.print(Text(note, style="yellow"))
    return 0


def grep(arguments: list[str]) -> int:
    """The deliveries that match, one in a line, in causal order."""
    parser = parser_of("grep", grep)
    add_filters(parser)
    parser.add_argument("--limit", type=int, default=LIMIT, help=f"at most so many; 0 for all (default: {LIMIT})")
    parser.add_argument("--last", action="store_true", help="the newest instead of the oldest")
    add_json(parser)
    options = parser.parse_strictly(arguments)
    with RunTrace(options.run) as trace:
        found = query_of(options).deliveries(trace, newest_first=options.last)
        shown = 0
        for seen in found:
            if options.limit and shown == options.limit:
                if not options.json:
                    print(f"… and more; --limit {options.limit} are shown", file=sys.stderr)
                break
            _say(seen, trace, as_lines=options.json)
            shown += 1
        if not shown and not options.json:
            print("nothing matches", file=sys.stderr)
    return 0


def tail(arguments: list[str]) -> int:
    """The deliveries that match, as they are recorded, until the run or Ctrl-C ends it."""
    parser = parser_of("follow", tail)
    add_filters(parser)
    add_json(parser)
    options = parser.parse_strictly(arguments)
    query = query_of(options)
    for trace, seen in follow(options.run, query):
        _say(seen, trace, as_lines=options.json)
    return 0


def show(arguments: list[str]) -> int:
    """One delivery whole: its cause, its fields, what the actor did, how long it took."""
    parser = parser_of("show", show)
    parser.add_argument(
        "what", metavar="ACTOR[:N] | SENDER#NUMBER", help="the N-th activation of an actor, or a message"
    )
    parser.add_argument("--incarnation", type=int, default=None, help="of the actor (default: the newest)")
    add_json(parser)
    options = parser.parse_strictly(arguments)
    with RunTrace(options.run) as trace:
        life, activation = _activation_of(trace, options.what, options.incarnation)
        if options.json:
            told = as_json(activation)
            print(json.dumps({"actor": life.birth.actor, "incarnation": life.birth.incarnation, **told}))
            return 0
        for line in activation_lines(trace, life, activation):
            print(line)
    return 0


def stats(arguments: list[str]) -> int:
    """Counts, rates, bytes, waiting and handling times, by actor and type; how far a counter lags."""
    parser = parser_of("stats", stats)
    add_filters(parser, where=False)
    parser.add_argument(
        "--lag",
        metavar="FIELD[,FIELD]",
        default="",
        help="follow a counter by the names that it has in messages, as version,versions: who is behind, how far",
    )
    add_json(parser)
    options = parser.parse_strictly(arguments)
    query = query_of(options)
    with RunTrace(options.run) as trace:
        if options.lag:
            found = lags(trace, query, options.lag.split(","))
            if options.json:
                _json_lines(found)
                return 0
            shown = table("sender", "type", "to", "field", "count", "behind: median", "worst", "last", "last value")
            for lag in found:
                figures = (f"{figure:g}" for figure in (lag.median, lag.worst, lag.last, lag.value))
                shown.add_row(lag.sender, lag.type, lag.actor, lag.field, f"{lag.count:,}", *figures)
            console_of().print(shown)
            return 0
        rows = tallies(trace, query)
        if options.json:
            _json_lines(rows)
            return 0
        _print_tallies(rows)
    return 0


QUESTIONS: dict[str, Callable[[list[str]], int]] = {
    "ls": ls,
    "show": show,
    "grep": grep,
    "follow": tail,
    "stats": stats,
    "story": trace_story.command,
    "diff": trace_export.diff,
    "export": trace_export.export,
}


def activation_lines(trace: RunTrace, life: Incarnation, activation: Activation) -> Iterable[str]:
    """Yield an activation in full, for people."""
    birth, handled, delivery = life.birth, activation.handled, activation.delivery
    what = {"start": "its start", "stop": "its end"}.get(activation.phase) or f"delivery {activation.n}"
    again = f", incarnation {birth.incarnation}" if birth.incarnation else ""
    yield f"{birth.actor} ({birth.kind}{again}): {what}"
    if delivery is not None:
        source = "a timer of its own" if delivery.timer else str(delivery.id)
        yield f"  {delivery.type.name} from {source}, {delivery.nbytes:,} bytes, clock {delivery.clock}"
        when = f"{life.header.at(delivery.time):%H:%M:%S.%f}"
        yield f"  at {when} after {seconds_text(delivery.waited)} in the mailbox"
        for name, value in (delivery.fields or {}).items():
            yield f"    {name} = {value_text(value)}"
        if delivery.fields is None:
            yield "    (its fields were not recorded)"
    if handled is None:
        yield "  its end was not recorded"
    else:
        yield f"  handled in {seconds_text(handled.seconds)}"
    for effect in activation.effects:
        serial = getattr(effect, "number", 0) & 0xFFFFFFFF
        yield f"    {seconds_text(max(effect.at, 0.0)):>9}  {f'#{serial} ' if serial else ''}{effect_text(effect)}"
    for number, answer in activation.answers.items():
        yield f"    answer to #{number & 0xFFFFFFFF}: {value_text(answer.value)}"
    if handled is not None and handled.failure is not None:
        failure = handled.failure
        yield f"  failed: {failure.type}: {failure.text} ({failure.file}:{failure.line})"


def _activation_of(trace: RunTrace, what: str, incarnation: int | None) -> tuple[Incarnation, Activation]:
    sender, mark, number = what.rpartition("#")
    if mark:
        if not number.isdigit():
            raise UsageError(f"{what!r}: a message is named SENDER#NUMBER, as in learner/trainer#12")
        found = find_serial(trace, sender, int(number))
        if not found:
            raise TraceError(f"{trace.path}: no delivery of {what} was recorded")
        delivery = found[-1].delivery
        life = trace.incarnation(
            delivery.actor, generation=found[-1].header.generation, incarnation=delivery.incarnation
        )
        n: int | None = delivery.n
    else:
        address, mark, number = what.rpartition(":")
        n = int(number) if mark and number.isdigit() else None
        lives = trace.incarnations(address if n is not None else what)
        lives = [each for each in lives if incarnation in (None, each.birth.incarnation)]
        if not lives:
            life = trace.incarnation(address if n is not None else what, incarnation=incarnation)  # says what is wrong
        life = lives[-1]
    activation = trace.activation(life, n)
    if activation is not None:
        return life, activation
    last = trace.activation(life)
    raise TraceError(f"{trace.path}: {life.birth.actor} has no activation {n} there; the last is {last and last.n}")


def _say(seen: Seen, trace: RunTrace, *, as_lines: bool) -> None:
    delivery = seen.whole()
    when = seen.header.wall + delivery.time - seen.header.monotonic - trace.began
    if as_lines:
        told = {"node": seen.header.node, "generation": seen.header.generation, "elapsed": round(when, 6)}
        print(json.dumps({**told, **as_json(delivery)}), flush=True)
        return
    place = f"{delivery.actor}:{delivery.n}"
    print(
        f"{when:10.3f}  {place:<28} {delivery.type.name:<22} {delivery.id!s:<28} {fields_text(delivery.fields)}",
        flush=True,
    )


def _json_lines(rows: Iterable[Any]) -> None:
    for row in rows:
        print(json.dumps(as_json(row)))


def _print_tallies(rows: list[Tally]) -> None:
    shown = table("actor", "type", "count", "per s", "bytes", "waited p50 p90 p99", "handled p50 p90 p99", "failed")
    for tally in rows:
        shown.add_row(
            tally.actor,
            tally.type,
            f"{tally.count:,}",
            f"{tally.per_second:,.1f}",
            decimal(tally.nbytes),
            "  ".join(map(seconds_text, tally.waited)),
            "  ".join(map(seconds_text, tally.handling)),
            str(tally.failed or ""),
        )
    console_of().print(shown)
    assert len(PERCENTILES) == 3


def _ls_json(
    trace: RunTrace, lives: list[Incarnation], counted: dict[str, tuple[int, int, int]], notes: list[str]
) -> dict[str, Any]:
    return {
        "files": [
            {"path": str(file.path), "bytes": file.nbytes, **as_json(file.header)}
            for recording in trace.recordings
            for file in recording.files
        ],
        "actors": [
            {
                "actor": address,
                "deliveries": counted.get(address, (0, 0, 0))[0],
                "bytes": counted.get(address, (0, 0, 0))[1],
                "failed": counted.get(address, (0, 0, 0))[2],
                "lives": [as_json(life.birth) for life in lives if life.birth.actor == address],
            }
            for address in trace.actors()
        ],
        "notes": notes,
    }
