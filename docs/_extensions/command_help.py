"""Sphinx extension: the directive `command-help` shows what `orchestra … --help` prints."""

import contextlib
import io
import os
from typing import Any
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from orchestra.cli.main import main


class CommandHelp(SphinxDirective):
    """Runs `orchestra` with the words of its argument, and shows the output."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the block.

        Raises:
            docutils.parsers.rst.DirectiveError: the command fails.
        """
        words = self.arguments[0].split()
        printed = io.StringIO()
        with mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"), contextlib.redirect_stdout(printed):
            try:
                code: object = main(words)
            except SystemExit as end:  # argparse ends the process after --help
                code = end.code
        if code != 0:
            raise self.severe(f"`orchestra {' '.join(words)}` fails")
        text = f"$ orchestra {' '.join(words)}\n{printed.getvalue()}"
        return [nodes.literal_block(text, text, language="console")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("command-help", CommandHelp)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
