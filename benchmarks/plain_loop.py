"""QMIX in one process and one plain loop, without actors: the baseline of the actors, and a tool for tuning.

    python benchmarks/plain_loop.py --scenario 3m --envs 16 --steps 200000

Prints a line per greedy test, and at the end one line of JSON with the rates, the shares of time of the simulator,
acting, replay and the learner, and when the win rate first reached `--goal` (`solved_*`) and first did so in
`--in-a-row` tests (`kept_*`). Wall time (`train_s`) and steps leave the tests out.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from components.envs import Skirmish
from components.envs.base import Env
from components.policies import Iql, Qmix, Vdn
from components.replay_buffers import EpisodeReplay, Episodes, PrioritizedEpisodeReplay
from components.schedule import LinearSchedule


@dataclass(slots=True)
class Stopwatch:
    """Seconds spent, by activity."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += perf_counter() - start


class Collector:
    """Steps B copies of an environment, and collects their episodes until these end."""

    def __init__(self, env: Env, policy: Iql, rng: np.random.Generator, watch: Stopwatch) -> None:
        self.env, self.policy, self.rng, self.watch = env, policy, rng, watch
        spec, b = env.spec, env.n_envs
        frames = spec.episode_limit + 1
        self.obs = np.zeros((b, frames, spec.n_agents, spec.obs_size), np.float32)
        self.state = np.zeros((b, frames, spec.state_size), np.float32)
        self.available = np.zeros((b, frames, spec.n_agents, spec.n_actions), np.bool_)
        self.actions = np.zeros((b, frames - 1, spec.n_agents), np.int64)
        self.reward = np.zeros((b, frames - 1), np.float32)
        self.time = np.zeros(b, np.int64)
        self.each = np.arange(b)
        self.start(None)

    def start(self, which: NDArray[np.bool_] | None) -> None:
        with self.watch("simulator"):
            self.env.reset(which)
        chosen = np.ones(self.env.n_envs, np.bool_) if which is None else which
        if which is None:
            self.hidden = self.policy.initial_hidden(self.env.n_envs)
            self.last_actions = np.full((self.env.n_envs, self.env.spec.n_agents), -1, np.int64)
        self.hidden[chosen] = 0.0
        self.last_actions[chosen] = -1
        self.time[chosen] = 0

    def step(self, epsilon: float) -> tuple[NDArray[np.bool_], Episodes | None]:
        """Make a step; return which copies ended an episode, and these episodes for `EpisodeReplay.insert`."""
        env, at = self.env, (self.each, self.time)
        with self.watch("writing"):
            self.obs[at], self.state[at], self.available[at] = env.obs, env.state, env.available
        with self.watch("acting"):
            actions, self.hidden = self.policy.act(
                env.obs, env.available, self.last_actions, self.hidden, epsilon=epsilon, rng=self.rng
            )
        with self.watch("simulator"):
            env.step(actions)
        self.last_actions = actions
        with self.watch("writing"):
            self.actions[at], self.reward[at] = actions, env.reward
            self.time += 1
            done = env.terminated | env.truncated
            if not done.any():
                return done, None
            over = np.flatnonzero(done)
            at = (over, self.time[over])
            self.obs[at], self.state[at], self.available[at] = env.obs[over], env.state[over], env.available[over]
            lengths = self.time[over].astype(np.int32)
            frames = [(i, slice(0, n + 1)) for i, n in zip(over.tolist(), lengths.tolist(), strict=True)]
            steps = [(i, slice(0, n)) for i, n in zip(over.tolist(), lengths.tolist(), strict=True)]
            return done, Episodes(
                obs=np.concatenate([self.obs[i] for i in frames]),
                state=np.concatenate([self.state[i] for i in frames]),
                available=np.concatenate([self.available[i] for i in frames]),
                actions=np.concatenate([self.actions[i] for i in steps]),
                reward=np.concatenate([self.reward[i] for i in steps]),
                terminated=env.terminated[over],
                lengths=lengths,
            )


