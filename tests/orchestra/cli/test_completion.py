"""A shell completes commands, experiments, flags and values."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = "from orchestra.cli.main import program; program()"


def completions(line: str, folder: Path) -> list[str]:
    """What the shell is answered after `line`."""
    answer = folder / "answer"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPATH": str(ROOT),
    }
    asked = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert asked.stdout == ""
    return [word.strip() for word in answer.read_text().split("\n")] if answer.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("orchestra ", ["run", "config", "play", "completion"]),
        ("orchestra re", ["replay"]),
        ("orchestra run qmix_", ["qmix_8m", "qmix_3m"]),
        ("orchestra run m", ["mappo_3m", "mine.py"]),
        ("orchestra run --tr", ["--trace", "--trace-at-end"]),
        ("orchestra run qmix_8m --algorithm coma --cri", ["--critic-steps"]),
        ("orchestra run qmix_8m --trace ", ["off", "flight", "digest", "full"]),
        ("orchestra trace st", ["stats", "story"]),
        ("orchestra trace stats --l", ["--lag"]),
        ("orchestra completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_words_are_offered(line: str, some: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    offered = completions(line, tmp_path)
    assert set(some) <= set(offered)
    assert all(word.startswith(line.rpartition(" ")[2]) for word in offered)


@pytest.mark.parametrize("line", ["orchestra unheard-of ", "orchestra run no_such_file.py --st"])
def test_nothing_is_offered_or_said_about_a_line_that_is_wrong(line: str, tmp_path: Path) -> None:
    assert completions(line, tmp_path) == []


@pytest.mark.slow
def test_bash_completes_by_the_code_that_is_printed(tmp_path: Path) -> None:
    (tmp_path / "orchestra").write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    (tmp_path / "orchestra").chmod(0o755)
    line = "orchestra conf"
    script = f"""
        eval "$(orchestra completion bash)"
        COMP_WORDS=({line}) COMP_CWORD=1 COMP_LINE="{line}" COMP_POINT={len(line)} COMP_TYPE=9
        _python_argcomplete orchestra
        echo "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shell = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert shell.stdout.split() == ["config"]
