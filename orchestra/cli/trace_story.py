"""`orchestra trace story`: the deliveries in which one thing was seen, across all nodes."""

import json

from rich.text import Text

from orchestra.cli.trace_flags import console_of, message_rows, parser_of, query_of
from orchestra.errors import TraceError, UsageError
from orchestra.trace.analysis.story import StoryStop, around, story, story_keys
from orchestra.trace.analysis.values import as_json, fields_text, seconds_text, shortened
from orchestra.trace.reading.run_trace import RunTrace

FIELDS_TEXT = 100
"""Characters of a stop's fields."""


def command(arguments: list[str]) -> int:
    """Print the story of one thing: every delivery in which it was seen, in causal order."""
    parser = parser_of("story", command)
    keys = story_keys()
    group = parser.add_argument_group("whose story")
    group.add_argument("--message", metavar="SENDER#NUMBER", help="a message, its causes and its consequences")
    group.add_argument("--depth", type=int, default=3, help="steps of consequences after --message (default: 3)")
    for name, key in keys.items():
        group.add_argument(f"--{name}", help=(key.__doc__ or "").splitlines()[0].replace("%", "%%"))
    options = parser.parse_strictly(arguments)
    given = [name for name in ("message", *keys) if getattr(options, name) is not None]
    query = query_of(options)
    if len(given) > 1 or (not given and query.where is None):
        allowed = ", ".join(f"--{name}" for name in ("message", *keys))
        raise UsageError(f"orchestra trace story: give exactly one of {allowed}, or --where")
    with RunTrace(options.run) as trace:
        if not given:
            subject, rows = f"--where {options.where}", list(query.deliveries(trace))
        else:
            value = getattr(options, given[0])
            subject = f"{given[0]} {value}"
            if given == ["message"]:
                starts = message_rows(trace, value)
                rows = [each for start in starts for each in around(trace, start, depth=options.depth)]
            else:
                rows = list(keys[given[0]](trace, value))
        if not rows:
            raise TraceError(f"{trace.path}: nothing was recorded of {subject}")
        stops = story(rows)
        if options.json:
            for stop in stops:
                print(json.dumps(_json(stop)))
        else:
            _print(trace, stops)
    return 0


def _print(trace: RunTrace, stops: list[StoryStop]) -> None:
    console = console_of()
    width = max(len(f"{stop.delivery.actor}:{stop.delivery.n}") for stop in stops)
    for stop in stops:
        delivery = stop.delivery
        took = "not recorded" if stop.handled is None else seconds_text(stop.handled.seconds)
        line = Text(f"{trace.elapsed(stop.row.header, delivery.time):10.3f} s  ", style="dim")
        line.append(f"{delivery.actor}:{delivery.n}".ljust(width), style="bold")
        line.append(f"  {delivery.type.name} from {delivery.id}", style="default")
        line.append(f"  waited {seconds_text(delivery.waited)}, handled in {took}", style="cyan")
        if stop.handled is not None and stop.handled.failure is not None:
            line.append(f"  failed: {stop.handled.failure}", style="red")
        console.print(line)
        fields = shortened(fields_text(stop.row.with_arrays().fields), FIELDS_TEXT)
        if fields:
            console.print(Text(f"{'':14}{fields}", style="dim"))
    nodes = {stop.row.header.node for stop in stops}
    waited = sum(stop.delivery.waited for stop in stops)
    handled = sum(stop.handled.seconds for stop in stops if stop.handled is not None)
    console.print(
        f"{len(stops)} stops on {len(nodes)} nodes; waited {seconds_text(waited)}, handled in {seconds_text(handled)}"
    )


def _json(stop: StoryStop) -> dict[str, object]:
    header = stop.row.header
    delivery: dict[str, object] = as_json(stop.row.with_arrays())
    return {
        "node": header.node,
        "generation": header.generation,
        **delivery,
        "handled_s": None if stop.handled is None else stop.handled.seconds,
        "sent": [effect.number & 0xFFFFFFFF for effect in stop.sent],
    }
