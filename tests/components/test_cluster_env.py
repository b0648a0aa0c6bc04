"""ClusterEnv is a vector environment whose steps are made elsewhere, by the learner's agent."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from components.cluster_agent import AgentError
from components.cluster_env import ClusterEnv, LocalConfig
from components.cluster_head import Bridge
from orchestra import UsageError

FAULTS = pytest.mark.skipif(
    not int(os.environ.get("ORCHESTRA_FAULTS", "0")), reason="starts many processes: ORCHESTRA_FAULTS=1"
)
HERE = LocalConfig(nodes=2, processes=False)
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "cleanrl_ppo.py"
CHANGED = {
    'envs = gym.make_vec(args.env, num_envs=args.num_envs, vectorization_mode="sync", vector_kwargs=SAME_STEP)': (
        'envs = ClusterEnv({"env_name": args.env, "envs_per_node": args.num_envs, "kl_threshold": args.kl}, '
        "LocalConfig(nodes=args.nodes)).launch()"
    ),
    "action, said = agent.act(obs)": "after, reward, terminated, truncated, info = envs.step(agent)",
    "after, reward, terminated, truncated, info = envs.step(bounded(envs, action))": (
        'action, said = info["actions"], info["policy"]'
    ),
}
"""The three lines of the example that change, beside the import."""


class Leaning:
    """Acts by the sign of the pole's angle and of a parameter, and says so."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = np.array([weight], np.float32)

    def act(self, obs: NDArray[Any]) -> Any:
        return (obs[:, 2] * self.weight[0] > 0).astype(np.int64), {
            "angle": obs[:, 2],
            "weight": self.weight.repeat(len(obs)),
        }

    def distribution(self, obs: NDArray[Any]) -> Any:
        return {"logits": np.stack([-obs[:, 2], obs[:, 2]], 1) * self.weight[0]}

    def get_parameters(self) -> Any:
        return {"weight": self.weight}

    def set_parameters(self, parameters: Any) -> None:
        self.weight = parameters["weight"].copy()


class Pushing:
    """Gives a continuous action beyond the bounds."""

    def __init__(self) -> None:
        self.push = np.array([5.0], np.float32)

    def act(self, obs: NDArray[Any]) -> Any:
        return np.full((len(obs), 1), self.push[0])

    def get_parameters(self) -> Any:
        return [self.push]

    def set_parameters(self, parameters: Any) -> None:
        self.push = parameters["0"]


class Failing(Leaning):
    """Cannot act."""

    def act(self, obs: NDArray[Any]) -> Any:
        raise KeyError("no such thing")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    opened: list[ClusterEnv] = []

    def launch(config: Any = HERE, **env: Any) -> ClusterEnv:
        own = {"env_name": "CartPole-v1", "envs_per_node": 3, "agent": __file__}
        opened.append(ClusterEnv({**own, **env}, config))
        return opened[-1].launch()

    yield launch
    for each in opened:
        each.close()


