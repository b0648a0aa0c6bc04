"""Learning from steps of the present policy, several times over, by clipped ratios: the common part of PPO and MAPPO.

Letters in shapes: E segments, T steps, A agents, N real steps of all segments, R = N * A rows, C chunks of L steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from components.envs.base import EnvSpec
from components.policies.advantages import corrected_advantages, normalised, segment_advantages
from components.policies.base import EpisodeBatch, TrainStepResult
from components.policies.chunks import Chunks, real_rows
from components.policies.clipped import divergence, policy_loss, shares, value_loss
from components.policies.distributions import Categorical, Distribution, Gaussian, Squashed
from components.policies.modules import TwoSidedPolicy
from components.policies.optimizer import FlatOptimizer
from components.policies.parallel import own_threads, parts_of, summed_parts
from components.policies.ppo_acting import PpoActing
from components.policies.ppo_networks import ActorCritic
from components.policies.ppo_options import Interface, Learning, Networks
from components.policies.value_norm import ValueNorm


@dataclass(frozen=True, slots=True)
class Rows:
    """The real rows of a batch. They do not change during the epochs of an update."""

    actor: Tensor  # (R, I): inputs, from `Branch.standardised`
    critic: Tensor  # (R, I): inputs, likewise
    available: Tensor | None  # (R, U)
    actions: Tensor  # (R, …)
    log_prob: Tensor  # (R,): when acting; with V-trace by the parameters before the update
    value: Tensor  # (R,): when acting, in the critic's units of then
    real_value: Tensor  # (R,): the same in the units of the rewards
    living: Tensor  # (R,): 1.0 for living agents
    advantage: Tensor  # (R,)
    returns: Tensor  # (R,): targets of the values, in the units of the rewards


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows to learn from together: C' chunks of L steps, or C' rows of one step for a network without a GRU."""

    rows: Tensor  # (L, C')
    real: Tensor | None  # (L, C'): 0.0 for rows that only fill up chunks, else 1.0; None if all are real
    hidden: tuple[Tensor, Tensor] | None  # (C', H) each, before the first steps, for actor and critic

    def of(self, chunks: Tensor | slice) -> "Minibatch":
        """Return some of the chunks."""
        hidden = None if self.hidden is None else (self.hidden[0][chunks], self.hidden[1][chunks])
        return Minibatch(self.rows[:, chunks], None if self.real is None else self.real[:, chunks], hidden)


@dataclass(frozen=True, slots=True)
class Goals:
    """What the rows of a minibatch are to learn, (L, C') each. A mean over the minibatch is a sum with weights."""

    advantage: Tensor
    target: Tensor
    """Targets of the values, in the critic's units."""
    value: Tensor
    """Values when acting, in the critic's units."""
    living: Tensor
    """Weights in means over the actions of living agents; their sum is 1."""
    valued: Tensor
    """Weights in the mean of the value loss; their sum is 1."""

    def of(self, chunks: slice) -> "Goals":
        """Return those of some of the chunks."""
        every = (self.advantage, self.target, self.value, self.living, self.valued)
        return Goals(*(each[:, chunks] for each in every))


