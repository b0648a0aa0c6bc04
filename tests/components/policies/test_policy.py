"""What every algorithm keeps of the promises of `Policy`."""

import io

import numpy as np
import pytest
import torch

from components.policies import Coma, Iql, Qmix, Qplex, Vdn
from components.policies.inputs import AgentInputs
from components.policies.packing import Packing


@pytest.fixture(params=[Iql, Vdn, Qmix, Qplex, Coma], ids=lambda algorithm: algorithm.__name__)
def algorithm(request):
    return request.param


def situation(spec, n_envs=4, seed=0):
    rng = np.random.default_rng(seed)
    available = rng.random((n_envs, spec.n_agents, spec.n_actions)) < 0.5
    available[..., 1] = True
    return {
        "obs": rng.standard_normal((n_envs, spec.n_agents, spec.obs_size), dtype=np.float32),
        "available": available,
        "last_actions": rng.integers(-1, spec.n_actions, (n_envs, spec.n_agents)),
        "hidden": rng.standard_normal((n_envs, spec.n_agents, 64), dtype=np.float32),
    }


def arrays_of(batch):
    """The arrays of a batch, by name."""
    fields = batch.arrays()
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}


def rng():
    return np.random.default_rng(11)


def test_acting_step_by_step_gives_the_values_that_learning_unrolls(spec, make_batch):
    policy, batch = Qmix(spec), make_batch((9,))
    batch.obs[0, 4:, 1] = 0.0  # dead
    with torch.no_grad():
        last_actions = np.concatenate([np.full((1, spec.n_agents), -1), batch.actions[0]])
        packing = Packing.of(np.array([9], np.int32), np.array([False]))
        inputs = AgentInputs.of(batch.frames("obs"), packing, last_actions, n_actions=spec.n_actions)
        unrolled = policy.agent.values(inputs)
    hidden = policy.initial_hidden(1)
    for t in range(10):
        _, hidden = policy.act(
            batch.obs[:, t], batch.available[:, t] | True, last_actions[None, t], hidden, epsilon=0.0, rng=rng()
        )
        with torch.no_grad():
            values = policy.agent.head(torch.from_numpy(hidden[0]))
        np.testing.assert_allclose(values.numpy(), unrolled[t].numpy(), atol=1e-5)


def test_the_greedy_action_is_the_best_available_one(spec):
    policy, now = Qmix(spec), situation(spec, 50)
    actions, _ = policy.act(**now, epsilon=0.0, rng=rng())
    with torch.no_grad():
        q, _ = policy.agent(
            torch.tensor(now["obs"].reshape(-1, spec.obs_size)),
            torch.tensor(now["last_actions"].reshape(-1)),
            torch.tensor(now["hidden"].reshape(-1, 64)),
        )
    for chosen, values, available in zip(
        actions.reshape(-1), q.numpy(), now["available"].reshape(-1, spec.n_actions), strict=True
    ):
        assert chosen == max(np.flatnonzero(available), key=lambda u, values=values: values[u])


def test_with_epsilon_zero_no_randomness_is_drawn(spec):
    generator = rng()
    Qmix(spec).act(**situation(spec), epsilon=0.0, rng=generator)
    assert generator.bit_generator.state == rng().bit_generator.state


def test_exploration_is_uniform_over_the_available_actions(spec):
    now = {name: array[:1].repeat(20_000, axis=0) for name, array in situation(spec).items()}
    actions, _ = Qmix(spec).act(**now, epsilon=1.0, rng=rng())
    for agent in range(spec.n_agents):
        counts = np.bincount(actions[:, agent], minlength=spec.n_actions)
        available = now["available"][0, agent]
        assert not counts[~available].any()
        expected = len(actions) / available.sum()
        chi_square = ((counts[available] - expected) ** 2 / expected).sum()
        assert chi_square < 25  # at most 4 degrees of freedom: p = 5e-5


def test_each_agent_explores_with_probability_epsilon(spec):
    now = {name: array[:1].repeat(20_000, axis=0) for name, array in situation(spec).items()}
    now["available"] = np.ones_like(now["available"])
    policy = Qmix(spec)
    greedy, _ = policy.act(**now, epsilon=0.0, rng=rng())
    actions, _ = policy.act(**now, epsilon=0.3, rng=rng())
    differs = (actions != greedy).mean(0)  # one in five explorations falls on the greedy action
    np.testing.assert_allclose(differs, 0.3 * 4 / 5, atol=0.015)
    both = ((actions != greedy)[:, 0] & (actions != greedy)[:, 1]).mean()
    assert both == pytest.approx(0.24**2, abs=0.01)


