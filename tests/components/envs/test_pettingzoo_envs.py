"""Environments of PettingZoo, of both interfaces: what each agent sees, does and earns, also of agents that leave."""

import re
from typing import Any

import numpy as np
import pytest
from adapted_envs import Leaving, Nim
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.adapted import named
from components.envs.adapted.copies import seed_of
from components.envs.adapted.pettingzoo_copies import PettingZooCopies
from orchestra import UsageError

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def ones(env: PettingZooCopies) -> np.ndarray:
    """Return the last action that is available to each agent."""
    u = env.available.shape[-1]
    return u - 1 - env.available[..., ::-1].argmax(-1)


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 2**40), st.booleans())
def test_transitions_are_those_of_a_plain_loop_with_the_same_seed(seed: int, continuous: bool) -> None:
    arguments = {"N": 2, "continuous_actions": continuous, "max_cycles": 7}
    env = named.factory_of(SPREAD, arguments)(2, seed=seed)
    from mpe2 import simple_spread_v3

    plain = simple_spread_v3.parallel_env(**arguments)
    rng = np.random.default_rng(0)
    env.reset()
    seen, _ = plain.reset(seed=seed_of(seed, 1))
    fields = env.fields()
    for _ in range(20):
        for i, agent in enumerate(plain.possible_agents):
            assert fields["obs"][1, i].tobytes() == seen[agent].astype(np.float32).tobytes()
        assert fields["state"][1].tobytes() == plain.state().astype(np.float32).tobytes()
        assert fields["alive"].all()
        chosen = rng.normal(0.5, 1.0, (2, 2, 5)).astype(np.float32) if continuous else rng.integers(0, 5, (2, 2))
        sent = np.clip(chosen[1], 0, 1) if continuous else chosen[1]
        seen, rewards, terminated, truncated, _ = plain.step(dict(zip(plain.possible_agents, sent, strict=True)))
        env.step(chosen)
        np.testing.assert_array_equal(fields["reward"][1], np.float32(list(rewards.values())))
        assert env.truncated[1] == all(truncated.values())
        assert env.terminated[1] == all(terminated.values())
        if env.truncated[1]:
            for i, agent in enumerate(plain.possible_agents):
                assert fields["obs"][1, i].tobytes() == seen[agent].astype(np.float32).tobytes()
            env.reset()
            seen, _ = plain.reset()
    env.close()


def test_agents_that_differ_are_padded_and_masked() -> None:
    env = PettingZooCopies(Leaving, 1, rewards="each")
    fields = env.spec.schema.by_name
    assert (fields["obs"].shape, fields["state"].shape, fields["actions"].n_values) == ((3,), (4,), (4,))
    env.reset()
    np.testing.assert_array_equal(env.obs[0], [[0, 1, 2], [1, 0, 0]])  # the short one sees a number below 2
    np.testing.assert_array_equal(env.available[0], [[True] * 4, [True, True, False, False]])
    with pytest.raises(ValueError, match=r"copy 0, agent 1: action 2 is not available, of these one is: \[0, 1\]"):
        env.step(np.array([[0, 2]]))
    env.step(np.array([[3, 1]]))
    assert env._games[0].env.log == [{"long": 3, "short": 6}]  # its actions begin with 5


@pytest.mark.parametrize("cut", [False, True])
def test_an_agent_that_has_left_shows_zeros_and_earns_nothing_and_the_others_go_on(cut: bool) -> None:
    env = PettingZooCopies(lambda: Leaving(cut), 1, rewards="each")
    env.reset()
    alive, rewards, states = [env.fields()["alive"][0].tolist()], [], [env.state[0, 0]]
    while not (env.terminated[0] or env.truncated[0]):
        env.step(ones(env))
        alive.append(env.fields()["alive"][0].tolist())
        rewards.append(env.reward[0].tolist())
        states.append(env.state[0, 0])
        if len(rewards) == 2:
            np.testing.assert_array_equal(env.obs[0], [[2, 1, 2], [1, 0, 0]])  # its last observation, with its reward
        if len(rewards) > 2:
            np.testing.assert_array_equal(env.obs[0, 1], [0, 0, 0])
            np.testing.assert_array_equal(env.available[0, 1], [True, False, False, False])
    # The frame after the last step: nobody is left where the game has ended, the long one where it was cut.
    assert alive == [[True, True], [True, True], [True, False], [True, False], [cut, False]]
    assert rewards == [[1, 10], [1, 10], [1, 0], [1, 0]]
    assert states == [0, 1, 2, 3, 4]
    assert (env.terminated[0], env.truncated[0]) == (not cut, cut)
    env.reset()
    assert env.fields()["alive"].all()
    assert env._games[0].env.log[-1] == {"long": 3}


@pytest.mark.parametrize(("rewards", "expected"), [("mean", [5.5, 5.5, 0.5, 0.5]), ("sum", [11, 11, 1, 1])])
def test_a_team_has_one_reward_and_the_fields_of_a_team(rewards: Any, expected: list[float]) -> None:
    env = PettingZooCopies(Leaving, 1, rewards=rewards)
    assert env.spec.fields == ()
    assert (env.spec.n_agents, env.spec.n_actions, env.spec.obs_size, env.spec.state_size) == (2, 4, 3, 4)
    env.reset()
    earned = []
    while not env.terminated[0]:
        env.step(ones(env))
        earned.append(float(env.reward[0]))
    assert earned == expected


