"""What the pages about launchers show is what their modules take."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

import orchestra
from orchestra.hosts.settings import HostSettings
from orchestra.launch.engine import Engine, Python, Settings, on_top
from orchestra.runs.flags import Flags
from orchestra.runs.plan import OPTIONS

DOCS = Path(__file__).resolve().parents[3] / "docs"


def block(page: str) -> str:
    (found,) = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return found


def test_the_engine_of_the_page_makes_its_launcher_with_its_flags() -> None:
    made: list[Any] = []

    def launcher(hosts: Sequence[HostSettings], *, queue: str) -> Any:
        made.append((hosts, queue))
        return made

    names = {
        "Annotated": Annotated,
        "Engine": Engine,
        "Field": Field,
        "HostSettings": HostSettings,
        "MyLauncher": launcher,
        "Python": Python,
        "Sequence": Sequence,
        "Settings": Settings,
        "on_top": on_top,
    }
    exec(compile(block("launchers.md"), "docs/launchers.md", "exec"), names)
    engine = names["ENGINE"]
    assert isinstance(engine, Engine)
    assert [flag.option for flag in Flags.of(engine.flags)] == ["--python", "--queue"]
    engine.launcher([], {"queue": "long"})
    assert made == [([], "long")]


def test_the_config_of_slurm_is_keywords_of_a_run(monkeypatch: Any) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(orchestra, "run", lambda file, **options: given.update(options, file=file))
    exec(compile(block("slurm.md"), "docs/slurm.md", "exec"), {"orchestra": orchestra})
    assert given.pop("file") == "experiments/qmix_8m.py"
    assert set(given) <= set(OPTIONS.defaults)
    assert (given["hosts"], given["cpus_per_task"]) == (2, 16)
