"""The films of README show what a command wrote on its terminal."""

import sys
from pathlib import Path

import pytest
from PIL import Image

from orchestra import import_file

ROOT = Path(__file__).resolve().parent.parent
recordings = import_file(ROOT / "docs" / "recordings.py", "documentation")


def test_a_command_is_filmed_to_its_end(tmp_path: Path) -> None:
    program = "import os; print(os.get_terminal_size()); print('\\x1b[34mblue \\u28ff\\x1b[0m', os.getcwd())"
    *_, last = recordings.screens([sys.executable, "-c", program], folder=str(tmp_path))
    assert last.display[0].strip() == f"os.terminal_size(columns={recordings.COLUMNS}, lines={recordings.ROWS})"
    assert last.display[1].startswith(f"blue \u28ff {tmp_path}")
    assert last.buffer[1][0].fg == "blue"
    colours = {colour for _, colour in recordings.drawn(last).getcolors(1 << 16)}
    assert {(0x61, 0xAF, 0xEF), (0x16, 0x18, 0x1D)} <= colours


def test_a_command_that_fails_ends_the_film_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="went wrong"):
        list(recordings.screens([sys.executable, "-c", "import sys; sys.exit('it went wrong')"], folder=str(tmp_path)))


@pytest.mark.parametrize("name", ["display.gif", "battle.gif"])
def test_readme_has_the_films(name: str) -> None:
    assert f"(docs/{name})" in (ROOT / "README.md").read_text()
    with Image.open(ROOT / "docs" / name) as film:
        assert film.n_frames > 20
    assert (ROOT / "docs" / name).stat().st_size < 600_000
