"""The learner of the ClusterEnv example learns from actions of older policies, and is PPO where there are none."""

import argparse
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from orchestra import import_file

LEARNER = import_file(Path(__file__).resolve().parents[1] / "docs" / "examples" / "cleanrl_ppo.py", "agent")
ARGS = argparse.Namespace(gamma=0.99, gae_lambda=0.95, clip=0.2, entropy=0.0, epochs=2, minibatches=2)


def golden(weight: float) -> dict[str, Any]:
    rows = {"reward": [1, 0, 2], "value": [0.5, 1, 1.5], "next_value": [1, 1.5, 2], "weight": [weight] * 3}
    never = np.zeros((3, 1), np.bool_)
    return {"terminated": never, "over": never, **{name: np.array(each)[:, None] for name, each in rows.items()}}


def test_advantages_are_generalised_ones_where_the_present_policy_has_acted() -> None:
    advantage, target = LEARNER.advantages(golden(1.0), 0.99, 0.95)
    assert advantage[:, 0] == pytest.approx([4.139802, 2.817440, 2.48], abs=1e-6)
    assert target[:, 0] == pytest.approx([4.639802, 3.817440, 3.98], abs=1e-6)


def test_later_steps_count_by_their_weights() -> None:
    advantage, target = LEARNER.advantages(golden(0.5), 0.99, 0.95)
    second = 0.485 + 0.9405 * 0.5 * 2.48
    first = 1.49 + 0.9405 * 0.5 * second
    assert advantage[:, 0] == pytest.approx([first, second, 2.48])
    assert target[:, 0] == pytest.approx([0.5 + first / 2, 1 + second / 2, 1.5 + 2.48 / 2])


def learnt(shift: float) -> np.ndarray[Any, Any]:
    """Return the parameters after an update from actions whose log-probabilities when acting were lower by `shift`."""
    torch.manual_seed(1)
    envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync", vector_kwargs=LEARNER.SAME_STEP)
    agent = LEARNER.Agent(envs)
    optimizer, rng = torch.optim.Adam(agent.parameters(), lr=0.01), np.random.default_rng(1)
    obs = rng.standard_normal((8, 3, 4)).astype(np.float32)
    action, said = agent.act(obs.reshape(-1, 4))
    rollout = {
        "obs": obs,
        "after": obs + np.float32(0.1),
        "action": action.reshape(8, 3),
        "log_prob": said["log_prob"].reshape(8, 3) - np.float32(shift),
        "reward": rng.random((8, 3), np.float32),
        "terminated": np.zeros((8, 3), np.bool_),
        "over": np.zeros((8, 3), np.bool_),
    }
    LEARNER.learn(agent, optimizer, rollout, ARGS)
    return np.concatenate([each.detach().numpy().reshape(-1) for each in agent.parameters()])


def test_the_clip_is_around_the_policy_before_the_update_and_not_around_the_one_that_acted() -> None:
    fresh = learnt(0.0)
    # A ratio of e to the policy that acted would be clipped; its weight is 1, as that of a fresh action.
    assert np.array_equal(learnt(1.0), fresh)
    # Actions that are less probable now count less.
    assert not np.array_equal(learnt(-1.0), fresh)
