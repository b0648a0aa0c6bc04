"""The commands of the debugging tutorials print what the page shows."""

import glob
import multiprocessing
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestra.cli.main import program

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs" / "debugging.md").read_text()
SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
FENCED = re.compile(r"^```(console|diff|python)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
PROMPT = "(Pdb) "


@dataclass
class Typed:
    """A command of the text, with what is typed into it and what it says."""

    command: str
    keys: list[str]
    said: list[str]


def typed(block: str) -> list[Typed]:
    found = []
    for piece in re.split(r"^(?=\$ )", block, flags=re.MULTILINE)[1:]:
        lines = piece.rstrip("\n").splitlines()
        last = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
        keys = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
        said = [line for line in lines[last + 1 :] if not line.startswith(PROMPT)]
        found.append(Typed("\n".join(lines[: last + 1]).removeprefix("$ "), keys, said))
    return found


def essence(line: str) -> str:
    """A line without figures, units and folders: those of another machine, or another day, are others."""
    line = re.sub(r"\S*/(\w+\.py)", r"\1", line)
    line = re.sub(r"[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?\.?", "#", line)
    line = re.sub(r"# (µs|ms|s|bytes|kB|MB)\b", "#", line)
    line = " ".join(line.replace(PROMPT, "").replace("[ #", "[#").split())
    return line[:40] if "…" in line else line  # what is cut off at the end of a line depends on its figures


def carry_out(words: list[str], folder: str, streams: list[str]) -> None:
    """Be a command, in a process forked for it, that reads from and writes to these files."""
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    os.environ.pop("PYTEST_ADDOPTS", None)  # what pytest prints is that of a reader who has set nothing
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC * (number > 0)), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115 (for as long as it lives)
    sys.argv = words
    if words[0] == "orchestra":
        program()
    assert words[0] == "pytest"
    sys.path.insert(0, str(ROOT))
    code = pytest.main(["-p", "no:cacheprovider", "-p", "no:randomly", *words[1:]])
    sys.stdout.flush()
    os._exit(int(code))


class Checkout:
    """A copy of what the tutorials use, and a shell in it.

    Its commands are processes of their own, forked from one that has imported what they import: a dozen of them would
    spend most of their time with that.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("docs", "experiments"):
            shutil.copytree(ROOT / name, folder / name)
        self._forking = multiprocessing.get_context("forkserver")
        self._forking.set_forkserver_preload(["orchestra.cli.main", "components", "pytest", "torch"])

    def type(self, typed: Typed) -> str:
        words = [each for word in shlex.split(typed.command.replace("\\\n", " ")) for each in self._expanded(word)]
        streams = [self.folder / f"typed.{name}" for name in ("in", "out", "err")]
        streams[0].write_text("".join(f"{key}\n" for key in typed.keys))
        process = self._forking.Process(target=carry_out, args=(words, str(self.folder), [str(s) for s in streams]))
        process.start()
        process.join(120.0)
        out, err = (stream.read_text() for stream in streams[1:])
        assert process.exitcode in (0, 1), f"{typed.command}\nends with {process.exitcode}\n{out}\n{err}"
        assert "Traceback" not in err, err
        return out

    def _expanded(self, word: str) -> list[str]:
        """What a shell makes of a word: `dedup/*/*` is a run's folder."""
        return sorted(glob.glob(word, root_dir=self.folder)) if word.endswith("/*/*") else [word]

    def mend(self, block: str) -> None:
        """Carry out a change of one line."""
        name, old, new = (line[4:] if line.startswith("---") else line[1:] for line in block.splitlines())
        path = self.folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS[:2], ids=["priorities", "parameters"])
def test_a_tutorial_prints_what_the_page_shows(section: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    commands = 0
    for language, block in FENCED.findall(section):
        if language == "diff":
            checkout.mend(block)
        for each in typed(block) if language == "console" else ():
            commands += 1
            printed = checkout.type(each)
            lines = iter([essence(line) for line in printed.splitlines()])
            for line in each.said:
                assert essence(line) in lines, f"{each.command}\ndoes not print\n{line}\nbut\n{printed}"
    assert commands >= 5
    if "dedup" in section:
        the_python_piece_runs(next((tmp_path / "dedup").glob("*/*")))


def the_python_piece_runs(run: Path) -> None:
    (piece,) = [block for language, block in FENCED.findall(SECTIONS[2]) if language == "python"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    allowing = piece.replace('"learner/trajectories")', '"learner/trajectories", allow_changes=True)')
    code = f"from pathlib import Path\nrun = Path({str(run)!r})\n{allowing}"
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "UpdatePriorityMsg" in ended.stdout


def test_the_quoted_code_is_in_the_examples() -> None:
    # Laid out anew: the formatter treats a method in a text as a function.
    examples = ["".join(path.read_text().split()) for path in (ROOT / "docs" / "examples").glob("*.py")]
    pieces = [block for section in SECTIONS[:2] for language, block in FENCED.findall(section) if language == "python"]
    assert pieces
    for piece in pieces:
        assert any("".join(piece.split()) in example for example in examples)


def test_every_flag_of_the_table_exists() -> None:
    from orchestra.cli.replay import parser

    known = {option for action in parser()._actions for option in action.option_strings}
    flags = set(re.findall(r"`(--[a-z-]+)", SECTIONS[2]))
    assert len(flags) > 8
    assert flags <= known


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", TEXT))
def test_every_link_leads_to_a_file(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
