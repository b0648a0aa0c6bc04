"""The tutorial shows what the examples are, and they do what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team_experience import team_episodes

from components.envs.base import EnvSpec
from components.replay_buffers import EpisodeReplay
from messages import BatchTrainingDataMsg, InsertTransitionMsg, SampleBatchMsg
from orchestra import Node, UsageError
from orchestra.runs.experiment import build, extends, load_experiment
from orchestra.runs.flags import Flags
from orchestra.testing import Probe, settle

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = {path.name: path for path in (ROOT / "docs" / "examples").glob("*.py")}
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
CONSOLES = [
    (shlex.split(block.splitlines()[0][2:]), block.partition("\n")[2])
    for block in re.findall(r"^```console\n(.*?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
]


def test_every_piece_of_code_is_of_an_example() -> None:
    pieces = re.findall(r"^```python\n(.*?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
    assert len(pieces) > 8
    sources = [path.read_text() for path in EXAMPLES.values()]
    for piece in pieces:
        assert any(piece in source for source in sources), f"in no example:\n{piece}"


@pytest.mark.parametrize(("words", "printed"), CONSOLES, ids=lambda it: it[-1] if isinstance(it, list) else "")
def test_every_command_prints_what_it_says(words: list[str], printed: str, tmp_path: Path) -> None:
    program = {"python": [sys.executable], "orchestra": [sys.executable, "-m", "orchestra"]}[words[0]]
    where = [str(ROOT / word) if word.startswith("docs/") else word for word in words[1:]]
    ended = subprocess.run([*program, *where], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stdout.splitlines(keepends=True)
    told = "".join(line for line in lines if not line.startswith("trace: "))  # which names the run's own directory
    assert (ended.returncode, told) == (0, printed), ended.stderr
    if "pipeline" in " ".join(words):
        assert ended.stderr.count("actor failed and is started again") == 10


def test_the_example_of_a_test_passes() -> None:
    subprocess.run([sys.executable, EXAMPLES["referee.py"]], check=True, timeout=60)


@pytest.mark.parametrize("link", re.findall(r"\]\(((?!http)[^)]+)\)", TUTORIAL))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


# The TrajectoryManager of one's own


def played(*outcomes: bool) -> InsertTransitionMsg:
    """Episodes of one step each; what is observed says whether the episode was won."""
    won = np.array(outcomes)
    n = len(won)
    frames = np.repeat(won, 2).astype(np.float32)
    return team_episodes(
        obs=np.broadcast_to(frames[:, None, None], (2 * n, 2, 4)).copy(),
        state=np.broadcast_to(frames[:, None], (2 * n, 3)).copy(),
        available=np.ones((2 * n, 2, 3), np.bool_),
        actions=np.zeros((n, 2), np.int64),
        reward=won.astype(np.float32),
        lengths=np.ones(n, np.int32),
        terminated=np.ones(n, np.bool_),
        won=won,
        versions=np.zeros(n, np.int32),
        epsilon=np.full(n, 0.5, np.float32),
        newest_version=None,
        sender="",
        source="",
    )


def test_the_trajectory_manager_of_the_example_rehearses_what_was_won(run) -> None:
    spec = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)
    rehearsal: Any = vars(sys.modules[load_experiment(EXAMPLES["rehearsal.py"]).__module__])["Rehearsal"]

    async def main() -> None:
        async with Node("here").running() as node:
            trainer = Probe(BatchTrainingDataMsg)
            ref = trainer.start(node, "trainer")
            manager = node.spawn("trajectories", rehearsal, replay=EpisodeReplay(spec, 100), every=2)
            won = [False] * 20 + [True]
            await manager.tell(played(*won))
            for number in (1, 2):  # one won episode is no batch of two: nothing to rehearse yet
                await manager.tell(SampleBatchMsg(number=number, batch_size=2, trainer=ref))
            await manager.tell(played(*won))
            for number in (3, 4, 5, 6):
                await manager.tell(SampleBatchMsg(number=number, batch_size=2, trainer=ref))
            await settle(node)
            batches = {batch.number: batch for batch in await trainer.heard(BatchTrainingDataMsg, 6)}
            rehearsed = {number for number, batch in batches.items() if (batch.generations == -1).all()}
            assert rehearsed == {4, 6}
            assert all((batches[number]["reward"] == 1.0).all() for number in rehearsed)

    run(main())


def test_a_run_with_the_trajectory_manager_of_the_example_learns(tmp_path: Path) -> None:
    small = "--scenario 3m --steps 400 --envs-per-worker 4 --learning-starts 4 --batch-size 4 --hidden-size 8"
    command = [
        sys.executable,
        "-m",
        "orchestra",
        "run",
        EXAMPLES["rehearsal.py"],
        *small.split(),
        "--eval-episodes",
        "2",
        "--final-eval-episodes",
        "2",
        "--single-process",
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "qmix 3m: done after" in ended.stdout


# What the example stands on


def test_an_extended_experiment_has_the_flags_of_both_and_changes_the_plan() -> None:
    function = load_experiment(EXAMPLES["rehearsal.py"])
    standard = load_experiment(ROOT / "experiments" / "qmix_8m.py")
    names = [flag.name for flag in Flags.of(function)]
    assert names == [*(flag.name for flag in Flags.of(standard)), "rehearse_every"]
    topology = build(function, Flags.of(function).parse(["--rehearse-every", "9", "--workers", "2"]))
    before = build(standard, Flags.of(standard).parse(["--workers", "2"]))
    assert list(topology.nodes) == list(before.nodes)
    (manager,) = [actor for actor in topology.nodes["learner"].actors if actor.name == "trajectories"]
    assert (manager.kind.__name__, manager.factory.keywords["every"]) == ("Rehearsal", 9)
    assert topology.describe().replace("Rehearsal", "TrajectoryManager") == before.describe()


def test_a_parameter_that_is_there_already_is_refused() -> None:
    def base(*, steps: int = 1) -> Any: ...

    with pytest.raises(UsageError, match="steps: the experiment that is extended has a parameter of that name already"):

        @extends(base)
        def experiment(topology: Any, *, steps: int = 2) -> Any: ...


def test_what_is_not_planned_cannot_be_replaced() -> None:
    topology = build(load_experiment(EXAMPLES["pipeline.py"]), {})
    with pytest.raises(UsageError, match="node 'here' has no actor 'judge' to replace; its actors are total, parser"):
        topology.nodes["here"].replace("judge", topology.nodes["here"].actors[0].kind)
