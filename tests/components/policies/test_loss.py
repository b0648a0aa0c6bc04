"""The loss against a reference that takes one agent, one step and one episode at a time, in float64."""

import re

import numpy as np
import pytest
import torch

from components.policies import Iql, Qmix, Qplex, Vdn


def reference_agent(agent, obs, last_action, number, hidden):
    """One agent's step as the paper draws it, with one-hot inputs put behind the observation."""
    spec_sizes = agent.n_actions, agent.n_agents
    action_one_hot, number_one_hot = (torch.zeros(size, dtype=torch.float64) for size in spec_sizes)
    if last_action >= 0:
        action_one_hot[last_action] = 1.0
    number_one_hot[number] = 1.0
    x = torch.relu(agent.embed(torch.cat([obs, action_one_hot, number_one_hot])))
    i_r, i_z, i_n = (agent.gru.weight_ih_l0 @ x + agent.gru.bias_ih_l0).chunk(3)
    h_r, h_z, h_n = (agent.gru.weight_hh_l0 @ hidden + agent.gru.bias_hh_l0).chunk(3)
    r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
    hidden = (1 - z) * torch.tanh(i_n + r * h_n) + z * hidden
    return agent.head(hidden), hidden


def reference_duplex(policy, mixer, q, best_q, state, actions):
    """Σ V + Σ λ A of the transformed values, one agent at a time; A has no gradient."""
    n_agents, chosen = len(q), torch.zeros(len(q), policy.spec.n_actions, dtype=torch.float64)
    for a, action in enumerate(actions):
        chosen[a, action] = 1.0
    of_w, of_b = torch.relu(mixer.first(state)).split(policy.hypernet_size)
    w, b = mixer.w(of_w).abs() + 1e-10, mixer.b(of_b)
    key, joint = mixer.key(state).abs() + 1e-10, mixer.joint(torch.cat([state, chosen.reshape(-1)]))
    total = 0.0
    for a in range(n_agents):
        weight = 0.0
        for k in range(policy.attention_heads):
            of_agent, of_joint = mixer.agent(state)[k * n_agents + a], joint[k * n_agents + a]
            weight = weight + key[k] * torch.sigmoid(of_agent) * torch.sigmoid(of_joint)
        advantage = (w[a] * q[a] + b[a]) - (w[a] * best_q[a] + b[a])
        value = (w[a] * q[a] + b[a]) - advantage.detach()
        total = total + value + weight * advantage.detach()
    return total.reshape(1)


def reference_mix(policy, mixer, q, state, best_q, actions):
    if isinstance(policy, Qplex):
        return reference_duplex(policy, mixer, q, best_q, state, actions)
    if isinstance(policy, Qmix):
        of_w_1, of_w_2, of_v, b_1 = mixer.first(state).split([policy.hypernet_size] * 2 + [policy.mixer_embed] * 2)
        w_1 = mixer.w_1(torch.relu(of_w_1)).abs().reshape(len(q), policy.mixer_embed)
        w_2 = mixer.w_2(torch.relu(of_w_2)).abs()
        inner = sum(q[a] * w_1[a] for a in range(len(q))) + b_1
        inner = torch.where(inner > 0, inner, inner.exp() - 1)
        return (w_2 @ inner + mixer.v(torch.relu(of_v))).reshape(1)
    return q.sum().reshape(1) if isinstance(policy, Vdn) else q


def best(q, batch, which, e, t, a):
    """Return the available action of highest value."""
    ranking = q[which, t, a].detach().clone()
    ranking[torch.tensor(~batch.available[e, t, a])] = -torch.inf
    return int(ranking.argmax())


