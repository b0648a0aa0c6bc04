"""Two actors and a learner, one process each, and one replay server of whole multi-agent episodes.

The game: two agents walk along corridors of their own, and win when both are at the far end. Each observes its place.
"""

import multiprocessing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.envs import EnvSpec
from components.policies.base import EpisodeBatch
from components.replay_buffers import Closed, SampleToInsertRatio
from components.replay_server import EpisodeLayout, ReplayClient, ReplayServer

AGENTS, PLACES, MOVES, GAMMA = 2, 4, (-1, 0, 1), 0.9
SPEC = EnvSpec("corridors", n_agents=AGENTS, n_actions=len(MOVES), obs_size=PLACES, state_size=AGENTS, episode_limit=12)
LAYOUT = EpisodeLayout(SPEC, capacity=500, chunk=4)


def play(values: NDArray[np.float32], rng: np.random.Generator) -> dict[str, Any]:
    """Play an episode, ε-greedily by the values (agent, place, move)."""
    team, places = np.arange(AGENTS), [np.zeros(AGENTS, np.int64)]
    actions: list[NDArray[np.int64]] = []
    reward: list[float] = []
    while len(actions) < SPEC.episode_limit and not (places[-1] == PLACES - 1).all():
        best = (values[team, places[-1]] + 1e-3 * rng.random((AGENTS, len(MOVES)))).argmax(-1)
        actions.append(np.where(rng.random(AGENTS) < 0.3, rng.integers(len(MOVES), size=AGENTS), best))
        places.append(np.clip(places[-1] + np.array(MOVES)[actions[-1]], 0, PLACES - 1))
        reward.append(float((places[-1] == PLACES - 1).all()))
    stood = np.stack(places)
    return {
        "obs": np.eye(PLACES, dtype=np.float32)[stood],
        "state": stood.astype(np.float32),
        "available": np.ones((len(stood), AGENTS, len(MOVES)), np.bool_),
        "actions": np.stack(actions),
        "reward": np.array(reward, np.float32),
        "terminated": bool(reward[-1]),
    }


def act(address: str, secret: bytes, name: str, seed: int) -> None:
    """Play with the newest values that the learner has published, until it ends."""
    rng = np.random.default_rng(seed)
    with ReplayClient(address, name, secret=secret, patience=0.0, seed=seed) as client:
        published = client.subscribe("values")
        values = np.zeros((AGENTS, PLACES, len(MOVES)), np.float32)
        try:
            while True:
                client.add_entry(play(values, rng))
                if (newest := published.poll()) is not None:
                    values = np.frombuffer(newest, np.float32).reshape(values.shape)
        except Closed:
            return  # the learner has finished


def learn(server: ReplayServer, batches: int) -> NDArray[np.float32]:
    """Learn the team's action values as the sum of each agent's (VDN, Sunehag et al. 2018)."""
    values, team = np.zeros((AGENTS, PLACES, len(MOVES)), np.float32), np.arange(AGENTS)
    for _ in range(batches):
        sampled = server.sample(16, timeout=60.0)
        parts: dict[str, Any] = sampled.batch
        batch = EpisodeBatch(weights=sampled.weights, **parts)
        place, steps = batch.obs.argmax(-1), np.arange(batch.reward.shape[1])  # (E, T+1, A)
        real = steps < batch.lengths[:, None]
        won = batch.terminated[:, None] & (steps == batch.lengths[:, None] - 1)
        worth = values[team, place[:, :-1], batch.actions].sum(-1)  # (E, T)
        then = values.max(-1)[team, place[:, 1:]].sum(-1)
        error = real * (batch.reward + GAMMA * ~won * then - worth)
        where, total, times = (team, place[:, :-1], batch.actions), np.zeros_like(values), np.zeros_like(values)
        np.add.at(total, where, (batch.weights[:, None] * error)[..., None])
        np.add.at(times, where, real[..., None])
        values += 0.3 * total / np.maximum(times, 1)
        server.update(sampled, np.abs(error).max(1))
        server.publish("values", values.tobytes())
    return values


def main() -> None:
    """Start all processes, and print the learned policy."""
    pacing = SampleToInsertRatio(0.25, 32, 40.0, insert_size=4, sample_size=16)  # one sample for four inserts
    with ReplayServer(LAYOUT, limiter=pacing, seed=0) as server:
        spawn = multiprocessing.get_context("spawn")
        actors = [
            spawn.Process(target=act, args=(server.address, server.secret, f"actor-{k}", k), daemon=True)
            for k in range(2)
        ]
        for actor in actors:
            actor.start()
        values = learn(server, 60)
        statistics = server.statistics()
    for actor in actors:
        actor.join()
    print(f"both go on from each place: {bool((values[:, :-1].argmax(-1) == MOVES.index(1)).all())}")
    print(f"over a quarter of the bandwidth was saved by sending only what was drawn: {statistics.saved > 0.25}")


if __name__ == "__main__":
    main()