class OnPolicy(TwoSidedPolicy):
    """An actor and a critic that learn from steps of their present parameters, several times over, by clipped ratios.

    Values are in the critic's units, see `value_units`.

    Args:
        spec: sizes of the environment.
        networks: networks of actor and critic.
        learning: settings of learning.
        seed: seed of the initial parameters and of minibatches.
        device: as for `ModulePolicy`.

    Raises:
        ValueError: the environment does not have what the networks need.
    """

    def __init__(self, spec: EnvSpec, networks: Networks, learning: Learning, *, seed: int, device: str) -> None:
        self.interface, self.networks, self.learning = Interface(spec, networks), networks, learning
        self.fields = self.interface.fields
        self._seed = seed
        super().__init__(spec, seed=seed, device=device, init="orthogonal")
        self.network.actor.scale(learning.gain)
        self.network.critic.scale(1.0)
        rate, clip = learning.learning_rate, learning.grad_norm_clip
        if learning.critic_learning_rate is None:
            self._optimizers = {"all": FlatOptimizer(self._flat, [self.network], "adam", rate, clip)}
        else:
            n_actor = sum(p.numel() for p in self.network.actor.parameters())
            of_actor, of_critic, critic_rate = self._flat[:n_actor], self._flat[n_actor:], learning.critic_learning_rate
            self._optimizers = {
                "actor": FlatOptimizer(of_actor, [self.network.actor], "adam", rate, clip),
                "critic": FlatOptimizer(of_critic, [self.network.critic], "adam", critic_rate, clip),
            }

    def _make_networks(self) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
        self.network = ActorCritic(self.interface)
        self.value_norm = ValueNorm(self.learning.value_units)
        return {"network": self.network, "value_norm": self.value_norm}, {}

    def _make_acting(self) -> PpoActing:
        return PpoActing(self.spec, self.networks)

    # Learning -------------------------------------------------------------------------------------------------------

    def learn(self, batch: EpisodeBatch) -> TrainStepResult:
        """Make one update: all its epochs and minibatches.

        Raises:
            FloatingPointError: a gradient is not finite; it is not applied.
        """
        with own_threads():
            rows = self.rows(batch)
            metrics = self._epochs(rows, self._minibatches(batch, rows))
            if self.networks.normalise_obs:
                obs = real_rows(batch.obs[:, :-1], batch.lengths)
                self.network.observe(self._tensor(obs.reshape(-1, obs.shape[-1])))
        self._learned()
        return TrainStepResult(metrics, np.ones(len(batch.lengths), np.float32))

    def log_prob(self, batch: EpisodeBatch) -> NDArray[np.float32]:
        """Return the log-probabilities (E, T, A) of a batch's actions under the present parameters, 0 where padded."""
        return self._log_prob(batch, self._seen(batch))

    def rows(self, batch: EpisodeBatch) -> Rows:
        """Return the rows of a batch, with advantages and returns."""
        learning, lengths = self.learning, batch.lengths
        rows = self._seen(batch)
        value = self.value_norm.denormalise(torch.from_numpy(batch["value"].astype(np.float64))).numpy()
        if self.interface.mortal_reward:
            value = value * batch["alive"]
        reward = batch.reward if batch.reward.ndim == 3 else batch.reward[..., None]
        reward = np.broadcast_to(reward, (*reward.shape[:2], self.spec.n_agents))
        gamma, gae_lambda, time_limit = learning.gamma, learning.gae_lambda, learning.time_limit
        if learning.correction == "v-trace":
            now = self._log_prob(batch, rows)
            rows = replace(rows, log_prob=self._tensor(real_rows(now, lengths).reshape(-1)))
            advantage, target = corrected_advantages(
                reward,
                value,
                now - batch["log_prob"],
                lengths,
                batch.terminated,
                batch.truncated,
                gamma=gamma,
                gae_lambda=gae_lambda,
                rho_max=learning.rho_max,
                c_max=learning.c_max,
                time_limit=time_limit,
            )
        else:
            advantage = segment_advantages(
                reward,
                value,
                lengths,
                batch.terminated,
                batch.truncated,
                gamma=gamma,
                gae_lambda=gae_lambda,
                time_limit=time_limit,
            )
            target = advantage + value[:, :-1]
        advantage, returns = real_rows(advantage, lengths), real_rows(target, lengths)
        if learning.advantages == "update":
            advantage = normalised(advantage, rows.living.cpu().numpy().reshape(advantage.shape) > 0)
        return replace(rows, advantage=self._tensor(advantage.reshape(-1)), returns=self._tensor(returns.reshape(-1)))

    def _seen(self, batch: EpisodeBatch) -> Rows:
        """Return the rows of a batch without advantages and returns."""
        on, lengths = self.interface, batch.lengths
        flat = {name: real_rows(batch[name][:, :-1], lengths) for name in (*on.spec.schema.frames, "value")}
        actor, critic = on.inputs(
            flat,
            real_rows(self._last_actions(batch), lengths),
            self.network.obs_mean.cpu().numpy(),
            self.network.obs_var.cpu().numpy(),
        )
        living = on.alive(flat)
        actions = batch["unsquashed"] if self.networks.squash else batch.actions
        n_rows, value = living.size, self._tensor(flat["value"].reshape(-1))
        return Rows(
            actor=self.network.actor.standardised(self._tensor(actor.reshape(n_rows, -1))),
            critic=self.network.critic.standardised(self._tensor(critic.reshape(n_rows, -1))),
            available=torch.from_numpy(flat["available"].reshape(n_rows, -1)).to(self._device) if on.masked else None,
            actions=torch.from_numpy(real_rows(actions, lengths).reshape(n_rows, *actions.shape[3:])).to(self._device),
            log_prob=self._tensor(real_rows(batch["log_prob"], lengths).reshape(-1)),
            value=value,
            real_value=self.value_norm.denormalise(value),
            living=self._tensor(living.reshape(-1)),
            advantage=torch.empty(0),
            returns=torch.empty(0),
        )

    def _log_prob(self, batch: EpisodeBatch, rows: Rows) -> NDArray[np.float32]:
        found = np.zeros(batch["log_prob"].shape, np.float32)
        real = np.arange(batch["log_prob"].shape[1]) < batch.lengths[:, None]
        with torch.no_grad():
            flat = torch.zeros(len(rows.log_prob), device=self._device)
            for part in self._parts_of(batch, rows):
                taken = self.said(rows, part)[0]
                kept = slice(None) if part.real is None else part.real > 0
                flat[part.rows[kept]] = taken[kept]
        found[real] = flat.cpu().numpy().reshape(-1, self.spec.n_agents)
        return found

    def said(self, rows: Rows, part: Minibatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities of the actions, entropies, and values, (L, C') each, by the present parameters."""
        of_actor, of_critic = part.hidden or (None, None)
        (n_steps, n_chunks), at = part.rows.shape, part.rows.reshape(-1)
        outputs, _ = self.network.actor(rows.actor[at], of_actor, n_steps)
        values, _ = self.network.critic(rows.critic[at], of_critic, n_steps)
        distribution = self._distribution(outputs, None if rows.available is None else rows.available[at])
        found = distribution.log_prob(rows.actions[at]), distribution.entropy(), values
        log_prob, entropy, value = (each.view(n_steps, n_chunks) for each in found)
        return log_prob, entropy, value

    def goals(self, rows: Rows, part: Minibatch) -> Goals:
        """Return the goals of a minibatch, in the present units of values."""
        learning, at = self.learning, part.rows
        real = torch.ones(at.shape, device=self._device) if part.real is None else part.real
        living, advantage = rows.living[at] * real, rows.advantage[at]
        if learning.advantages == "minibatch" and float(living.sum()) > 1.0:
            seen = advantage[living > 0]
            advantage = (advantage - seen.mean()) / (seen.std() + 1e-8)
        value = rows.value[at]
        if learning.value_units == "popart":  # the head, and so the critic's units, changed since then
            value = self.value_norm.normalise(rows.real_value[at])
        return Goals(
            advantage=advantage,
            target=self.value_norm.normalise(rows.returns[at]),
            value=value,
            living=shares(living),
            valued=shares(living if learning.value_masks else real),
        )

    def losses(self, rows: Rows, part: Minibatch, goals: Goals) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return policy loss, value loss, entropy, and divergence and share of clipped ratios (2,).

        They are sums over the rows of `part` by the weights of `goals`, so those of all parts of a minibatch add up to
        its means.
        """
        learning = self.learning
        log_prob, entropies, values = self.said(rows, part)
        old = rows.log_prob[part.rows]
        policy = (policy_loss(log_prob, old, goals.advantage, learning.clip) * goals.living).sum()
        clip = learning.clip if learning.value_clip else None
        value = (value_loss(values, goals.value, goals.target, clip, learning.huber) * goals.valued).sum()
        moved = divergence(log_prob.detach(), old, goals.living, learning.clip)
        return policy, value, (entropies * goals.living).sum(), moved

    def _epochs(self, rows: Rows, whole: Minibatch) -> dict[str, float]:
        learning, sums, made = self.learning, np.zeros(6), 0
        self._set_rates()
        spread = float(rows.returns.var(correction=0))
        explained = 1.0 - float((rows.returns - rows.real_value).var(correction=0)) / spread if spread > 0 else 0.0
        rng = np.random.default_rng((self._seed, self.updates))
        for _ in range(learning.epochs):
            for minibatch in self._shuffled(whole, rng):
                figures = self._step(rows, minibatch)
                sums += figures
                made += 1
            if learning.target_kl is not None and figures[3] > learning.target_kl:
                break
        names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")
        means = dict(zip(names, (sums / made).tolist(), strict=True))
        mean, sd = self.value_norm.statistics()
        return {
            "loss": means["policy_loss"] + learning.value_coefficient * means["value_loss"],
            **means,
            "explained_variance": explained,
            "value_mean": mean,
            "value_sd": sd,
            "steps_learned": float(len(rows.returns) // self.spec.n_agents),
        }

    def _step(self, rows: Rows, minibatch: Minibatch) -> NDArray[np.float64]:
        """Make a gradient step; return its policy loss, value loss, entropy, KL, clipped share, and gradient norm (6,).

        The norm is that of the actor's gradient if the critic has its own optimiser. Threads share the parts of the
        minibatch.
        """
        real = minibatch.real
        seen = minibatch.rows if real is None else minibatch.rows[real > 0]
        self.value_norm.update(rows.returns[seen], self.network.critic.head)
        goals = self.goals(rows, minibatch)
        parts = parts_of(minibatch.rows.shape[1], minibatch.rows.numel(), self._device)
        figures, *gradients = summed_parts(
            parts, lambda chunks: self._gradients(rows, minibatch.of(chunks), goals.of(chunks))
        )
        norms = []
        for (name, optimizer), gradient in zip(self._optimizers.items(), gradients, strict=True):
            optimizer.gradient.copy_(gradient)
            norms.append(
                optimizer.descend(f"update {self.updates}" if name == "all" else f"the {name} in update {self.updates}")
            )
        return np.array([*figures.tolist(), norms[0]])

    def _gradients(self, rows: Rows, part: Minibatch, goals: Goals) -> list[Tensor]:
        """Return the figures of `_step` but the norm (5,), and the gradient (P,) for each optimiser, of a part."""
        learning = self.learning
        policy, value, entropy, moved = self.losses(rows, part, goals)
        of_actor, of_critic = policy - learning.entropy * entropy, learning.value_coefficient * value
        of = {"all": of_actor + of_critic, "actor": of_actor, "critic": of_critic}
        gradients = [optimizer.gradient_of(of[name]) for name, optimizer in self._optimizers.items()]
        return [torch.cat([torch.stack([policy, value, entropy]).detach(), moved]), *gradients]

    def _set_rates(self) -> None:
        learning = self.learning
        left = max(1.0 - self.updates / learning.anneal, 0.0) if learning.anneal else 1.0
        for name, optimizer in self._optimizers.items():
            rate = learning.critic_learning_rate if name == "critic" else learning.learning_rate
            optimizer.learning_rate = (rate or 0.0) * left

    def _minibatches(self, batch: EpisodeBatch, rows: Rows) -> Minibatch:
        """Return all rows, or all chunks, of an update, for `_shuffled` to divide into minibatches."""
        with torch.no_grad():
            parts = list(self._parts_of(batch, rows))
        if not self.networks.recurrent:
            return parts[0]
        real = [part.real for part in parts if part.real is not None]
        hidden = [part.hidden for part in parts if part.hidden is not None]
        of_actor, of_critic = (torch.cat(each) for each in zip(*hidden, strict=True))
        return Minibatch(torch.cat([part.rows for part in parts], 1), torch.cat(real, 1), (of_actor, of_critic))

    def _parts_of(self, batch: EpisodeBatch, rows: Rows) -> Iterator[Minibatch]:
        """Yield all rows at once; for a recurrent network the chunks of each place, with the states before them.

        The states before first chunks are those recorded when acting. The states before later chunks are computed once
        per call, with the present parameters: in `learn` those at the start of the update. These are the parameters
        that acted, unless the experience is of an older version (`--overlap`).
        """
        if not self.networks.recurrent:
            yield Minibatch(torch.arange(len(rows.log_prob), device=self._device).unsqueeze(0), None, None)
            return
        n_steps = self.learning.chunk_length
        chunks = Chunks.of(batch.lengths, self.spec.n_agents, n_steps)
        first = slice(*chunks.bounds[:2])
        recorded = self._tensor(batch["hidden"][chunks.segment[first], chunks.agent[first]])
        size = self.networks.hidden_size
        hidden = recorded[:, :size].contiguous(), recorded[:, size:].contiguous()
        at = self._places(chunks)
        for k in range(len(chunks.bounds) - 1):
            where = slice(*chunks.bounds[k : k + 2])
            if k:
                hidden = hidden[0][at[k]], hidden[1][at[k]]
            index = torch.from_numpy(chunks.rows[:, where]).to(self._device)
            yield Minibatch(index, self._tensor(chunks.real[:, where]), hidden)
            if k < len(chunks.bounds) - 2:
                of_actor, of_critic = self.network.actor, self.network.critic
                _, last_actor = of_actor(rows.actor[index.reshape(-1)], hidden[0], n_steps)
                _, last_critic = of_critic(rows.critic[index.reshape(-1)], hidden[1], n_steps)
                assert last_actor is not None
                assert last_critic is not None
                hidden = last_actor, last_critic

    def _places(self, chunks: Chunks) -> list[Tensor]:
        """Return for each place the indices of the chunks of the previous place that continue there."""
        keys = chunks.segment * self.spec.n_agents + chunks.agent
        parts = [keys[start:end] for start, end in pairwise(chunks.bounds.tolist())]
        found = [torch.empty(0, dtype=torch.int64)]
        for before, after in pairwise(parts):
            found.append(torch.from_numpy(np.searchsorted(before, after)).to(self._device))
        return found

    def _shuffled(self, whole: Minibatch, rng: np.random.Generator) -> Iterator[Minibatch]:
        """Yield the minibatches of an epoch: each row, or chunk, is in exactly one."""
        n = whole.rows.shape[1]
        order = torch.from_numpy(rng.permutation(n)).to(self._device)
        for some in order.tensor_split(min(self.learning.minibatches, n)):
            yield whole.of(some)

    def _distribution(self, outputs: Tensor, available: Tensor | None) -> Distribution:
        on, actor = self.interface, self.network.actor
        if not on.continuous:
            return Categorical(outputs, on.n_values, available)
        if self.networks.squash:
            return Squashed(outputs, actor.log_sd, torch.from_numpy(on.scale).to(self._device))
        return Gaussian(outputs, actor.log_sd)

    def _last_actions(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Return the last actions before each step (E, T, A); zeros if networks do not use them."""
        if not self.interface.knows_last:
            return np.zeros((*batch["log_prob"].shape,), np.int64)
        return np.concatenate([batch["before"][:, None], batch.actions[:, :-1]], 1)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(self._device)
