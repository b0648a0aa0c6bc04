"""The documentation site builds without a warning, and no link within it or the repository leads nowhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", ".github", "docs", "docs/reference", "docs/results")
OTHERS = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))
"""The pages that are read in the repository."""


class Page(HTMLParser):
    """The places of a page that links may lead to, and where its own lead."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (tag, name) == ("a", "name"):
                self.ids.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("built")
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--doctree-dir", str(folder / "doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-b", "html", "docs", str(folder / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.mark.slow
def test_the_site_names_every_public_name(site: Path) -> None:
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for line in (ROOT / "tests" / "public_api.txt").read_text().splitlines():
        name = line.partition("(")[0]
        if name.rpartition(".")[2][0].isupper() and name.rpartition(".")[0] in ("orchestra", "messages", "components"):
            assert f'id="{name}"' in pages, f"docs/reference has no {name}"


@pytest.mark.slow
def test_every_link_within_the_site_leads_to_a_file_and_a_place_in_it(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            if not target.is_file() or (parts.fragment and there and unquote(parts.fragment) not in there.ids):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []


def links(page: Path) -> Iterator[str]:
    """The links of a Markdown page to files and places of the repository, code left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    yield from (link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not urlsplit(link).scheme)


def places(page: Path) -> set[str]:
    """The names that a page's headings have in links: as the host of the repository and myst make them."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_in_the_repository_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in links(page):
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: there is no {target}"
        assert not place or place in places(target), f"{link}: {target} has no such heading"
