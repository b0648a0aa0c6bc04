"""One gradient step of `Qmix` against the classic implementation: a loop over time steps, padding and a mask.

    python benchmarks/learner.py
    python benchmarks/learner.py --device cuda --scenarios 8m 27m_vs_30m

The classic learner is written as PyMARL's is: one GRU cell called per time step, inputs concatenated with one-hot
vectors, four hypernetworks, everything computed for the padding too and masked in the loss. Both get the same batches
and start from equal parameters; the agreement of their losses is checked before anything is timed. Rounds alternate, so
other load on the machine affects both.

Batches have 32 episodes of 8m: all of one length; as played by agents that explore; and the same drawn from a replay
memory, which in the classic implementation holds every episode in its full length of 120 steps.

*share* is the arithmetic of a batch per second, as a share of the rate at which this machine multiplies large matrices;
first ours, then that of the classic implementation. The arithmetic leaves out padding, the last frame of battles that
are over, and the layers before the GRU for agents that see nothing, because their result is the same for all of them.
*living* is the share of rows that see something. A step that did only this arithmetic, at that rate, would be *bound*
times as fast as the classic implementation. With one thread, time is processor time, which other programs disturb less.
With more threads it is time by the clock, and no other program must run.

The last table shows our learner alone, by the clock: a step with one thread and with several in turn, on batches drawn
from the same memory, and the processor time of all threads.

With `--device cuda` the figures are by the clock until the GPU has finished, of batches drawn from the same memory: our
learner on the CPU with one thread and with four, on the GPU as it learns by default (a CUDA graph), on the GPU by plain
operations of torch, and the classic implementation on the GPU. Ratios are over our learner on the CPU with one thread.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter, process_time, thread_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import elu, one_hot

from components.envs import Skirmish
from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qmix
from components.replay_buffers import EpisodeReplay
from components.rollout import Rollout
from components.threads import with_threads
from components.trajectory_manager import segments_of


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

    def __init__(self, spec: EnvSpec, like: Qmix, device: str = "cpu") -> None:
        self.spec, self.gamma, hidden = spec, like.options.gamma, like.options.hidden_size
        self.device = torch.device(device)
        n_inputs = spec.obs_size + spec.n_actions + spec.n_agents
        self.agent, self.target_agent = (ClassicAgent(n_inputs, hidden, spec.n_actions) for _ in range(2))
        sizes = (spec.n_agents, spec.state_size, like.mixer_embed, like.hypernet_size)
        self.mixer, self.target_mixer = ClassicMixer(*sizes), ClassicMixer(*sizes)
        for agent in (self.agent, self.target_agent):
            for ours, theirs in zip(agent.parameters(), like.agent.parameters(), strict=True):
                ours.data.copy_(theirs.data)
        for mixer in (self.mixer, self.target_mixer):
            self._copy_mixer(mixer, like)
        for network in (self.agent, self.target_agent, self.mixer, self.target_mixer):
            network.to(self.device)
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
        number = torch.eye(n_agents, device=self.device).expand(n_episodes, -1, -1)
        return torch.cat([obs[:, t], last, number], dim=-1).reshape(n_episodes * n_agents, -1)

    def _unrolled(self, agent: ClassicAgent, obs: Tensor, actions: Tensor) -> Tensor:
        hidden = torch.zeros(obs.shape[0] * self.spec.n_agents, agent.rnn.hidden_size, device=self.device)
        values = []
        for t in range(obs.shape[1]):
            q, hidden = agent(self._inputs(obs, actions, t), hidden)
            values.append(q.view(len(obs), self.spec.n_agents, -1))
        return torch.stack(values, dim=1)

    def loss(self, batch: EpisodeBatch) -> Tensor:
        obs, state, actions, available, lengths, terminated, reward = (
            torch.from_numpy(getattr(batch, name)).to(self.device)
            for name in ("obs", "state", "actions", "available", "lengths", "terminated", "reward")
        )
        time = torch.arange(actions.shape[1], device=self.device)
        mask = (time < lengths[:, None]).float().unsqueeze(-1)
        terminated = ((time == lengths[:, None] - 1) & terminated[:, None]).float().unsqueeze(-1)
        q = self._unrolled(self.agent, obs, actions)
        taken = q[:, :-1].gather(3, actions.unsqueeze(-1)).squeeze(-1)
        target_q = self._unrolled(self.target_agent, obs, actions)[:, 1:]
        chooser = q.clone().detach()
        chooser[~available] = -9999999
        best = target_q.gather(3, chooser[:, 1:].max(dim=3, keepdim=True)[1]).squeeze(-1)
        mixed = self.mixer(taken, state[:, :-1])
        target = reward.unsqueeze(-1) + self.gamma * (1 - terminated) * self.target_mixer(best, state[:, 1:])
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


class ClassicMemory:
    """Episodes in their full length, as PyMARL's replay buffer holds them."""

    def __init__(self, episodes: EpisodeBatch, limit: int) -> None:
        self.lengths, self.terminated, self.weights = episodes.lengths, episodes.terminated, episodes.weights
        self.arrays = {}
        for name, extra in (("obs", 1), ("state", 1), ("available", 1), ("actions", 0), ("reward", 0)):
            held = getattr(episodes, name)
            self.arrays[name] = np.zeros((len(held), limit + extra, *held.shape[2:]), held.dtype)
            self.arrays[name][:, : held.shape[1]] = held

    def sample(self, n: int, rng: np.random.Generator) -> EpisodeBatch:
        drawn = rng.choice(len(self.lengths), n, replace=False)
        longest = int(self.lengths[drawn].max())
        arrays = {name: array[drawn] for name, array in self.arrays.items()}
        return EpisodeBatch(
            obs=arrays["obs"][:, : longest + 1],
            state=arrays["state"][:, : longest + 1],
            available=arrays["available"][:, : longest + 1],
            actions=arrays["actions"][:, :longest],
            reward=arrays["reward"][:, :longest],
            lengths=self.lengths[drawn],
            terminated=self.terminated[drawn],
            weights=self.weights[drawn],
        )


