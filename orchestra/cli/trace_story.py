"""`orchestra trace story`: the journey of one thing through every actor of every node."""

import json

from rich.text import Text

from orchestra.cli.trace_flags import add_filters, add_json, console_of, parser_of, query_of
from orchestra.errors import TraceError, UsageError
from orchestra.trace.analysis.story import Stop, around, nothing_found, story, words
from orchestra.trace.analysis.values import as_json, fields_text, seconds_text, shortened
from orchestra.trace.reading.query import Seen, find_serial
from orchestra.trace.reading.run_trace import RunTrace

FIELDS = 100
"""Characters of a stop's fields that are shown."""


def command(arguments: list[str]) -> int:
    """The journey of one thing through every actor of every node, in causal order."""
    parser = parser_of("story", command)
    known = words()
    group = parser.add_argument_group("of what")
    group.add_argument("--message", metavar="SENDER#NUMBER", help="a message: what led to it, and what followed")
    group.add_argument("--depth", type=int, default=3, help="of what followed from a message (default: 3)")
    for name, word in known.items():
        group.add_argument(f"--{name}", help=(word.__doc__ or "").splitlines()[0].replace("%", "%%"))
    add_filters(parser)
    add_json(parser)
    options = parser.parse_strictly(arguments)
    asked = [name for name in ("message", *known) if getattr(options, name) is not None]
    query = query_of(options)
    if len(asked) > 1 or (not asked and query.where is None):
        ways = ", ".join(f"--{name}" for name in ("message", *known))
        raise UsageError(f"orchestra trace story: say of what, by one of {ways}, or by --where")
    with RunTrace(options.run) as trace:
        seen: list[Seen]
        if not asked:
            seen = list(query.deliveries(trace))
        elif asked == ["message"]:
            seen = _about_message(trace, options.message, options.depth)
        else:
            seen = list(known[asked[0]](trace, getattr(options, asked[0])))
        what = f"{asked[0]} {getattr(options, asked[0])}" if asked else f"--where {options.where}"
        if not seen:
            raise nothing_found(trace, what)
        stops = story(seen)
        if options.json:
            for stop in stops:
                print(json.dumps(_json(stop)))
            return 0
        _print(trace, stops)
    return 0


def _about_message(trace: RunTrace, name: str, depth: int) -> list[Seen]:
    sender, mark, number = name.rpartition("#")
    if not mark or not number.isdigit():
        raise UsageError(f"{name!r}: a message is named SENDER#NUMBER, as in learner/trainer#12")
    found = find_serial(trace, sender, int(number))
    if not found:
        raise TraceError(f"{trace.path}: no delivery of {name} was recorded")
    return [each for start in found for each in around(trace, start, depth=depth)]


def _print(trace: RunTrace, stops: list[Stop]) -> None:
    console = console_of()
    width = max(len(f"{stop.delivery.actor}:{stop.delivery.n}") for stop in stops)
    for stop in stops:
        delivery, header = stop.delivery, stop.seen.header
        elapsed = header.wall + delivery.time - header.monotonic - trace.began
        took = "not recorded" if stop.handled is None else seconds_text(stop.handled.seconds)
        line = Text(f"{elapsed:10.3f} s  ", style="dim")
        line.append(f"{delivery.actor}:{delivery.n}".ljust(width), style="bold")
        line.append(f"  {delivery.type.name} from {delivery.id}", style="default")
        line.append(f"  waited {seconds_text(delivery.waited)}, handled in {took}", style="cyan")
        if stop.handled is not None and stop.handled.failure is not None:
            line.append(f"  failed: {stop.handled.failure.type}: {stop.handled.failure.text}", style="red")
        console.print(line)
        fields = shortened(fields_text(stop.seen.whole().fields), FIELDS)
        if fields:
            console.print(Text(f"{'':14}{fields}", style="dim"))
    nodes = {stop.seen.header.node for stop in stops}
    waited = sum(stop.delivery.waited for stop in stops)
    handled = sum(stop.handled.seconds for stop in stops if stop.handled is not None)
    console.print(
        f"{len(stops)} stops on {len(nodes)} nodes; waited {seconds_text(waited)}, handled in {seconds_text(handled)}"
    )


def _json(stop: Stop) -> dict[str, object]:
    header = stop.seen.header
    told: dict[str, object] = as_json(stop.seen.whole())
    return {
        "node": header.node,
        "generation": header.generation,
        **told,
        "handled_s": None if stop.handled is None else stop.handled.seconds,
        "sent": [effect.number & 0xFFFFFFFF for effect in stop.sent],
    }
