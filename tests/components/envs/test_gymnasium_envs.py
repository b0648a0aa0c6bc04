"""Environments of Gymnasium give the transitions that a plain loop over them gives, in every form that they have."""

import re
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from adapted_envs import Counted, Shaped, counted, counted_vector
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from team_experience import joined

from components.envs import AsyncEnv
from components.envs.adapted import named
from components.envs.adapted.copies import seed_of
from components.envs.adapted.gymnasium_copies import GymnasiumCopies
from components.envs.adapted.gymnasium_vector import SameStepCopies, vector_copies
from components.envs.base import Env
from components.policies.acting import Acted, ActingPolicy
from components.rollout import Rollout
from messages import InsertTransitionMsg
from orchestra import UsageError

HERE = __file__.rpartition("/")[0]
Episode = dict[str, Any]


class AtRandom(ActingPolicy):
    """Draws available actions, or numbers beyond the bounds of continuous ones."""

    def __init__(self, env: Env) -> None:
        self.field = env.spec.schema.by_name["actions"]

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, 1, 1), np.float32)

    def act_on(self, frames, last_actions, hidden, *, epsilon, rng) -> Acted:
        shape = last_actions.shape
        if not self.field.n_values:
            return Acted((3 * rng.standard_normal(shape)).astype(np.float32), hidden, {})
        if "available" in frames:
            return Acted(np.argmax(rng.random(frames["available"].shape) * frames["available"], -1), hidden, {})
        return Acted(rng.integers(0, self.field.n_values, shape), hidden, {})

    def params(self) -> NDArray[np.float32]:
        return np.zeros(0, np.float32)

    def load(self, params: NDArray[np.float32]) -> None:
        pass


def collected(env: Env, steps: int, *, seed: int = 0, segment_length: int | None = None) -> InsertTransitionMsg:
    """Return `steps` steps of each copy, in turns of different lengths."""
    rollout = Rollout(env, AtRandom(env), np.random.default_rng(seed), segment_length=segment_length)
    parts, turn = [], 0
    while steps > 0:
        turn = min(turn % 5 + 1, steps)
        part = rollout.collect(turn, 1.0)
        rollout.schema.check(part.fields, part.lengths) if part is not None else None
        parts += [] if part is None else [part]
        steps -= turn
    rollout.close()
    return joined(parts)


def episodes_of(message: InsertTransitionMsg) -> dict[int, Episode]:
    """Return the episodes by number, their segments joined; the last one of each copy may be without an end."""
    episodes: dict[int, Episode] = {}
    begins = np.cumsum(message.lengths) - message.lengths
    for e, (begin, length) in enumerate(zip(begins.tolist(), message.lengths.tolist(), strict=True)):
        own = episodes.setdefault(int(message.episode[e]), {name: [] for name in message.fields})
        assert message.first[e] == len(own["actions"])
        for name in message.per_step:
            own[name] += list(message[name][begin : begin + length])
        for name in message.per_frame:
            rows = list(message[name][begin + e : begin + e + length + 1])
            own[name] = own[name][:-1] + rows
        own["ended"] = bool(message.terminated[e]), bool(message.truncated[e])
        own["won"] = bool(message.won[e])
    return episodes


PLAIN = ["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0"]


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(PLAIN), st.integers(0, 2**40), st.integers(1, 40))
def test_transitions_are_those_of_a_plain_loop_with_the_same_seed(name: str, seed: int, segment: int) -> None:
    env = named.factory_of(f"gymnasium:{name}", {"vectorization_mode": "sync"}, episode_limit=60)(1, seed=seed)
    plain = gymnasium.make(name, max_episode_steps=60)
    obs, _ = plain.reset(seed=seed_of(seed, 0))
    space: Any = plain.action_space
    episodes = episodes_of(collected(env, 130, seed=seed, segment_length=segment))
    for episode in episodes.values():
        for t, action in enumerate(episode["actions"]):
            assert episode["obs"][t].tobytes() == np.asarray(obs, np.float32).tobytes()
            done = int(action[0]) if isinstance(space, spaces.Discrete) else np.clip(action[0], space.low, space.high)
            obs, reward, terminated, truncated, _ = plain.step(done)
            assert episode["reward"][t] == np.float32(reward)
            last = t == len(episode["actions"]) - 1
            assert (terminated, truncated and not terminated) == (episode["ended"] if last else (False, False))
        assert episode["obs"][-1].tobytes() == np.asarray(obs, np.float32).tobytes()
        if any(episode["ended"]):
            obs, _ = plain.reset()


