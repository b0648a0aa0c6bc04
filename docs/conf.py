"""Settings of the documentation site: `make docs` builds it into build/site."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "orchestra"
author = copyright = "the developers of orchestra"  # noqa: A001, Sphinx gives the name
release = version = version_of("orchestra-rl")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "markdown_docstrings",
    "source_links",
]
exclude_patterns = ["examples", "results/*.md"]
suppress_warnings = ["ref.python"]  # the axes of an array are strings in its annotation, not names
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

default_role = "code"  # docstrings write `name`, as in Markdown
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_use_rtype = False
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"orchestra {release}"
html_show_sourcelink = False
html_copy_source = False
