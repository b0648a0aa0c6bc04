"""COMA against a reference that takes one agent and one step at a time, in float64, with one-hot inputs."""

import numpy as np
import pytest
import torch

from components.policies import Coma, EpisodeBatch

F64 = torch.float64


def one_hot(index, size):
    vector = torch.zeros(size, dtype=F64)
    if index >= 0:
        vector[index] = 1.0
    return vector


def frames_of(batch, e):
    """Frames of episode e, each with the last actions of all agents, -1 at first."""
    length = int(batch.lengths[e])
    before = [[-1] * batch.actions.shape[2], *batch.actions[e, :length].tolist()]
    return length, before


def reference_chances(policy, batch, e):
    """[t][a] → the probabilities (U,) of agent a in every frame of episode e; torch's own GRU, an agent at a time."""
    spec, agent = policy.spec, policy.agent
    length, before = frames_of(batch, e)
    epsilon = float(batch.epsilon[e])
    chances = [[None] * spec.n_agents for _ in range(length + 1)]
    for a in range(spec.n_agents):
        inputs = [
            torch.cat(
                [
                    torch.tensor(batch.obs[e, t, a], dtype=F64),
                    one_hot(before[t][a], spec.n_actions),
                    one_hot(a, spec.n_agents),
                ]
            )
            for t in range(length + 1)
        ]
        hidden, _ = agent.gru(torch.relu(agent.embed(torch.stack(inputs))))
        for t, logits in enumerate(agent.head(hidden)):
            available = torch.tensor(batch.available[e, t, a])
            softmax = logits.masked_fill(~available, -torch.inf).softmax(0)
            chances[t][a] = (1 - epsilon) * softmax + epsilon * available.to(F64) / available.sum()
    return chances


def reference_values(policy, critic, batch, e, t, actions):
    """[a] → the critic's values (U,) in frame t of episode e, if the agents there do `actions`."""
    spec = policy.spec
    _, before = frames_of(batch, e)
    rows = []
    for a in range(spec.n_agents):
        others = [one_hot(u if b != a else -1, spec.n_actions) for b, u in enumerate(actions)]
        x = torch.cat(
            [
                torch.tensor(batch.state[e, t], dtype=F64),
                torch.tensor(batch.obs[e, t, a], dtype=F64),
                *others,
                *(one_hot(u, spec.n_actions) for u in before[t]),
                one_hot(a, spec.n_agents),
            ]
        )
        rows.append(critic.value(torch.relu(critic.second(torch.relu(critic.first(x))))))
    return rows


def reference_targets(policy, batch, e):
    """[t][a] → the TD(λ) return, walking back through episode e."""
    spec = policy.spec
    length, _ = frames_of(batch, e)
    chances = reference_chances(policy, batch, e)
    probable = [
        int(c.masked_fill(~torch.tensor(batch.available[e, length, a]), -1).argmax())
        for a, c in enumerate(chances[length])
    ]
    taken = []
    for t in range(length + 1):
        actions = batch.actions[e, t].tolist() if t < length else probable
        values = reference_values(policy, policy.target_critic, batch, e, t, actions)
        taken.append([values[a][actions[a]].item() for a in range(spec.n_agents)])
    if batch.terminated[e]:
        taken[length] = [0.0] * spec.n_agents
    targets = [None] * length
    for t in reversed(range(length)):
        ahead = [
            taken[t + 1][a]
            if t == length - 1
            else (1 - policy.options.td_lambda) * taken[t + 1][a] + policy.options.td_lambda * targets[t + 1][a]
            for a in range(spec.n_agents)
        ]
        targets[t] = [float(batch.reward[e, t]) + policy.options.gamma * v for v in ahead]
    return targets


def distinct(policy):
    """Give the target critic parameters of its own, or nothing would tell the two apart."""
    noise = torch.Generator().manual_seed(7)
    for p in policy.target_critic.parameters():
        p.data += 0.1 * torch.randn(p.shape, generator=noise, dtype=p.dtype)
    return policy


def packed(policy, batch, rows):
    """Put [e][t] → value into packed order."""
    packing = policy.prepared(batch).packing
    time = np.concatenate([np.arange(n) for n in batch.lengths])[packing.steps]
    return [rows[e][t] for e, t in zip(packing.episode, time, strict=True)]


