"""PQN: its targets are λ-returns of the present network, workers act as it says, and nothing else is kept."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpu import cuda

from components.envs import EnvSpec, Skirmish
from components.experience import FieldSpec
from components.policies import ALGORITHMS, EpisodeBatch, parallel
from components.policies.in_rounds import InRounds
from components.policies.pqn import Pqn, PqnVdn
from components.policies.pqn_learning import PqnLearner
from components.replay_buffers import FreshEpisodes
from components.rollout import Rollout
from components.threads import with_threads
from components.trajectory_manager import segments_of
from orchestra import UsageError

SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=4, episode_limit=9)
KINDS = {
    "pqn": ("pqn", {}),
    "pqn with memory": ("pqn", {"recurrent": True}),
    "vdn": ("pqn-vdn", {}),
    "vdn with memory": ("pqn-vdn", {"recurrent": True}),
}
EACH = pytest.mark.parametrize("kind", KINDS)


def learner_of(name: str, spec: EnvSpec = SPEC, device: str = "cpu", **options: object) -> PqnLearner:
    policy = ALGORITHMS[name].configured(**{"hidden_size": 8, **options}).learner(spec, seed=1, device=device)
    assert isinstance(policy, InRounds)
    assert isinstance(policy.learner, PqnLearner)
    return policy.learner


def batch_of(lengths: list[int], terminated: list[bool], *, seed: int = 0) -> EpisodeBatch:
    rng = np.random.default_rng(seed)
    e, t, a = len(lengths), max(lengths), 2
    return EpisodeBatch(
        obs=rng.normal(size=(e, t + 1, a, 4)).astype(np.float32),
        state=np.zeros((e, t + 1, 4), np.float32),
        available=rng.random((e, t + 1, a, 3)) < [1.0, 0.5, 0.5],
        actions=rng.integers(0, 3, (e, t, a)),
        reward=rng.normal(size=(e, t)).astype(np.float32),
        lengths=np.array(lengths, np.int32),
        terminated=np.array(terminated),
        weights=np.ones(e, np.float32),
        hidden=rng.uniform(-1.0, 1.0, (e, a, 8)).astype(np.float32),
        before=rng.integers(-1, 3, (e, a)),
    )


def values_of(learner: PqnLearner, batch: EpisodeBatch, e: int) -> list[list[torch.Tensor]]:
    """Return the action values of each agent in each frame of a segment, one agent and one step at a time."""
    net, spec, values = learner.network, learner.spec, []
    hidden = [torch.from_numpy(batch["hidden"][e, a])[None, None] for a in range(spec.n_agents)]
    for t in range(int(batch.lengths[e]) + 1):
        here = []
        for a in range(spec.n_agents):
            x = [torch.from_numpy(batch.obs[e, t, a]), torch.eye(spec.n_agents)[a]]
            if learner.sizes.recurrent:
                last = int(batch.actions[e, t - 1, a]) if t else int(batch["before"][e, a])
                x.append(torch.eye(spec.n_actions)[last] if last >= 0 else torch.zeros(spec.n_actions))
            row = torch.cat(x)
            for linear, norm, _ in net.layers:
                row = linear(row)
                row = (row - row.mean()) / torch.sqrt(row.var(correction=0) + 1e-5) * norm.weight + norm.bias
                row = row.clamp(min=0.0)
            if net.gru is not None:
                out, hidden[a] = net.gru(row[None, None], hidden[a])
                row = out[0, 0]
            here.append(net.head(row))
        values.append(here)
    return values


@torch.no_grad()
def reference(learner: PqnLearner, batch: EpisodeBatch) -> list[tuple[list[float], list[float]]]:
    """Return what each step's action was worth and its target, by the definition of a λ-return, step by step."""
    on, found = learner.learning, []
    for e, length in enumerate(batch.lengths.tolist()):
        values = values_of(learner, batch, e)
        may = batch.available[e]
        best = [
            [float(max(values[t][a][u] for u in np.flatnonzero(may[t, a]))) for a in (0, 1)] for t in range(length + 1)
        ]
        taken = [[float(values[t][a][batch.actions[e, t, a]]) for a in (0, 1)] for t in range(length)]
        if on.vdn:
            best, taken = [[sum(row)] for row in best], [[sum(row)] for row in taken]
        for t in range(length):
            targets = []
            for m in range(len(taken[t])):
                # G = (1 - λ) Σ_n λ^(n-1) G_n, where all n-step returns beyond the end are that to the end.
                total, left, discount, rewards = 0.0, 1.0, 1.0, 0.0
                for n in range(t, length):
                    rewards += discount * on.reward_scale * float(batch.reward[e, n])
                    discount *= on.gamma
                    last = n == length - 1
                    ahead = 0.0 if last and batch.terminated[e] else best[n + 1][m]
                    weight = left if last else left * (1 - on.td_lambda)
                    total += weight * (rewards + discount * ahead)
                    left *= on.td_lambda
                targets.append(total)
            found.append((taken[t], targets))
    return found