def played(spec: EnvSpec, episodes: int) -> EpisodeReplay:
    """Return a replay buffer with `episodes` episodes of agents that always explore."""
    replay = EpisodeReplay(spec, episodes)
    rollout = Rollout(Skirmish(spec.name, 64, seed=0), Qmix(spec), np.random.default_rng(0))
    while len(replay) < episodes:
        ended = rollout.collect(8, epsilon=1.0)
        if ended is not None:
            replay.insert(segments_of(ended))
    rollout.close()
    return replay


def needed_gflop(like: Qmix, steps: float, cut: float, living: float) -> float:
    """Return the operations of all matrix products of a gradient step, in 10⁹, without padding.

    Args:
        like: the learner.
        steps: steps of all episodes of the batch.
        cut: number of truncated episodes; the value of the last frame is needed only in these.
        living: share of the observations that are not all zeros.
    """
    spec, h = like.spec, like.options.hidden_size
    rows = (steps + cut) * spec.n_agents
    embed, gate, head = spec.obs_size * h, 3 * h * h, h * spec.n_actions
    hyper, mix = like.hypernet_size, like.mixer_embed
    first = spec.state_size * (2 * hyper + 2 * mix)
    rest = hyper * (spec.n_agents + 1) * mix + mix + (spec.n_agents + 1) * mix
    # Forward twice, once for the target network; backward to the weights, and to all inputs but those of the batch.
    before, recurrent = 3 * embed + 4 * gate, 4 * (gate + head)
    mixer = 2 * (first + rest) + (first + rest) + rest
    return 2e-9 * (rows * (living * before + recurrent) + steps * mixer)


def living_part(batch: EpisodeBatch) -> float:
    """Return the share of observations that are not all zeros, without padding."""
    real = np.arange(batch.obs.shape[1]) <= batch.lengths[:, None]
    return float(batch.obs[real].any(-1).mean())


