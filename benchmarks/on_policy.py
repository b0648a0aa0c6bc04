"""An update of MAPPO against that of the classic implementation: one thread of torch, or several inside of operations.

    python benchmarks/on_policy.py
    python benchmarks/on_policy.py --scenarios 3m 8m 27m_vs_30m --threads 2 --rounds 5

The classic update is written as the published code of MAPPO is (Yu et al. 2022): in each epoch actor and critic are
computed for the whole minibatch, with the LayerNorm of their inputs; `torch.nn.GRU` unrolls chunks of 10 steps; losses
are means over the minibatch; and threads share single operations of torch. Both get the same batch, of a round of 400
steps in eight environments by the initial policy, and start from equal parameters. Their losses and the norms of their
gradients over an update are compared before anything is timed.

Rounds alternate, so other load on the machine affects both. Times are by the clock, so no other program should run.
"""

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from components.envs import Skirmish
from components.policies import ALGORITHMS, EpisodeBatch
from components.policies.on_policy import Minibatch, OnPolicy, Rows
from components.policies.ppo import Mappo
from components.policies.ppo_networks import Branch
from components.replay_buffers import FreshEpisodes
from components.rollout import Rollout
from components.threads import with_threads
from components.trajectory_manager import segments_of

N_ENVS, N_STEPS = 8, 400


def played(scenario: str) -> EpisodeBatch:
    """Return the batch of a round of the initial policy."""
    env, algorithm = Skirmish(scenario, N_ENVS, seed=1), ALGORITHMS["mappo"]
    acting = algorithm.acting(env.spec, seed=0)
    acting.load(made(scenario).params())
    message = Rollout(env, acting, np.random.default_rng(0), segment_length=N_STEPS).collect(N_STEPS, 1.0)
    assert message is not None
    replay = FreshEpisodes(algorithm.schema(env.spec, N_STEPS), 2 * N_ENVS * N_STEPS)
    replay.insert(segments_of(message))
    return replay.sample(message.segments, np.random.default_rng(0)).batch


def made(scenario: str) -> OnPolicy:
    """Return a learner with the initial parameters that all of a map have."""
    policy = ALGORITHMS["mappo"].learner(Skirmish(scenario).spec, seed=3)
    assert isinstance(policy, Mappo)
    assert isinstance(policy.learner, OnPolicy)
    return policy.learner


class Classic:
    """The update of the published code, for the networks, rows and chunks of `learner`."""

    def __init__(self, learner: OnPolicy) -> None:
        self.learner, self.network, self.settings = learner, learner.network, learner.learning
        self._optimizers = {
            branch: torch.optim.Adam(branch.parameters(), lr=self.settings.learning_rate, eps=1e-5)
            for branch in (self.network.actor, self.network.critic)
        }

    def learn(self, batch: EpisodeBatch) -> dict[str, float]:
        """Make an update; return its mean losses, and the mean norm of the actor's gradient."""
        rows, sums = self.learner.rows(batch), np.zeros(3)
        whole = self.learner._minibatches(batch, rows)
        for _ in range(self.settings.epochs):
            sums += self._epoch(rows, whole)
        return dict(zip(("policy_loss", "value_loss", "grad_norm"), sums / self.settings.epochs, strict=True))

    def _epoch(self, rows: Rows, whole: Minibatch) -> list[float]:
        settings, at = self.settings, whole.rows.reshape(-1)
        assert whole.hidden is not None
        assert whole.real is not None
        assert rows.available is not None
        real = whole.real.reshape(-1)
        living = rows.living[at] * real
        logits = _outputs(self.network.actor, rows.actor[at], whole.hidden[0], len(whole.rows))
        values = _outputs(self.network.critic, rows.critic[at], whole.hidden[1], len(whole.rows))[:, 0]
        log_probs = logits.masked_fill(~rows.available[at], -1e10).log_softmax(1)
        ratio = (log_probs.gather(1, rows.actions[at].unsqueeze(1))[:, 0] - rows.log_prob[at]).exp()
        advantage = rows.advantage[at]
        gained = torch.min(ratio * advantage, ratio.clamp(1 - settings.clip, 1 + settings.clip) * advantage)
        policy = -(gained * living).sum() / living.sum()
        entropy = (-(log_probs.exp() * log_probs).sum(1) * living).sum() / living.sum()
        norm = self.learner.value_norm
        norm.update(rows.returns[at][real > 0])
        target, old = norm.normalise(rows.returns[at]), rows.value[at]
        near = old + (values - old).clamp(-settings.clip, settings.clip)
        assert settings.huber is not None
        errors = [nn.functional.huber_loss(x, target, reduction="none", delta=settings.huber) for x in (values, near)]
        value = (torch.max(*errors) * real).sum() / real.sum()
        norms = []
        for loss, (branch, optimizer) in zip(
            (policy - settings.entropy * entropy, value), self._optimizers.items(), strict=True
        ):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norms.append(float(nn.utils.clip_grad_norm_(branch.parameters(), settings.grad_norm_clip)))
            optimizer.step()
        return [float(policy.detach()), float(value.detach()), norms[0]]


def _outputs(branch: Branch, x: Tensor, hidden: Tensor, n_steps: int) -> Tensor:
    x = branch.norm(x)  # of standardised inputs, which it scales alone; its arithmetic is that of any inputs
    for linear, norm in pairwise(branch.layers):
        if isinstance(linear, nn.Linear):
            x = norm(linear(x).relu())
    assert branch.gru is not None
    unrolled, _ = branch.gru(x.view(n_steps, len(hidden), -1), hidden.unsqueeze(0))
    found: Tensor = branch.head(branch.after(unrolled.flatten(0, 1)))
    return found


def compare(scenario: str, n_threads: int, rounds: int) -> None:
    """Print the table of one map."""
    batch = played(scenario)
    ours, classic = with_threads(1, made(scenario).learn, batch).metrics, Classic(made(scenario)).learn(batch)
    for name, value in classic.items():
        if abs(ours[name] - value) > 1e-3 * max(abs(value), 0.1):
            raise SystemExit(f"{scenario}: {name} is {ours[name]}, and {value} in the classic implementation")
    updates: dict[str, Callable[[], object]] = {}
    for name, learn in (("classic", Classic(made(scenario)).learn), ("ours", made(scenario).learn)):
        for threads in (1, n_threads):
            updates[f"{name}, {threads} thread{'s' * (threads > 1)}"] = partial(with_threads, threads, learn, batch)
    seconds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(rounds):
        for name, update in updates.items():
            start = perf_counter()
            update()
            seconds[name].append(perf_counter() - start)
    base = median(seconds["classic, 1 thread"])
    n_steps = int(batch.lengths.sum())
    print(f"\n{scenario}: an update of MAPPO, {n_steps} steps, 15 epochs, medians of {rounds} rounds in turns")
    print(f"{'':24}{'seconds':>8}{'fastest':>9}{'steps/s':>9}{'ratio':>7}")
    for name, found in seconds.items():
        middle = median(found)
        print(f"{name:24}{middle:8.2f}{min(found):9.2f}{n_steps / middle:9.0f}{base / middle:7.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", default=["3m", "8m"], help="maps")
    parser.add_argument("--threads", type=int, default=2, help="compared with one thread")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for scenario in given.scenarios:
        compare(scenario, given.threads, given.rounds)


if __name__ == "__main__":
    main()