@EACH
@pytest.mark.parametrize("td_lambda", [0.0, 0.6, 1.0])
def test_targets_are_the_lambda_returns_of_the_present_network_by_their_definition(kind, td_lambda) -> None:
    name, options = KINDS[kind]
    learner = learner_of(name, td_lambda=td_lambda, gamma=0.9, reward_scale=0.5, **options)
    batch = batch_of([3, 1, 4, 4], [True, False, False, True])  # others were cut, or go on
    with torch.no_grad():
        segments = learner.segments(batch)
        q = learner.values(segments)
        taken, target = learner.taken(segments, q), learner.targets(segments, q)
    expected = reference(learner, batch)
    # Packed steps in the order of the batch: segment after segment.
    at = np.argsort(segments.packing.steps)
    assert segments.packing.steps[at].tolist() == list(range(sum(batch.lengths)))
    np.testing.assert_allclose(taken.numpy()[at], [each[0] for each in expected], atol=1e-5)
    np.testing.assert_allclose(target.numpy()[at], [each[1] for each in expected], atol=1e-5)


def test_a_lambda_return_by_hand() -> None:
    learner = learner_of("pqn-vdn", td_lambda=0.5, gamma=0.9)
    batch = batch_of([3], [False]).replaced(reward=np.array([[1.0, 2.0, 3.0]], np.float32))
    segments = learner.segments(batch)
    q = torch.zeros(4, 2, 3)
    q[:, :, 0] = torch.tensor([[10.0, 0.0], [1.0, 2.0], [0.0, 4.0], [5.0, 1.0]])  # the team's: 10, 3, 4, 6
    segments.available[:] = True
    # Last: 3 + 0.9 * 6 = 8.4. Before: 2 + 0.9 (0.5 * 4 + 0.5 * 8.4) = 7.58. First: 1 + 0.9 (0.5 * 3 + 0.5 * 7.58).
    assert learner.targets(segments, q)[:, 0].tolist() == pytest.approx([5.761, 7.58, 8.4])
    segments.terminated[:] = True
    # 3, then 2 + 0.9 (0.5 * 4 + 0.5 * 3) = 5.15, and 1 + 0.9 (0.5 * 3 + 0.5 * 5.15) = 4.6675.
    assert learner.targets(segments, q)[:, 0].tolist() == pytest.approx([4.6675, 5.15, 3.0])


