"""The page about air combat shows code that runs, commands that are understood, and pictures that are there."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from components.viewer import command

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "air_combat.md").read_text()
SECTION = re.search(r"^## Watching\n.*?^## ", PAGE, flags=re.MULTILINE | re.DOTALL).group()
COMMANDS = [shlex.split(line[2:]) for line in re.findall(r"^\$ orchestra play.*$", SECTION, flags=re.MULTILINE)]


def test_the_code_about_watching_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", SECTION, flags=re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/air_combat.md", "exec"), {"__name__": "page"})
    assert (tmp_path / "battle.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_about_watching_are_understood(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is played and how it is saved has tests of its own: each command gets as far as that."""
    asked = []

    def played(*given):
        asked.append(given)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_played", played)
    with pytest.raises(KeyboardInterrupt):
        command.command(words[2:])
    assert [given[0] for given in asked] == [words[2]]


def test_the_pictures_of_the_page_are_there_and_small() -> None:
    assert len(COMMANDS) == 4
    for name, most in (("air_combat.png", 100_000), ("air_combat.gif", 1_000_000)):
        assert f"]({name})" in PAGE
        assert (ROOT / "docs" / name).stat().st_size < most
    with Image.open(ROOT / "docs" / "air_combat.gif") as film:
        assert film.n_frames > 20
