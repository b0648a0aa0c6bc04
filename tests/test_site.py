"""The documentation site builds without a warning: a dead link or a docstring that cannot be read is one."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_names_every_public_name(tmp_path: Path) -> None:
    options = ["--fail-on-warning", "--keep-going", "--quiet", "--doctree-dir", str(tmp_path / "doctrees")]
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-b", "html", "docs", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = "".join(page.read_text() for page in (tmp_path / "site" / "reference").glob("*.html"))
    for line in (ROOT / "tests" / "public_api.txt").read_text().splitlines():
        name = line.partition("(")[0]
        if name.rpartition(".")[2][0].isupper() and name.rpartition(".")[0] in ("orchestra", "messages", "components"):
            assert f'id="{name}"' in pages, f"docs/reference has no {name}"
