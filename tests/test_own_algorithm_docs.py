"""The page on an algorithm of one's own: its blocks are a file that trains, and its commands do what it says."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from components.policies import class_of
from orchestra import RunDirectory
from orchestra.cli.main import main

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "own_algorithm.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(line) for line in re.findall(r"^\$ orchestra (.*)$", PAGE, flags=re.MULTILINE)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reinforce.py").write_text("\n".join(BLOCKS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_blocks_are_one_file_whose_own_test_passes(folder: Path) -> None:
    made = class_of("reinforce.py:Reinforce")
    assert made is not None
    assert (made.on_policy, made.max_staleness) == (True, 2)
    namespace: dict[str, object] = {"__name__": "reinforce"}
    exec(compile((folder / "reinforce.py").read_text(), "reinforce.py", "exec"), namespace)
    test = namespace["test_what_pays_becomes_probable"]
    assert callable(test)
    test()


@pytest.mark.usefixtures("folder")
def test_its_commands_can_be_laid_out(capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for kind, *words in COMMANDS:
        if kind == "run" and words[0] == "train" and "--help" in words:
            with pytest.raises(SystemExit, match=r"^0$"):
                main([kind, *words])
            assert re.search(r"--width int >= 1 += 64 +units of each hidden layer", capsys.readouterr().out)
        elif kind == "run" and words[0] == "train":
            main([kind, *[word for word in words if word not in ("--hosts", "cpu1,cpu2")], "--dry-run"])
            names.append(capsys.readouterr().out.partition("\n")[0])
    assert len(names) == 4


@pytest.mark.slow
@pytest.mark.skipif(not int(os.environ.get("ORCHESTRA_FAULTS", "0")), reason="takes 20 seconds: ORCHESTRA_FAULTS=1")
def test_the_first_run_its_resumption_and_its_replay_do_what_the_page_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, resumed, replayed = (words for words in COMMANDS if "first" in " ".join(words))
    assert main(first) == 0
    run = RunDirectory(folder / "runs" / "reinforce_CartPole-v1" / "first")
    assert run.ending()["env_steps"] >= 8000
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["learner/checked_segments"] > 0
    assert main(resumed) == 0
    assert run.ending()["env_steps"] >= 12_000
    capsys.readouterr()
    assert main(replayed) == 0
    assert "all as recorded" in capsys.readouterr().out
    (folder / "reinforce.py").write_text((folder / "reinforce.py").read_text().replace("+ 1e-6", "+ 1e-3"))
    assert main(replayed) == 0
    told = capsys.readouterr()
    assert "the code has changed since the run" in told.err


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", PAGE))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link.partition("#")[0]).exists()