def test_the_state_is_all_observations_where_the_environment_has_none() -> None:
    env = PettingZooCopies(lambda: Leaving(has_state=False), 1)
    env.reset()
    np.testing.assert_array_equal(env.state[0], env.obs[0].reshape(-1))
    env.step(ones(env))
    np.testing.assert_array_equal(env.state[0], [1, 1, 2, 0, 1, 0])


def test_an_episode_is_cut_at_a_limit_that_is_given() -> None:
    env = PettingZooCopies(Leaving, 1, episode_limit=3)
    env.reset()
    for cut in (False, False, True):
        env.step(ones(env))
        assert (env.truncated[0], env.terminated[0]) == (cut, False)
    assert env.fields()["alive"][0].tolist() == [True, False]
    with pytest.raises(ValueError, match="copy 0 is over"):
        env.step(ones(env))


def test_a_step_of_a_game_in_turns_is_the_turn_of_one() -> None:
    env = PettingZooCopies(Nim, 2, episode_limit=9)
    assert (env.spec.schema.by_name["obs"].shape, env.spec.n_actions) == ((1,), 2)
    env.reset()
    turns, left, rewards = [], [], []
    while not env.terminated[0]:
        turns.append(env.fields()["alive"][0].tolist())
        left.append(env.obs[0, :, 0].tolist())
        np.testing.assert_array_equal(env.available[0].all(-1), [(turns[-1][i] and left[-1][0] > 1) for i in range(2)])
        env.step(ones(env))
        rewards.append(env.reward[0].tolist())
    assert turns == [[True, False], [False, True], [True, False]]
    assert left == [[5, 5], [3, 3], [1, 1]]
    assert env.obs[0, :, 0].tolist() == [0, 0]  # both see how it ended
    assert rewards == [[0, 0], [0, 0], [1, -1]]
    assert not env.truncated.any()
    assert not env.fields()["alive"].any()


def test_the_same_game_by_either_interface_has_the_same_transitions() -> None:
    from mpe2 import simple_spread_v3

    one, other = (
        PettingZooCopies(lambda make=make: make(max_cycles=4), 1, seed=6)
        for make in (simple_spread_v3.parallel_env, simple_spread_v3.env)
    )
    for env in (one, other):
        env.reset()
    for _ in range(4):
        for env in (one, other):
            env.step(ones(env))
        for name, array in one.fields().items():
            np.testing.assert_array_equal(array, other.fields()[name], err_msg=name)
    assert one.truncated[0]
    assert other.truncated[0]


class Unlike(Leaving):
    """Two agents with the spaces that it is given."""

    def __init__(self, seen: list[Any], done: list[Any]) -> None:
        super().__init__()
        self._seen, self._done = (dict(zip(self.possible_agents, each, strict=True)) for each in (seen, done))


BOX = spaces.Box(-1, 1, (2,), np.float32)
TWO = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("seen", "done", "said"),
    [
        ([BOX, BOX], [TWO, BOX], "the agents' actions differ, long: Discrete(2), short: Box("),
        ([BOX, spaces.Text(3)], [TWO, TWO], "obs of the space Text("),
        ([BOX, BOX], [spaces.Dict({"a": TWO})] * 2, "unlike, long: actions of the space Dict("),
    ],
)
def test_agents_that_no_padding_makes_alike_are_refused_by_name(seen: list[Any], done: list[Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said.replace("unlike", "leaving_v0"))):
        PettingZooCopies(lambda: Unlike(seen, done), 1)


def test_boxes_of_different_lengths_are_padded_and_each_agent_gets_its_own_part() -> None:
    done = [BOX, spaces.Box(-1, 1, (1,), np.float32)]
    env = PettingZooCopies(lambda: Unlike([BOX, BOX], done), 1)
    assert env.spec.schema.by_name["actions"].shape == (2,)
    assert env._of_agents["short"](np.array([0.5, 3.0], np.float32)).tolist() == [0.5]
    assert env._of_agents["long"](np.array([0.5, 3.0], np.float32)).tolist() == [0.5, 1.0]


def test_images_of_agents_that_are_alike_keep_their_shape() -> None:
    image = spaces.Box(0, 255, (2, 3), np.uint8)
    env = PettingZooCopies(lambda: Unlike([image, image], [TWO, TWO]), 1)
    field = env.spec.schema.by_name["obs"]
    assert (field.shape, field.dtype, field.agents) == ((2, 3), "uint8", True)


def test_a_module_that_is_none_of_pettingzoo_is_refused() -> None:
    with pytest.raises(UsageError, match=r"math has neither parallel_env\(\) nor env\(\)"):
        named.factory_of("pettingzoo:math", {})(1, seed=0)
    with pytest.raises(UsageError, match="pip install nowhere_at_all"):
        named.factory_of("pettingzoo:nowhere_at_all.game_v1", {})(1, seed=0)