def test_each_copy_and_each_agent_acts_as_if_alone(spec):
    policy, now = Qmix(spec), situation(spec, 6)
    together, hidden = policy.act(**now, epsilon=0.0, rng=rng())
    for i in range(6):
        alone, hidden_alone = policy.act(
            **{name: array[i : i + 1] for name, array in now.items()}, epsilon=0.0, rng=rng()
        )
        np.testing.assert_array_equal(alone[0], together[i])
        np.testing.assert_allclose(hidden_alone[0], hidden[i], atol=1e-6)


def test_the_start_of_an_episode_differs_from_every_last_action(spec):
    policy, now = Qmix(spec), situation(spec, 1)
    hidden = []
    for last in range(-1, spec.n_actions):
        now["last_actions"][:] = last
        hidden.append(policy.act(**now, epsilon=0.0, rng=rng())[1])
    assert len({h.tobytes() for h in hidden}) == spec.n_actions + 1


def test_agents_with_equal_observations_are_told_apart(spec):
    policy, now = Qmix(spec), situation(spec, 1)
    now["obs"][:], now["hidden"][:], now["last_actions"][:] = 0.5, 0.0, -1
    _, hidden = policy.act(**now, epsilon=0.0, rng=rng())
    assert len({h.tobytes() for h in hidden[0]}) == spec.n_agents


def test_arrays_may_be_read_only(spec, make_batch):
    policy, now, batch = Qmix(spec), situation(spec), make_batch()
    for array in [*now.values(), *arrays_of(batch).values()]:
        array.flags.writeable = False
    policy.act(**now, epsilon=0.5, rng=rng())
    policy.learn(batch)
    policy.load(policy.params())


def test_initial_hidden_is_zero_and_writable(spec):
    hidden = Qmix(spec, hidden_size=16).initial_hidden(5)
    assert hidden.shape == (5, spec.n_agents, 16)
    assert hidden.dtype == np.float32
    assert not hidden.any()
    hidden[0] = 1.0


def test_params_carry_all_that_acting_needs(algorithm, spec, make_batch):
    teacher, pupil, now = algorithm(spec, seed=1), algorithm(spec, seed=2), situation(spec)
    teacher.learn(make_batch())
    pupil.load(teacher.params())
    for got, want in zip(
        pupil.act(**now, epsilon=0.0, rng=rng()), teacher.act(**now, epsilon=0.0, rng=rng()), strict=True
    ):
        np.testing.assert_array_equal(got, want)


def test_params_are_a_flat_read_only_copy_of_the_agent_alone(spec, make_batch):
    policy = Qmix(spec)
    params = policy.params()
    before = params.copy()
    policy.learn(make_batch())
    np.testing.assert_array_equal(params, before)
    assert params.shape == (sum(p.numel() for p in policy.agent.parameters()),)
    assert params.dtype == np.float32
    assert params.flags.c_contiguous
    assert not params.flags.writeable
    assert not np.array_equal(policy.params(), before)


def test_params_of_another_size_are_refused(spec):
    with pytest.raises(
        ValueError, match=r"params: expected shape \(\d+,\) for <Qmix tiny after 0 updates>, got \(3,\)"
    ):
        Qmix(spec).load(np.zeros(3, np.float32))


def test_the_same_seed_and_batches_give_the_same_parameters_bit_for_bit(algorithm, spec, make_batch):
    runs = []
    for _ in range(2):
        policy = algorithm(spec, seed=5, target_update_interval=3, td_lambda=0.5)
        for seed in range(8):
            policy.learn(make_batch(seed=seed))
        runs.append(policy.state_dict())
    for part in ("online", "target"):
        assert all(torch.equal(runs[0][part][name], runs[1][part][name]) for name in runs[0][part])


def test_another_seed_gives_other_parameters(spec):
    assert not np.array_equal(Qmix(spec, seed=1).params(), Qmix(spec, seed=2).params())


def test_the_global_generator_is_neither_read_nor_moved(spec):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = Qmix(spec, seed=1).params()
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    np.testing.assert_array_equal(first, Qmix(spec, seed=1).params())


def test_initial_parameters_are_spread_as_torch_spreads_them(spec):
    policy = Qmix(spec)
    for module, fan_in in (
        (policy.agent.embed, spec.obs_size + spec.n_actions + spec.n_agents),
        (policy.agent.gru, 64),
        (policy.agent.head, 64),
        (policy.mixer.first, spec.state_size),
        (policy.mixer.w_1, 64),
    ):
        values = torch.cat([p.detach().reshape(-1) for p in module.parameters()]) * fan_in**0.5
        assert values.abs().max() <= 1.0 + 1e-6
        assert values.std().item() == pytest.approx(3**-0.5, rel=0.1)