def reference_loss(policy, batch):
    """Return the loss and the absolute TD error of every step of every episode."""
    spec, squares, count, errors = policy.spec, 0.0, 0, []
    for e, length in enumerate(batch.lengths.tolist()):
        q = {}
        for which, agent in (("online", policy.agent), ("target", policy.target_agent)):
            for a in range(spec.n_agents):
                hidden = torch.zeros(policy.options.hidden_size, dtype=torch.float64)
                for t in range(length + 1):
                    obs = torch.tensor(batch.obs[e, t, a], dtype=torch.float64)
                    last = int(batch.actions[e, t - 1, a]) if t else -1
                    q[which, t, a], hidden = reference_agent(agent, obs, last, a, hidden)
        state = torch.tensor(batch.state[e], dtype=torch.float64)
        chosen, values = [], [None]
        for t in range(length):
            picked = torch.stack([q["online", t, a][batch.actions[e, t, a]] for a in range(spec.n_agents)])
            best_q = torch.stack([q["online", t, a][best(q, batch, "online", e, t, a)] for a in range(spec.n_agents)])
            chosen.append(reference_mix(policy, policy.mixer, picked, state[t], best_q.detach(), batch.actions[e, t]))
            choosing = "online" if policy.double_q else "target"
            then = [best(q, batch, choosing, e, t + 1, a) for a in range(spec.n_agents)]
            worth = torch.stack([q["target", t + 1, a][then[a]] for a in range(spec.n_agents)])
            top = [q["target", t + 1, a][best(q, batch, "target", e, t + 1, a)] for a in range(spec.n_agents)]
            after = reference_mix(policy, policy.target_mixer, worth, state[t + 1], torch.stack(top), then)
            values.append(after.detach())
        if batch.terminated[e]:
            values[length] = torch.zeros_like(values[length])
        target, errors_e = None, []
        for t in reversed(range(length)):
            ahead = values[t + 1]
            if t + 1 < length:
                ahead = (1 - policy.options.td_lambda) * ahead + policy.options.td_lambda * target
            target = float(batch.reward[e, t]) + policy.options.gamma * ahead
            squares = squares + float(batch.weights[e]) * ((chosen[t] - target) ** 2).sum()
            count += len(target)
            errors_e.append(float((chosen[t] - target).abs().mean().detach()))
        errors.append(errors_e)
    return squares / count, errors


@pytest.fixture(params=[Iql, Vdn, Qmix, Qplex], ids=lambda algorithm: algorithm.__name__)
def algorithm(request):
    return request.param


def distinct(policy):
    """Give the target network parameters of its own, or nothing would tell the two apart."""
    noise = torch.Generator().manual_seed(7)
    for p in [*policy.target_agent.parameters(), *policy.target_mixer.parameters()]:
        p.data += 0.1 * torch.randn(p.shape, generator=noise, dtype=p.dtype)
    return policy


def parameters(policy):
    return dict([*policy.agent.named_parameters("agent"), *policy.mixer.named_parameters("mixer")])


