"""Hierarchical QMIX: sub-tasks last c steps, actions are of them, and both levels learn what their formulas say."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.digests import Digests
from components.envs.base import EnvSpec, Subtask
from components.policies import ALGORITHMS, EpisodeBatch
from components.policies.acting import RecurrentActing, epsilon_greedy
from components.policies.hierarchical import Hierq
from components.policies.hierarchical_acting import HierarchicalActing, Levels
from components.policies.hierarchical_learning import Choices, by_part
from components.synchronization import compare, probe_outputs
from orchestra import UsageError

SPEC = EnvSpec(
    "toy",
    n_agents=2,
    n_actions=6,
    obs_size=3,
    state_size=4,
    episode_limit=7,
    subtasks=(Subtask("left", (0, 1, 2)), Subtask("right", (3, 4, 5)), Subtask("far", (2, 5))),
    action_grid=(2, 3),
)


def learner(spec: EnvSpec = SPEC, **options) -> Hierq:
    return Hierq(spec, **({"seed": 0, "subtask_steps": 3, "kernels": "torch", "dtype": torch.float64} | options))


def drawn_batch(seed: int, spec: EnvSpec = SPEC, n: int = 5) -> EpisodeBatch:
    """Return episodes of 1 to 7 steps whose actions and sub-tasks are drawn, as if somebody had acted so."""
    rng, (t, a) = np.random.default_rng(seed), (spec.episode_limit, spec.n_agents)
    available = rng.random((n, t + 1, a, spec.n_actions)) < 0.6
    available[..., 0] = True
    actions = (rng.random(available[:, :-1].shape) * available[:, :-1]).argmax(-1)
    lengths = rng.integers(1, t + 1, n).astype(np.int32)
    subtask = np.repeat(rng.integers(0, len(spec.subtasks), (n, t, a))[:, ::3], 3, axis=1)[:, :t]
    return EpisodeBatch(
        obs=rng.normal(size=(n, t + 1, a, spec.obs_size)).astype(np.float32),
        state=rng.normal(size=(n, t + 1, spec.state_size)).astype(np.float32),
        available=available,
        actions=actions,
        subtask=subtask,
        reward=rng.normal(size=(n, t)).astype(np.float32),
        lengths=lengths,
        terminated=rng.random(n) < 0.5,
        weights=rng.random(n).astype(np.float32) + 0.5,
    )


def test_the_return_of_a_sub_task_is_worked_out_by_hand():
    choices = Choices(np.array([5], np.int32), 5, 2)
    assert (choices.begins.tolist(), choices.ends.tolist()) == ([0, 2, 4], [2, 4, 5])
    reward, at_end = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]]), np.array([10.0, 40.0, 8.0])
    # 1 + 2/2 + 10/4, 3 + 4/2 + 40/4, 5 + 8/2
    assert choices.returns(reward, at_end, gamma=0.5, td_lambda=0.0).tolist() == [4.5, 15.0, 9.0]
    # 3 + 4/2 + (40 + 9)/2/4 = 11.125; 1 + 2/2 + (10 + 11.125)/2/4 = 4.640625
    assert choices.returns(reward, at_end, gamma=0.5, td_lambda=0.5).tolist() == [4.640625, 11.125, 9.0]


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    c=st.integers(1, 4),
    gamma=st.floats(0.0, 1.0),
    td_lambda=st.floats(0.0, 1.0),
    seed=st.integers(0, 1000),
)
def test_returns_of_sub_tasks_are_those_of_a_plain_loop(lengths, c, gamma, td_lambda, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(len(lengths), max(lengths)))
    choices = Choices(np.array(lengths, np.int32), max(lengths), c)
    at_end, expected = rng.normal(size=len(choices.episode)), []
    values = iter(at_end)
    for episode, length in enumerate(lengths):
        ends = [(t, min(t + c, length), next(values)) for t in range(0, length, c)]
        ahead, returns = None, []
        for begin, end, value in reversed(ends):
            mixed = value if ahead is None else (1 - td_lambda) * value + td_lambda * ahead
            ahead = sum(gamma**k * reward[episode, t] for k, t in enumerate(range(begin, end)))
            ahead += gamma ** (end - begin) * mixed
            returns.insert(0, ahead)
        expected += returns
    np.testing.assert_allclose(choices.returns(reward, at_end, gamma=gamma, td_lambda=td_lambda), expected, atol=1e-9)


def test_the_value_of_an_action_is_the_sum_over_its_parts():
    values = torch.tensor([1.0, 10.0, 0.1, 0.2, 0.3])
    assert by_part(values, (2, 3)).tolist() == pytest.approx([1.1, 1.2, 1.3, 10.1, 10.2, 10.3])
    assert by_part(values, (5,)).tolist() == values.tolist()


def values_of(network: RecurrentActing, levels: Levels, batch: EpisodeBatch, e: int) -> list[np.ndarray]:
    """Return the outputs (A, V) in each frame of an episode, one step at a time."""
    hidden, told, said = network.initial_hidden(1), np.full((1, 2), -1), []
    for t in range(batch.lengths[e] + 1):
        out, hidden = network.values(batch.obs[e : e + 1, t], told, hidden)
        said.append(out[0].astype(np.float64).copy())
        if t < batch.lengths[e]:
            told = levels.done(batch["subtask"][e : e + 1, t], batch.actions[e : e + 1, t])
    return said


class PlainEpisode:
    """The errors of both levels in one episode, one frame and agent at a time."""

    def __init__(self, policy: Hierq, batch: EpisodeBatch, e: int) -> None:
        self.own = policy.learner
        self.batch, self.e, self.length = batch, e, int(batch.lengths[e])
        self.subtask, self.reward = batch["subtask"][e], batch.reward[e]
        networks = []
        for agent in (self.own.agent, self.own.target_agent):
            hidden_size = self.own.options.hidden_size
            acting = RecurrentActing(self.own.levels.network_spec, epsilon_greedy, hidden_size=hidden_size)
            acting.load(np.concatenate([p.detach().numpy().reshape(-1) for p in agent.parameters()]).astype(np.float32))
            networks.append(values_of(acting, self.own.levels, batch, e))
        self.online, self.target = networks
        self.picks = self.online if self.own.double_q else self.target

    def mixed(self, mixer, q, t: int) -> float:
        state = torch.from_numpy(self.batch.state[self.e, t : t + 1].astype(np.float64))
        with torch.no_grad():
            return float(mixer(torch.tensor([q], dtype=torch.float64), state))

    def q(self, out, agent: int, subtask: int, action: int) -> float:
        return sum(out[agent, part] for part in self.own.levels.parts[subtask, action])

    def lower_value(self, t: int) -> float:
        chosen = []
        for a in range(2):
            mine = self.subtask[min(t, self.length - 1), a]
            available = self.batch.available[self.e, t, a]
            may = [u for u in SPEC.subtasks[mine].actions if available[u]] or np.flatnonzero(available)
            values = [self.q(self.picks[t], a, mine, u) for u in may]
            chosen.append(self.q(self.target[t], a, mine, may[int(np.argmax(values))]))
        return self.mixed(self.own.target_lower_mixer, chosen, t)

    def upper_value(self, t: int) -> float:
        n = len(SPEC.subtasks)
        chosen = [self.target[t][a, int(self.picks[t][a, :n].argmax())] for a in range(2)]
        return self.mixed(self.own.target_upper_mixer, chosen, t)

    def lower_errors(self) -> list[float]:
        gamma, lam, ahead, errors = self.own.options.gamma, self.own.options.td_lambda, None, []
        for t in reversed(range(self.length)):
            value = 0.0 if t + 1 == self.length and self.batch.terminated[self.e] else self.lower_value(t + 1)
            ahead = self.reward[t] + gamma * (value if ahead is None else (1 - lam) * value + lam * ahead)
            actions = self.batch.actions[self.e, t]
            q = [self.q(self.online[t], a, self.subtask[t, a], actions[a]) for a in range(2)]
            errors.append(self.mixed(self.own.lower_mixer, q, t) - ahead)
        return errors

    def upper_errors(self) -> list[float]:
        gamma, lam, ahead, errors = self.own.options.gamma, self.own.options.td_lambda, None, []
        c = self.own.levels.subtask_steps
        for begin in reversed(range(0, self.length, c)):
            end = min(begin + c, self.length)
            value = 0.0 if end == self.length and self.batch.terminated[self.e] else self.upper_value(end)
            value = value if ahead is None else (1 - lam) * value + lam * ahead
            ahead = sum(gamma ** (t - begin) * self.reward[t] for t in range(begin, end))
            ahead += gamma ** (end - begin) * value
            q = [self.online[begin][a, self.subtask[begin, a]] for a in range(2)]
            errors.append(self.mixed(self.own.upper_mixer, q, begin) - ahead)
        return errors


def plain_losses(policy: Hierq, batch: EpisodeBatch) -> tuple[float, float]:
    """Return the losses of the lower and the upper level."""
    lower, upper = [], []
    for e, weight in enumerate(batch.weights):
        episode = PlainEpisode(policy, batch, e)
        lower += [weight * error**2 for error in episode.lower_errors()]
        upper += [weight * error**2 for error in episode.upper_errors()]
    return float(np.mean(lower)), float(np.mean(upper))


@pytest.mark.parametrize("factored", [True, False])
@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("mixing", ["qmix", "vdn"])
def test_the_losses_of_both_levels_are_those_of_a_plain_loop(factored, double_q, mixing):
    policy = learner(factored=factored, double_q=double_q, mixing=mixing, td_lambda=0.4, learning_rate=0.05)
    policy.learn(drawn_batch(0))  # from here on, target networks are others
    batch = drawn_batch(1)
    expected = plain_losses(policy, batch)
    metrics = policy.learn(batch).metrics
    assert (metrics["lower_loss"], metrics["upper_loss"]) == pytest.approx(expected, rel=1e-3)
    assert metrics["loss"] == pytest.approx(sum(expected), rel=1e-3)


def test_compiled_loops_learn_as_plain_torch_does():
    batches = [drawn_batch(seed) for seed in range(3)]
    ends = []
    for kernels in ("numba", "torch"):
        policy = learner(kernels=kernels, td_lambda=0.5)
        ends.append([policy.learn(batch).metrics["loss"] for batch in batches] + policy.params().tolist()[:200])
    np.testing.assert_allclose(*ends, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.7])
@pytest.mark.parametrize("upper", ["learned", "random"])
def test_sub_tasks_last_c_steps_and_actions_are_available_ones_of_them(epsilon, upper):
    policy, rng = learner(upper=upper, seed=3), np.random.default_rng(0)
    hidden, last, seen = policy.initial_hidden(20), np.full((20, 2), -1), []
    for _ in range(9):
        available = rng.random((20, 2, 6)) < 0.5
        available[..., 0] = True
        frames = {"obs": rng.normal(size=(20, 2, 3)).astype(np.float32), "available": available}
        acted = policy.act_on(frames, last, hidden, epsilon=epsilon, rng=rng)
        last, hidden = acted.actions, acted.hidden
        subtask = acted.fields["subtask"]
        seen.append(subtask)
        members = policy.learner.levels.members[subtask]
        assert np.take_along_axis(available, last[..., None], -1).all()
        fits = np.take_along_axis(members, last[..., None], -1)[..., 0]
        assert (fits | ~(members & available).any(-1)).all()
    assert all((seen[t] == seen[t - t % 3]).all() for t in range(9))
    assert (seen[0] != seen[3]).any() if upper == "random" or epsilon else True
    assert upper == "learned" or len(np.unique(seen)) == 3


def test_workers_act_as_the_learner_does():
    policy = learner(dtype=torch.float32)
    algorithm = ALGORITHMS["hierq"].configured(subtask_steps=3)
    acting = algorithm.acting(SPEC, seed=0)
    assert isinstance(acting, HierarchicalActing)
    acting.load(policy.params())
    frames = {"obs": np.ones((4, 2, 3), np.float32), "available": np.ones((4, 2, 6), np.bool_)}
    told = [
        each.act_on(frames, np.full((4, 2), -1), each.initial_hidden(4), epsilon=0.5, rng=np.random.default_rng(1))
        for each in (policy, acting)
    ]
    for mine, theirs in zip(told[0].fields.values(), told[1].fields.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(told[0].actions, told[1].actions)
    np.testing.assert_allclose(told[0].hidden, told[1].hidden, atol=1e-6)


def test_versions_are_compared_by_the_values_of_actions_in_the_greedy_sub_task():
    policy, rng = learner(dtype=torch.float32), np.random.default_rng(2)
    acting = ALGORITHMS["hierq"].configured(subtask_steps=3).acting(SPEC, seed=0)
    acting.load(policy.params())
    last, hidden = np.full((20, 2), -1), acting.initial_hidden(20)
    for _ in range(7):  # over the ends of two sub-tasks
        frames = {"obs": rng.normal(size=(20, 2, 3)).astype(np.float32), "available": rng.random((20, 2, 6)) < 0.7}
        frames["available"][..., 0] = True
        said, after = acting.outputs(frames, last, hidden)
        acted = acting.act_on(frames, last, hidden, epsilon=0.0, rng=rng)
        offered = policy.learner.levels.offered(frames["available"], acted.fields["subtask"])
        np.testing.assert_array_equal(np.where(offered, said["logits"], -np.inf).argmax(-1), acted.actions)
        np.testing.assert_array_equal(after, acted.hidden)
        last, hidden = acted.actions, acted.hidden
    drawn, news = Digests(SPEC.schema, policy, np.random.default_rng(0)).make(1, drawn_batch(4, n=20))
    assert compare(probe_outputs(acting, drawn), news.outputs, drawn, "kl") < 1e-6
    other = ALGORITHMS["hierq"].configured(subtask_steps=3).acting(SPEC, seed=0)
    other.load(learner(seed=9, dtype=torch.float32).params())
    assert compare(probe_outputs(other, drawn), news.outputs, drawn, "kl") > 1e-5
    assert drawn.inputs["last_actions"].shape[1] == 8


def test_both_levels_learn_a_task_of_two_levels():
    """Agents are shown which of four actions pays, and only the right sub-task has it: 1 a step if both do it."""
    tasks = (Subtask("low", (0, 1)), Subtask("high", (2, 3)))
    spec = replace(SPEC, n_actions=4, obs_size=4, episode_limit=6, subtasks=tasks, action_grid=())
    policy = learner(
        spec, dtype=torch.float32, gamma=0.9, learning_rate=5e-3, optimizer="adam", target_update_interval=10
    )
    rng, n = np.random.default_rng(0), 32

    def play(epsilon: float) -> EpisodeBatch:
        pays = rng.integers(0, 4, n)
        obs = np.tile(np.eye(4, dtype=np.float32)[pays][:, None, None], (1, 7, 2, 1))
        frames = {"obs": obs[:, 0], "available": np.ones((n, 2, 4), np.bool_)}
        hidden, last, actions, subtasks = policy.initial_hidden(n), np.full((n, 2), -1), [], []
        for _ in range(6):
            acted = policy.act_on(frames, last, hidden, epsilon=epsilon, rng=rng)
            last, hidden = acted.actions, acted.hidden
            actions.append(last)
            subtasks.append(acted.fields["subtask"])
        right = np.stack(actions, 1) == pays[:, None, None]
        return EpisodeBatch(
            obs=obs,
            state=np.tile(np.eye(4, dtype=np.float32)[pays][:, None], (1, 7, 1)),
            available=np.ones((n, 7, 2, 4), np.bool_),
            actions=np.stack(actions, 1),
            subtask=np.stack(subtasks, 1),
            reward=right.all(2).astype(np.float32),
            lengths=np.full(n, 6, np.int32),
            terminated=np.ones(n, np.bool_),
            weights=np.ones(n, np.float32),
        )

    assert play(0.0).reward.mean() < 0.6
    for update in range(150):
        policy.learn(play(max(0.05, 1.0 - update / 75)))
    assert play(0.0).reward.mean() == 1.0


def test_the_shares_of_sub_tasks_in_a_batch_are_told():
    batch = drawn_batch(0)
    real = [batch["subtask"][e, t, a] for e in range(5) for t in range(batch.lengths[e]) for a in range(2)]
    metrics = learner().learn(batch).metrics
    told = {name: metrics[f"subtask/{name}"] for name in ("left", "right", "far")}
    assert told == {name: pytest.approx(real.count(k) / len(real)) for k, name in enumerate(told)}


def test_a_state_of_learning_is_saved_and_loaded():
    policy, other = learner(), learner(seed=5)
    policy.learn(drawn_batch(0))
    other.load_state_dict(policy.state_dict())
    batch = drawn_batch(1)
    assert policy.learn(batch).metrics == other.learn(batch).metrics
    np.testing.assert_array_equal(policy.params(), other.params())


def test_environments_without_sub_tasks_are_refused_by_name():
    with pytest.raises(UsageError, match=r"needs sub-tasks \(EnvSpec.subtasks\), which toy does not have"):
        learner(replace(SPEC, subtasks=()))
    with pytest.raises(UsageError, match="sub-task 'odd' of toy must have actions of 0 to 5"):
        learner(replace(SPEC, subtasks=(Subtask("odd", (3, 6)),)))


def test_a_batch_without_sub_tasks_is_refused_by_the_field_s_name():
    batch = drawn_batch(0)
    arrays = {name: array for name, array in batch.arrays().items() if name != "subtask"}
    with pytest.raises(ValueError, match=r"batch.subtask: expected shape \(5, 7, 2\), got nothing"):
        learner().learn(EpisodeBatch(**arrays))
