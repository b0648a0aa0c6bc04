"""README and docs hold no code of their own: what they show is what the tests run."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestra.runs.experiment import load_experiment
from orchestra.runs.flags import Flags

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    return [shlex.split(line[2:], comments=True) for line in lines]


def test_every_python_block_of_the_readme_is_an_example_file() -> None:
    examples = [path.read_text() for path in (ROOT / "docs" / "examples").glob("*.py")]
    assert blocks("python")
    for block in blocks("python"):
        assert block in examples


def test_the_example_prints_what_the_readme_says() -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "docs" / "examples" / "ledger.py"], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "stalkers\n"
    assert "It prints `stalkers`." in README


def test_the_first_screen_names_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = [command[1] for command in commands() if command[0] == "make"]
    assert named == ["run", "test"]
    assert set(named) <= targets


def test_every_flag_that_the_readme_types_is_understood() -> None:
    flags = Flags.of(load_experiment(ROOT / "experiments" / "qmix_8m.py"))
    own = {"experiments/qmix_8m.py", "--dry-run", "--help", "--resume", "RUN_DIR", "--seed", "1", "--trace", "full"}
    own |= {"--hosts", "cpu1,cpu2,cpu3"}
    runs = [command[2:] for command in commands() if command[:2] == ["orchestra", "run"]]
    assert len(runs) == 6
    for words in runs:
        flags.parse([word for word in words if word not in own])


def test_the_topology_in_the_readme_is_what_dry_run_prints_and_nothing_is_compiled_for_it(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "orchestra", "run", ROOT / "experiments" / "qmix_8m.py", "--dry-run"]
    fresh = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=fresh)
    assert ended.stdout in README
    assert ended.stderr == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", README))
def test_every_link_to_a_file_leads_somewhere(link: str) -> None:
    assert (ROOT / link).is_file()
