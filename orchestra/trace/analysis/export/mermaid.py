"""A Mermaid sequence diagram in a page of Markdown: who told whom what, in causal order."""

from typing import TextIO

from orchestra.trace.analysis.values import fields_text, shortened
from orchestra.trace.reading.query import Query
from orchestra.trace.reading.run_trace import RunTrace

MOST = 300
"""Arrows that a page can show; more is no picture any longer."""
SHORT = 60
_ENTITIES = {"#": "#35;", ";": "#59;", "<": "#lt;", ">": "#gt;", "\n": " "}


def export(trace: RunTrace, query: Query, out: TextIO) -> int:
    """Write the oldest deliveries that match `query`, `MOST` at most; return how many."""
    arrows: list[str] = []
    who: dict[str, None] = {}
    more = False
    for seen in query.deliveries(trace):
        if len(arrows) == MOST:
            more = True
            break
        delivery = seen.delivery
        who |= {delivery.id.sender: None, delivery.actor: None}
        line = "-->>" if delivery.timer else "->>"
        text = _safe(f"{delivery.type.name} {shortened(fields_text(delivery.fields), SHORT)}".strip())
        arrows.append(f"    {_name(delivery.id.sender)}{line}{_name(delivery.actor)}: {text}")
    out.write(f"# {trace.path.name}\n\n```mermaid\nsequenceDiagram\n")
    out.writelines(f"    participant {_name(address)} as {_safe(address)}\n" for address in who)
    out.write("\n".join(arrows) + "\n```\n")
    if more:
        out.write(f"\nThe first {MOST} messages; narrow the question down (--actor, --since, --where) to see others.\n")
    return len(arrows)


def _name(address: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in address)


def _safe(text: str) -> str:
    """Without what ends a line of the diagram, or begins a comment or an entity in it."""
    return "".join(_ENTITIES.get(letter, letter) for letter in text)
