"""The pieces of code on the page about ClusterEnv run, on one node of this process."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cluster_env.md").read_text()
LOOP, OUTPUTS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


class Right:
    """Pushes to the right."""

    def act(self, obs: Any) -> Any:
        return np.ones(len(obs), np.int64)

    def distribution(self, obs: Any) -> Any:
        return {"logits": np.tile(np.array([0.0, 9.0], np.float32), (len(obs), 1))}

    def get_parameters(self) -> Any:
        return {"bias": np.ones(1, np.float32)}

    def set_parameters(self, parameters: Any) -> None:
        assert parameters["bias"] == 1


def test_the_loop_of_the_page_steps_and_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its run is kept in runs/ there
    smaller = {"LunarLander-v3": "CartPole-v1", "64": "2", "nodes=4": "nodes=1, processes=False", "1000": "3"}
    smaller['"env_name"'] = f'"agent": "{__file__}", "env_name"'
    code = LOOP
    for word, instead in smaller.items():
        assert word in code
        code = code.replace(word, instead)
    names = {"agent": Right()}
    exec(compile(code, "docs/cluster_env.md", "exec"), names)
    assert names["action"].tolist() == [1, 1]
    assert names["reward"].tolist() == [1.0, 1.0]
    assert len(list(tmp_path.glob("runs/cluster_env/*/config.json"))) == 1


def test_the_outputs_of_the_page_are_logits_and_the_hidden_state() -> None:
    names: dict[str, Any] = {}
    exec(compile(OUTPUTS, "docs/cluster_env.md", "exec"), names)

    class Policy:
        network = torch.nn.Linear(4, 3)
        outputs = names["outputs"]

    said, hidden = Policy().outputs({"obs": torch.zeros(2, 1, 4)}, None, "hidden")
    assert said["logits"].shape == (2, 1, 3)
    assert hidden == "hidden"