def matmul_rate() -> float:
    """Return the rate at which this machine multiplies large float32 matrices, in 10⁹ operations per second."""
    n = 1536
    a, b, c = (torch.randn(n, n) for _ in range(3))
    seconds = []
    for _ in range(8):
        since = now()
        torch.mm(a, b, out=c)
        seconds.append(now() - since)
    return 2e-9 * n**3 / min(seconds)


def now() -> float:
    return thread_time() if torch.get_num_threads() == 1 else perf_counter()


def compare(
    label: str,
    living: float,
    gflop: float,
    rate: float,
    rounds: int,
    ours: Callable[[], object],
    classic: Callable[[], object],
) -> None:
    """Time both in turn, and print a line."""
    seconds: tuple[list[float], ...] = ([], [])
    for turn in range(rounds + 2):
        for learn, spent in zip((ours, classic), seconds, strict=True):
            since = now()
            learn()
            if turn >= 2:
                spent.append(now() - since)
    fast, slow = (median(spent) for spent in seconds)
    least = gflop / rate
    print(
        f"{label:<42}{1e3 * fast:7.1f}{1e3 * slow:9.1f}{slow / fast:7.2f}"
        f"{living:9.0%}{least / fast:7.0%}{least / slow:9.0%}{slow / least:7.1f}"
    )


def measure(threads: int, spec: EnvSpec, replay: EpisodeReplay, rounds: int) -> None:
    """Print the lines of a number of threads."""
    torch.set_num_threads(threads)
    rate, rng = matmul_rate(), np.random.default_rng(1)
    print(f"\n{threads} thread{'s'[: threads - 1]}, matrix multiplication at {rate:.0f} GFLOP/s")
    print(f"{'':<42}{'ours':>7}{'classic':>9}{'ratio':>7}{'living':>9}{'share':>7}{'classic':>9}{'bound':>7}")
    ours = Qmix(spec)
    classic = ClassicLearner(spec, ours)
    episodes = replay.sample(len(replay), rng).batch
    memory = ClassicMemory(episodes, spec.episode_limit)
    straggler = np.full(32, 25, np.int32)
    straggler[0] = spec.episode_limit
    for label, batch in (
        ("all of one length", random_batch(spec, np.full(32, 60, np.int32), rng)),
        ("as played", memory.sample(32, rng)),
        ("one to the limit", random_batch(spec, straggler, rng)),
    ):
        lengths = batch.lengths
        loss, expected = float(ours.td_loss(batch).loss.detach()), float(classic.loss(batch).detach())
        assert abs(loss - expected) < 1e-4 * expected, (loss, expected)
        label = f"{label}, {lengths.mean():.1f} of {lengths.max()} steps"
        living = living_part(batch)
        gflop = needed_gflop(ours, int(lengths.sum()), int(np.sum(~batch.terminated)), living)
        learners = partial(Qmix(spec).learn, batch), partial(classic_of(spec).learn, batch)
        compare(label, living, gflop, rate, rounds, *learners)
    living = living_part(episodes)
    compare(
        f"as played, drawn, {episodes.lengths.mean():.1f} steps",
        living,
        needed_gflop(ours, 32 * float(episodes.lengths.mean()), 32 * float(np.mean(~episodes.terminated)), living),
        rate,
        2 * rounds,
        lambda: ours.learn(replay.sample(32, rng).batch),
        lambda: classic.learn(memory.sample(32, rng)),
    )


