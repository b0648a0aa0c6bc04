"""Sphinx extension: a link to a source file becomes the name of the file, because the site has no source files."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]


class SourceLinks(SphinxTransform):
    """Turns `[text](../components/x.py)` into the path of the file, formatted as code."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        """Replace the links of one page."""
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for link in list(self.document.findall(download_reference)):
            target = (folder / link["reftarget"]).resolve()
            if target.is_relative_to(ROOT / "docs"):
                continue
            link.replace_self(nodes.literal("", str(target.relative_to(ROOT))))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the transform."""
    app.add_transform(SourceLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
