"""This checkout against another revision: updates of QMIX, VDN, IQL and COMA, and acting, in turns.

    python benchmarks/against.py 43191b7
    python benchmarks/against.py HEAD~20 --rounds 15 --algorithms qmix vdn --scenarios 8m 27m_vs_30m

The other revision is checked out into a temporary folder, which is removed. Each tree has a process of its own, and the
two take turns in each round, so that other load on the machine affects both. Time is processor time of all threads of
the process, which computes with one thread. An update learns from 32 episodes of the scenario, played in this checkout
by agents that always explore, and the same in both trees. Acting chooses actions for 8 environments, as a worker does;
a tree that has a policy for acting alone uses it. A ratio below 1 means that this checkout is faster.
"""

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ALGORITHMS = ("qmix", "vdn", "iql", "coma")
UPDATES, ACTS, ENVS = 6, 60, 8
EPISODES, PLAYED = 32, 128
"""Episodes of a batch, and those from which they are drawn."""
WARM_UP = 2
FIELDS = ("obs", "state", "available", "actions", "reward", "lengths", "terminated", "weights")


class Timed:
    """The timed calls, in the process of one tree. Modules are imported from that tree."""

    def __init__(self, algorithm: str, scenario: str, batch: str) -> None:
        import numpy as np

        import components.policies as policies
        from components.envs import Skirmish

        env = Skirmish(scenario, ENVS, seed=0)
        env.reset()
        options: dict[str, Any] = {"hidden_size": 64, "optimizer": "rmsprop", "seed": 0}
        self.policy = getattr(policies, algorithm.title())(env.spec, **options)
        self.policy.prepare()
        self.acting = self.policy
        if hasattr(policies, "ALGORITHMS"):
            self.acting = policies.ALGORITHMS[algorithm].acting(env.spec, seed=0)
            self.acting.load(self.policy.params())
        self.rng, self.batch = np.random.default_rng(0), _batch(batch, policies.EpisodeBatch)
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


def _batch(path: str, kind: Any) -> Any:
    """Return the batch that `save_batch` has saved, as a batch of the tree."""
    import numpy as np

    with np.load(path) as saved:
        arrays = dict(saved)
    one_for_all = "epsilon" in inspect.signature(kind).parameters  # true in older revisions
    return kind(**arrays, epsilon=0.1 if one_for_all else np.full(EPISODES, 0.1, np.float32))


def save_batch(scenario: str, path: Path) -> None:
    """Play episodes of a scenario in this checkout, and save some of them as a batch."""
    import numpy as np
    from learner import played

    from components.envs import Skirmish

    batch = played(Skirmish(scenario, 1, seed=0).spec, PLAYED).sample(EPISODES, np.random.default_rng(1)).batch
    np.savez(path, **{name: getattr(batch, name) for name in FIELDS})


def serve() -> None:
    """Time an algorithm on a scenario for each line of the standard input, which also names the file of the batch."""
    import torch

    torch.set_num_threads(1)
    made: dict[str, Timed] = {}
    for line in sys.stdin:
        if line not in made:
            made = {line: Timed(*json.loads(line))}
        print(json.dumps(made[line].times()), flush=True)


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

    def times(self, *what: str) -> dict[str, float]:
        """Return the result of `Timed.times` for an algorithm, a scenario and a batch, in the process of the tree."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(what)}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{what[0]} failed in {self._process.args!r}; its traceback is above")
        times: dict[str, float] = json.loads(line)
        return times

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(mine: Tree, other: Tree, algorithms: list[str], batches: dict[str, str], rounds: int) -> None:
    """Print a line for each algorithm, each scenario and each of its times."""
    print(f"{'':<28}{'this':>9}{'other':>9}{'ratio':>8}  quartiles")
    for algorithm, (scenario, batch) in product(algorithms, batches.items()):
        what_to_time = algorithm, scenario, batch
        pairs = [(mine.times(*what_to_time), other.times(*what_to_time)) for _ in range(WARM_UP + rounds)][WARM_UP:]
        for what in ("update", "acting"):
            ratios = [ours[what] / theirs[what] for ours, theirs in pairs]
            low, middle, high = quantiles(ratios, n=4)
            ours, theirs = (1e3 * median(pair[which][what] for pair in pairs) for which in (0, 1))
            name = f"{algorithm} {scenario} {what}"
            print(f"{name:<28}{ours:9.3f}{theirs:9.3f}{middle:8.2f}  {low:.2f} to {high:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="of git, which this checkout is compared with")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--scenarios", nargs="+", default=["8m"])
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
            batches = {scenario: str(Path(folder) / f"{scenario}.npz") for scenario in args.scenarios}
            for scenario, batch in batches.items():
                save_batch(scenario, Path(batch))
            compare(*both, args.algorithms, batches, args.rounds)
            for each in both:
                each.close()
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    main()
