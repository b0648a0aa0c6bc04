"""The page about MaCA shows code that runs."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "maca.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["interface", "a round", "fight"])
def test_the_code_of_the_page_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(block, "docs/maca.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    if "get_done" in block:
        assert names["env"].get_done()
        assert len(names["side1_fighter"]) == 10
    elif "rounds=2" in block:
        assert len(printed) == 2
    else:
        assert names["Environment"].__module__.startswith("components.envs.air_combat.maca")
