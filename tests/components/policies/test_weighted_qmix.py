"""The example of an algorithm of one's own: it keeps the promises of a policy, and finds what QMIX does not."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from components.envs.base import EnvSpec
from components.policies import EpisodeBatch, Qmix
from orchestra.cli.main import main
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "weighted_qmix.py"
WeightedQmix = vars(sys.modules[load_experiment(EXAMPLE).__module__])["WeightedQmix"]
PAYOFF = np.array([[8, -12, -12], [-12, 0, 0], [-12, 0, 0]], np.float32)
"""The matrix game of the paper: the best joint action only pays if both take part."""


def every_joint_action():
    """Nine episodes of one step: one for each joint action of the matrix game."""
    actions = np.array(np.unravel_index(np.arange(9), (3, 3))).T
    return EpisodeBatch(
        obs=np.ones((9, 2, 2, 1), np.float32),
        state=np.ones((9, 2, 1), np.float32),
        available=np.ones((9, 2, 2, 3), np.bool_),
        actions=actions[:, None],
        reward=PAYOFF[actions[:, 0], actions[:, 1]][:, None],
        lengths=np.ones(9, np.int32),
        terminated=np.ones(9, np.bool_),
        weights=np.ones(9, np.float32),
    )


def learned(make, updates=250):
    spec = EnvSpec("matrix", n_agents=2, n_actions=3, obs_size=1, state_size=1, episode_limit=1)
    policy, batch = make(spec, hidden_size=16, learning_rate=1e-2, optimizer="adam", seed=1), every_joint_action()
    for _ in range(updates):
        policy.learn(batch)
    actions, _ = policy.act(
        np.ones((1, 2, 1), np.float32),
        np.ones((1, 2, 3), np.bool_),
        np.full((1, 2), -1),
        policy.initial_hidden(1),
        epsilon=0.0,
        rng=np.random.default_rng(0),
    )
    return PAYOFF[actions[0, 0], actions[0, 1]]


@pytest.mark.parametrize("weighting", ["optimistic", "central"])
def test_weighted_qmix_finds_the_best_joint_action(weighting):
    assert learned(lambda spec, **options: WeightedQmix(spec, weighting=weighting, alpha=0.1, **options)) == 8.0


def test_qmix_misses_it():
    assert learned(Qmix) == 0.0


@pytest.mark.parametrize("weighting", ["optimistic", "central"])
def test_with_full_weight_for_all_it_is_the_plain_loss_of_both(spec, make_batch, weighting):
    policy, batch = WeightedQmix(spec, weighting=weighting, alpha=1.0, dtype=torch.float64), make_batch()
    td, half = policy.td_loss(batch), WeightedQmix(spec, weighting=weighting, alpha=0.5, dtype=torch.float64)
    of_q_tot = (td.q_taken - td.target).square().mean()
    assert td.loss > of_q_tot
    assert of_q_tot * 0.5 < half.td_loss(batch).loss - (td.loss - of_q_tot) < of_q_tot


def test_it_acts_learns_and_is_saved_as_any_policy(spec, make_batch):
    teacher, pupil = WeightedQmix(spec, seed=1), WeightedQmix(spec, seed=2)
    metrics = teacher.learn(make_batch()).metrics
    assert set(metrics) == {"loss", "grad_norm", "q_taken", "target", "td_error"}
    pupil.load_state_dict(teacher.state_dict())
    for policy in (teacher, pupil):
        policy.learn(make_batch(seed=1))
    np.testing.assert_array_equal(teacher.params(), pupil.params())
    assert teacher.params().size == Qmix(spec).params().size  # what acts is QMIX's agent, and no more travels


def test_a_keyword_out_of_range_is_refused(spec):
    with pytest.raises(ValueError, match=r"out of range: 'optimistic', 0, 256"):
        WeightedQmix(spec, alpha=0)


def test_its_experiment_has_it_in_the_trainer_and_workers_act_as_those_of_qmix(spec):
    function = load_experiment(EXAMPLE)
    topology = build(function, Flags.of(function).parse(["--workers", "2", "--alpha", "0.3", "--hidden-size", "8"]))
    learner, evaluator, *workers = (
        actor.factory.keywords["policy"]
        for node in topology.nodes.values()
        for actor in node.actors
        if "policy" in actor.factory.keywords
    )
    assert (learner.func, learner.keywords["alpha"], learner.keywords["hidden_size"]) == (WeightedQmix, 0.3, 8)
    assert len(workers) == 2
    for worker in (evaluator, *workers):
        worker(spec, seed=0).load(learner(spec, seed=0).params())


def test_a_run_with_it_learns(tmp_path, capsys):
    small = "--scenario 3m --steps 400 --envs-per-worker 4 --learning-starts 4 --batch-size 4 --hidden-size 8"
    words = [
        "run",
        str(EXAMPLE),
        *small.split(),
        "--eval-episodes",
        "2",
        "--final-eval-episodes",
        "2",
        "--single-process",
        "--runs-dir",
        str(tmp_path),
    ]
    assert main(words) == 0
    assert "qmix 3m: done after" in capsys.readouterr().out
