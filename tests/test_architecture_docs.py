"""The page about the architecture names files and functions that exist, and the layers that the tests hold."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILES = sorted(set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", PAGE)))
STEPS = re.findall(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)\.(\w+)` \|", PAGE, flags=re.MULTILINE)


def functions(path: Path, name: str) -> set[str]:
    """Return the methods of the class `name` in a file."""
    classes = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {
        node.name
        for found in classes
        for node in found.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_the_page_names_exists(name: str) -> None:
    folders = [ROOT, *(ROOT / "orchestra" / room for room in ("trace",))]
    assert any((folder / name).exists() for folder in folders)


def test_the_page_follows_a_message_to_its_handler() -> None:
    assert [step[1:] for step in STEPS][:1] == [("Ref", "tell")]
    assert [step[1:] for step in STEPS].count(("Cell", "_serve")) == 2


@pytest.mark.parametrize(("file", "kind", "function"), STEPS)
def test_every_step_of_a_message_is_a_function_of_its_file(file: str, kind: str, function: str) -> None:
    assert function in functions(ROOT / file, kind)


def test_the_glossary_explains_each_term_once() -> None:
    terms = re.findall(r"^\| \*\*([\w ]+)\*\* \|", PAGE, flags=re.MULTILINE)
    assert {"actor", "cell", "node", "session", "story", "incarnation"} <= set(terms)
    assert len(terms) == len(set(terms))


def test_the_diagram_shows_every_room_of_orchestra() -> None:
    rooms = {
        path.stem for path in (ROOT / "orchestra").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    diagram = PAGE.split("```")[3]
    assert {room for room in rooms if not re.search(rf"\b{room}\b", diagram)} == {"__init__", "__main__"}
