"""PPO, IPPO and MAPPO: what acts agrees with what learns, and an update touches each sample once an epoch."""

import copy
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from gpu import cuda

from components.envs import EnvSpec, Skirmish
from components.envs.base import Env
from components.experience import FieldSpec
from components.policies import ALGORITHMS, EpisodeBatch, parallel
from components.policies.advantages import corrected_advantages, normalised
from components.policies.chunks import Chunks, real_rows
from components.policies.on_policy import OnPolicy
from components.policies.ppo import Clipped, Mappo, Ppo
from components.replay_buffers import FreshEpisodes
from components.rollout import Rollout
from components.threads import with_threads
from components.trajectory_manager import segments_of


class Plane(Env):
    """One point that is pushed over a plane; its limit is 9 steps, and what it may be pushed by is [-2, 2]."""

    def __init__(self, n_envs: int = 1, *, seed: int = 0) -> None:
        fields = (
            ("obs", FieldSpec((2,), per="frame", agents=True)),
            ("actions", FieldSpec((2,), agents=True, low=(-2.0, -2.0), high=(2.0, 2.0))),
            ("reward", FieldSpec(())),
        )
        self.spec = EnvSpec("plane", 1, 0, 2, 0, 9, fields)
        self.n_envs, self._rng, self.t = n_envs, np.random.default_rng(seed), np.zeros(n_envs, np.int64)
        self._allocate()
        self.pushed = np.zeros((n_envs, 1, 2))

    def reset(self, which=None) -> None:
        which = np.ones(self.n_envs, np.bool_) if which is None else which
        self.obs[which] = self._rng.normal(5.0, 3.0, (which.sum(), 1, 2))
        self.reward[which] = self.t[which] = 0
        self.terminated[which] = self.truncated[which] = False

    def step(self, actions) -> None:
        self.pushed = np.clip(actions, -2.0, 2.0)
        self.obs += self.pushed
        self.t += 1
        self.reward[:] = -np.abs(self.obs).sum((1, 2)) / 10
        self.truncated[:] = self.t >= 9


def play(name: str, env: Env | None = None, steps: int = 75, **options: object) -> tuple[OnPolicy, EpisodeBatch]:
    """Return a policy, and what its acting side has played with its parameters: segments of at most 25 steps."""
    env = env or Skirmish("3m", 6, seed=4)
    algorithm = ALGORITHMS[name].configured(**options)
    policy, acting = algorithm.learner(env.spec, seed=3), algorithm.acting(env.spec, seed=0)
    assert isinstance(policy, Clipped)
    learner = policy.learner
    if learner.interface.continuous:
        learner.network.actor.log_sd.data += 0.3
    acting.load(learner.params())
    rollout = Rollout(env, acting, np.random.default_rng(0), segment_length=25)
    message = rollout.collect(steps, 1.0)
    assert message is not None
    replay = FreshEpisodes(algorithm.schema(env.spec, 25), 500)
    replay.insert(segments_of(message))
    return learner, replay.sample(message.segments, np.random.default_rng(0)).batch