def assert_agrees(policy, batch):
    loss = policy.td_loss(batch).loss
    gradients = torch.autograd.grad(loss, list(parameters(policy).values()))
    expected, _ = reference_loss(policy, batch)
    expected_gradients = torch.autograd.grad(expected, list(parameters(policy).values()))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-9)
    for name, got, want in zip(parameters(policy), gradients, expected_gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("td_lambda", [0.0, 0.6, 1.0])
def test_loss_and_every_gradient_agree_with_the_reference(algorithm, spec, make_batch, double_q, td_lambda):
    policy = algorithm(spec, hidden_size=8, double_q=double_q, td_lambda=td_lambda, dtype=torch.float64, seed=3)
    assert_agrees(distinct(policy), make_batch(weights=[0.3, 1.0, 0.7, 0.9]))


@pytest.mark.parametrize("lengths", [(1,), (9, 9, 9), (1, 1), (2, 5, 5, 3, 9, 1)], ids=str)
def test_episodes_may_come_in_any_order_and_length(algorithm, spec, make_batch, lengths):
    policy = algorithm(spec, hidden_size=8, td_lambda=0.5, dtype=torch.float64)
    assert_agrees(distinct(policy), make_batch(lengths))


def test_agents_that_see_nothing_count_as_any_other(algorithm, spec, make_batch):
    batch = make_batch((4, 9, 1, 6))
    batch.obs[0, 3:, 1] = batch.obs[1, 2:] = batch.obs[3, :, 0] = 0.0
    assert_agrees(distinct(algorithm(spec, hidden_size=8, td_lambda=0.5, dtype=torch.float64)), batch)


def test_what_lies_behind_the_end_of_an_episode_changes_nothing(algorithm, spec, make_batch):
    policy = algorithm(spec)
    clean, dirty = (policy.td_loss(make_batch(padding=padding)).loss.item() for padding in (0.0, np.nan))
    assert clean == dirty


def test_a_longer_padding_changes_nothing(algorithm, spec, make_batch):
    batch = make_batch((4, 9, 1, 6))
    short = {name: array[[0, 2, 3]] for name, array in batch.arrays().items()}
    cut = {
        name: array[:, : 7 if name in ("obs", "state", "available") else 6] if array.ndim > 1 else array
        for name, array in short.items()
    }
    policy = algorithm(spec)
    losses = [policy.td_loss(type(batch)(**fields)).loss.item() for fields in (short, cut)]
    assert losses[0] == losses[1]


def test_a_terminated_episode_ends_with_its_reward_and_a_cut_one_with_the_value_of_its_last_frame(spec, make_batch):
    policy = distinct(Qmix(spec, dtype=torch.float64))
    batch = make_batch((3,))
    ended = policy.td_loss(batch.replaced(terminated=np.array([True])))
    cut = policy.td_loss(batch.replaced(terminated=np.array([False])))
    assert ended.target[-1].item() == pytest.approx(float(batch.reward[0, 2]), abs=1e-12)
    assert cut.target[-1].item() != pytest.approx(ended.target[-1].item(), abs=1e-3)
    assert torch.equal(ended.target[:-1], cut.target[:-1])


def test_the_last_frame_of_a_cut_episode_matters_and_that_of_a_terminated_one_does_not(spec, make_batch):
    policy = distinct(Qmix(spec))
    batch = make_batch((3, 2))
    other = batch.replaced(obs=batch.obs.copy())
    other.obs[0, 3] += 1.0
    for terminated in (True, False):
        flags = np.array([terminated, True])
        same = [policy.td_loss(b.replaced(terminated=flags)).loss.item() for b in (batch, other)]
        assert (same[0] == same[1]) is terminated


def test_no_gradient_flows_through_the_target(spec, make_batch):
    policy = Qmix(spec)
    loss = policy.td_loss(make_batch()).loss
    targets = [*policy.target_agent.parameters(), *policy.target_mixer.parameters()]
    assert all(g is None for g in torch.autograd.grad(loss, targets, allow_unused=True))


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_priorities_mix_the_largest_and_the_mean_error_of_each_episode(algorithm, spec, make_batch, eta):
    policy = distinct(algorithm(spec, hidden_size=8, priority_eta=eta, dtype=torch.float64))
    batch = make_batch()
    _, errors = reference_loss(policy, batch)
    expected = [eta * max(e) + (1 - eta) * sum(e) / len(e) for e in errors]
    learned = policy.learn(batch)
    assert learned.priorities.dtype == np.float32
    np.testing.assert_allclose(learned.priorities, expected, rtol=1e-6)


def test_float32_agrees_with_float64(spec, make_batch):
    batch = make_batch()
    single, double = Qmix(spec), Qmix(spec, dtype=torch.float64)
    for p, q in zip(parameters(single).values(), parameters(double).values(), strict=True):
        q.data.copy_(p.data)
    for p, q in zip(single.target_mixer.parameters(), double.target_mixer.parameters(), strict=True):
        q.data.copy_(p.data)
    for p, q in zip(single.target_agent.parameters(), double.target_agent.parameters(), strict=True):
        q.data.copy_(p.data)
    assert single.td_loss(batch).loss.item() == pytest.approx(double.td_loss(batch).loss.item(), rel=1e-5)


def test_metrics_say_what_was_learnt(spec, make_batch):
    policy = distinct(Qmix(spec))
    batch = make_batch()
    td = policy.td_loss(batch)
    metrics = policy.learn(batch).metrics
    assert metrics["loss"] == pytest.approx(td.loss.item())
    assert metrics["q_taken"] == pytest.approx(td.q_taken.mean().item())
    assert metrics["target"] == pytest.approx(td.target.mean().item())
    assert metrics["td_error"] == pytest.approx((td.q_taken - td.target).abs().mean().item())
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize(
    ("field", "shape", "expected"),
    [
        ("obs", (4, 10, 3, 8), "obs: expected float32 of shape (4, 10, 3, 7), got float32 of shape (4, 10, 3, 8)"),
        ("state", (4, 9, 6), "state: expected float32 of shape (4, 10, 6), got float32 of shape (4, 9, 6)"),
        ("weights", (3,), "weights: expected shape (4,), got (3,)"),
    ],
)
def test_a_batch_of_another_shape_is_refused(spec, make_batch, field, shape, expected):
    policy = Qmix(spec)
    with pytest.raises(ValueError, match=f"^batch.{re.escape(expected)}$"):
        policy.learn(make_batch().replaced(**{field: np.zeros(shape, np.float32)}))


def test_a_length_that_is_none_is_refused(spec, make_batch):
    policy = Qmix(spec)
    with pytest.raises(ValueError, match="lengths: expected at least one episode of 1 to 9 steps each"):
        policy.learn(make_batch().replaced(lengths=np.array([4, 10, 1, 6], np.int32)))
