"""Sphinx extension: a link of a page to a file of the source names the file, since the site holds no source."""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]


class SourceLinks(SphinxTransform):
    """Turns `[text](../components/x.py)` into the path of the file, in code letters."""

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
