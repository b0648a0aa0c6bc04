"""The page about benchmarks names every program, and pages where its results are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks"
PAGE = (FOLDER / "README.md").read_text()
ROWS = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in PAGE.splitlines() if line.startswith("| `")]
PARTS = {path.name for path in FOLDER.glob("*.py")} - {row[0].strip("`") for row in ROWS}


def test_every_program_has_a_row_and_every_module_is_named() -> None:
    programs = {path.name for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert programs - {"reverb_side.py", "wire_zmq.py"} == {row[0].strip("`") for row in ROWS}
    assert {name for name in PARTS if f"`{name}`" not in PAGE} == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].strip("`"))
def test_the_results_of_a_program_are_on_the_page_that_its_row_names(row: tuple[str, ...]) -> None:
    program, question, _, _, limit, results = row
    assert question
    assert limit
    for page in re.findall(r"\]\((.*?)\)", results):
        assert program.strip("`") in (FOLDER / page).read_text()
