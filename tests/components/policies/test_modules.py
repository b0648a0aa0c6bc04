"""A policy may be made of any torch modules: buffers, 1-D parameters and embeddings are drawn, sent and saved."""

import numpy as np
import pytest
import torch
from torch import nn

from components.envs.base import EnvSpec
from components.policies import ModulePolicy
from components.policies.base import TrainStepResult
from components.policies.initial import initialise
from components.policies.networks import flatten_parameters
from components.policies.optimizer import FlatOptimizer

SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pictures = nn.Conv2d(1, 2, 3, padding=1)
        self.batch = nn.BatchNorm2d(2)
        self.norm = nn.LayerNorm(8)
        self.words = nn.Embedding(5, 8)
        self.body = nn.Linear(8, 8)
        self.memory = nn.LSTMCell(8, 4)
        self.scale = nn.Parameter(torch.full((8,), 0.5))
        self.tied = self.body.weight
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("seen", torch.full((3,), 7.0))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.batch(self.pictures(pictures)).flatten(1)
        return (self.body(self.norm(x) + self.words.weight[0]) * self.scale) @ self.tied


class Varied(ModulePolicy):
    def __init__(self, spec: EnvSpec = SPEC, *, seed: int = 0, init="uniform") -> None:
        super().__init__(spec, seed=seed, init=init)
        self._optimizers = {"all": FlatOptimizer(self._flat, self._online.values(), "adam", 1e-2, 10.0)}

    def _make_networks(self):
        self.net, self.target = Everything(), Everything()
        return {"net": self.net}, {"net": self.target}

    def initial_hidden(self, n_envs):
        return np.zeros((n_envs, 2, 4), np.float32)

    def learn(self, batch):
        loss = self.net(torch.ones(3, 1, 2, 2)).square().mean()
        self._optimizers["all"].step(loss, "update")
        self.updates += 1
        return TrainStepResult({"loss": float(loss.detach())}, np.ones(1, np.float32))


@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
def test_layers_are_drawn_and_everything_else_is_as_its_constructor_made_it(init) -> None:
    net = Varied(init=init).net
    assert net.norm.weight.tolist() == [1.0] * 8
    assert net.norm.bias.tolist() == [0.0] * 8
    assert net.scale.tolist() == [0.5] * 8
    assert net.seen.tolist() == [7.0] * 3
    assert net.words.weight.std() > 0.3  # of a standard normal distribution
    assert net.pictures.weight.abs().max() <= 1 / 3 or init == "orthogonal"
    if init == "orthogonal":
        torch.testing.assert_close(net.pictures.weight.flatten(1) @ net.pictures.weight.flatten(1).T, torch.eye(2))
        assert not net.body.bias.any()
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert not any(p.is_meta for p in (*net.parameters(), *net.buffers()))


def test_initial_parameters_follow_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = Varied(seed=3).params()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert (Varied(seed=3).params() == one).all()
    assert (Varied(seed=4).params() != one).any()


def test_parameters_and_buffers_of_acting_are_published_and_loaded() -> None:
    learner, acting = Varied(seed=1), Varied(seed=2)
    for _ in range(3):
        learner.learn(None)  # moves the running statistics of BatchNorm, too
    assert learner.net.batch.running_mean.any()
    acting.load(learner.params())
    for name, value in learner.net.state_dict().items():
        if value.is_floating_point():
            assert torch.equal(acting.net.state_dict()[name], value), name
    with pytest.raises(ValueError, match=r"^params: expected shape \(\d+,\) for <Varied tiny .*>, got \(3,\)$"):
        acting.load(np.zeros(3, np.float32))


def test_a_saved_policy_learns_on_bit_for_bit_and_its_targets_have_the_buffers() -> None:
    one, other = Varied(seed=1), Varied(seed=2)
    one.learn(None)
    one.update_targets()
    assert torch.equal(one.target.batch.running_mean, one.net.batch.running_mean)
    one.learn(None)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.target.batch.running_mean, one.target.batch.running_mean)
    one.learn(None)
    other.learn(None)
    for name, value in one.net.state_dict().items():
        assert torch.equal(other.net.state_dict()[name], value), name
    assert one.params().tobytes() == other.params().tobytes()