def test_the_target_follows_after_so_many_updates_and_not_before(spec, make_batch):
    policy = Qmix(spec, target_update_interval=3)

    def equal():
        state = policy.state_dict()
        return all(torch.equal(state["online"][name], state["target"][name]) for name in state["online"])

    seen = []
    for seed in range(6):
        policy.learn(make_batch(seed=seed))
        seen.append(equal())
    assert seen == [False, False, True, False, False, True]
    assert policy.updates == 6


def test_a_gradient_is_cut_to_the_norm_that_was_asked_for(spec, make_batch):
    moves = []
    for clip in (1e9, 1e-9):
        policy = Qmix(spec, grad_norm_clip=clip)  # RMSProp with ε 1e-5 hardly moves for so small a gradient
        before = policy.params()
        assert policy.learn(make_batch()).metrics["grad_norm"] > 1e-3
        moves.append(np.abs(policy.params() - before).max())
    assert moves[1] < 1e-6 < moves[0]


def test_a_gradient_that_is_not_finite_changes_nothing(spec, make_batch):
    policy, batch = Qmix(spec), make_batch()
    batch.reward[0, 0] = np.inf
    before = policy.params()
    with pytest.raises(FloatingPointError, match="the gradient of update 0 has norm"):
        policy.learn(batch)
    np.testing.assert_array_equal(policy.params(), before)
    assert policy.updates == 0


def test_importance_weights_scale_each_episodes_share_of_the_loss(spec, make_batch):
    policy, batch = Qmix(spec), make_batch((4, 4))
    losses = [
        policy.td_loss(batch.replaced(weights=np.array(weights, np.float32))).loss.item()
        for weights in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.25])
    ]
    assert losses[2] == pytest.approx(0.5 * losses[0] + 0.25 * losses[1], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_learning_on_from_a_checkpoint_equals_learning_on(algorithm, spec, make_batch, optimizer):
    straight, resumed = (algorithm(spec, optimizer=optimizer, target_update_interval=4, seed=seed) for seed in (1, 2))
    for seed in range(3):
        straight.learn(make_batch(seed=seed))
    file = io.BytesIO()
    torch.save(straight.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(3, 8):
        assert straight.learn(make_batch(seed=seed)).metrics == resumed.learn(make_batch(seed=seed)).metrics
    np.testing.assert_array_equal(straight.params(), resumed.params())


def test_a_checkpoint_is_a_copy(spec, make_batch):
    policy = Qmix(spec, target_update_interval=1)
    policy.learn(make_batch())
    state = policy.state_dict()
    kept = {part: {name: t.clone() for name, t in state[part].items()} for part in ("online", "target")}
    square_avg = state["optimizers"]["all"]["square_avg"].clone()
    policy.learn(make_batch(seed=1))
    assert all(torch.equal(state[part][name], kept[part][name]) for part in kept for name in kept[part])
    assert torch.equal(state["optimizers"]["all"]["square_avg"], square_avg)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s.pop("updates"), "state: expected"),
        (lambda s: s["online"].pop("agent.head.bias"), "online: expected"),
        (lambda s: s["target"].update({"mixer.v.bias": torch.zeros(2)}), "target: expected"),
        (lambda s: s["optimizers"]["all"].update(kind="adam"), "optimizer 'all': expected rmsprop, got adam"),
        (lambda s: s["optimizers"]["all"].update(square_avg=torch.zeros(3)), "optimizer 'all': expected"),
        (lambda s: s["optimizers"].pop("all"), "optimizers: expected"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(spec, make_batch, spoil, message):
    policy, other = Qmix(spec, seed=1), Qmix(spec, seed=2)
    other.learn(make_batch())
    state = other.state_dict()
    spoil(state)
    before = policy.params()
    with pytest.raises(ValueError, match=message):
        policy.load_state_dict(state)
    np.testing.assert_array_equal(policy.params(), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0, got 0.0"),
        ({"optimizer": "sgd"}, "optimizer must be 'rmsprop' or 'adam', got 'sgd'"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5"),
        ({"td_lambda": -0.1}, r"td_lambda must be in \[0, 1\], got -0.1"),
        ({"target_update_interval": 0}, "target_update_interval must be at least 1, got 0"),
        ({"init": "zeros"}, "init must be 'uniform' or 'orthogonal', got 'zeros'"),
        ({"hidden_size": 0}, "hidden_size must be at least 1, got 0"),
        ({"grad_norm_clip": 0}, "grad_norm_clip must be above 0, got 0"),
        ({"priority_eta": 2}, r"priority_eta must be in \[0, 1\], got 2"),
    ],
)
def test_a_keyword_out_of_range_is_refused(algorithm, spec, options, message):
    with pytest.raises(ValueError, match=message):
        algorithm(spec, **options)
