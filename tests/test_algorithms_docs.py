"""The page about algorithms shows what the example is, and names flags with the defaults that they have."""

import re
import shlex
from pathlib import Path

import pytest

from orchestra.runs.experiment import load_experiment
from orchestra.runs.flags import Flags

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "algorithms.md").read_text()
EXAMPLE = ROOT / "docs" / "examples" / "weighted_qmix.py"
FLAGS = {flag.name: flag for flag in Flags.of(load_experiment(ROOT / "experiments" / "qmix_8m.py"))}
ROWS = [
    [cell.strip() for cell in line.strip("| \n").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("|") and "`--" in line
]


def shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "on", False: "off", None: "none"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_every_piece_of_code_is_of_the_example() -> None:
    pieces = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(pieces) == 3
    source = EXAMPLE.read_text()
    for piece in pieces:
        assert piece in source, f"not in the example:\n{piece}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_an_option_has_the_default_that_the_page_says(row: list[str]) -> None:
    _, flags, defaults, source = row
    names = [name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", flags)]
    said = re.findall(r"`([^`]+)`", defaults)
    assert {shown(FLAGS[name].default) for name in names} == set(said)
    assert re.search(r"\(?(19|20)\d\d\)?|PyMARL", source), "it names no source"


def test_what_learning_depends_on_is_on_the_page() -> None:
    named = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", PAGE)}
    left_out = set(FLAGS) - named
    assert left_out == {  # of the run, not of the algorithm
        "asynchronous",
        "check_log_prob",
        "checkpoint_interval",
        "track",
        "track_offline",
        "env",
        "env_arg",
        "action_mask",
        "difficulty",
        "edition",
        "fully_observable",
        "obs_all_health",
        "obs_instead_of_state",
        "obs_last_action",
        "obs_own_health",
        "obs_own_position",
        "obs_pathing_grid",
        "obs_starcraft",
        "obs_terrain_height",
        "obs_timestep_number",
        "prob_obs_enemy",
        "ruleset",
        "start_jitter",
        "state_last_action",
        "state_timestep_number",
        "episode_limit",
        "rewards",
        "envs_per_process",
        "federated",
        "game_speed",
        "max_wait",
        "min_batch",
        "min_workers",
        "proxy",
        "proxy_fan_out",
        "steps",
        "sync",
        "sync_max_lag",
        "sync_smoothing",
        "eval_episodes",
        "eval_interval",
        "final_eval_episodes",
        "publish_interval",
        "learning_starts",
    }


def test_the_command_has_flags_that_there_are() -> None:
    (command,) = re.findall(r"^\$ (orchestra run .*)$", PAGE, flags=re.MULTILINE)
    _, _, path, *words = shlex.split(command)
    Flags.of(load_experiment(ROOT / path)).parse(words)


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", PAGE))
def test_every_link_leads_somewhere(link: str) -> None:
    file, _, anchor = link.partition("#")
    text = (ROOT / "docs" / file).read_text()
    headings = [line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")]
    assert not anchor or anchor in headings
