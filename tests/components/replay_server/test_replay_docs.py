"""The pieces of code on the page about replay buffers run, with arrays in place of an environment."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch
from components.replay_buffers import FederatedReplay, Field, PrioritizedTransitions
from components.replay_server import EpisodeLayout, Layout, ReplayClient, ReplayServer

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "replay.md").read_text()
TRANSITIONS, UNION, SERVER, CLIENT, EPISODES = re.findall(
    r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL
)


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(compile(code, "docs/replay.md", "exec"), names)
    return names


def test_transitions_are_sampled_by_priority() -> None:
    rng = np.random.default_rng(1)
    rows = {
        "obs": rng.random((300, 84), np.float32),
        "next_obs": rng.random((300, 84), np.float32),
        "action": np.zeros(300, np.int64),
        "reward": np.ones(300, np.float32),
        "done": np.zeros(300, np.bool_),
    }
    names = run(TRANSITIONS.replace("2**20", "512"), rows=rows, rng=rng, td_error=np.full(256, -2.0))
    assert names["sampled"].batch["obs"].shape == (256, 84)
    returns = {round(float(reward), 4) for reward in names["sampled"].batch["reward"]}
    assert 2.9701 in returns  # 1 + 0.99 + 0.99²
    assert returns <= {2.9701, 1.99, 1.0}  # the newest rows have fewer steps after them


def test_shares_of_clients_are_sampled_as_one() -> None:
    rng = np.random.default_rng(1)
    replay = PrioritizedTransitions({"x": Field(np.float32)}, capacity=512)
    replay.insert({"x": np.arange(300, dtype=np.float32)})
    told: list[str] = []

    class Shared(FederatedReplay):
        def missing(self, size: int, rng: np.random.Generator) -> dict[str, int]:
            missing = super().missing(size, rng)
            for name, count in missing.items():
                told.append(name)
                self.add(name, replay.share(count, rng))
            return missing

    names = run(UNION, FederatedReplay=Shared, replay=replay, rng=rng, priorities=np.ones(256))
    assert set(names["sampled"].clients) <= {0, "worker-7"}
    assert told == ["worker-7"]
    assert names["sampled"].batch["x"].shape == (256,)


def test_a_client_and_a_server_exchange_entries_and_parameters(tmp_path: Path) -> None:
    address, secret = f"unix://{tmp_path}/server", b"s" * 32
    fields = {
        "obs": Field(np.float32, (2,)),
        "action": Field(np.int64),
        "reward": Field(np.float32),
        "done": Field(np.bool_),
    }
    loaded: list[bytes] = []
    names = {"fields": fields, "secret": secret, "bytes_of_the_policy": b"parameters", "priorities": np.ones(256)}
    ended = threading.Event()
    server = SERVER.replace("tls://0.0.0.0:7700", address).replace("clients.log", f"{tmp_path}/clients.log") + (
        "    assert ended.wait(60)\n"  # a server that leaves takes its publications with it
    )
    serving = threading.Thread(
        target=run, args=(server,), kwargs=names | {"ended": ended, "Layout": Layout, "ReplayServer": ReplayServer}
    )
    serving.start()
    try:
        run(
            CLIENT.replace("tls://learner:7700", address).replace("client.add", "for _ in range(64): client.add"),
            ReplayClient=ReplayClient,
            secret=secret,
            obs=np.zeros(2, np.float32),
            policy=SimpleNamespace(load=loaded.append),
        )
    finally:
        ended.set()
        serving.join(60)
    assert [bytes(params) for params in loaded] == [b"parameters"]
    assert (tmp_path / "clients.log").read_text().endswith("worker-7,0.5 points an hour\n")


def test_whole_episodes_are_entries() -> None:
    rng, steps = np.random.default_rng(1), 3
    spec = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
    names = run(EPISODES.splitlines()[0], EpisodeLayout=EpisodeLayout, spec=spec)
    learned: list[EpisodeBatch] = []

    def learn(batch: EpisodeBatch) -> Any:
        learned.append(batch)
        return SimpleNamespace(priorities=np.ones(32))

    with (
        ReplayServer(names["layout"]) as server,
        ReplayClient(server.address, "worker-0", secret=server.secret) as client,
    ):
        run(
            EPISODES,
            EpisodeLayout=EpisodeLayout,
            EpisodeBatch=EpisodeBatch,
            spec=spec,
            server=server,
            client=client,
            obs=rng.random((steps + 1, 2, 4), np.float32),
            state=rng.random((steps + 1, 5), np.float32),
            available=np.ones((steps + 1, 2, 3), np.bool_),
            actions=np.zeros((steps, 2), np.int64),
            reward=np.ones(steps, np.float32),
            won=True,
            policy=SimpleNamespace(learn=learn),
        )
    assert learned[0].reward.shape == (32, steps)
