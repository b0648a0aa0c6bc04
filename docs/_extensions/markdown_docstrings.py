"""Sphinx extension: docstrings of this project are plain text with Markdown marks, not reStructuredText."""

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`[^`]*`)")
_MARKS = re.compile(r"([*|]|_(?!\w))")
_SECTION = re.compile(r"(Args|Attributes|Example|Raises|Returns|Yields):$")


def escape(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Rewrite `lines` in place: escape marks outside of code, and turn indented paragraphs into code."""
    text: list[str] = []
    section = code = False
    for line in lines:
        after_blank = not text or not text[-1].strip()
        if line and not line[0].isspace():
            section, code = _SECTION.match(line) is not None, False
        elif after_blank and line.startswith("    ") and not section and not code:
            text += ["::", ""]
            code = True
        text.append(line if code else _escaped(line))
    lines[:] = text


def _escaped(line: str) -> str:
    pieces = _CODE.split(line)
    return "".join(piece if piece.startswith("`") else _MARKS.sub(r"\\\1", piece) for piece in pieces)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the rewriting to run before `sphinx.ext.napoleon`."""
    app.connect("autodoc-process-docstring", escape, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