@pytest.fixture
def batch(make_batch):
    return make_batch(weights=[0.3, 1.0, 0.7, 0.9]).replaced(epsilon=np.array([0.2, 0.5, 0.0, 0.1], np.float32))


@pytest.mark.parametrize("td_lambda", [0.0, 0.8, 1.0])
def test_targets_are_the_td_lambda_returns_of_the_target_critic(spec, batch, td_lambda):
    policy = distinct(Coma(spec, td_lambda=td_lambda, hidden_size=8, critic_size=6, dtype=F64))
    expected = packed(policy, batch, [reference_targets(policy, batch, e) for e in range(4)])
    np.testing.assert_allclose(policy.counterfactuals(batch).target.numpy(), np.array(expected), rtol=1e-9, atol=1e-9)


def test_the_critics_loss_and_gradients_agree_with_the_reference(spec, batch):
    policy = distinct(Coma(spec, hidden_size=8, critic_size=6, dtype=F64))
    parameters = list(policy.critic.parameters())
    loss, _ = policy.critic_loss(policy.counterfactuals(batch), slice(None))
    total, count = 0.0, 0
    for e in range(4):
        targets = reference_targets(policy, batch, e)
        for t in range(int(batch.lengths[e])):
            actions = batch.actions[e, t].tolist()
            for a, values in enumerate(reference_values(policy, policy.critic, batch, e, t, actions)):
                total = total + float(batch.weights[e]) * (values[actions[a]] - targets[t][a]) ** 2
                count += 1
    expected = total / count
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for got, want in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_the_actors_gradient_is_the_counterfactual_one_of_the_paper(spec, batch):
    policy = Coma(spec, hidden_size=8, critic_size=6, dtype=F64)
    parameters = list(policy.agent.parameters())
    total, count = 0.0, 0
    for e in range(4):
        chances = reference_chances(policy, batch, e)
        for t in range(int(batch.lengths[e])):
            actions = batch.actions[e, t].tolist()
            values = reference_values(policy, policy.critic, batch, e, t, actions)
            for a, u in enumerate(actions):
                q, pi = values[a].detach(), chances[t][a]
                advantage = q[u] - (pi.detach() * q).sum()
                total = total - float(batch.weights[e]) * advantage * pi[u].log()
                count += 1
    expected = total / count

    data = policy.counterfactuals(batch)
    _, values = policy.critic_loss(data, slice(None))
    chances = policy.chances(data)
    taken = data.steps.actions.unsqueeze(2)
    advantage = values.gather(2, taken).squeeze(2) - (chances.detach() * values).sum(2)
    loss = policy.actor_loss(data, chances, advantage)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    for got, want in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_an_agents_baseline_does_not_depend_on_what_it_did(spec, batch):
    policy = Coma(spec, dtype=F64)
    other = batch.replaced(actions=batch.actions.copy())
    other.actions[0, 2, 1] = (other.actions[0, 2, 1] + 1) % spec.n_actions
    rows = []
    for b in (batch, other):
        data = policy.counterfactuals(b)
        _, values = policy.critic_loss(data, slice(None))
        at = int(np.flatnonzero(data.steps.packing.steps == 2)[0])
        rows.append(values[at])
    torch.testing.assert_close(rows[0][1], rows[1][1], rtol=0, atol=1e-12)
    assert (rows[0][0] - rows[1][0]).abs().max() > 1e-3


def test_the_critic_is_taught_backwards_in_spans_and_its_target_follows(spec, batch):
    policy = Coma(spec, critic_steps=4, target_update_interval=6, dtype=F64)
    seen = []
    critic_loss = policy.critic_loss

    def noted(data, rows):
        seen.append((rows.start, rows.stop))
        return critic_loss(data, rows)

    policy.critic_loss = noted
    policy.learn(batch)
    assert seen == [(15, 20), (10, 15), (5, 10), (0, 5)]
    assert policy.critic_updates == 4
    before = {name: p.clone() for name, p in policy.target_critic.named_parameters()}
    policy.learn(batch)  # the second of its steps is the sixth of all
    after = dict(policy.target_critic.named_parameters())
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(policy.target_critic.first.weight, policy.critic.first.weight)  # two more steps since


