"""What is built and installed elsewhere is what was tested here."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of a wheel, built of the source archive of this checkout."""
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    assert len(list(dist.glob("orchestra_rl-*.tar.gz"))) == 1
    (wheel,) = dist.glob("orchestra_rl-*-py3-none-any.whl")
    unpacked = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    return unpacked


def test_a_wheel_holds_the_three_packages_whole_and_nothing_else(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert top == {"orchestra", "messages", "components"}
    for package in top:
        assert (installed / package / "py.typed").exists()
        for kind in (
            "*.py",
            "*.pyi",
            "*.toml",
            "*.html",
            "*.js",
            "*.css",
            "*.txt",
        ):  # lazy_loader reads the stubs, the simulator its data
            tracked = {path.relative_to(ROOT) for path in (ROOT / package).rglob(kind)}
            if package == "orchestra":
                tracked |= {Path("orchestra") / path.relative_to(ROOT) for path in (ROOT / "experiments").rglob(kind)}
            assert {path.relative_to(installed) for path in (installed / package).rglob(kind)} == tracked
    assert not [path for path in installed.rglob("*") if path.suffix in (".pyc", ".nbi", ".nbc")]
    (scripts,) = installed.glob("*.dist-info/entry_points.txt")
    assert "orchestra = orchestra.cli.main:program" in scripts.read_text()


def test_what_was_installed_runs_elsewhere(installed: Path, launch: Any) -> None:
    environment = {"PYTHONPATH": str(installed), "NUMBA_CACHE_DIR": str(launch.folder / "cache")}
    where = launch.python("import orchestra, components, messages; print(orchestra.__file__)", **environment)
    assert where.ends() == 0, where.story("failed")
    assert where.out.startswith(str(installed))

    helped = launch.command("--help", **environment)
    assert helped.ends() == 0, helped.story("failed")
    assert "run FILE [flags]" in helped.out
    assert "evaluate" in helped.out

    planned = launch.command("run", "qmix_3m", "--dry-run", **environment)
    assert planned.ends() == 0, planned.story("failed")
    assert planned.out.startswith("topology 'qmix_3m'\n  learner\n")


def test_the_page_of_a_package_index_has_no_link_that_leads_nowhere(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert "# orchestra" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