def measure_threads(numbers: list[int], spec: EnvSpec, replay: EpisodeReplay, rounds: int) -> None:
    """Print how long a step takes with one thread and with each other number of them."""
    learners = {threads: Qmix(spec) for threads in (1, *numbers)}
    clock: dict[int, list[float]] = {threads: [] for threads in learners}
    processor: dict[int, list[float]] = {threads: [] for threads in learners}
    rng = np.random.default_rng(1)
    for turn in range(rounds + 2):
        batch = replay.sample(32, rng).batch
        for threads, learner in learners.items():
            since, used = perf_counter(), process_time()
            with_threads(threads, learner.learn, batch)
            if turn >= 2:
                clock[threads].append(perf_counter() - since)
                processor[threads].append(process_time() - used)
    same = {learner.params().tobytes() for learner in learners.values()}
    assert len(same) == 1, "what is learnt depends on the threads"
    print(f"\n{'threads':<9}{'median':>8}{'fastest':>9}{'processor':>11}{'ratio':>7}")
    for threads, seconds in clock.items():
        ratio = median(one / several for one, several in zip(clock[1], seconds, strict=True))
        print(
            f"{threads:<9}{1e3 * median(seconds):8.1f}{1e3 * min(seconds):9.1f}"
            f"{1e3 * median(processor[threads]):11.1f}{ratio:7.2f}"
        )


def measure_device(device: str, scenario: str, sizes: list[int], rounds: int) -> None:
    """Print how long a step takes on the CPU and on `device`, for batches of several sizes."""
    env = Skirmish(scenario)
    env.prepare()
    spec, rng = env.spec, np.random.default_rng(1)
    replay = played(spec, 512)
    lengths = replay.sample(len(replay), rng).batch.lengths
    print(f"\n{scenario}, episodes of {lengths.mean():.1f} steps (longest {lengths.max()})")
    learners: list[tuple[str, int, Qmix | ClassicLearner]] = [
        ("CPU, 1 thread", 1, Qmix(spec)),
        ("CPU, 4 threads", 4, Qmix(spec)),
        (f"{device}, CUDA graph", 1, Qmix(spec, device=device)),
        (f"{device}, operations of torch", 1, Qmix(spec, device=device, kernels="torch")),
        (f"{device}, classic", 1, ClassicLearner(spec, Qmix(spec), device)),
    ]
    for n_episodes in sizes:
        seconds: dict[str, list[float]] = {label: [] for label, *_ in learners}
        for turn in range(-20, rounds):
            batch = replay.sample(n_episodes, rng).batch
            for label, threads, learner in learners:
                # Batches of many lengths come before the measurement: each size is captured once.
                if turn < -2 and learner is not learners[2][2]:
                    continue
                since = perf_counter()
                with_threads(threads, learner.learn, batch)
                torch.cuda.synchronize()
                if turn >= 0:
                    seconds[label].append(perf_counter() - since)
        print(f"{f'batches of {n_episodes} episodes':<32}{'median':>8}{'fastest':>9}{'ratio':>8}")
        base = seconds["CPU, 1 thread"]
        for label, spent in seconds.items():
            ratio = median(one / other for one, other in zip(base, spent, strict=True))
            print(f"{label:<32}{1e3 * median(spent):8.2f}{1e3 * min(spent):9.2f}{ratio:8.2f}")


def classic_of(spec: EnvSpec) -> ClassicLearner:
    return ClassicLearner(spec, Qmix(spec))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--device", default="cpu", help="cuda or cuda:N: compare learning there with the CPU")
    parser.add_argument("--scenarios", nargs="+", default=["8m"], help="those of the comparison of devices")
    parser.add_argument("--episodes", type=int, nargs="+", default=[32, 128, 512], help="batch sizes of it")
    args = parser.parse_args()
    print(f"torch {torch.__version__}, ms per gradient step of 32 episodes, medians of {args.rounds} rounds in turns")
    if args.device != "cpu":
        print(torch.cuda.get_device_name(args.device))
        for scenario in args.scenarios:
            measure_device(args.device, scenario, args.episodes, args.rounds)
        return
    env = Skirmish("8m")
    env.prepare()
    replay = played(env.spec, 256)
    for threads in args.threads:
        measure(threads, env.spec, replay, args.rounds)
    measure_threads([n for n in args.threads if n > 1], env.spec, replay, 4 * args.rounds)


if __name__ == "__main__":
    main()