@EACH
def test_workers_act_by_the_values_that_the_learner_unrolls(kind) -> None:
    name, options = KINDS[kind]
    env = Skirmish("3m", 6, seed=4)
    learner = learner_of(name, env.spec, **options)
    algorithm = ALGORITHMS[name].configured(hidden_size=8, **options)
    acting = algorithm.acting(env.spec, seed=0)
    acting.load(learner.params())
    message = Rollout(env, acting, np.random.default_rng(0), segment_length=7).collect(75, 0.0)
    assert message is not None
    replay = FreshEpisodes(algorithm.schema(env.spec, 7), 500)
    replay.insert(segments_of(message))
    batch = replay.sample(message.segments, np.random.default_rng(0)).batch
    assert message.first.any()
    segments = learner.segments(batch)
    with torch.no_grad():
        q = learner.values(segments)
    q = torch.where(segments.available, q, -torch.inf)[segments.packing.departs]
    chosen = q.gather(2, segments.actions.unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(chosen, q.amax(2), atol=1e-4, rtol=0)  # greedy, in segments that go on too
    last = np.full((6, 3), -1)
    said, after = acting.outputs(env.fields(), last, acting.initial_hidden(6))
    acted = acting.act_on(env.fields(), last, acting.initial_hidden(6), epsilon=0.0, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(after, acted.hidden)
    x = torch.from_numpy(learner.sizes.inputs(env.fields()["obs"], last))
    hidden = torch.zeros(6, 3, 8) if learner.sizes.recurrent else None
    with torch.no_grad():
        np.testing.assert_allclose(said["logits"], learner.network(x, hidden, (6,)).numpy(), atol=1e-5)
    best = np.where(env.fields()["available"], said["logits"], -np.inf).argmax(-1)
    np.testing.assert_array_equal(best, acted.actions)


def test_acting_draws_any_available_action_with_epsilon_1() -> None:
    acting = ALGORITHMS["pqn"].acting(SPEC, seed=0)
    frames = {"obs": np.zeros((500, 2, 4), np.float32), "available": np.ones((500, 2, 3), np.bool_)}
    frames["available"][..., 1] = False
    frame = (frames, np.full((500, 2), -1), acting.initial_hidden(500))
    drawn = acting.act_on(*frame, epsilon=1.0, rng=np.random.default_rng(0)).actions
    assert set(np.unique(drawn)) == {0, 2}


@EACH
def test_an_update_learns_from_each_step_once_an_epoch_toward_its_own_target(kind) -> None:
    name, options = KINDS[kind]
    learner = learner_of(name, epochs=3, minibatches=4, **options)
    batch = batch_of([3, 1, 4, 4, 2, 2], [True, False] * 3)
    with torch.no_grad():
        minibatches = list(learner._minibatches(batch))
        parts = [torch.cat(each.values_of(each.items), 1).numpy() for each in minibatches]
    assert [each.n_steps for each in minibatches] == [len(part) for part in parts]
    assert len(parts) == 12
    epochs = [np.concatenate(parts[i : i + 4]) for i in (0, 4, 8)]
    expected = np.array([[*taken, *target] for taken, target in reference(learner, batch)])
    for epoch in epochs:
        assert len(epoch) == 16
        np.testing.assert_allclose(epoch[epoch[:, -1].argsort()], expected[expected[:, -1].argsort()], atol=1e-5)
    assert not np.array_equal(epochs[0], epochs[1]), "each epoch has an order of its own"


@EACH
def test_an_update_in_parts_is_that_of_the_whole_and_the_same_with_any_number_of_threads(monkeypatch, kind) -> None:
    name, options = KINDS[kind]
    batch, threads = batch_of([3, 1, 4, 4, 2, 2], [True, False] * 3), torch.get_num_threads()
    monkeypatch.setattr(parallel, "ROWS_OF_A_PART", 1)
    learned = []
    try:
        for n_parts, n_threads in ((1, 1), (3, 1), (3, 2), (3, 3)):
            monkeypatch.setattr(parallel, "MOST_PARTS", n_parts)
            learner = learner_of(name, epochs=2, minibatches=2, **options)
            learned.append((with_threads(n_threads, learner.learn, batch).metrics, learner.params()))
    finally:
        torch.set_num_threads(threads)
    (metrics, params), *others = learned
    for found, after in others:
        assert found == pytest.approx(metrics, rel=1e-4)
        np.testing.assert_allclose(after, params, atol=1e-5)
        assert found == others[0][0]
        np.testing.assert_array_equal(after, others[0][1])


@cuda
@EACH
def test_a_gpu_learns_what_the_cpu_learns_and_the_same_again(kind) -> None:
    name, options = KINDS[kind]
    here, there, again = (learner_of(name, device=device, **options) for device in ("cpu", "cuda", "cuda"))
    for learner in (here, there, again):
        for seed in range(3):
            learner.learn(batch_of([3, 1, 4, 4, 2, 2], [True, False] * 3, seed=seed))
    np.testing.assert_array_equal(there.params(), again.params())
    np.testing.assert_allclose(there.params(), here.params(), atol=2e-4)


@EACH
def test_targets_stay_as_they_are_while_an_update_goes_on(kind) -> None:
    name, options = KINDS[kind]
    learner = learner_of(name, epochs=2, minibatches=1, learning_rate=0.05, **options)
    targets, worth = [], []
    for each in learner._minibatches(batch_of([3, 4], [True, False])):
        taken, target = each.values_of(each.items)
        worth.append(taken.detach().sort(0)[0])
        targets.append(target.sort(0)[0])
        learner._optimizers["all"].step((taken - target).square().mean(), "a step")
    assert torch.equal(*targets)
    assert not torch.allclose(*worth)


def test_it_keeps_no_target_network_and_nothing_of_a_batch() -> None:
    learner = learner_of("pqn")
    batch = batch_of([3, 4], [True, False])
    learner.learn(batch)
    other = copy.deepcopy(learner.state_dict())
    assert other["target"] == {}
    fresh = learner_of("pqn", learning_rate=2.5e-4)
    fresh.load_state_dict(other)
    assert learner.learn(batch).metrics == fresh.learn(batch).metrics
    np.testing.assert_array_equal(learner.params(), fresh.params())
    assert other["optimizers"]["all"]["kind"] == "radam"


def test_the_learning_rate_falls_linearly_and_the_first_update_has_all_of_it() -> None:
    learner, rates = learner_of("pqn", anneal=4, learning_rate=0.01, epochs=1), []
    for _ in range(5):
        learner.learn(batch_of([3, 4], [True, False]))
        rates.append(learner._optimizers["all"].learning_rate)
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])


