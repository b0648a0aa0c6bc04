"""`orchestra trace export` and `orchestra trace diff`: a trace in other formats, and two traces compared."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.filesize import decimal

from orchestra.cli.trace_flags import opened, parser_of, query_of
from orchestra.errors import UsageError
from orchestra.trace.analysis.compare import Comparison, Ignored, compare
from orchestra.trace.analysis.export import to_jsonl, to_mcap, to_mermaid, to_perfetto
from orchestra.trace.analysis.values import as_json
from orchestra.trace.reading.run_trace import RunTrace

DIFFERENT = 1
_FORMATS: dict[str, tuple[Callable[..., int], str, bool]] = {
    "perfetto": (to_perfetto, "json", False),
    "mcap": (to_mcap, "mcap", True),
    "mermaid": (to_mermaid, "md", False),
    "jsonl": (to_jsonl, "jsonl", False),
}
"""Formats: the function that writes one, the file name extension, whether the file is binary."""


def export(arguments: list[str]) -> int:
    """Write the trace in another format: perfetto (ui.perfetto.dev), mcap (Foxglove), mermaid (Markdown), jsonl."""
    parser = parser_of("export", export, json=False)
    parser.add_argument("--to", required=True, choices=list(_FORMATS), help="the format")
    parser.add_argument("-o", "--output", type=Path, default=None, metavar="FILE", help="default: beside the trace")
    with opened(parser, arguments) as (options, trace):
        write, extension, binary = _FORMATS[options.to]
        folder = options.run if options.run.is_dir() else options.run.parent
        path = options.output or folder / f"trace-{options.to}.{extension}"
        try:
            out: Any = path.open("wb") if binary else path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--output: cannot write {str(path)!r}: {error.strerror}") from error
        with out:
            count = write(trace, query_of(options), out)
        print(f"{path}: {count:,} deliveries, {decimal(path.stat().st_size)}", file=sys.stderr)
    return 0


def diff(arguments: list[str]) -> int:
    """Compare two runs of one seed: print the first delivery that differs, field by field; exit code 1 if one does."""
    parser = parser_of("diff", diff, filters=False)
    parser.add_argument("other", metavar="OTHER_RUN_DIR", type=Path, help="the other run")
    parser.add_argument("--actor", default="*", metavar="PATTERN", help="compare only matching actors")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="ignore a field (TrainResultMsg.seconds, or seconds of any type), or all messages of a type "
        "(ProgressMsg); may be repeated",
    )
    parser.add_argument("--all", action="store_true", help="print the first difference of each actor")
    with opened(parser, arguments) as (options, left), RunTrace(options.other) as right:
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
        print(f"{found.equal:,} deliveries are equal")
        return
    shown = found.first_differences if whole else found.first_differences[:1]
    for each in shown:
        delivery = each.delivery
        print(f"{each.actor}:{each.n} {delivery.type.name} from {delivery.id}: the first delivery that differs")
        for difference in each.differences:
            print(f"  {difference.path}: {difference.left}")
            print(f"  {'':{len(difference.path)}}  {difference.right}")
    others = ", ".join(each.actor for each in found.first_differences[len(shown) :])
    print(f"{found.equal:,} deliveries before are equal{f'; later {others} differ' if others else ''}")