def test_more_spans_than_steps_leave_some_empty(spec, make_batch):
    policy = Coma(spec, critic_steps=16)
    assert np.isfinite(policy.learn(make_batch((3,))).metrics["critic_loss"])
    assert policy.critic_updates == 16


def situation(spec, n_envs):
    rng = np.random.default_rng(0)
    available = np.ones((n_envs, spec.n_agents, spec.n_actions), np.bool_)
    available[..., 3] = False
    return {
        "obs": np.repeat(rng.standard_normal((1, spec.n_agents, spec.obs_size), np.float32), n_envs, axis=0),
        "available": available,
        "last_actions": np.full((n_envs, spec.n_agents), -1),
        "hidden": np.zeros((n_envs, spec.n_agents, 64), np.float32),
    }


def test_actions_are_drawn_from_the_floored_softmax_and_never_an_unavailable_one(spec, make_batch):
    policy, now = Coma(spec, seed=4), situation(spec, 40_000)
    policy.agent.head.weight.data.mul_(20.0)
    actions, _ = policy.act(**now, epsilon=0.3, rng=np.random.default_rng(2))
    with torch.no_grad():
        logits, _ = policy.agent(
            torch.tensor(now["obs"][0]), torch.tensor(now["last_actions"][0]), torch.tensor(now["hidden"][0])
        )
    logits[:, 3] = -torch.inf
    expected = 0.7 * logits.softmax(1).numpy() + 0.3 * np.array([1, 1, 1, 0, 1]) / 4
    for a in range(spec.n_agents):
        counts = np.bincount(actions[:, a], minlength=spec.n_actions)
        assert counts[3] == 0
        np.testing.assert_allclose(counts / len(actions), expected[a], atol=0.012)


def test_without_exploration_the_most_probable_action_is_taken(spec):
    policy, now = Coma(spec), situation(spec, 3)
    actions, _ = policy.act(**now, epsilon=0.0, rng=np.random.default_rng(2))
    with torch.no_grad():
        logits, _ = policy.agent(
            torch.tensor(now["obs"][0]), torch.tensor(now["last_actions"][0]), torch.tensor(now["hidden"][0])
        )
    logits[:, 3] = -torch.inf
    np.testing.assert_array_equal(actions, np.broadcast_to(logits.argmax(1).numpy(), actions.shape))


def test_it_learns_which_of_two_actions_pays(spec):
    """One step, the team is paid for agent 0's action 1 only; from its own data it finds that out."""
    policy = Coma(spec, learning_rate=5e-3, critic_learning_rate=5e-3, optimizer="adam", critic_steps=4, seed=1)
    rng = np.random.default_rng(0)
    n = 32
    obs = np.repeat(rng.standard_normal((1, 2, spec.n_agents, spec.obs_size), np.float32), n, axis=0)
    state = np.repeat(rng.standard_normal((1, 2, spec.state_size), np.float32), n, axis=0)
    available = np.ones((n, 2, spec.n_agents, spec.n_actions), np.bool_)
    hidden = policy.initial_hidden(n)
    start = np.full((n, spec.n_agents), -1)
    for _ in range(60):
        actions, _ = policy.act(obs[:, 0], available[:, 0], start, hidden, epsilon=0.1, rng=rng)
        policy.learn(
            EpisodeBatch(
                obs=obs,
                state=state,
                available=available,
                actions=actions[:, None],
                reward=(actions[:, :1] == 1).astype(np.float32),
                lengths=np.ones(n, np.int32),
                terminated=np.ones(n, np.bool_),
                weights=np.ones(n, np.float32),
                epsilon=np.full(n, 0.1, np.float32),
            )
        )
    actions, _ = policy.act(obs[:, 0], available[:, 0], start, hidden, epsilon=0.0, rng=rng)
    assert (actions[:, 0] == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic_size": 0}, "critic_size must be at least 1, got 0"),
        ({"critic_steps": 0}, "critic_steps must be at least 1, got 0"),
        ({"critic_learning_rate": -1.0}, r"critic_learning_rate must be above 0, got -1\.0"),
    ],
)
def test_a_keyword_of_the_critic_out_of_range_is_refused(spec, options, message):
    with pytest.raises(ValueError, match=message):
        Coma(spec, **options)
