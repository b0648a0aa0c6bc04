"""The page about environments in processes shows code that runs, and names the defaults that are."""

import inspect
import re
from pathlib import Path

from components.envs import AsyncEnv, AsyncVectorEnv

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "environments.md").read_text()


def test_the_code_of_the_page_runs(capsys) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/environments.md", "exec"), {"__name__": "page"})
    told = re.findall(r"\d", capsys.readouterr().out)
    assert sorted(told) == ["0", "1", "2", "3"]


def test_the_table_names_every_setting_with_its_default() -> None:
    told = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE)}
    for kind in (AsyncEnv, AsyncVectorEnv):
        parameters = inspect.signature(kind).parameters.values()
        assert told == {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}
