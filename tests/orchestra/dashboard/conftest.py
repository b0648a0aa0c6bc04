import json
from pathlib import Path
from typing import Any

import pytest

from orchestra import RunDirectory


@pytest.fixture
def make_run(tmp_path: Path) -> Any:
    """Return a function that writes the files of a run that is over."""

    def make(name: str, *, records: int = 5, state: str = "done", seed: int = 0, **flags: Any) -> RunDirectory:
        run = RunDirectory(tmp_path / "runs" / "maze" / name)
        run.logs.mkdir(parents=True)
        config = {
            "experiment": {"file": "maze.py", "absolute": str(tmp_path / "maze.py"), "function": "experiment"},
            "flags": flags,
            "options": {"seed": seed},
            "seed": seed,
            "host": "here",
        }
        run.config_path.write_text(json.dumps(config))
        lines = [
            {"state": "training", "elapsed_s": 0.5 * n, "env_steps": 100 * n, "goal_steps": 1000, "test_return": n / 2}
            for n in range(records)
        ]
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        reason = "ValueError: no way out" if state == "failed" else None
        run.summary.write_text(json.dumps({"state": state, "reason": reason}))
        run.message_counts.write_text(
            json.dumps([{"sender": "a/x", "type": "StepMsg", "recipient": "b/y", "count": 7}])
        )
        (run.logs / "a.jsonl").write_text(
            '{"timestamp": "2026-01-01T10:00:01+00:00", "level": "error", "node": "a", "event": "it broke"}\n'
            "not a line of a log\n"
        )
        return run

    return make
