"""The experiment of the ClusterEnv paper: PPO on LunarLander, 4 nodes of 64 environments, eight thresholds.

    python experiments/lunar_lander.py                                   the paper's settings: 19 versions of the policy
    python experiments/lunar_lander.py --num-steps 16 --minibatches 4 --epochs 4       a new version every 4,096 steps
    python experiments/lunar_lander.py --env gymnasium:CartPole-v1 --steps 500000      another environment

It writes `runs.jsonl`, a line for each run, `table.md` and `figure.png` to `--output`: learning curves and loads per
node, as the paper's Fig. 2 and 3, and return and loads against the threshold. Finished runs are not repeated, so
a command that was stopped can be started again, and commands with other `--seeds` or `--sync` can share an `--output`.
Nodes are processes of this machine. The learner is that of `docs/examples/cleanrl_ppo.py`, so the program needs a
checkout.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from matplotlib.axes import Axes

from components.cluster_env import ClusterEnv, LocalConfig
from components.reporting.curve import label_axes, new_figure
from orchestra import UsageError, import_file

LEARNER = Path(__file__).resolve().parents[1] / "docs" / "examples" / "cleanrl_ppo.py"
THRESHOLDS = ("0.001", "0.01", "0.05", "0.1", "0.2", "0.5", "0.8", "1.0")
SETTINGS: dict[str, int | float] = {
    "steps": 5_000_000,
    "nodes": 4,
    "envs-per-node": 64,
    "num-steps": 1024,
    "minibatches": 8,
    "epochs": 30,
    "learning-rate": 5e-4,
    "gamma": 0.99,
    "gae-lambda": 0.95,
    "clip": 0.2,
    "entropy": 0.01,
}
"""Settings of the paper; those that it does not name are CleanRL's."""
LAST = 100
"""Episodes over which a return is taken: the last ones of training, and those of the test at the end."""
Told = Callable[[float, str], None]
"""A function called after each update with the finished share of the run, and its figures in words."""


def play(args: argparse.Namespace, sync: str, seed: int, told: Told) -> dict[str, Any]:
    """Train once, and test the policy; return the figures at the end, and those after each update."""
    learner = import_file(LEARNER, "agent")
    torch.set_num_threads(1)  # several threads would wait for each other at each small product
    torch.manual_seed(seed)
    rule, _, lag = sync.partition("/")
    own = {"env_name": args.env.removeprefix("gymnasium:"), "envs_per_node": args.envs_per_node, "sync": rule}
    own |= {"sync_max_lag": int(lag)} if lag else {}
    config = LocalConfig(nodes=args.nodes, processes=not args.one_process)
    envs = ClusterEnv({**own, "agent": str(LEARNER), "seed": seed}, config).launch()
    agent = learner.Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    obs, _ = envs.reset(seed=seed)
    returns: list[float] = []
    curve: list[tuple[int, float | None, float]] = []
    updates = max(1, args.steps // (args.num_steps * envs.num_envs))
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - update / updates)
        steps = []
        for _ in range(args.num_steps):
            after, reward, terminated, truncated, info = envs.step(agent)
            over = terminated | truncated
            made = {"obs": obs, "action": info["actions"], "reward": reward, "terminated": terminated, "over": over}
            steps.append({**made, "after": learner.successors(after, info), **info["policy"]})
            returns += info["episode"]["r"][over].tolist() if over.any() else []
            obs = after
        learner.learn(agent, optimizer, {name: np.stack([step[name] for step in steps]) for name in steps[0]}, args)
        loads = envs.synchronization.get("loads_per_worker", float(update + 1))
        played = (update + 1) * args.num_steps * envs.num_envs
        curve.append((played, float(np.mean(returns[-LAST:])) if returns else None, loads))
        training = "" if curve[-1][1] is None else f", return {curve[-1][1]:.1f}"
        told((update + 1) / updates, f"{sync}, seed {seed}: {played:,} steps{training}, {loads:g} loads per node")
    figures = envs.synchronization
    envs.close()
    return {
        "sync": sync,
        "seed": seed,
        "return": curve[-1][1],
        "test": test(learner, agent, args.env.removeprefix("gymnasium:")),
        "loads": curve[-1][2],
        "figures": figures,
        "curve": curve,
    }


def test(learner: ModuleType, agent: Any, env: str) -> float:
    """Return the mean return of the first episodes of 100 environments, with the most probable actions."""
    envs = gym.make_vec(env, num_envs=LAST, vectorization_mode="sync", vector_kwargs=learner.SAME_STEP)
    obs, _ = envs.reset(seed=1_000_000)
    total, playing = np.zeros(LAST), np.ones(LAST, np.bool_)
    while playing.any():
        said = agent.distribution(obs)
        action = said["logits"].argmax(-1) if "logits" in said else said["mean"]
        obs, reward, terminated, truncated, _ = envs.step(learner.bounded(envs, action.numpy()))
        total += playing * reward
        playing &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


