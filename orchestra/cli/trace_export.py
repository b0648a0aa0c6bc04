"""`orchestra trace export` and `orchestra trace diff`: a trace in other formats, and two traces side by side."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from orchestra.cli.trace_flags import add_filters, add_json, parser_of, query_of
from orchestra.errors import UsageError
from orchestra.trace.analysis.compare import Comparison, Ignored, compare
from orchestra.trace.analysis.export import jsonl, mcap, mermaid, perfetto
from orchestra.trace.analysis.values import as_json
from orchestra.trace.reading.run_trace import RunTrace

DIFFERENT = 1
_FORMATS: dict[str, tuple[Callable[..., int], str, bool]] = {
    "perfetto": (perfetto.export, "json", False),
    "mcap": (mcap.export, "mcap", True),
    "mermaid": (mermaid.export, "md", False),
    "jsonl": (jsonl.export, "jsonl", False),
}
"""What writes a format, how its files end, and whether they are binary."""


def export(arguments: list[str]) -> int:
    """The trace in a format with a viewer: perfetto (ui.perfetto.dev), mcap (Foxglove), mermaid (Markdown), jsonl."""
    parser = parser_of("export", export)
    parser.add_argument("--to", required=True, choices=list(_FORMATS), help="the format")
    parser.add_argument("-o", "--output", type=Path, default=None, metavar="FILE", help="default: beside the trace")
    add_filters(parser)
    options = parser.parse_strictly(arguments)
    write, ending, binary = _FORMATS[options.to]
    with RunTrace(options.run) as trace:
        folder = options.run if options.run.is_dir() else options.run.parent
        path = options.output or folder / f"trace-{options.to}.{ending}"
        try:
            out: Any = path.open("wb") if binary else path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output: cannot write {str(path)!r}: {error.strerror}") from error
        with out:
            count = write(trace, query_of(options), out)
        print(f"{path}: {count:,} deliveries, {decimal(path.stat().st_size)}", file=sys.stderr)
    return 0


def diff(arguments: list[str]) -> int:
    """Two runs of one seed: the first delivery where they part, field by field. Exit code 1 if they do."""
    parser = parser_of("diff", diff)
    parser.add_argument("other", metavar="OTHER_RUN_DIR", type=Path, help="the other run")
    parser.add_argument("--actor", default="*", metavar="PATTERN", help="compare only these actors")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave aside a field, as TrainResultMsg.seconds or seconds, or all messages of a type, as ProgressMsg; "
        "may be given several times",
    )
    parser.add_argument("--all", action="store_true", help="show where each actor parts, not only the first")
    add_json(parser)
    options = parser.parse_strictly(arguments)
    with RunTrace(options.run) as left, RunTrace(options.other) as right:
        found = compare(left, right, actor=options.actor, ignored=Ignored(options.ignore))
        if options.json:
            print(json.dumps(as_json(found)))
        else:
            _print(found, whole=options.all)
    return DIFFERENT if found.first_differences or found.only_left or found.only_right else 0


def _print(found: Comparison, *, whole: bool) -> None:
    for which, actors in (("first", found.only_left), ("second", found.only_right)):
        if actors:
            print(f"only the {which} run has {', '.join(actors)}")
    if not found.first_differences:
        print(f"{found.equal:,} deliveries are the same")
        return
    shown = found.first_differences if whole else found.first_differences[:1]
    for each in shown:
        delivery = each.delivery
        print(f"{each.actor}:{each.n} {delivery.type.name} from {delivery.id}: the first delivery that differs")
        for difference in each.differences:
            print(f"  {difference.path}: {difference.left}")
            print(f"  {'':{len(difference.path)}}  {difference.right}")
    others = ", ".join(each.actor for each in found.first_differences[len(shown) :])
    print(f"{found.equal:,} deliveries before are the same{f'; later {others} differ' if others else ''}")
