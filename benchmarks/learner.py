"""One gradient step of `Qmix` against the classic implementation: a loop over time steps, padding and a mask.

    python benchmarks/learner.py --threads 1

The classic learner is written as PyMARL's is: one GRU cell called per time step, inputs concatenated with one-hot
vectors, four hypernetworks, everything computed for the padding too and masked in the loss. Both get the same batches
and start from equal parameters; that their losses agree is checked before anything is timed. Rounds alternate, so that
what else the machine does falls on both.
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import elu, one_hot

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qmix


class ClassicAgent(nn.Module):
    def __init__(self, n_inputs: int, hidden: int, n_actions: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_inputs, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.fc2 = nn.Linear(hidden, n_actions)

    def forward(self, inputs: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.rnn(torch.relu(self.fc1(inputs)), hidden)
        return self.fc2(hidden), hidden


class ClassicMixer(nn.Module):
    def __init__(self, n_agents: int, state_size: int, embed: int, hypernet: int) -> None:
        super().__init__()
        self.n_agents, self.embed = n_agents, embed
        self.hyper_w_1 = nn.Sequential(
            nn.Linear(state_size, hypernet), nn.ReLU(), nn.Linear(hypernet, embed * n_agents)
        )
        self.hyper_w_final = nn.Sequential(nn.Linear(state_size, hypernet), nn.ReLU(), nn.Linear(hypernet, embed))
        self.hyper_b_1 = nn.Linear(state_size, embed)
        self.v = nn.Sequential(nn.Linear(state_size, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, q: Tensor, state: Tensor) -> Tensor:
        n_episodes, state = len(q), state.reshape(-1, state.shape[-1])
        w_1 = self.hyper_w_1(state).abs().view(-1, self.n_agents, self.embed)
        b_1 = self.hyper_b_1(state).view(-1, 1, self.embed)
        inner = elu(torch.bmm(q.reshape(-1, 1, self.n_agents), w_1) + b_1)
        w_final = self.hyper_w_final(state).abs().view(-1, self.embed, 1)
        mixed: Tensor = torch.bmm(inner, w_final) + self.v(state).view(-1, 1, 1)
        return mixed.view(n_episodes, -1, 1)


class ClassicLearner:
    """The learner of PyMARL, on the arrays of an `EpisodeBatch`."""

    def __init__(self, spec: EnvSpec, like: Qmix) -> None:
        self.spec, self.gamma, hidden = spec, like.gamma, like.hidden_size
        n_inputs = spec.obs_size + spec.n_actions + spec.n_agents
        self.agent, self.target_agent = (ClassicAgent(n_inputs, hidden, spec.n_actions) for _ in range(2))
        sizes = (spec.n_agents, spec.state_size, like.mixer_embed, like.hypernet_size)
        self.mixer, self.target_mixer = ClassicMixer(*sizes), ClassicMixer(*sizes)
        for agent in (self.agent, self.target_agent):
            for ours, theirs in zip(agent.parameters(), like.agent.parameters(), strict=True):
                ours.data.copy_(theirs.data)
        for mixer in (self.mixer, self.target_mixer):
            self._copy_mixer(mixer, like)
        self.parameters = [*self.agent.parameters(), *self.mixer.parameters()]
        self.optimizer = torch.optim.RMSprop(self.parameters, lr=5e-4, alpha=0.99, eps=1e-5)

    def _copy_mixer(self, mixer: ClassicMixer, like: Qmix) -> None:
        source = like.mixer.state_dict()
        sizes = [like.hypernet_size, like.hypernet_size, like.mixer_embed, like.mixer_embed]
        for name in ("weight", "bias"):
            w_1, w_2, v, b_1 = source[f"first.{name}"].split(sizes)
            for module, values in (
                (mixer.hyper_w_1[0], w_1),
                (mixer.hyper_w_1[2], source[f"w_1.{name}"]),
                (mixer.hyper_w_final[0], w_2),
                (mixer.hyper_w_final[2], source[f"w_2.{name}"]),
                (mixer.hyper_b_1, b_1),
                (mixer.v[0], v),
                (mixer.v[2], source[f"v.{name}"]),
            ):
                getattr(module, name).data.copy_(values)

    def _inputs(self, obs: Tensor, actions: Tensor, t: int) -> Tensor:
        n_episodes, n_agents = len(obs), self.spec.n_agents
        last = one_hot(actions[:, max(t - 1, 0)], self.spec.n_actions).float() * (t > 0)
        number = torch.eye(n_agents).expand(n_episodes, -1, -1)
        return torch.cat([obs[:, t], last, number], dim=-1).reshape(n_episodes * n_agents, -1)

    def _unrolled(self, agent: ClassicAgent, obs: Tensor, actions: Tensor) -> Tensor:
        hidden = torch.zeros(obs.shape[0] * self.spec.n_agents, agent.rnn.hidden_size)
        values = []
        for t in range(obs.shape[1]):
            q, hidden = agent(self._inputs(obs, actions, t), hidden)
            values.append(q.view(len(obs), self.spec.n_agents, -1))
        return torch.stack(values, dim=1)

    def loss(self, batch: EpisodeBatch) -> Tensor:
        obs, state = torch.from_numpy(batch.obs), torch.from_numpy(batch.state)
        actions, available = torch.from_numpy(batch.actions), torch.from_numpy(batch.available)
        time = torch.arange(actions.shape[1])
        lengths = torch.from_numpy(batch.lengths)
        mask = (time < lengths[:, None]).float().unsqueeze(-1)
        terminated = (
            ((time == lengths[:, None] - 1) & torch.from_numpy(batch.terminated)[:, None]).float().unsqueeze(-1)
        )
        q = self._unrolled(self.agent, obs, actions)
        taken = q[:, :-1].gather(3, actions.unsqueeze(-1)).squeeze(-1)
        target_q = self._unrolled(self.target_agent, obs, actions)[:, 1:]
        chooser = q.clone().detach()
        chooser[~available] = -9999999
        best = target_q.gather(3, chooser[:, 1:].max(dim=3, keepdim=True)[1]).squeeze(-1)
        mixed = self.mixer(taken, state[:, :-1])
        target = torch.from_numpy(batch.reward).unsqueeze(-1) + self.gamma * (1 - terminated) * self.target_mixer(
            best, state[:, 1:]
        )
        error: Tensor = (mixed - target.detach()) * mask
        return (error**2).sum() / mask.sum()

    def learn(self, batch: EpisodeBatch) -> None:
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        torch.nn.utils.clip_grad_norm_(self.parameters, 10.0)
        self.optimizer.step()


def random_batch(spec: EnvSpec, lengths: NDArray[np.int32], rng: np.random.Generator) -> EpisodeBatch:
    e, t, a = len(lengths), int(lengths.max()), spec.n_agents
    available = rng.random((e, t + 1, a, spec.n_actions)) < 0.5
    available[..., 0] = True
    frame, step = np.arange(t + 1) <= lengths[:, None], np.arange(t) < lengths[:, None]
    return EpisodeBatch(
        obs=rng.standard_normal((e, t + 1, a, spec.obs_size), dtype=np.float32) * frame[..., None, None],
        state=rng.standard_normal((e, t + 1, spec.state_size), dtype=np.float32) * frame[..., None],
        available=available & frame[..., None, None],
        actions=rng.integers(0, spec.n_actions, (e, t, a)) * step[..., None],
        reward=rng.random((e, t), dtype=np.float32) * step,
        lengths=lengths,
        terminated=rng.random(e) < 0.9,
        weights=np.ones(e, np.float32),
    )


def compare(spec: EnvSpec, lengths: NDArray[np.int32], label: str, rounds: int) -> None:
    batch = random_batch(spec, lengths, np.random.default_rng(0))
    ours = Qmix(spec)
    classic = ClassicLearner(spec, ours)
    loss, classic_loss = float(ours.td_loss(batch).loss.detach()), float(classic.loss(batch).detach())
    assert abs(loss - classic_loss) < 1e-4 * classic_loss, (loss, classic_loss)
    learners: tuple[Callable[[EpisodeBatch], object], ...] = (ours.learn, classic.learn)
    seconds: tuple[list[float], ...] = ([], [])
    for turn in range(rounds + 2):
        for learn, spent in zip(learners, seconds, strict=True):
            start = perf_counter()
            learn(batch)
            if turn >= 2:
                spent.append(perf_counter() - start)
    fast, slow = (1e3 * median(spent) for spent in seconds)
    print(
        f"{label:<34} {len(lengths)} episodes, mean length {lengths.mean():5.1f} of {lengths.max():3d}: "
        f"ours {fast:6.1f} ms, classic {slow:6.1f} ms, ratio {slow / fast:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{args.threads} thread(s), torch {torch.__version__}, medians of {args.rounds} rounds in turns")
    eight = EnvSpec("8m", n_agents=8, n_actions=14, obs_size=80, state_size=168, episode_limit=120)
    three = EnvSpec("3m", n_agents=3, n_actions=9, obs_size=30, state_size=48, episode_limit=60)
    rng = np.random.default_rng(1)

    def between(low: int, high: int, n: int = 32) -> NDArray[np.int32]:
        return rng.integers(low, high + 1, n).astype(np.int32)

    compare(eight, np.full(32, 60, np.int32), "8m, all of one length", args.rounds)
    compare(eight, between(30, 60), "8m, 30 to 60 steps", args.rounds)
    straggler = between(20, 40)
    straggler[0] = 120
    compare(eight, straggler, "8m, 20 to 40 steps, one to the limit", args.rounds)
    compare(three, between(15, 40), "3m, 15 to 40 steps", args.rounds)


if __name__ == "__main__":
    main()