def table(runs: list[dict[str, Any]], order: list[str]) -> str:
    """Return the runs as a table in Markdown: a line for each rule, means over its seeds."""
    lines = [
        "| sync | seeds | return | sd | test | sd | loads per node | parameters, bytes | digests, bytes | of always |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    of_always = mean_bytes([run for run in runs if run["sync"] == "always"])
    for sync in order:
        if not (own := [run for run in runs if run["sync"] == sync]):
            continue
        returns = [run["return"] for run in own if run["return"] is not None] or [float("nan")]
        tests, loads = [run["test"] for run in own], np.mean([run["loads"] for run in own])
        params, digests = (np.mean([run["figures"].get(name, 0) for run in own]) for name in BYTES)
        share = f"{mean_bytes(own) / of_always:.1%}" if of_always else ""
        lines.append(
            f"| {sync} | {len(own)} | {np.mean(returns):.1f} | {np.std(returns):.1f} | {np.mean(tests):.1f} | "
            f"{np.std(tests):.1f} | {loads:.1f} | {params:,.0f} | {digests:,.0f} | {share} |"
        )
    return "\n".join(lines) + "\n"


BYTES = ("params_bytes", "digest_bytes")


def mean_bytes(runs: list[dict[str, Any]]) -> float:
    """Return the mean of the bytes of parameters and digests; 0 without runs."""
    return float(np.mean([sum(run["figures"].get(name, 0) for name in BYTES) for run in runs])) if runs else 0.0


def by_lag(by_sync: dict[str, list[dict[str, Any]]]) -> dict[str, list[tuple[float, list[dict[str, Any]]]]]:
    """Return thresholds of divergence and their runs, in order, by the largest lag; the key is empty for no limit."""
    found: dict[str, list[tuple[float, list[dict[str, Any]]]]] = {}
    for sync, own in by_sync.items():
        if sync.startswith("kl:"):
            threshold, _, lag = sync[3:].partition("/")
            found.setdefault(lag, []).append((float(threshold), own))
    return {lag: sorted(points, key=lambda point: point[0]) for lag, points in found.items()}


def draw(runs: list[dict[str, Any]], order: list[str], path: Path) -> None:
    """Draw learning curves and loads by steps, and return and loads by threshold."""
    figure = new_figure(10, 6.8)
    panels = figure.subplots(2, 2)
    by_sync = {sync: [run for run in runs if run["sync"] == sync] for sync in order}
    by_sync = {sync: own for sync, own in by_sync.items() if own}
    labels = (("return of training episodes", 1), ("loads per node", 2))
    for column, (label, index) in enumerate(labels):
        panel: Axes = panels[0, column]
        for sync, own in by_sync.items():
            values = np.array(
                [[np.nan if each[index] is None else each[index] for each in run["curve"]] for run in own]
            )
            panel.plot([each[0] for each in own[0]["curve"]], values.mean(0), label=sync, linewidth=1.4)
        label_axes(panel, "environment steps", label)
        against: Axes = panels[1, column]
        name = ("return", "loads")[column]
        for lag, kl in by_lag(by_sync).items():
            points = [[np.nan if run[name] is None else run[name] for run in own] for _, own in kl]
            middle, spread = [np.mean(each) for each in points], [np.std(each) for each in points]
            label_of_lag = f"at most {lag} behind" if lag else "no largest lag"
            thresholds = [threshold for threshold, _ in kl]
            against.errorbar(thresholds, middle, spread, marker="o", capsize=3, label=label_of_lag)
            against.set_xscale("log")
            against.legend(fontsize=7)
        if always := by_sync.get("always"):
            against.axhline(float(np.mean([run[name] for run in always])), linestyle=":", color="grey")
        label_axes(against, "threshold of divergence", label)
    panels[0, 0].legend(fontsize=7, ncols=3)
    figure.savefig(path, dpi=120)


def main(words: list[str] | None = None) -> None:
    """Make the missing runs, the table and the figure."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--env", default="gymnasium:LunarLander-v3")
    rules = "as --sync of orchestra run; kl:0.5/20 loads a version anyway when it is 20 behind"
    flags.add_argument("--sync", nargs="+", default=["always", *(f"kl:{each}" for each in THRESHOLDS)], help=rules)
    flags.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    flags.add_argument("--output", type=Path, default=Path("runs/lunar_lander"))
    flags.add_argument("--one-process", action="store_true", help="all nodes in this process")
    for name, value in SETTINGS.items():
        flags.add_argument(f"--{name}", type=type(value), default=value)
    args = flags.parse_args(words)
    if not LEARNER.exists():
        raise UsageError(f"the learner {LEARNER} is missing: run this program from a checkout")
    args.output.mkdir(parents=True, exist_ok=True)
    settings = {name: getattr(args, name.replace("-", "_")) for name in ("env", *SETTINGS)}
    file = args.output / "runs.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    runs = [run for run in known if run["settings"] == settings]
    done = {(run["sync"], run["seed"]) for run in runs}
    missing = [(sync, seed) for seed in args.seeds for sync in args.sync if (sync, seed) not in done]
    began = time.monotonic()
    for number, (sync, seed) in enumerate(missing):

        def told(share: float, words: str, number: int = number) -> None:
            made = number + share
            left = (time.monotonic() - began) / made * (len(missing) - made) / 60
            print(f"run {number + 1} of {len(missing)}: {words}; {left:.0f} min left", flush=True)

        runs.append({"settings": settings, **play(args, sync, seed, told)})
        with file.open("a") as lines:
            lines.write(json.dumps(runs[-1]) + "\n")
    (args.output / "table.md").write_text(table(runs, args.sync))
    draw(runs, args.sync, args.output / "figure.png")
    print(table(runs, args.sync))


if __name__ == "__main__":
    main()
