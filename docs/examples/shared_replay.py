"""Two actors and a learner, one process each, and one replay server, without own threads, sockets or event loops.

The game is a corridor: an agent goes left or right, and is rewarded at the far end. It observes a picture.
"""

import multiprocessing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.replay_buffers import Closed, Field, SampleToInsertRatio
from components.replay_server import Layout, ReplayClient, ReplayServer

PLACES, LEFT, RIGHT, GAMMA = 8, 0, 1, 0.9
LAYOUT = Layout(
    {
        "picture": Field(np.uint8, (PLACES, 32)),
        "next_picture": Field(np.uint8, (PLACES, 32)),
        "action": Field(np.int64),
        "reward": Field(np.float32, finite=True),
        "done": Field(np.bool_),
    },
    capacity=5_000,
    chunk=16,
)


def picture(place: int) -> NDArray[np.uint8]:
    """Return the observation (PLACES, 32) at a place."""
    shown = np.zeros((PLACES, 32), np.uint8)
    shown[place] = 255
    return shown


def places_in(pictures: NDArray[np.uint8]) -> Any:
    """Return the places (B,) that pictures (B, …) show."""
    return pictures[..., 0].argmax(-1)


def act(address: str, secret: bytes, name: str, seed: int) -> None:
    """Play with the newest values that the learner has published, until it ends."""
    rng = np.random.default_rng(seed)
    with ReplayClient(address, name, secret=secret, patience=0.0, seed=seed) as client:
        published = client.subscribe("values")
        values, place = np.zeros((PLACES, 2), np.float32), 0
        try:
            while True:
                left, right = values[place]
                action = int(rng.integers(2)) if left == right or rng.random() < 0.3 else int(left < right)
                then = max(place - 1, 0) if action == LEFT else place + 1
                done = then == PLACES - 1
                client.add_entry(
                    {
                        "picture": picture(place),
                        "next_picture": picture(then),
                        "action": action,
                        "reward": float(done),
                        "done": done,
                    },
                    is_term=done,
                )
                place = 0 if done else then
                if done and (newest := published.poll()) is not None:
                    values = np.frombuffer(newest, np.float32).reshape(PLACES, 2)
        except Closed:
            return  # the learner has finished


def learn(server: ReplayServer, batches: int) -> NDArray[np.float32]:
    """Learn action values from the transitions of both actors, and publish them."""
    values = np.zeros((PLACES, 2), np.float32)
    for _ in range(batches):
        sampled = server.sample(32, timeout=60.0)
        batch = sampled.batch
        at, action = places_in(batch["picture"]), batch["action"]
        target = batch["reward"] + GAMMA * ~batch["done"] * values[places_in(batch["next_picture"])].max(-1)
        error = target - values[at, action]
        np.add.at(values, (at, action), 0.05 * sampled.weights * error)
        server.update(sampled, np.abs(error))
        server.publish("values", values.tobytes())
    return values


def main() -> None:
    """Start all processes, and print the learned policy."""
    pacing = SampleToInsertRatio(0.5, 200, 200.0, insert_size=16, sample_size=32)  # one sample for two inserts
    with ReplayServer(LAYOUT, limiter=pacing, seed=0) as server:
        spawn = multiprocessing.get_context("spawn")
        actors = [
            spawn.Process(target=act, args=(server.address, server.secret, f"actor-{k}", k), daemon=True)
            for k in range(2)
        ]
        for actor in actors:
            actor.start()
        values = learn(server, 200)
        statistics = server.statistics()
    for actor in actors:
        actor.join()
    ways = ["right" if right > left else "left" for left, right in values[:-1]]
    print(f"where to go, from each place: {', '.join(ways)}")
    print(f"over a quarter of the bandwidth was saved by sending only what was drawn: {statistics.saved > 0.25}")


if __name__ == "__main__":
    main()