@pytest.mark.parametrize("name", ["pqn", "pqn-vdn"])
def test_it_learns_which_action_pays(name) -> None:
    learner = learner_of(name, hidden_size=32, learning_rate=5e-3, minibatches=4, epochs=2)
    for k in range(40):
        batch = batch_of([1] * 64, [True] * 64, seed=k)
        pays = batch.obs[:, :1, :, :3].argmax(-1)
        batch = batch.replaced(hidden=np.zeros((64, 2, 32), np.float32))
        learner.learn(batch.replaced(reward=(batch.actions == pays).sum(-1).astype(np.float32)))
    frames = {
        "obs": np.random.default_rng(99).normal(size=(200, 2, 4)).astype(np.float32),
        "available": np.ones((200, 2, 3), np.bool_),
    }
    acted = learner.act_on(frames, np.full((200, 2), -1), learner.initial_hidden(200), epsilon=0.0, rng=None)
    assert (acted.actions == frames["obs"][..., :3].argmax(-1)).mean() > 0.8


def test_an_environment_that_it_cannot_play_is_refused_in_a_sentence() -> None:
    mask = ("available", FieldSpec((3,), "bool", "frame", agents=True))
    image = ("obs", FieldSpec((2, 2), "uint8", "frame", agents=True))
    flat = ("obs", FieldSpec((4,), per="frame", agents=True))
    actions = ("actions", FieldSpec((), "int64", agents=True, n_values=(3,)))
    box = ("actions", FieldSpec((2,), "float32", agents=True))
    reward = ("reward", FieldSpec((), "float32"))
    for fields in ((image, mask, actions, reward), (flat, box, reward)):
        with pytest.raises(UsageError, match="flat observations and discrete actions, which tiny does not have"):
            Pqn(replace(SPEC, fields=fields), seed=0)
    own = ("reward", FieldSpec((), "float32", agents=True))
    with pytest.raises(UsageError, match=r"one reward of the team, which tiny does not have; --rewards mean"):
        PqnVdn(replace(SPEC, fields=(flat, mask, actions, own)), seed=0)
    assert Pqn(replace(SPEC, fields=(flat, mask, actions, own)), seed=0).learner.sizes.n_inputs == 6
