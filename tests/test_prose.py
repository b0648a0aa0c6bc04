"""The prose of code and documentation names its subjects: units, processes, users."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".md", ".toml"}
ROOMS = ("orchestra", "components", "messages", "experiments", "benchmarks", "docs", "README.md")
VAGUE = re.compile(r"\b(whoever|whom|nobody|somebody|everybody|any longer)\b", re.IGNORECASE)


def found(text: str) -> list[str]:
    """Return the lines with a vague subject, with their numbers."""
    return [f"{number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if VAGUE.search(line)]


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_has_a_vague_subject(room: str) -> None:
    files = [path for path in (ROOT / room, *sorted((ROOT / room).rglob("*"))) if path.suffix in SUFFIXES]
    assert files
    assert {str(path.relative_to(ROOT)): lines for path in files if (lines := found(path.read_text()))} == {}


def test_a_vague_subject_is_found_with_its_line() -> None:
    assert found("An actor stops.\nNobody waits any longer.\n") == ["2: Nobody waits any longer."]
