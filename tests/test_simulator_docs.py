"""The page about the simulator shows code that runs, and commands that are understood."""

import re
import shlex
from pathlib import Path

import pytest

from components.envs import Skirmish
from components.viewer import PLAYERS, command, film, games

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "simulator.md").read_text()
SECTIONS = re.search(r"^## Playing\n.*?^## How battles go$", PAGE, flags=re.MULTILINE | re.DOTALL).group()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", SECTIONS, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line[2:]) for line in re.findall(r"^\$ orchestra play.*$", SECTIONS, flags=re.MULTILINE)]


@pytest.mark.parametrize("block", BLOCKS, ids=["playing", "pettingzoo", "gymnasium"])
def test_the_code_of_the_page_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/simulator.md", "exec"), {"__name__": "page"})
    if "savefig" in block:
        assert (tmp_path / "battle.pdf").read_bytes().startswith(b"%PDF")
    else:
        shapes = {"pettingzoo": "(168,)", "gymnasium": "(4, 8, 80) (4, 168)"}
        assert capsys.readouterr().out.endswith(shapes["gymnasium" if "make_vec" in block else "pettingzoo"] + "\n")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_commands_of_the_page_are_understood(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is played and how films are written has tests of its own: here one small battle stands for all."""
    played = []

    def small(*asked):
        played.append(asked)
        return games.SKIRMISH.script("2m_vs_1z", None, None, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_played", small)
    monkeypatch.setattr(film, "save_film", lambda battles, path, *_: path.write_bytes(b"GIF") and 1)
    assert command.command(words[2:]) == 0
    scenario, policy, opponent, checkpoint, _ = played[0]
    assert policy in (None, *PLAYERS)
    assert opponent is checkpoint is None
    if not scenario.startswith("runs/"):
        assert Skirmish(scenario, 1).spec.n_agents
    saved = [words[words.index("--save") + 1]] if "--save" in words else []
    assert [path.name for path in tmp_path.iterdir()] == saved


def test_the_picture_of_the_page_is_there_and_small() -> None:
    assert len(COMMANDS) == 4
    assert "](battle.png)" in PAGE
    assert (ROOT / "docs" / "battle.png").stat().st_size < 60_000