def test_a_copy_does_not_depend_on_the_others() -> None:
    many, alone = (GymnasiumCopies(counted, n, seed=4, episode_limit=9) for n in (3, 1))
    for env in (many, alone):
        env.reset()
    for _ in range(30):
        for env in (many, alone):
            env.step(np.ones((env.n_envs, 1), np.int64))
        assert many.obs[0].tobytes() == alone.obs[0].tobytes()
        assert (many.reward[0], many.terminated[0], many.won[0]) == (alone.reward[0], alone.terminated[0], alone.won[0])
        for env in (many, alone):
            env.reset(env.terminated | env.truncated)


def whole(message: InsertTransitionMsg) -> list[tuple[Any, ...]]:
    """Return the complete episodes as values that can be compared, whichever order they ended in."""
    found = []
    for episode in episodes_of(message).values():
        if any(episode["ended"]):
            frames = [tuple(frame[0][:2].tolist()) for frame in episode["obs"]]
            found.append((frames, [float(reward) for reward in episode["reward"]], *episode["ended"], episode["won"]))
    return found


@pytest.mark.parametrize("segment", [None, 2])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_no_form_of_automatic_resets_adds_a_transition_or_loses_the_last_observation(mode: str, segment: Any) -> None:
    env = vector_copies(counted_vector(3, mode), seed=1)
    message = collected(env, 200, segment_length=segment)
    episodes = whole(message)
    assert len(episodes) > 60
    for frames, rewards, terminated, truncated, won in episodes:
        length = len(rewards)
        assert [step for _, step in frames] == list(range(length + 1))
        assert len({episode for episode, _ in frames}) == 1
        assert [reward // 10 for reward in rewards] == list(range(1, length + 1))
        assert (terminated, truncated) == (length % 2 == 1, length % 2 == 0)
        assert won == (length == 5)
    assert sorted({length for _, rewards, *_ in episodes for length in [len(rewards)]}) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_every_form_plays_the_episodes_that_the_environments_play_alone(mode: str) -> None:
    env = vector_copies(counted_vector(2, mode), seed=7)
    episodes = whole(collected(env, 90))
    for b in range(2):
        plain, lengths = Counted(), []
        plain.reset(seed=7 + b)
        for _ in range(10):
            lengths.append(plain._length)
            for _ in range(plain._length):
                plain.step(0)
            plain.reset()
        own = [len(rewards) for frames, rewards, *_ in episodes]
        assert all(own.count(length) >= lengths.count(length) for length in set(lengths))


def test_a_registered_vectorised_form_is_used_and_gives_its_own_transitions() -> None:
    env = named.factory_of("gymnasium:CartPole-v1", {})(3, seed=5)
    assert not env.lock_step
    plain = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    obs, _ = plain.reset(seed=5)
    env.send_reset(slice(None))
    env.recv()
    rng, resets = np.random.default_rng(0), np.zeros(3, np.bool_)
    for _ in range(120):
        np.testing.assert_array_equal(env.obs[:, 0], obs)
        actions = rng.integers(0, 2, 3)
        playing = np.flatnonzero(~resets)
        env._actions[resets, 0] = actions[resets]  # it is ignored
        env.send(actions[playing, None], playing)
        if resets.any():
            env.send_reset(np.flatnonzero(resets))
        assert len(np.arange(3)[env.recv()]) == 3
        obs, reward, terminated, truncated, _ = plain.step(actions)
        np.testing.assert_array_equal(env.terminated, terminated)
        np.testing.assert_array_equal(env.truncated, truncated)
        np.testing.assert_array_equal(env.reward, reward)
        resets = terminated | truncated


def test_evaluations_of_a_vectorised_form_count_whole_episodes() -> None:
    from components.playing import play

    env = vector_copies(counted_vector(3, "NextStep"), seed=1)
    results = play(env, AtRandom(env), 10, np.random.default_rng(0))
    assert len(results.lengths) == 10
    for length, total in zip(results.lengths.tolist(), results.returns.tolist(), strict=True):
        assert total // 10 == length * (length + 1) // 2


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
TWO = spaces.Discrete(2)
SHAPES: list[tuple[spaces.Space[Any], dict[str, tuple[tuple[int, ...], str]]]] = [
    (BOX, {"obs": ((2,), "float32"), "state": ((2,), "float32")}),
    (spaces.Box(0, 9, (), np.float64), {"obs": ((1,), "float32"), "state": ((1,), "float32")}),
    (spaces.Discrete(4, start=3), {"obs": ((4,), "float32"), "state": ((4,), "float32")}),
    (spaces.MultiDiscrete([2, 3]), {"obs": ((5,), "float32"), "state": ((5,), "float32")}),
    (spaces.MultiBinary(3), {"obs": ((3,), "float32"), "state": ((3,), "float32")}),
    (spaces.Box(0, 255, (4, 5, 3), np.uint8), {"obs": ((4, 5, 3), "uint8")}),
    (
        spaces.Dict({"camera": spaces.Box(0, 255, (2, 2), np.uint8), "gear": spaces.Discrete(5, start=-1)}),
        {"obs/camera": ((2, 2), "uint8"), "obs/gear": ((), "int64")},
    ),
    (
        spaces.Tuple([spaces.MultiBinary(2), spaces.Dict({"at": spaces.Box(0, 1, (2,), np.float64)})]),
        {"obs/0": ((2,), "int8"), "obs/1/at": ((2,), "float64")},
    ),
]


def shaped(seen: Any, done: Any, **wrong: Any) -> GymnasiumCopies:
    return GymnasiumCopies(lambda: Shaped(seen, done, **wrong), 2, seed=3, episode_limit=5)


@pytest.mark.parametrize(("space", "expected"), SHAPES, ids=[str(space)[:40] for space, _ in SHAPES])
def test_observation_spaces_are_fields(space: Any, expected: Any) -> None:
    env = shaped(space, TWO)
    fields = env.spec.schema.by_name
    others = ("available", "actions", "reward")
    assert {name: (each.shape, each.dtype) for name, each in fields.items() if name not in others} == expected
    message = collected(env, 12)
    assert message.truncated.all()  # the limit cuts what never ends
    for name in expected:
        assert len(message[name]) == message.steps + message.segments


def test_numbers_of_a_space_become_one_hot_vectors_back_to_back() -> None:
    env = shaped(spaces.MultiDiscrete([2, 3], start=[1, -1]), TWO)
    env.reset()
    env._envs[0].observation_space.seed(0)
    sample = env._envs[0].observation_space.sample()
    part = env._parts[0]
    row = np.concatenate([np.eye(2)[sample[0] - 1], np.eye(3)[sample[1] + 1]])
    np.testing.assert_array_equal(part.value(sample, (5,)), row)
    np.testing.assert_array_equal(part.value(np.array([sample] * 4), (4, 5)), [row] * 4)


ACTIONS = [
    (spaces.Discrete(3, start=2), (), (3,)),
    (spaces.MultiDiscrete([2, 5]), (2,), (2, 5)),
    (spaces.MultiBinary((2, 2)), (4,), (2,)),
    (spaces.Box(-1.0, 2.0, (2, 2), np.float32), (4,), ()),
]


@pytest.mark.parametrize(("space", "shape", "n_values"), ACTIONS, ids=[type(space).__name__ for space, *_ in ACTIONS])
def test_action_spaces_are_fields_and_what_is_sent_lies_in_its_space(space: Any, shape: Any, n_values: Any) -> None:
    env = shaped(BOX, space)
    field = env.spec.schema.by_name["actions"]
    assert (field.shape, field.n_values) == (shape, n_values)
    message = collected(env, 10)  # `Shaped` asserts that its space contains what it is sent
    sent = [action for each in env._envs for action in each.done]
    assert len(sent) == message.steps
    if not n_values:
        assert (field.low, field.high) == ((-1.0,) * 4, (2.0,) * 4)
        assert np.abs(message["actions"]).max() > 2.0  # recorded as the policy chose them
        assert np.max(sent) == 2.0


REFUSED = [
    (spaces.Text(5), TWO, "obs of the space Text(1, 5, charset="),
    (spaces.Dict({"a": BOX, "b": spaces.Sequence(BOX)}), TWO, "obs/b of the space Sequence("),
    (spaces.Graph(BOX, None), TWO, "obs of the space Graph("),
    (BOX, spaces.Dict({"a": TWO}), "actions of the space Dict("),
    (BOX, spaces.Tuple([TWO, BOX]), "actions of the space Tuple("),
    (BOX, spaces.Box(0, 3, (2,), np.int64), "actions of the space Box("),
]


@pytest.mark.parametrize(("seen", "done", "said"), REFUSED, ids=[said.split("(")[0] for *_, said in REFUSED])
def test_a_space_that_is_not_supported_is_refused_by_name(seen: Any, done: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        shaped(seen, done)
    assert "Discrete, MultiDiscrete" in str(refused.value)


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (BOX, {"wrong": np.zeros(3, np.float32)}, r"^obs: expected float32 of shape \(2,\), got shape \(3,\)$"),
    (
        BOX,
        {"wrong": np.array([0, np.nan], np.float32)},
        r"^obs: expected finite numbers, got .* in copy 0$",
    ),
    (BOX, {"wrong": "left"}, r"^obs: expected float32 of shape \(2,\): could not convert"),
    (spaces.Discrete(4), {"wrong": 4}, r"^obs: expected float32 of shape \(4,\): got 4, out of the range"),
    (spaces.Dict({"a": BOX}), {"wrong": {"b": 1}}, r"^obs/a: expected float32 of shape \(2,\): 'a'$"),
    (BOX, {"reward": np.nan}, r"^reward: expected finite numbers, got nan in copy 0$"),
    (BOX, {"reward": [1.0, 2.0]}, r"^reward: expected a number"),
]


@pytest.mark.parametrize(("space", "wrong", "said"), WRONG)
def test_what_does_not_fit_is_refused_by_the_name_of_its_field(space: Any, wrong: Any, said: str) -> None:
    env = shaped(space, TWO, **wrong)
    env.reset()
    with pytest.raises(ValueError, match=said):
        for _ in range(3):
            env.step(np.zeros((2, 1), np.int64))


@pytest.mark.parametrize(
    ("space", "actions", "said"),
    [
        (TWO, np.full((2, 1), 2), "actions: expected 0 to"),
        (TWO, np.zeros((2, 1), np.float32), "actions: expected integers of shape"),
        (BOX, np.zeros((2, 1, 3), np.float32), "actions: expected finite floats of shape"),
        (BOX, np.full((2, 1, 2), np.nan, np.float32), "actions: expected finite floats of shape"),
    ],
)
def test_actions_that_do_not_fit_are_refused_before_anything_is_stepped(space: Any, actions: Any, said: str) -> None:
    env = shaped(BOX, space)
    env.reset()
    with pytest.raises(ValueError, match=said):
        env.step(actions)
    assert [each.done for each in env._envs] == [[], []]


def test_a_mask_in_the_infos_says_which_actions_are_available() -> None:
    env = named.factory_of("gymnasium:Taxi-v4", {})(2, seed=1)
    env.reset()
    plain = gymnasium.make("Taxi-v4")
    _, info = plain.reset(seed=seed_of(1, 0))
    np.testing.assert_array_equal(env.available[0, 0], info["action_mask"].astype(bool))
    taken = int(np.flatnonzero(~env.available[0, 0])[0])
    with pytest.raises(ValueError, match=f"copy 0, agent 0: action {taken} is not available"):
        env.step(np.array([[taken], [int(env.available[1, 0].argmax())]]))


def make_counted(**arguments: Any) -> Any:
    return counted(**arguments)


def make_numbers() -> int:
    return 5


def make_env_of_ours(n_envs: int, seed: int) -> Env:
    return GymnasiumCopies(counted, n_envs, seed=seed, episode_limit=9)


def make_vectors(num_envs: int) -> Any:
    return counted_vector(num_envs, "SameStep")


def test_a_function_may_make_vector_environments_or_an_env_itself() -> None:
    for name, kind in (("make_env_of_ours", GymnasiumCopies), ("make_vectors", SameStepCopies)):
        env = named.factory_of(f"{__file__}:{name}", {})(3, seed=1)
        assert (type(env).__name__, env.n_envs, env.spec.episode_limit) == (kind.__name__, 3, 9)


@pytest.mark.parametrize(
    ("env", "given", "said"),
    [
        ("gymnasium:CartPole-v1", {"rewards": "mean"}, "--rewards mean: gymnasium:CartPole-v1 is one agent"),
        (f"{__file__}:make_counted", {"rewards": "sum", "episode_limit": 9}, "--rewards sum: "),
        (f"{__file__}:make_vectors", {"rewards": "sum"}, "--rewards sum: "),
        (f"{__file__}:make_env_of_ours", {"rewards": "sum"}, "which says itself whose its rewards are"),
        (f"{__file__}:make_env_of_ours", {"episode_limit": 4}, "which has a limit of its own"),
    ],
)
def test_an_option_that_an_environment_does_not_have_is_refused(env: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        named.factory_of(env, {}, **given)(1, seed=0)


def test_a_vector_environment_that_does_not_cut_its_episodes_in_time_is_told_so() -> None:
    env = vector_copies(counted_vector(2, "SameStep"), seed=1, episode_limit=2)
    with pytest.raises(ValueError, match="longer than the 2 steps that it should have at most"):
        collected(env, 30)


@pytest.mark.parametrize(
    ("env", "arguments", "said"),
    [
        ("gymnasium:CartPole-v7", {}, "CartPole-v7"),
        ("gymnasium:Nothing-v0", {}, "Nothing"),
        ("gymnasium:CartPole-v1", {"gravity": 3}, "gravity"),
        ("gymnasium:CartPole-v1", {"vectorization_mode": "async"}, "must be sync"),
        ("nowhere_at_all:make_env", {}, "pip install nowhere_at_all"),
        ("/nowhere/mine.py:make_env", {}, "there is no file '/nowhere/mine.py'"),
        (f"{__file__}:nothing", {}, "has no function 'nothing'"),
        (f"{__file__}:make_numbers", {}, "returned 5; it must return an environment of Gymnasium or of PettingZoo"),
        (f"{__file__}:make_counted", {}, "give --episode-limit"),
    ],
)
def test_a_slip_in_the_name_of_an_environment_is_one_sentence(env: str, arguments: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        named.factory_of(env, arguments)(1, seed=0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("package", ["gymnasium", "pettingzoo"])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(package: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=re.escape(f"pip install 'orchestra-rl[{package}]'")):
        named.factory_of(f"{package}:anything", {})(1, seed=0)


def test_arguments_are_literals_or_text() -> None:
    given = ("N=5", "ratio=0.5", "continuous=true", "name=a b", "sizes=[1, 2]", "empty=")
    expected = {"N": 5, "ratio": 0.5, "continuous": True, "name": "a b", "sizes": [1, 2], "empty": ""}
    assert named.arguments_of(given) == expected
    with pytest.raises(UsageError, match="'N' must be NAME=VALUE"):
        named.arguments_of(("N",))


def test_the_name_of_a_file_is_recorded_with_its_whole_path(monkeypatch) -> None:
    monkeypatch.chdir(HERE)
    assert named.named("adapted_envs.py:counted") == f"{HERE}/adapted_envs.py:counted"
    assert named.named("gymnasium:ale_py:ALE/Pong-v5") == "gymnasium:ale_py:ALE/Pong-v5"
    for wrong in ("cartpole", "gymnasium:", "mine.py", "mine:make env"):
        with pytest.raises(ValueError, match="it must be skirmish, smac, air_combat:MAP, gymnasium:ID"):
            named.named(wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "arguments", "limit"),
    [
        ("gymnasium:Pendulum-v1", {}, 6),
        ("gymnasium:CartPole-v1", {}, 30),
        (f"{HERE}/adapted_envs.py:Leaving", {}, None),
    ],
)
def test_environments_in_processes_carry_all_declared_fields(env: str, arguments: Any, limit: int | None) -> None:
    make = named.factory_of(env, arguments, episode_limit=limit)
    hosted = AsyncEnv(make, 2, seed=3, min_batch=2)
    alone = [make(1, seed=hosted._seed_of(b, 0)) for b in range(2)]
    assert hosted.spec == alone[0].spec
    rng = np.random.default_rng(0)
    hosted.reset()
    for each in alone:
        each.reset()
    for _ in range(40):
        for name, array in hosted.fields().items():
            for b in range(2):
                assert array[b].tobytes() == alone[b].fields()[name][0].tobytes(), name
        frames = {name: hosted.fields()[name] for name in hosted.spec.schema.frames}
        last = np.zeros((2, *hosted.spec.schema.items["actions"][0]))
        actions = AtRandom(hosted).act_on(frames, last, np.zeros((2, 1, 1), np.float32), epsilon=1.0, rng=rng).actions
        hosted.step(actions)
        for b, each in enumerate(alone):
            each.step(actions[b : b + 1])
        ended = hosted.terminated | hosted.truncated
        if ended.any():
            hosted.reset(ended)
            for b in np.flatnonzero(ended):
                alone[b].reset()
    hosted.close()


@pytest.mark.parametrize("arguments", [{}, {"vectorization_mode": "sync"}])
def test_an_environment_says_from_which_return_on_it_counts_as_solved(arguments: dict[str, Any]) -> None:
    spec = named.factory_of("gymnasium:CartPole-v1", arguments)(1, seed=0).spec
    assert (spec.can_be_won, spec.reward_threshold) == (False, 475.0)
    assert named.factory_of("gymnasium:Pendulum-v1", {})(1, seed=0).spec.reward_threshold is None


def test_a_module_that_is_not_there_may_have_meant_a_kind_and_may_be_missing() -> None:
    with pytest.raises(UsageError, match=r"No module named 'gym' \(did you mean gymnasium\?\); is it installed\?"):
        named.factory_of("gym:make", {})(1, seed=0)
    with pytest.raises(UsageError, match=r"No module named 'pettingzoo\.no'; is it installed\? pip install pettingzoo"):
        named.factory_of("pettingzoo:pettingzoo.no", {})(1, seed=0)