KINDS = {
    "mappo": ("mappo", None, {}),
    "mappo in chunks of 7": ("mappo", None, {"chunk_length": 7}),
    "mappo without memory": ("mappo", None, {"recurrent": False}),
    "ippo": ("ippo", None, {}),
    "ppo": ("ppo", None, {}),
    "continuous": ("ppo", Plane, {}),
    "squashed": ("ppo", Plane, {"squash": True}),
    "recurrent, continuous": ("ppo", Plane, {"recurrent": True, "chunk_length": 4}),
    "normalised": ("ppo", Plane, {"normalise_obs": True}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_says_what_workers_said_when_they_acted(kind) -> None:
    name, env, options = KINDS[kind]
    learner, batch = play(name, env and env(5), **options)
    if kind == "normalised":
        for _ in range(2):  # statistics of the first update act from the second on
            learner.learn(batch)
            learner, batch = replayed(learner, env(5))
    real = np.arange(batch["log_prob"].shape[1]) < batch.lengths[:, None]
    np.testing.assert_allclose(learner.log_prob(batch)[real], batch["log_prob"][real], atol=1e-5)
    rows = learner.rows(batch)
    some = next(learner._shuffled(learner._minibatches(batch, rows), np.random.default_rng(0)))
    log_prob, _, values = learner.said(rows, some)
    kept = slice(None) if some.real is None else some.real > 0
    assert (log_prob - rows.log_prob[some.rows])[kept].exp().sub(1).abs().max() < 1e-4
    torch.testing.assert_close(values[kept], rows.value[some.rows][kept], atol=1e-4, rtol=0)
    _, _, _, (kl, clipped) = learner.losses(rows, some, learner.goals(rows, some))
    assert kl < 1e-6
    assert clipped == 0.0


@pytest.mark.parametrize("kind", ["mappo", "continuous"])
def test_versions_are_compared_by_what_the_actor_says(kind) -> None:
    name, env, options = KINDS[kind]
    learner, _ = play(name, env and env(5), steps=25, **options)
    acting = ALGORITHMS[name].acting(learner.spec, seed=0)
    acting.load(learner.params())
    game = env(4) if env else Skirmish("3m", 4, seed=1)
    game.reset()
    last = np.full((4, learner.spec.n_agents), -1)
    hidden = acting.initial_hidden(4)
    said, after = acting.outputs(game.fields(), last, hidden)
    frame = (game.fields(), last, hidden)
    acted = acting.act_on(*frame, epsilon=0.0, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(after, acted.hidden)
    if kind == "continuous":
        np.testing.assert_array_equal(said["mean"], acted.actions)
        np.testing.assert_allclose(said["log_std"], learner.network.actor.log_sd.detach().expand(4, 1, 2))
        assert acting.probe_frames == 1
    else:
        logits = np.where(game.available, said["logits"], -np.inf)
        np.testing.assert_array_equal(logits.argmax(-1), acted.actions)
        assert acting.probe_frames == 8


def test_what_workers_import_and_what_shows_the_flags_is_without_torch() -> None:
    names = ("ppo", "mappo", "pqn", "pqn-vdn")
    made = "; ".join(f"class_of({name!r}); ALGORITHMS[{name!r}].acting(spec, seed=0)" for name in names)
    code = (
        "import sys; from components.envs import Skirmish; from components.policies import ALGORITHMS, class_of; "
        f"spec = Skirmish('3m').spec; {made}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def replayed(learner: OnPolicy, env: Env) -> tuple[OnPolicy, EpisodeBatch]:
    acting = copy.copy(learner.acting)
    rollout = Rollout(env, acting, np.random.default_rng(0), segment_length=25)
    message = rollout.collect(50, 1.0)
    replay = FreshEpisodes(rollout.schema, 500)
    replay.insert(segments_of(message))
    return learner, replay.sample(message.segments, np.random.default_rng(0)).batch


def test_chunks_say_what_a_whole_unroll_says() -> None:
    """Whole segments are one chunk of 25 steps; episodes end in the middle of a chunk of 10."""
    learner, batch = play("mappo")
    assert (batch.lengths % 10).any()
    assert batch.lengths.max() > 10
    in_chunks = learner.log_prob(batch)
    whole, _ = play("mappo", chunk_length=25)
    np.testing.assert_allclose(in_chunks, whole.log_prob(batch), atol=1e-5)
    moved, chunks = batch.replaced(hidden=batch["hidden"] + 1.0), Chunks.of(batch.lengths, 3, 10)
    assert np.abs(learner.log_prob(moved) - in_chunks).max() > 1e-3, "the recorded states matter"
    assert len(chunks.bounds) > 2


def test_every_sample_is_learned_from_once_an_epoch_and_none_changes(monkeypatch) -> None:
    learner, batch = play("mappo", epochs=3, minibatches=4)
    seen, kept = [], []
    original = learner.losses

    def watched(rows, part, goals):
        seen.append(part.rows[part.real > 0].numpy())
        kept.append((rows, [getattr(rows, name).clone() for name in ("log_prob", "advantage", "returns", "value")]))
        return original(rows, part, goals)

    monkeypatch.setattr(learner, "losses", watched)
    learner.learn(batch)
    n = int(batch.lengths.sum()) * 3
    assert len(seen) == 12
    epochs = [np.concatenate(seen[i : i + 4]) for i in (0, 4, 8)]
    assert all(sorted(epoch.tolist()) == list(range(n)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1]), "each epoch has an order of its own"
    for (rows, before), (_, after) in pairwise(kept):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert torch.equal(rows.log_prob, before[0])


@pytest.mark.parametrize("kind", ["mappo without memory", "continuous"])
def test_steps_carry_version_and_log_probability_of_what_chose_them_also_after_a_load_in_mid_episode(kind) -> None:
    name, env, options = KINDS[kind]
    game = env(5) if env else Skirmish("3m", 6, seed=4)
    algorithm = ALGORITHMS[name].configured(**options)
    learners = {version: algorithm.learner(game.spec, seed=version) for version in (1, 2)}
    for version, learner in learners.items():
        learner.learner.network.actor.head.weight.data *= 100.0 * version  # far apart
    acting = algorithm.acting(game.spec, seed=0)
    rollout = Rollout(game, acting, np.random.default_rng(0), segment_length=200)
    message = None
    for version, learner in learners.items():
        acting.load(learner.params())
        rollout.version = version
        assert message is None, "no episode has ended before the load"
        message = rollout.collect(5 if version == 1 else 60, 1.0)
    assert message is not None
    replay = FreshEpisodes(rollout.schema, 500)
    replay.insert(segments_of(message))
    batch = replay.sample(message.segments, np.random.default_rng(0)).batch
    real = np.arange(batch.versions.shape[1]) < batch.lengths[:, None]
    across = batch.versions[:, 0] == 1
    assert across.sum() == game.n_envs
    assert (batch.versions[across, :5] == 1).all()
    assert (batch.versions[across, 5:][real[across, 5:]] == 2).all()
    for version, learner in learners.items():
        own = learner.learner.log_prob(batch)
        chosen = real & (batch.versions == version)
        np.testing.assert_allclose(own[chosen], batch["log_prob"][chosen], atol=1e-5)
        assert np.abs(own - batch["log_prob"])[real & ~chosen].max() > 0.01, "of the other version it would be another"


def test_without_a_correction_the_ratio_of_an_old_step_is_to_the_policy_that_acted() -> None:
    learner, batch = play("mappo")
    for _ in range(2):
        learner.learn(batch)
    assert np.abs(learner.log_prob(batch) - batch["log_prob"]).max() > 0.01
    acted = real_rows(batch["log_prob"], batch.lengths).reshape(-1)
    np.testing.assert_array_equal(learner.rows(batch).log_prob, acted)


@pytest.mark.parametrize("kind", ["mappo in chunks of 7", "continuous"])
def test_v_trace_changes_nothing_on_policy_and_later_weighs_steps_by_the_policy_before_the_update(kind) -> None:
    name, env, options = KINDS[kind]
    plain, batch = play(name, env and env(5), **options)
    traced, _ = play(name, env and env(5), **options, correction="v-trace", rho_max=1.0, c_max=0.9)
    at_first, as_usual = traced.rows(batch), plain.rows(batch)
    same, _ = play(name, env and env(5), **options, correction="v-trace")
    for what in ("advantage", "returns"):
        torch.testing.assert_close(getattr(same.rows(batch), what), getattr(as_usual, what), atol=2e-4, rtol=1e-4)
    assert (at_first.returns - as_usual.returns).abs().max() > 1e-3  # c_max cuts weights of 1 too
    for _ in range(3):
        traced.learn(batch)
    now, lengths = traced.log_prob(batch), batch.lengths
    assert np.abs(now - batch["log_prob"]).max() > 0.01
    rows = traced.rows(batch)
    reward = batch.reward if batch.reward.ndim == 3 else batch.reward[..., None]
    advantage, target = corrected_advantages(
        np.broadcast_to(reward, now.shape),
        traced.value_norm.denormalise(torch.from_numpy(batch["value"].astype(np.float64))).numpy(),
        now - batch["log_prob"],
        lengths,
        batch.terminated,
        batch.truncated,
        gamma=0.99,
        gae_lambda=0.95,
        rho_max=1.0,
        c_max=0.9,
    )
    np.testing.assert_allclose(rows.returns.numpy(), real_rows(target, lengths).reshape(-1), rtol=1e-5)
    found = real_rows(advantage, lengths)
    if name == "mappo":
        found = normalised(found, rows.living.numpy().reshape(found.shape) > 0)
    np.testing.assert_allclose(rows.advantage.numpy(), found.reshape(-1), rtol=1e-4, atol=1e-5)
    whole = traced._minibatches(batch, rows)
    _, _, _, (kl, clipped) = traced.losses(rows, whole, traced.goals(rows, whole))
    assert kl < 1e-6  # ratios begin at 1 although the steps are old
    assert clipped == 0.0


def test_the_learning_rate_falls_linearly_and_the_first_update_has_all_of_it() -> None:
    learner, batch = play("ppo", anneal=4, learning_rate=0.01, epochs=1)
    rates = []
    for _ in range(5):
        learner.learn(batch)
        rates.append(learner._optimizers["all"].learning_rate)
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])
    before = learner.params()
    learner.learn(batch)
    np.testing.assert_array_equal(learner.params(), before), "nothing is learned at rate 0"


def test_initial_weights_are_orthogonal_with_the_gains_of_the_papers() -> None:
    learner, _ = play("mappo", steps=25)
    actor, critic = learner.network.actor, learner.network.critic

    def gains(weight: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svdvals(weight.detach())

    for branch, gain in ((actor, 0.01), (critic, 1.0)):
        torch.testing.assert_close(gains(branch.head.weight), torch.full_like(gains(branch.head.weight), gain))
        for layer in (branch.layers[0], branch.layers[2]):
            torch.testing.assert_close(gains(layer.weight), torch.full_like(gains(layer.weight), 2**0.5))
            assert not layer.bias.any()
        for gate in branch.gru.weight_hh_l0.chunk(3):
            torch.testing.assert_close(gains(gate), torch.ones(64))
        assert not branch.head.bias.any()
    wide, _ = play("mappo", steps=25, gain=1.0)
    torch.testing.assert_close(gains(wide.network.actor.head.weight)[0], torch.tensor(1.0))


@pytest.mark.parametrize("value_masks", [False, True])
def test_the_dead_do_not_count_but_for_their_values_without_a_mask(value_masks) -> None:
    learner, batch = play("mappo", value_masks=value_masks, recurrent=False, steps=100)
    rows = learner.rows(batch)
    dead = rows.living == 0
    assert dead.any()
    part = learner._minibatches(batch, rows)

    def gradients(rows):
        policy, value, entropy, _ = learner.losses(rows, part, learner.goals(rows, part))
        parameters = list(learner.network.actor.parameters())
        found = torch.autograd.grad(policy - entropy, parameters, allow_unused=True)
        return policy.item(), value.item(), torch.cat([g.view(-1) for g in found if g is not None])

    learner.value_norm.units = "real"
    policy, value, gradient = gradients(rows)
    other = copy.deepcopy(rows)
    other.advantage[dead] += 100.0
    other.log_prob[dead] -= 3.0
    assert not other.actions[dead].any(), "the dead do nothing"
    other.actions[dead] = 3
    policy_after, value_after, gradient_after = gradients(other)
    assert policy_after == policy
    torch.testing.assert_close(gradient_after, gradient, atol=0, rtol=0)
    other.returns[dead] += 100.0
    assert (gradients(other)[1] != value) == (not value_masks)
    assert value_after == value


def test_the_norm_of_inputs_multiplied_into_the_first_layer_has_outputs_and_gradients_of_the_norm_itself() -> None:
    learner, batch = play("mappo", recurrent=False)
    branch, x = learner.network.critic, torch.from_numpy(real_rows(batch.obs[:, :-1], batch.lengths).reshape(-1, 30))
    x = torch.nn.functional.pad(x, (0, branch.norm.normalized_shape[0] - 30))
    for parameter in branch.norm.parameters():
        parameter.data += torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0))
    plain = branch.norm(x)
    for linear, norm in pairwise(branch.layers):
        if isinstance(linear, torch.nn.Linear):
            plain = norm(linear(plain).relu())
    plain = branch.head(plain)
    ours, _ = branch(branch.standardised(x), None, 1)
    torch.testing.assert_close(ours, plain)
    parameters = [*branch.norm.parameters(), *branch.layers.parameters()]
    expected = torch.autograd.grad(plain.square().sum(), parameters)
    for got, gradient in zip(torch.autograd.grad(ours.square().sum(), parameters), expected, strict=True):
        torch.testing.assert_close(got, gradient, rtol=1e-3, atol=1e-3)


def test_a_dead_agent_is_to_the_critic_zeros_and_its_number() -> None:
    learner, batch = play("mappo", steps=100)
    rows = learner.rows(batch)
    dead = rows.critic[rows.living == 0]
    assert len(dead) > 0
    shown = torch.zeros((3, dead.shape[1]))
    shown[:, -3:] = torch.eye(3)
    of_agents = torch.nn.functional.layer_norm(shown, shown.shape[1:])
    torch.testing.assert_close(dead, of_agents[dead[:, -3:].argmax(1)])
    shown, _ = play("mappo", steps=100, death_masking=False)
    rows = shown.rows(batch)
    assert len(rows.critic[rows.living == 0].unique(dim=0)) > 3


def test_ippo_is_mappo_whose_critic_sees_the_observation() -> None:
    first, batch = play("ippo", epochs=2)
    second, _ = play("mappo", critic_input="obs", epochs=2)
    np.testing.assert_array_equal(first.params(), second.params())
    assert first.learn(batch).metrics == second.learn(batch).metrics
    np.testing.assert_array_equal(first.params(), second.params())


def test_statistics_of_observations_are_published_kept_in_checkpoints_and_frozen_in_evaluations() -> None:
    learner, batch = play("ppo", Plane(5), normalise_obs=True)
    learner.learn(batch)
    seen = batch.obs[:, :-1][np.arange(batch.obs.shape[1] - 1) < batch.lengths[:, None]]
    acting = ALGORITHMS["ppo"].configured(normalise_obs=True).acting(Plane().spec, seed=0)
    acting.load(learner.params())
    np.testing.assert_allclose(acting._obs_mean, seen.mean((0, 1)), rtol=1e-3)
    np.testing.assert_allclose(acting._obs_var, seen.var((0, 1)), rtol=1e-2)
    other = Ppo(Plane().spec, seed=9, normalise_obs=True).learner
    other.load_state_dict(learner.state_dict())
    np.testing.assert_array_equal(other.params(), learner.params())
    before = acting.params()
    env = Plane(2)
    env.reset()
    acting.act_on(env.fields(), np.zeros((2, 1, 2)), acting.initial_hidden(2), epsilon=0.0, rng=None)
    np.testing.assert_array_equal(acting.params(), before)
    assert torch.equal(other.value_norm.sums, learner.value_norm.sums)


def test_drawn_actions_may_lie_outside_the_bounds_and_squashed_ones_never_do() -> None:
    _, batch = play("ppo", Plane(20), steps=100)
    assert np.abs(batch.actions).max() > 2.0, "the environment clips them"
    _, batch = play("ppo", Plane(20), steps=100, squash=True)
    assert np.abs(batch.actions).max() <= 2.0
    np.testing.assert_allclose(np.tanh(batch["unsquashed"]) * 2.0, batch.actions, atol=1e-5)


@pytest.mark.parametrize("made", [Ppo, Mappo])
def test_two_learners_with_one_seed_learn_alike_and_go_on_alike_from_a_checkpoint(made) -> None:
    _, batch = play(made.__name__.lower(), steps=50)
    first, second, third = (made(Skirmish("3m").spec, seed=5, minibatches=2, epochs=2) for _ in range(3))
    for learner in (first, second):
        learner.learn(batch)
    third.load_state_dict(first.state_dict())
    assert first.learn(batch).metrics == second.learn(batch).metrics
    third.learn(batch)
    np.testing.assert_array_equal(first.params(), second.params())
    np.testing.assert_array_equal(first.params(), third.params())


def _in_parts(
    monkeypatch, n_parts: int, threads: int, kind: str, **options: object
) -> tuple[OnPolicy, dict[str, float]]:
    """Return a learner after an update in so many parts and threads, and the update's metrics."""
    name, env, more = KINDS[kind]
    learner, batch = with_threads(1, play, name, env and env(5), **{"epochs": 2, "minibatches": 2, **more, **options})
    monkeypatch.setattr(parallel, "MOST_PARTS", n_parts)
    monkeypatch.setattr(parallel, "ROWS_OF_A_PART", 1)
    return learner, with_threads(threads, learner.learn, batch).metrics


@pytest.mark.parametrize("kind", ["mappo", "ppo", "recurrent, continuous"])
def test_an_update_in_parts_is_that_of_the_whole_and_the_same_with_any_number_of_threads(monkeypatch, kind) -> None:
    threads = torch.get_num_threads()
    try:
        (whole, metrics), *others = (_in_parts(monkeypatch, *how, kind) for how in ((1, 1), (3, 1), (3, 2), (3, 3)))
    finally:
        torch.set_num_threads(threads)
    for learner, found in others:
        assert found == pytest.approx(metrics, rel=1e-3, abs=1e-5)
        np.testing.assert_allclose(learner.params(), whole.params(), rtol=1e-3, atol=1e-4)
        assert found == others[0][1]
        np.testing.assert_array_equal(learner.params(), others[0][0].params())


@cuda
@pytest.mark.parametrize("kind", ["mappo", "ppo", "squashed", "recurrent, continuous"])
def test_a_gpu_learns_what_the_cpu_learns_and_the_same_again(kind) -> None:
    name, env, options = KINDS[kind]
    here, batch = play(name, env and env(5), epochs=2, **options)
    there, again = (
        ALGORITHMS[name].configured(epochs=2, **options).learner(here.spec, seed=3, device="cuda") for _ in range(2)
    )
    for learner in (there, again):
        learner.load_state_dict(here.state_dict())
    for learner in (here, there, again):
        for _ in range(2):
            learner.learn(batch)
    np.testing.assert_array_equal(there.params(), again.params())
    np.testing.assert_allclose(there.params(), here.params(), atol=2e-4)


def test_values_by_popart_are_clipped_around_what_they_were_in_the_present_units() -> None:
    learner, batch = play("mappo", value_units="popart", epochs=1)
    rows = learner.rows(batch)
    whole = learner._minibatches(batch, rows)
    for scale in (1.0, 30.0):
        learner.value_norm.update(rows.returns * scale, learner.network.critic.head)
    with torch.no_grad():
        now = learner.said(rows, whole)[2]
    real = whole.real > 0
    torch.testing.assert_close(learner.goals(rows, whole).value[real], now[real], atol=1e-3, rtol=1e-3)
    assert (rows.value[whole.rows] - now)[real].abs().max() > 0.05, "the units have changed"


@pytest.mark.parametrize("value_units", ["running", "popart", "real"])
def test_values_approach_the_returns_in_all_units(value_units) -> None:
    learner, batch = play("mappo", value_units=value_units, epochs=60, critic_learning_rate=3e-3, value_clip=False)
    returns = learner.rows(batch).returns
    first, second = (learner.learn(batch).metrics for _ in range(2))
    assert second["value_loss"] < first["value_loss"] / 2
    expected = (0.0, 1.0) if value_units == "real" else (float(returns.mean()), float(returns.std(correction=0)))
    assert (first["value_mean"], first["value_sd"]) == pytest.approx(expected, rel=1e-3)


def test_a_divergence_above_the_target_ends_the_update(monkeypatch) -> None:
    learner, batch = play("ppo", epochs=9, minibatches=1, learning_rate=0.01, target_kl=1e-4)
    epochs = []
    original = learner.losses
    monkeypatch.setattr(learner, "losses", lambda *given: epochs.append(1) or original(*given))
    learner.learn(batch)
    assert 1 < len(epochs) < 9


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"squash": True}, "continuous actions"), ({"critic_input": "state"}, "needs a state")],
)
def test_what_an_environment_does_not_have_is_refused_by_name(options, expected) -> None:
    name = "ppo" if "squash" in options else "mappo"
    spec = Skirmish("3m").spec if name == "ppo" else Plane().spec
    with pytest.raises(ValueError, match=f"{spec.name}: .*{expected}"):
        ALGORITHMS[name].configured(**options).learner(spec, seed=0)


def test_ppo_learns_to_push_a_point_home() -> None:
    env = Plane(16, seed=1)
    learner = Ppo(env.spec, seed=0, learning_rate=3e-3, minibatches=4, epochs=6, entropy=0.0).learner
    means = []
    for k in range(14):
        rollout = Rollout(env, copy.copy(learner.acting), np.random.default_rng(k), segment_length=9)
        message = rollout.collect(27, 1.0)
        replay = FreshEpisodes(rollout.schema, 500)
        replay.insert(segments_of(message))
        means.append(float(message.per_step["reward"].mean()))
        learner.learn(replay.sample(message.segments, np.random.default_rng(0)).batch)
    assert np.mean(means[-3:]) > 0.5 * np.mean(means[:3]), means
