"""`orchestra trace`: queries on the recorded trace of a run."""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from rich.filesize import decimal
from rich.text import Text

from orchestra.cli import trace_export, trace_story
from orchestra.cli.trace_flags import console_of, message_rows, opened, parser_of, query_of, table
from orchestra.errors import TraceError, UsageError
from orchestra.trace.analysis.stats import DeliveryStats, delivery_stats, lags
from orchestra.trace.analysis.values import as_json, effect_text, fields_text, seconds_text, value_text
from orchestra.trace.format.records import Activation, Incarnation
from orchestra.trace.reading.query import DeliveryRow, Query, follow
from orchestra.trace.reading.run_trace import RunTrace

LIMIT = 100


def command(arguments: list[str]) -> int:
    """Query the recorded trace of a run."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    chosen = COMMANDS.get(arguments[0])
    if chosen is None:
        raise UsageError(f"orchestra trace: unknown command {arguments[0]!r}; the commands are {', '.join(COMMANDS)}")
    return chosen(arguments[1:])


def _overview() -> str:
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{(made.__doc__ or '').splitlines()[0]}" for name, made in COMMANDS.items())
    return (
        "usage: orchestra trace COMMAND RUN_DIR ...\n\nQueries the trace of a run (`orchestra run --trace`).\n\n"
        f"commands:\n{listed}\n\n`orchestra trace COMMAND --help` prints the options of a command."
    )


def ls(arguments: list[str]) -> int:
    """List the files and actors of a trace, and its gaps."""
    with opened(parser_of("ls", ls, filters=False), arguments) as (options, trace):
        totals = {address: Counter(deliveries=0, bytes=0, failed=0) for address in trace.actors()}
        for each in delivery_stats(trace, Query()):
            totals[each.actor].update(deliveries=each.count, bytes=each.nbytes, failed=each.failed)
        incarnations: dict[str, list[Incarnation]] = {address: [] for address in trace.actors()}
        for incarnation in trace.incarnations():
            incarnations[incarnation.birth.actor].append(incarnation)
        notes = [note for recording in trace.recordings for note in recording.notes()]
        notes += [f"{path.name}: empty; its process ended before it wrote anything" for path in trace.empty]
        notes += [f"{path.name}: an older flight record; give the path of this file to read it" for path in trace.older]
        if options.json:
            print(json.dumps(_ls_json(trace, incarnations, totals, notes)))
            return 0
        console = console_of()
        files = table("file", "node", "mode", "size", "from", "written because")
        for recording in trace.recordings:
            for file in recording.files:
                header = file.header
                began = f"{header.at(header.monotonic):%Y-%m-%d %H:%M:%S}"
                files.add_row(file.path.name, header.node, header.mode, decimal(file.nbytes), began, header.reason)
        console.print(files)
        actors = table("actor", "class", "incarnations", "deliveries", "bytes", "failed", "ended")
        for address, own in incarnations.items():
            count, nbytes, failed = totals[address].values()
            kind = own[-1].birth.kind if own else "(born before the record begins)"
            ended = (own[-1].end.reason if own[-1].end else "not yet, or not recorded") if own else ""
            actors.add_row(address, kind, str(len(own)), f"{count:,}", decimal(nbytes), str(failed or ""), ended)
        console.print(actors)
        for note in notes:
            console.print(Text(note, style="yellow"))
    return 0


def grep(arguments: list[str]) -> int:
    """Print the deliveries that match, one per line, in causal order."""
    parser = parser_of("grep", grep)
    parser.add_argument("--limit", type=int, default=LIMIT, help=f"print at most N; 0 for all (default: {LIMIT})")
    parser.add_argument("--last", action="store_true", help="newest first")
    with opened(parser, arguments) as (options, trace):
        count = 0
        for row in query_of(options).deliveries(trace, newest_first=options.last):
            if options.limit and count == options.limit:
                if not options.json:
                    print(f"… only the first {options.limit} are printed (--limit)", file=sys.stderr)
                break
            _print_delivery(row, trace, as_lines=options.json)
            count += 1
        if not count and not options.json:
            print(f"nothing matches{_unknown_pattern(options, trace)}", file=sys.stderr)
    return 0


def _unknown_pattern(options: Namespace, trace: RunTrace) -> str:
    """Return which pattern matches no recorded type or actor, and the recorded names; else an empty text."""
    kinds = {kind.name: kind.tag for _, index in trace.indexes() for kind in index.file.types.values()}
    if not any(fnmatchcase(name, options.type) or fnmatchcase(tag, options.type) for name, tag in kinds.items()):
        return f": no recorded type is {options.type!r}; there are {', '.join(sorted(kinds)) or 'none'}"
    actors = trace.actors()
    if not any(fnmatchcase(actor, options.actor) for actor in actors):
        return f": no recorded actor is {options.actor!r}; there are {', '.join(actors) or 'none'}"
    return ""


def tail(arguments: list[str]) -> int:
    """Print the deliveries that match while they are recorded, until the run ends or Ctrl-C."""
    options = parser_of("follow", tail).parse_strictly(arguments)
    for trace, row in follow(options.run, query_of(options)):
        _print_delivery(row, trace, as_lines=options.json)
    return 0


def show(arguments: list[str]) -> int:
    """Print one activation: its message with all fields, its effects, and how long it took."""
    parser = parser_of("show", show, filters=False)
    parser.add_argument(
        "what", metavar="ACTOR[:N] | SENDER#NUMBER", help="activation N of an actor (default: the last), or a message"
    )
    parser.add_argument("--incarnation", type=int, default=None, help="of the actor (default: the newest)")
    with opened(parser, arguments) as (options, trace):
        incarnation, activation = _activation_of(trace, options.what, options.incarnation)
        birth = incarnation.birth
        if options.json:
            print(json.dumps({"actor": birth.actor, "incarnation": birth.incarnation, **as_json(activation)}))
            return 0
        for line in activation_lines(incarnation, activation):
            print(line)
    return 0


def stats(arguments: list[str]) -> int:
    """Print counts, rates, bytes, waiting and handling times by actor and type, or how far a counter lags."""
    parser = parser_of("stats", stats, where=False)
    parser.add_argument(
        "--lag",
        metavar="FIELD[,FIELD]",
        default="",
        help="print how far each sender lags behind the highest value of a counter; give all names that messages use "
        "for it, as in version,versions",
    )
    with opened(parser, arguments) as (options, trace):
        query = query_of(options)
        found: list[Any] = lags(trace, query, options.lag.split(",")) if options.lag else delivery_stats(trace, query)
        if options.json:
            for each in found:
                print(json.dumps(as_json(each)))
        elif options.lag:
            shown = table("sender", "type", "to", "field", "count", "behind: median", "worst", "last", "last value")
            for lag in found:
                figures = (f"{figure:g}" for figure in (lag.median, lag.worst, lag.last, lag.value))
                shown.add_row(lag.sender, lag.type, lag.actor, lag.field, f"{lag.count:,}", *figures)
            console_of().print(shown)
        else:
            _print_stats(found)
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "ls": ls,
    "show": show,
    "grep": grep,
    "follow": tail,
    "stats": stats,
    "story": trace_story.command,
    "diff": trace_export.diff,
    "export": trace_export.export,
}


def activation_lines(incarnation: Incarnation, activation: Activation) -> Iterable[str]:
    """Yield an activation in full, in lines of text."""
    birth, handled, delivery = incarnation.birth, activation.handled, activation.delivery
    what = {"start": "its start", "stop": "its end"}.get(activation.phase) or f"delivery {activation.n}"
    restarted = f", incarnation {birth.incarnation}" if birth.incarnation else ""
    yield f"{birth.actor} ({birth.kind}{restarted}): {what}"
    if delivery is not None:
        source = "its own timer" if delivery.timer else str(delivery.id)
        yield f"  {delivery.type.name} from {source}, {delivery.nbytes:,} bytes, clock {delivery.clock}"
        when = f"{incarnation.header.at(delivery.time):%H:%M:%S.%f}"
        yield f"  at {when} after {seconds_text(delivery.waited)} in the mailbox"
        for name, value in (delivery.fields or {}).items():
            yield f"    {name} = {value_text(value)}"
        if delivery.fields is None:
            yield "    (its fields were not recorded)"
    yield "  its end was not recorded" if handled is None else f"  handled in {seconds_text(handled.seconds)}"
    for effect in activation.effects:
        serial = getattr(effect, "number", 0) & 0xFFFFFFFF
        yield f"    {seconds_text(max(effect.at, 0.0)):>9}  {f'#{serial} ' if serial else ''}{effect_text(effect)}"
    for number, answer in activation.answers.items():
        yield f"    answer to #{number & 0xFFFFFFFF}: {value_text(answer.value)}"
    if handled is not None and handled.failure is not None:
        yield f"  failed: {handled.failure} ({handled.failure.file}:{handled.failure.line})"


def _activation_of(trace: RunTrace, what: str, number: int | None) -> tuple[Incarnation, Activation]:
    """The activation `ACTOR:N`, the last one of `ACTOR`, or that of the message `SENDER#NUMBER`."""
    n: int | None
    if "#" in what:
        row = message_rows(trace, what)[-1]
        delivery, generation = row.delivery, row.header.generation
        incarnation = trace.incarnation(delivery.actor, generation=generation, incarnation=delivery.incarnation)
        n = delivery.n
    else:
        actor, mark, digits = what.rpartition(":")
        actor, n = (actor, int(digits)) if mark and digits.isdigit() else (what, None)
        trace.incarnation(actor, incarnation=number)  # raises if there is none
        incarnation = [each for each in trace.incarnations(actor) if number in (None, each.birth.incarnation)][-1]
    activation = trace.activation(incarnation, n)
    if activation is not None:
        return incarnation, activation
    last = trace.activation(incarnation)
    raise TraceError(
        f"{trace.path}: {incarnation.birth.actor} has no activation {n} in this trace; the last is {last and last.n}"
    )


def _print_delivery(row: DeliveryRow, trace: RunTrace, *, as_lines: bool) -> None:
    delivery = row.with_arrays()
    elapsed = trace.elapsed(row.header, delivery.time)
    if as_lines:
        origin = {"node": row.header.node, "generation": row.header.generation, "elapsed": round(elapsed, 6)}
        print(json.dumps({**origin, **as_json(delivery)}), flush=True)
        return
    activation = f"{delivery.actor}:{delivery.n}"
    print(
        f"{elapsed:10.3f}  {activation:<28} {delivery.type.name:<22} {delivery.id!s:<28} "
        f"{fields_text(delivery.fields)}",
        flush=True,
    )


def _print_stats(rows: list[DeliveryStats]) -> None:
    shown = table("actor", "type", "count", "per s", "bytes", "waited p50 p90 p99", "handled p50 p90 p99", "failed")
    for each in rows:
        shown.add_row(
            each.actor,
            each.type,
            f"{each.count:,}",
            f"{each.per_second:,.1f}",
            decimal(each.nbytes),
            "  ".join(map(seconds_text, each.waited)),
            "  ".join(map(seconds_text, each.handling)),
            str(each.failed or ""),
        )
    console_of().print(shown)


def _ls_json(
    trace: RunTrace,
    incarnations: dict[str, list[Incarnation]],
    totals: dict[str, Counter[str]],
    notes: list[str],
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
                **totals[address],
                "incarnations": [as_json(each.birth) for each in own],
            }
            for address, own in incarnations.items()
        ],
        "notes": notes,
    }
