"""This checkout against another revision: updates of QMIX, VDN, IQL and COMA, and acting, in turns.

    python benchmarks/against.py 43191b7
    python benchmarks/against.py HEAD~20 --rounds 15 --algorithms qmix vdn

The other revision is checked out into a temporary folder, which is removed. Each tree has a process of its own, and the
two take turns in each round, so that other load on the machine affects both. Time is processor time of all threads of
the process, which computes with one thread. An update learns from 32 random episodes of 8m with 20 to 60 steps, the
same in both trees. Acting chooses actions for 8 environments, as a worker does; a tree that has a policy for acting
alone uses it. A ratio below 1 means that this checkout is faster.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = ("qmix", "vdn", "iql", "coma")
UPDATES, ACTS, ENVS = 6, 60, 8
WARM_UP = 2


class Timed:
    """The timed calls, in the process of one tree. Modules are imported from that tree."""

    def __init__(self, algorithm: str) -> None:
        import numpy as np

        import components.policies as policies
        from components.envs import Skirmish

        env = Skirmish("8m", ENVS, seed=0)
        env.reset()
        options: dict[str, Any] = {"hidden_size": 64, "optimizer": "rmsprop", "seed": 0}
        self.policy = getattr(policies, algorithm.title())(env.spec, **options)
        self.policy.prepare()
        self.acting = self.policy
        if hasattr(policies, "ALGORITHMS"):
            self.acting = policies.ALGORITHMS[algorithm].acting(env.spec, seed=0)
            self.acting.load(self.policy.params())
        self.rng, self.batch = np.random.default_rng(0), _batch(env.spec, policies.EpisodeBatch)
        self.arrays = {
            "obs": env.obs,
            "available": env.available,
            "last_actions": np.full(env.available.shape[:2], -1),
            "hidden": self.acting.initial_hidden(ENVS),
        }

    def times(self) -> dict[str, float]:
        """Return the processor time of an update and of a choice of actions, in seconds."""
        since = time.process_time()
        for _ in range(UPDATES):
            self.policy.learn(self.batch)
        learnt = time.process_time()
        for _ in range(ACTS):
            self.acting.act(**self.arrays, epsilon=0.05, rng=self.rng)
        return {"update": (learnt - since) / UPDATES, "acting": (time.process_time() - learnt) / ACTS}


def _batch(spec: Any, kind: Any) -> Any:
    import numpy as np

    rng, e, t = np.random.default_rng(1), 32, 60
    lengths = rng.integers(20, t + 1, e).astype(np.int32)
    lengths[0] = t
    frame, step = np.arange(t + 1) <= lengths[:, None], np.arange(t) < lengths[:, None]
    available = rng.random((e, t + 1, spec.n_agents, spec.n_actions)) < 0.5
    available[..., 0] = True
    chosen = (rng.random(available.shape) * available)[:, :-1].argmax(-1)
    one_for_all = "epsilon" in inspect.signature(kind).parameters  # true in older revisions
    return kind(
        obs=rng.standard_normal((e, t + 1, spec.n_agents, spec.obs_size), dtype=np.float32) * frame[..., None, None],
        state=rng.standard_normal((e, t + 1, spec.state_size), dtype=np.float32) * frame[..., None],
        available=available & frame[..., None, None],
        actions=chosen * step[..., None],
        reward=rng.random((e, t), dtype=np.float32) * step,
        lengths=lengths,
        terminated=rng.random(e) < 0.9,
        weights=np.ones(e, np.float32),
        epsilon=0.1 if one_for_all else np.full(e, 0.1, np.float32),
    )


def serve() -> None:
    """Time an algorithm for each line of the standard input that names it."""
    import torch

    torch.set_num_threads(1)
    made: dict[str, Timed] = {}
    for line in sys.stdin:
        algorithm = line.strip()
        if algorithm not in made:
            made[algorithm] = Timed(algorithm)
        print(json.dumps(made[algorithm].times()), flush=True)


class Tree:
    """A process that times the code of a folder."""

    def __init__(self, folder: Path) -> None:
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, **threads, "PYTHONPATH": str(folder)},
        )

    def times(self, algorithm: str) -> dict[str, float]:
        """Return the result of `Timed.times` in the process of the tree."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{algorithm}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{algorithm} failed in {self._process.args!r}; its traceback is above")
        times: dict[str, float] = json.loads(line)
        return times

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(mine: Tree, other: Tree, algorithms: list[str], rounds: int) -> None:
    """Print a line for each algorithm and each of its times."""
    print(f"{'':<16}{'this':>9}{'other':>9}{'ratio':>8}  quartiles")
    for algorithm in algorithms:
        pairs = [(mine.times(algorithm), other.times(algorithm)) for _ in range(WARM_UP + rounds)][WARM_UP:]
        for what in ("update", "acting"):
            ratios = [ours[what] / theirs[what] for ours, theirs in pairs]
            low, middle, high = quantiles(ratios, n=4)
            ours, theirs = (1e3 * median(pair[which][what] for pair in pairs) for which in (0, 1))
            name = f"{algorithm} {what}"
            print(f"{name:<16}{ours:9.3f}{theirs:9.3f}{middle:8.2f}  {low:.2f} to {high:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="of git, which this checkout is compared with")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    if args.revision is None or args.rounds < 2:
        parser.error("a revision and at least 2 rounds are needed")
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "other"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), args.revision], check=True)
        try:
            both = Tree(ROOT), Tree(tree)
            print(f"ms of processor time, medians of {args.rounds} rounds in turns, against {args.revision}")
            compare(*both, args.algorithms, args.rounds)
            for each in both:
                each.close()
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main()
