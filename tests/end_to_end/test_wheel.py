"""What is built and installed elsewhere is what was tested here."""

import json
import re
import signal
import subprocess
import sys
import sysconfig
import urllib.request
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built of the source archive of this checkout."""
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    assert len(list(dist.glob("orchestra_rl-*.tar.gz"))) == 1
    (found,) = dist.glob("orchestra_rl-*-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel."""
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


@pytest.fixture
def orchestra(wheel: Path, tmp_path: Path) -> Path:
    """The command of an environment in which the wheel was installed, and nothing of this checkout.

    It has the dependencies of this environment: they need not be downloaded.
    """
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(command, check=True, timeout=120)
    return environment / "bin" / "orchestra"


@pytest.mark.minutes
def test_a_new_user_sends_messages_trains_sweeps_exports_and_looks_at_a_page(orchestra: Path, launch: Any) -> None:
    own = {"PYTHONPATH": ""}  # which may lead to the checkout

    def carried_out(*words: str) -> str:
        done = launch.program(orchestra, *words, **own)
        done.patience_s = 600.0
        assert done.ends() == 0, done.story("failed")
        return str(done.out)

    quickstart = launch.program(orchestra.with_name("python"), ROOT / "docs" / "examples" / "ledger.py", **own)
    assert quickstart.ends() == 0, quickstart.story("failed")
    assert quickstart.out == "stalkers\n"

    said = carried_out("run", "qmix_8m", "--steps", "20000", "--as", "first")
    assert "greedy test" in said
    run = launch.folder / "runs" / "qmix_8m" / "first"
    assert json.loads((run / "summary.json").read_text())["state"] == "done"
    assert carried_out("config", str(run)).startswith("orchestra run qmix_8m ")

    short = ["--scenario", "3m", "--steps", "2000", "--eval-interval", "1000", "--eval-episodes", "2"]
    values = ["--set", "learning_rate=1e-3,5e-4", "--set", "td_lambda=0.4,0.6", "--final-eval-episodes", "4"]
    carried_out("sweep", "qmix_8m", *values, "--seeds", "1", *short)
    scores = (launch.folder / "sweeps" / "qmix_8m" / "sweep.csv").read_text().splitlines()
    assert len(scores) == 1 + 4

    carried_out("export", str(run), "--output", "policy.onnx")
    assert (launch.folder / "policy.onnx").stat().st_size > 10_000

    page = launch.program(orchestra, "dashboard", "--no-browser", **own)
    page.until(lambda: "Ctrl-C" in page.out)
    with urllib.request.urlopen(page.out.split()[1]) as answer:
        assert "<title>" in answer.read().decode()
    with urllib.request.urlopen(page.out.split()[1].replace("/?", "/api/runs?")) as answer:
        assert [(row["name"], row["state"]) for row in json.load(answer)] == [("first", "done")]
    page.process.send_signal(signal.SIGINT)
    assert page.ends() == 0, page.story("failed")


def test_the_page_of_a_package_index_has_no_link_that_leads_nowhere(installed: Path) -> None:
    (metadata,) = installed.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert "# orchestra" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
