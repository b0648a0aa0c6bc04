"""The tutorial notebook runs from its first cell to its last, in a kernel of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
EXECUTE = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=240, resources={"metadata": {"path": "."}}).execute()
print(nbformat.writes(notebook))
"""


def outputs(cell: dict[str, Any]) -> str:
    """What a cell shows as text: what it prints, and its last value."""
    texts = []
    for output in cell["outputs"]:
        texts += output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "".join(texts)


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    if not os.environ.get("CI"):
        pytest.importorskip("nbclient", reason="pip install orchestra-rl[dev] has it")
        pytest.importorskip("ipykernel", reason="pip install orchestra-rl[dev] has it")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, NOTEBOOK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = [cell for cell in json.loads(done.stdout)["cells"] if cell["cell_type"] == "code"]
    run, directory, metrics, plot, background, looked, stopped, awaited, own, refused = map(outputs, cells)
    assert "qmix 3m: done after" in run
    assert "RunResult(state='completed', reason='stopped'" in run
    assert directory.startswith("completed\ncheckpoints/steps-")
    assert "'curve.png'" in directory
    assert "'env_steps': 3" in metrics
    assert "Picture(path=" in plot
    assert any("image/png" in output.get("data", {}) for output in cells[3]["outputs"])
    assert background.startswith("<RunHandle running, runs/qmix_3m/")
    assert looked == "True\n"
    assert stopped == "stopped stopped\n"
    assert awaited == "completed\n"
    thrown = own.splitlines()[0]
    assert 30 <= sum(map(int, thrown.split())) < 36
    assert refused.splitlines() == [thrown, "unknown flag --gaol (did you mean --goal?)"]


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell["source"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
