"""The page about environments shows code that runs, commands that exist, and the defaults that are."""

import inspect
import re
from pathlib import Path

import numpy as np

from components.envs import AsyncEnv, AsyncVectorEnv
from components.envs.adapted import named
from orchestra import Hosts, build, load_experiment
from orchestra.hosts.shape import this_machine
from orchestra.runs.specialised import flags_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "environments.md").read_text()
OWN, PROCESSES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^\$ orchestra run train (.*)$", PAGE, flags=re.MULTILINE)


def test_the_environment_of_the_page_is_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "wrapped_pendulum.py").write_text(OWN)
    make = named.factory_of(f"{tmp_path}/wrapped_pendulum.py:make_env", {"frames": 3})
    env = make(2, seed=1)
    fields = env.spec.schema.by_name
    assert (fields["obs"].shape, fields["actions"].low, env.spec.episode_limit) == ((9,), (-1.0,), 200)
    env.reset()
    env.step(np.zeros((2, 1, 1), np.float32))
    assert (env.reward > -1.7).all()


def test_the_commands_of_the_page_are_laid_out() -> None:
    names = []
    for words in COMMANDS:
        function, flags = flags_of(load_experiment(ROOT / "experiments" / "train.py"), words.split())
        names.append(build(function, flags.parse(words.split()), Hosts([this_machine()])).name)
    assert names == ["qmix_LunarLander-v3", "vdn_simple_spread_v3"]


def test_the_code_about_processes_runs(capsys) -> None:
    exec(compile(PROCESSES, "docs/environments.md", "exec"), {"__name__": "page"})
    told = re.findall(r"\d", capsys.readouterr().out)
    assert sorted(told) == ["0", "1", "2", "3"]


def test_the_table_names_every_setting_with_its_default() -> None:
    told = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, flags=re.MULTILINE)}
    for kind in (AsyncEnv, AsyncVectorEnv):
        parameters = inspect.signature(kind).parameters.values()
        assert told == {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "seed"}