def test_steps_are_those_of_the_environments_with_the_agent_s_actions(cluster: Any) -> None:
    import gymnasium
    from gymnasium.vector import AutoresetMode

    envs, agent = cluster(), Leaning()
    alone = [
        gymnasium.make_vec("CartPole-v1", 3, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})
        for _ in range(2)
    ]
    assert envs.num_envs == 6
    obs, _ = envs.reset(seed=7)
    expected = np.concatenate([each.reset(seed=7 + 3 * node)[0] for node, each in enumerate(alone)])
    assert np.array_equal(obs, expected)
    ended = 0
    for _ in range(60):
        actions, said = agent.act(obs)
        obs, reward, terminated, truncated, info = envs.step(agent)
        assert np.array_equal(info["actions"], actions)
        assert np.array_equal(info["policy"]["angle"], said["angle"])
        steps = [each.step(actions[3 * node : 3 * node + 3]) for node, each in enumerate(alone)]
        for mine, theirs in zip(
            (obs, reward, terminated, truncated), zip(*(s[:4] for s in steps), strict=True), strict=True
        ):
            assert np.array_equal(mine, np.concatenate(theirs))
        over = np.flatnonzero(terminated | truncated)
        for index in over:
            last = steps[index // 3][4]["final_obs"][index % 3]
            assert np.array_equal(info["final_obs"][index], last)
            assert info["episode"]["l"][index] > 0
        assert ("_final_obs" in info) == bool(len(over))  # the others go on: each is reset by itself
        ended += len(over)
    assert 0 < ended < 60 * 6


def test_it_steps_with_given_actions_too_and_clips_none_that_are_discrete(cluster: Any) -> None:
    envs = cluster()
    envs.reset(seed=1)
    obs, reward, _, _, info = envs.step(np.array([0, 1, 0, 1, 0, 1]))
    assert obs.shape == (6, 4)
    assert reward.tolist() == [1.0] * 6
    assert info["actions"].tolist() == [0, 1, 0, 1, 0, 1]
    assert info["versions"].tolist() == [-1] * 6


def test_parameters_travel_when_they_have_changed_and_only_beyond_the_threshold(cluster: Any) -> None:
    loads = {}
    for sync in ("always", "kl:0.0005", "kl:inf"):
        envs, agent = cluster(sync=sync), Leaning()
        envs.reset(seed=1)
        for step in range(12):
            agent.weight = agent.weight + np.float32(0.5 * (step % 2))  # a new version every other step
            *_, info = envs.step(agent)
            assert (info["policy"]["weight"][0] == agent.weight[0]) or sync != "always"
        figures = envs.synchronization
        assert figures["versions"] == 7
        assert figures["params_bytes"] == figures["params_sent"] * 4
        loads[sync] = figures["params_sent"] / 2  # two nodes
        envs.close()
    assert loads["always"] == 7
    assert loads["kl:inf"] == 1
    assert 1 < loads["kl:0.0005"] < 7


def test_parameters_travel_anyway_once_they_are_too_old(cluster: Any) -> None:
    envs, agent = cluster(sync="kl:inf", sync_max_lag=2), Leaning()
    envs.reset(seed=1)
    acted = []
    for _ in range(6):
        agent.weight = agent.weight + np.float32(1.0)
        *_, info = envs.step(agent)
        acted.append(info["versions"].tolist())
    assert acted == [[version] * 6 for version in (0, 0, 2, 2, 4, 4)]


def test_nodes_that_do_not_wait_for_each_other_return_what_is_ready(cluster: Any) -> None:
    envs, agent = cluster(asynchronous=True), Leaning()
    first, _ = envs.reset(seed=3)
    last, counts = first.copy(), np.zeros(6, np.int64)
    while counts.min() < 10:
        obs, reward, _, _, info = envs.step(agent)
        ids = info["env_ids"]
        assert len(obs) == len(reward) == len(ids) in (3, 6)
        # Of each environment the steps come in their order: the agent has acted on what was returned before.
        assert np.array_equal(info["policy"]["angle"], last[ids, 2])
        last[ids] = obs
        counts[ids] += 1
    with pytest.raises(UsageError, match="not with given actions"):
        envs.step(np.zeros(6, np.int64))
    again, _ = envs.reset(seed=3)
    assert np.array_equal(again, first)


def test_continuous_actions_are_kept_as_they_are_and_clipped_where_they_are_made(cluster: Any) -> None:
    envs = cluster(env_name="Pendulum-v1")
    envs.reset(seed=1)
    *_, info = envs.step(Pushing())
    assert info["actions"].tolist() == [[5.0]] * 6


def test_a_failing_agent_is_reported_where_step_was_called(cluster: Any) -> None:
    envs = cluster()
    envs.reset()
    with pytest.raises(AgentError, match="no such thing"):
        envs.step(Failing())


def test_what_cannot_be_is_refused_in_words(cluster: Any) -> None:
    for config, told in (
        ({}, "needs an env_name"),
        ({"env_name": "CartPole-v1", "nodes": 2}, "'nodes' is not known"),
        ({"env_name": "NoSuchThing-v0"}, "NoSuchThing"),
        ({"env_name": "CartPole-v1", "kl_threshold": 0.1, "sync": "always"}, "say the same"),
        ({"env_name": "CartPole-v1", "sync": "often"}, "always, every:N"),
    ):
        with pytest.raises(UsageError, match=told):
            ClusterEnv(config)
    with pytest.raises(UsageError, match="call launch"):
        ClusterEnv({"env_name": "CartPole-v1"}).reset()
    envs = cluster(agent=str(EXAMPLE))
    envs.reset()
    with pytest.raises(AgentError, match="from which the nodes do not import"):
        envs.step(Leaning())


@FAULTS
def test_a_node_whose_process_is_killed_goes_on_with_new_episodes(cluster: Any, tmp_path: Path) -> None:
    envs, agent = cluster(LocalConfig(nodes=2), sync="kl:inf"), Leaning()
    before, _ = envs.reset(seed=1)
    before, *_ = envs.step(agent)
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process().children(recursive=True):
            if "node-1" in " ".join(process.cmdline()):
                process.kill()
    info: dict[str, Any] = {"lost": np.zeros(6, np.bool_)}
    while not info["lost"].any():
        obs, reward, terminated, truncated, info = envs.step(agent)
        if not info["lost"].any():
            before = obs
    assert info["lost"].tolist() == [False] * 3 + [True] * 3
    assert truncated[3:].all()
    assert not terminated[3:].any()
    assert not reward[3:].any()
    assert np.array_equal(info["final_obs"][3:], before[3:])
    *_, info = envs.step(agent)
    assert not info["lost"].any()
    assert info["versions"].tolist() == [0] * 6


@FAULTS
def test_a_program_with_a_training_loop_of_its_own_runs_on_nodes_after_three_changed_lines(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    for before, after in CHANGED.items():
        assert text.count(before) == 1
        text = text.replace(before, after)
    program = tmp_path / "cluster_ppo.py"
    imported = "import gymnasium as gym\n"
    program.write_text(
        text.replace(imported, f"{imported}from components.cluster_env import ClusterEnv, LocalConfig\n", 1)
    )
    flags = ["--num-envs", "2", "--num-steps", "16", "--steps", "192", "--epochs", "1", "--kl", "0.000001"]
    for path in (EXAMPLE, program):
        ran = subprocess.run(
            [sys.executable, path, *flags], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert "update 3 of" in ran.stdout


def test_the_learner_wakes_the_head_once_for_a_step_of_all_nodes(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = cluster()
    agent = Leaning()
    envs.reset(seed=1)
    envs.step(agent)
    told: list[int] = []
    tell = Bridge.tell
    monkeypatch.setattr(Bridge, "tell", lambda self, *messages: (told.append(len(messages)), tell(self, *messages))[1])
    envs.step(agent)
    assert told == [2]


class SimulatedHosts:
    """Hosts of `--launch local`: agents on this machine that share no memory."""

    nodes = 2

    def options(self) -> dict[str, Any]:
        return {"launch": "local", "hosts": "2"}


@FAULTS
def test_nodes_are_hosts_of_an_engine(cluster: Any) -> None:
    envs, agent = cluster(SimulatedHosts(), sync="always"), Leaning()
    obs, _ = envs.reset(seed=1)
    assert envs.num_envs == 6
    *_, info = envs.step(agent)
    assert np.array_equal(info["policy"]["angle"], obs[:, 2])
    agent.weight = agent.weight + np.float32(1.0)
    *_, info = envs.step(agent)
    assert info["versions"].tolist() == [1] * 6
    assert info["policy"]["weight"].tolist() == [2.0] * 6
