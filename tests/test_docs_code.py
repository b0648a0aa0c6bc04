"""Every block of code of README and the pages is run by a test, and every command is one that is understood.

Pages whose blocks a test of their own runs are named in `RUN_BY`. Commands of all pages are read here, since most
of them train for minutes: their flags exist, with values that are allowed.
"""

import contextlib
import importlib.util
import io
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from orchestra.cli import run
from orchestra.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_BY = {
    "air_combat": "test_air_combat_docs",
    "algorithms": "test_algorithms_docs",
    "cluster_env": "components/test_cluster_env_docs",
    "debugging": "test_debugging",
    "environments": "test_environments_docs",
    "launchers": "orchestra/launch/test_launchers_docs",
    "maca": "test_maca_docs",
    "own_algorithm": "test_own_algorithm_docs",
    "replay": "components/replay_server/test_replay_docs",
    "simulator": "test_simulator_docs",
    "slurm": "orchestra/launch/test_launchers_docs",
    "testing": "test_testing_docs",
}
EXAMPLES = [path.read_text() for path in sorted((ROOT / "docs" / "examples").rglob("*.py"))]
FENCED = re.compile(r"^ *```([\w{}-]*)[^\n]*\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *(?:\$ (?=orchestra|python|make|pip)|(?=orchestra run ))((?:.*\\\n)*.*)$", flags=re.MULTILINE)
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
READ_BY_OWN = ("own_algorithm",)  # whose test reads the commands, too: they need a file that the page writes


def blocks(page: Path, language: str) -> list[str]:
    return [text for name, text in FENCED.findall(page.read_text()) if name == language]


def commands(page: Path) -> list[list[str]]:
    text = "\n".join(text for name, text in FENCED.findall(page.read_text()) if name in ("", "console", "sh"))
    return [shlex.split(found.replace("\\\n", " "), comments=True) for found in COMMAND.findall(text)]


@EACH
def test_python_is_run_by_the_page_s_own_test_or_part_of_an_example(page: Path) -> None:
    if page.stem in RUN_BY:
        assert (ROOT / "tests" / f"{RUN_BY[page.stem]}.py").exists()
        return
    for block in blocks(page, "python"):
        assert any(block in example for example in EXAMPLES), f"in no example:\n{block}"


@EACH
def test_no_block_is_in_a_language_that_nothing_reads(page: Path) -> None:
    read = {"", "console", "diff", "python", "sh", "text", "toml", "{image}", "{toctree}"}
    assert {name for name, _ in FENCED.findall(page.read_text())} <= read


@EACH
def test_toml_can_be_read(page: Path) -> None:
    for block in blocks(page, "toml"):
        assert tomllib.loads(block)


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in READ_BY_OWN], ids=lambda path: path.stem)
def test_every_command_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(page):
        if words[:2] == ["orchestra", "run"]:
            check_run(words[2:], monkeypatch)
        else:
            {"orchestra": check_help, "python": check_python, "make": check_make, "pip": check_pip}[words[0]](words[1:])


class Understood(Exception):
    """All flags of a run have been read."""


def check_run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*of_run: object, **values: object) -> None:
        raise Understood

    monkeypatch.setattr("orchestra.cli.run.plan", stop)
    words = [word for word in words if word != "--help"]
    if "--resume" in words:  # no run is at hand: its experiment stands for it
        at = words.index("--resume")
        words[at : at + 2] = ["experiments/qmix_8m.py"]
    with pytest.raises(Understood):
        run.command(words)


def check_help(words: list[str]) -> None:
    command = words[:2] if words[0] == "trace" else words[:1]
    said = helped(*command)
    for word in words[len(command) :]:
        if word.startswith("--"):
            assert word.partition("=")[0] in said, f"orchestra {' '.join(words)}"


@cache
def helped(*command: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    assert said.getvalue(), f"there is no command {command!r}"
    return said.getvalue()


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
        return
    text = (ROOT / words[0]).read_text()
    for word in words[1:]:
        if word.startswith("--"):
            assert f'"{word}"' in text, f"python {' '.join(words)}"


def check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {word for word in words if "=" not in word} <= targets


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"orchestra-rl\[([\w,-]+)\]", " ".join(words)):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
