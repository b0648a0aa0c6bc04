"""The cost of a ClusterEnv step beside Gymnasium's own vector environments, with the same agent: the PPO example's.

    python benchmarks/cluster_env.py                                      4 nodes of 16 CartPole-v1, five rounds
    python benchmarks/cluster_env.py --env LunarLander-v3 --envs-per-node 64

A step is the choice of all actions and the step of all environments. The rows take turns in each round, and ratios are
taken within a round: multiples of the time of `sync`, Gymnasium's `SyncVectorEnv` in this process. `processor` is the
processor time of all processes. `async` is Gymnasium's `AsyncVectorEnv`, with a process for each environment.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import psutil
import torch

from components.cluster_env import ClusterEnv, LocalConfig
from orchestra import import_file

LEARNER = Path(__file__).resolve().parents[1] / "docs" / "examples" / "cleanrl_ppo.py"
WARM_UP = 20
Step = Callable[[], object]


@contextlib.contextmanager
def theirs(learner: Any, args: argparse.Namespace, mode: str) -> Iterator[Step]:
    """Yield the step function of a Gymnasium vector environment."""
    n_envs = args.nodes * args.envs_per_node
    envs = gym.make_vec(args.env, num_envs=n_envs, vectorization_mode=mode, vector_kwargs=learner.SAME_STEP)
    agent = learner.Agent(envs)
    obs, _ = envs.reset(seed=1)

    def step() -> None:
        nonlocal obs
        action, _ = agent.act(obs)
        obs, *_ = envs.step(learner.bounded(envs, action))

    with contextlib.closing(envs):
        yield step


@contextlib.contextmanager
def ours(learner: Any, args: argparse.Namespace, *, processes: bool) -> Iterator[Step]:
    """Yield the step function of a ClusterEnv."""
    env = {"env_name": args.env, "envs_per_node": args.envs_per_node, "sync": args.sync, "agent": str(LEARNER)}
    with contextlib.closing(ClusterEnv(env, LocalConfig(nodes=args.nodes, processes=processes)).launch()) as envs:
        agent = learner.Agent(envs)
        envs.reset(seed=1)
        yield partial(envs.step, agent)


def processor_s() -> float:
    """Return the processor time of this process and of all its descendants, in seconds."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--envs-per-node", type=int, default=16)
    parser.add_argument("--sync", default="kl:0.01")
    parser.add_argument("--steps", type=int, default=200, help="of each row in a round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    learner = import_file(LEARNER, "agent")
    rows = {
        "sync": partial(theirs, learner, args, "sync"),
        "async": partial(theirs, learner, args, "async"),
        "ClusterEnv, one process": partial(ours, learner, args, processes=False),
        f"ClusterEnv, {args.nodes} processes": partial(ours, learner, args, processes=True),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for _ in range(args.rounds):
        for name, row in rows.items():
            with row() as step:
                for _ in range(WARM_UP):
                    step()
                used, since = processor_s(), time.perf_counter()
                for _ in range(args.steps):
                    step()
                spent = time.perf_counter() - since, processor_s() - used
            figures[name].append((1e3 * spent[0] / args.steps, 1e3 * spent[1] / args.steps))
    print(f"{args.nodes} x {args.envs_per_node} {args.env}, ms a step, medians of {args.rounds} rounds in turns")
    print(f"{'':<26}{'clock':>8}{'ratio':>8}{'processor':>11}{'ratio':>8}")
    for name, rounds in figures.items():
        line = f"{name:<26}"
        for of, width in ((0, 8), (1, 11)):
            ratio = median(own[of] / base[of] for own, base in zip(rounds, figures["sync"], strict=True))
            line += f"{median(each[of] for each in rounds):{width}.2f}{ratio:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