def test_a_frozen_parameter_stays_and_a_tied_one_is_one() -> None:
    policy = Varied()
    body = policy.net.body.weight.clone()
    policy.learn(None)
    assert policy.net.frozen.tolist() == [1.0, 1.0]
    assert policy.net.tied is policy.net.body.weight
    assert not torch.equal(policy.net.body.weight, body)


def test_a_layer_without_parameters_of_two_axes_draws_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    initialise([nn.LayerNorm(3), nn.Embedding(2, 3)], "uniform", generator)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("init", ["uniform", "orthogonal"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_whose_weight_is_computed_keeps_what_its_constructor_made(init, bias) -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4, bias=bias))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    initialise([layer, nn.Linear(3, 2, bias=False)], init, torch.Generator().manual_seed(0))
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name]), name


class Shared(ModulePolicy):
    """Passes through modules of every shape, two of which both networks have, and a scale without axes."""

    def __init__(self, spec: EnvSpec = SPEC, *, seed: int = 0) -> None:
        super().__init__(spec, seed=seed)
        self._optimizers = {"all": FlatOptimizer(self._flat, self._online.values(), "adam", 1e-2, 10.0)}

    def _make_networks(self):
        self.body = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.GELU(), nn.Dropout(0.0))
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(2.0))
        actor = nn.ModuleDict({"body": self.body, "attention": self.attention, "head": nn.Linear(6, 3)})
        actor.register_parameter("scale", self.scale)
        critic = nn.ModuleDict({"body": self.body, "head": nn.utils.parametrizations.spectral_norm(nn.Linear(6, 1))})
        return {"actor": actor, "critic": critic}, {}

    def initial_hidden(self, n_envs):
        return np.zeros((n_envs, 2, 1), np.float32)

    def said(self, x):
        actor = self._online["actor"]
        hidden = actor["body"](x)
        return actor["head"](actor["attention"](hidden, hidden, hidden)[0]) * actor.scale

    def learn(self, batch):
        x = torch.linspace(-1, 1, 24).view(3, 2, 4).requires_grad_()
        critic = self._online["critic"]
        loss = self.said(x).square().mean() + critic["head"](critic["body"](x)).square().mean()
        (of_input,) = torch.autograd.grad(loss, x, retain_graph=True)
        norm = self._optimizers["all"].step(loss, "update")
        self.updates += 1
        told = {"loss": float(loss.detach()), "grad_norm": norm, "of_input": float(of_input.abs().max())}
        return TrainStepResult(told, np.ones(1, np.float32))


def test_shared_parametrised_and_scalar_parameters_learn_are_published_and_saved() -> None:
    learner, acting = Shared(seed=1), Shared(seed=2)
    losses = [learner.learn(None).metrics["loss"] for _ in range(30)]
    assert losses[-1] < losses[0] / 2
    assert learner._online["actor"].scale != 2.0
    assert learner.learn(None).metrics["of_input"] > 0.0
    x = torch.ones(1, 2, 4)
    assert not torch.allclose(acting.said(x), learner.said(x))
    acting.load(learner.params())
    assert torch.equal(acting.said(x), learner.said(x))
    assert learner._online["critic"]["body"] is learner._online["actor"]["body"]
    again = Shared(seed=3)
    again.load_state_dict(learner.state_dict())
    assert again.learn(None).metrics == learner.learn(None).metrics
    assert again.params().tobytes() == learner.params().tobytes()


def test_parameters_stay_the_objects_that_their_modules_know():
    """A GRU on a GPU moves its weights out of the flat tensor once it finds that they are others."""
    gru = nn.GRU(3, 4)
    before = list(gru.parameters())
    flat = flatten_parameters([gru], torch.device("cpu"), torch.float32)
    assert [id(p) for p in gru.parameters()] == [id(p) for p in before]
    flat.fill_(0.25)
    assert all((p == 0.25).all() for p in gru.parameters())
    assert flat.numel() == sum(p.numel() for p in before)