def greedy_wins(env: Env, policy: Iql, rng: np.random.Generator) -> tuple[float, float]:
    """Play one greedy episode in each copy; return the share won and the mean return."""
    collector = Collector(env, policy, rng, Stopwatch())
    won, total = np.zeros(env.n_envs, np.bool_), np.zeros(env.n_envs)
    running = np.ones(env.n_envs, np.bool_)
    while running.any():
        done, _ = collector.step(0.0)
        total[running] += env.reward[running]
        won[running] = env.won[running]
        running &= ~done
        if done.any():
            collector.start(done)
    return float(won.mean()), float(total.mean())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in (
        ("scenario", "3m"),
        ("algorithm", "qmix"),
        ("envs", 16),
        ("steps", 200_000),
        ("batch", 32),
        ("updates-per-episode", 1.0),
        ("memory", 5000),
        ("learning-rate", 1e-3),
        ("optimizer", "adam"),
        ("gamma", 0.99),
        ("td-lambda", 0.0),
        ("target-interval", 200),
        ("grad-clip", 10.0),
        ("hidden", 64),
        ("mixer-embed", 32),
        ("hypernet", 64),
        ("epsilon-end", 0.05),
        ("epsilon-steps", 50_000),
        ("prioritized", 0.0),
        ("beta", 0.4),
        ("eval-interval", 10_000),
        ("eval-episodes", 32),
        ("goal", 0.9),
        ("in-a-row", 3),
        ("seed", 0),
        ("threads", 2),
        ("max-seconds", 1e9),
    ):
        parser.add_argument(f"--{flag}", default=default, type=type(default))
    parser.add_argument("--stop", action="store_true", help="end once the goal was reached in --in-a-row tests")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    watch = Stopwatch()
    rng = np.random.default_rng(args.seed)
    env = Skirmish(args.scenario, args.envs, seed=args.seed)
    test_env = Skirmish(args.scenario, args.eval_episodes, seed=args.seed + 1_000_003)
    options: dict[str, Any] = {"mixer_embed": args.mixer_embed, "hypernet_size": args.hypernet}
    policy = {"iql": Iql, "vdn": Vdn, "qmix": Qmix}[args.algorithm](
        env.spec,
        learning_rate=args.learning_rate,
        optimizer=args.optimizer,
        gamma=args.gamma,
        td_lambda=args.td_lambda,
        target_update_interval=args.target_interval,
        grad_norm_clip=args.grad_clip,
        hidden_size=args.hidden,
        seed=args.seed,
        **(options if args.algorithm == "qmix" else {}),
    )
    replay = (
        PrioritizedEpisodeReplay(env.spec, args.memory, alpha=args.prioritized, beta=args.beta)
        if args.prioritized > 0
        else EpisodeReplay(env.spec, args.memory)
    )
    epsilon = LinearSchedule(1.0, args.epsilon_end, over=args.epsilon_steps)
    collector = Collector(env, policy, rng, watch)

    steps = episodes = updates = updated_steps = streak = 0
    next_test, owed, testing = 0, 0.0, 0.0
    wins: list[tuple[int, float]] = []
    reached: dict[str, float] = {}
    begun = perf_counter()
    while steps < args.steps and perf_counter() - begun - testing < args.max_seconds:
        done, finished = collector.step(epsilon(steps))
        steps += env.n_envs
        if finished is not None:
            with watch("replay"):
                replay.insert(finished)
            collector.start(done)
            episodes += int(done.sum())
            owed += args.updates_per_episode * int(done.sum())
            while owed >= 1.0 and len(replay) >= args.batch:
                with watch("replay"):
                    sampled = replay.sample(args.batch, rng)
                with watch("learner"):
                    learned = policy.learn(sampled.batch)
                with watch("replay"):
                    replay.update(sampled.indices, sampled.generations, learned.priorities)
                owed -= 1.0
                updates += 1
                updated_steps += int(sampled.batch.lengths.sum())
            owed = min(owed, args.updates_per_episode * args.batch)
        if steps >= next_test:
            next_test += args.eval_interval
            start = perf_counter()
            rate, mean_return = greedy_wins(test_env, policy, rng)
            testing += perf_counter() - start
            seconds = perf_counter() - begun - testing
            wins.append((steps, rate))
            streak = streak + 1 if rate >= args.goal else 0
            for name, now in (("solved", streak >= 1), ("kept", streak >= args.in_a_row)):
                if now and f"{name}_s" not in reached:
                    reached |= {f"{name}_s": round(seconds, 1), f"{name}_steps": steps, f"{name}_updates": updates}
            print(
                f"{steps:>8} steps {episodes:>6} episodes {updates:>6} updates {seconds:>7.1f} s  "
                f"greedy wins {rate:.2f} return {mean_return:6.2f}  epsilon {epsilon(steps):.2f}  "
                + "  ".join(f"{k} {v:.3g}" for k, v in (learned.metrics.items() if updates else ())),
                flush=True,
            )
            if args.stop and "kept_s" in reached:
                break
    train_s = perf_counter() - begun - testing
    print(
        json.dumps(
            {
                "command": " ".join(sys.argv[1:]),
                "train_s": round(train_s, 1),
                "steps_per_s": round(steps / train_s),
                "updates_per_s": round(updates / train_s, 2),
                "learnt_steps_per_s": round(updated_steps / train_s),
                "ms_per_update": round(1e3 * watch.seconds["learner"] / max(updates, 1), 2),
                "share": {what: round(spent / train_s, 3) for what, spent in sorted(watch.seconds.items())},
                "best": max(rate for _, rate in wins),
                "last_5": round(float(np.mean([rate for _, rate in wins[-5:]])), 3),
                **reached,
            }
        )
    )


if __name__ == "__main__":
    main()
