"""Copies stepped together give the very episodes that each would have given alone."""

import os
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from team_experience import joined

from components.playing import play
from components.rollout import Rollout
from components.row_memory import RowMemory
from messages import InsertTransitionMsg
from orchestra import SparseArray
from orchestra.actors import codec
from orchestra.actors.arrays import is_frozen
from orchestra.wire.blocks import SharedBlocks

RNG = np.random.default_rng(0)


class Reference:
    """One copy, played alone, one step at a time, with lists."""

    def __init__(self, env: Any, policy: Any) -> None:
        self.env, self.policy = env, policy
        env.reset()
        self.begin()

    def begin(self) -> None:
        self.hidden = self.policy.initial_hidden(1)
        self.last = np.full((1, self.env.spec.n_agents), -1, np.int64)
        self.episode: dict[str, list[Any]] = defaultdict(list)
        self.look()

    def look(self) -> None:
        for name in ("obs", "state", "available"):
            self.episode[name].append(getattr(self.env, name)[0].copy())

    def step(self, version: int) -> dict[str, Any] | None:
        env = self.env
        actions, self.hidden = self.policy.act(env.obs, env.available, self.last, self.hidden, epsilon=0.0, rng=RNG)
        env.step(actions)
        self.last = actions.copy()
        self.episode["actions"].append(actions[0])
        self.episode["reward"].append(env.reward[0])
        self.episode["versions"].append(version)
        self.look()
        if not (env.terminated[0] or env.truncated[0]):
            return None
        ended = {name: np.stack(values) for name, values in self.episode.items()}
        ended |= {"terminated": env.terminated[0], "won": env.won[0]}
        env.reset()
        self.begin()
        return ended


def taken_apart(message: InsertTransitionMsg) -> list[dict[str, Any]]:
    episodes = []
    steps = 0
    for e, length in enumerate(message.lengths):
        frames = slice(steps + e, steps + e + length + 1)
        episode = {name: message[name][frames] for name in ("obs", "state", "available")}
        episode |= {name: message[name][steps : steps + length] for name in ("actions", "reward")}
        episode["versions"] = message.versions[steps : steps + length]
        episode |= {name: getattr(message, name)[e] for name in ("terminated", "won")}
        episodes.append(episode)
        steps += length
    return episodes


@pytest.mark.parametrize("turn", [1, 3, 40])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_copies_stepped_together_play_what_each_plays_alone(corridor, scripted, n_envs: int, turn: int) -> None:
    policy = scripted(corridor(1, seed=0).spec, seed=0)
    rollout = Rollout(corridor(n_envs, seed=0), policy, RNG)
    alone = [Reference(corridor(1, seed=0, first=i), scripted(policy.spec, seed=0)) for i in range(n_envs)]

    collected: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    for version in range(120 // turn):
        params = np.full(2, version % 3, np.float32)
        rollout.load(params, version)
        for reference in alone:
            reference.policy.load(params)
        message = rollout.collect(turn, 0.0)
        collected += [] if message is None else taken_apart(message)
        for _ in range(turn):
            expected += [ended for reference in alone if (ended := reference.step(version)) is not None]

    assert len(collected) == len(expected) > 25
    for ours, theirs in zip(collected, expected, strict=True):
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value, err_msg=name)


def test_episodes_are_cut_exactly_at_their_ends(corridor, scripted) -> None:
    env = corridor(2, seed=0, plan=((3, 9), (2,)))
    message = Rollout(env, scripted(env.spec, seed=0), RNG).collect(9, 0.0)
    assert message is not None
    assert message.lengths.tolist() == [2, 3, 2, 2, 2, 6]
    assert message.terminated.tolist() == [True, True, True, True, True, False]
    assert (message.segments, message.steps, len(message["obs"])) == (6, 17, 23)
    for episode in taken_apart(message):
        assert episode["state"][:, 2].tolist() == list(range(len(episode["reward"]) + 1))  # frames 0 … T
        weights = np.array([0.25, 0.5])
        assert (episode["reward"] == 1 + np.arange(len(episode["reward"])) + episode["actions"] @ weights).all()


def test_nothing_is_told_until_an_episode_ends(corridor, scripted) -> None:
    env = corridor(1, seed=0, plan=((4,),))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    assert rollout.collect(3, 0.0) is None
    message = rollout.collect(1, 0.0)
    assert message is not None
    assert message.lengths.tolist() == [4]


def test_a_turn_ends_with_the_step_in_which_its_last_credit_is_used(corridor, scripted) -> None:
    env = corridor(3, seed=0, plan=((2,), (2,), (3,)))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    message = rollout.collect(40, 0.0, 1)
    assert message is not None
    assert message.lengths.tolist() == [2, 2]  # both ended in that step
    message = rollout.collect(40, 0.0, 2)
    assert message is not None
    assert message.lengths.tolist() == [3, 2, 2]


def test_the_memory_of_a_message_is_sent_as_it_is(corridor, scripted) -> None:
    blocks = SharedBlocks(1 << 24, os.urandom)
    blocks.join(Nobody())
    assert blocks.arena_to_offer({}) is not None
    env = corridor(512, seed=0, plan=((5,),))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG, lend=blocks.lend_memory)
    message = rollout.collect(5, 0.0)
    assert message is not None
    _, arrays = codec.Encoder().encode(codec.values_of(message))
    assert blocks.find(codec.payload_buffers(arrays), codec.payload_size(arrays)) is not None
    plain = Rollout(corridor(512, seed=0, plan=((5,),)), scripted(env.spec, seed=0), RNG).collect(5, 0.0)
    assert plain is not None
    for ours, theirs in zip(taken_apart(message), taken_apart(plain), strict=True):
        for name, value in theirs.items():
            np.testing.assert_array_equal(ours[name], value, err_msg=name)


class Nobody:
    """A user of arenas that forgets nothing."""

    def withdraw(self, arena: Any) -> None:
        pass


def test_a_step_names_the_version_that_chose_its_actions(corridor, scripted) -> None:
    env = corridor(1, seed=0, plan=((3,),))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    assert rollout.version == 0
    rollout.collect(1, 0.0)
    rollout.load(np.zeros(2, np.float32), 5)
    rollout.collect(1, 0.0)
    rollout.load(np.zeros(2, np.float32), 6)
    message = rollout.collect(1, 0.0)
    assert message is not None
    assert message.versions.tolist() == [0, 5, 6]


def test_the_exploration_rate_is_the_policy_s_and_is_told(corridor, scripted) -> None:
    env = corridor(1, seed=0, plan=((2,),))
    policy = scripted(env.spec, seed=0)
    message = Rollout(env, policy, RNG).collect(2, 0.75)
    assert message is not None
    assert (policy.epsilons, message["epsilon"].tolist()) == ([0.75, 0.75], [0.75])


def test_what_is_told_never_changes_again(corridor, scripted) -> None:
    env = corridor(2, seed=0, plan=((2,), (3,)))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    for turn in (2, 6):  # one episode alone, and several joined
        message = rollout.collect(turn, 0.0)
        assert message is not None
        arrays = {name: getattr(message, name) for name in message.wire.array_fields}
        before = {name: array.copy() for name, array in arrays.items()}
        rollout.collect(12, 0.0)
        for name, array in arrays.items():
            assert is_frozen(array), name
            np.testing.assert_array_equal(array, before[name])


# Greedy play ----------------------------------------------------------------------------------------------------------

FIXED = ((1,), (4,), (9,))  # copy 0 always plays 1 step, copy 1 four, copy 2 is cut at the limit of 6


@pytest.mark.parametrize(("n", "lengths"), [(1, [1]), (2, [1, 4]), (3, [1, 4, 6]), (7, [1, 4, 6, 1, 4, 6, 1])])
def test_the_episodes_that_count_are_those_that_began_first(corridor, scripted, n: int, lengths: list[int]) -> None:
    env = corridor(3, seed=0, plan=FIXED)
    played = play(env, scripted(env.spec, seed=0), n, RNG)
    assert played.lengths.tolist() == lengths
    assert len(played.won) == len(played.returns) == n


def test_copies_that_play_side_by_side_do_as_well_as_alone(corridor, scripted) -> None:
    make = partial(corridor, seed=0, plan=((5,), (1,), (3,), (8,), (2,)))
    env = make(5)
    together = play(env, scripted(env.spec, seed=3), 5, RNG)
    for i in range(5):
        alone = make(1, first=i)
        reference = Reference(alone, scripted(env.spec, seed=3))
        while (ended := reference.step(0)) is None:
            pass
        assert together.lengths[i] == len(ended["reward"])
        assert together.returns[i] == ended["reward"].sum()
        assert together.won[i] == ended["won"]
    assert together.won.any()
    assert not together.won.all()


def test_a_second_round_starts_afresh(corridor, scripted) -> None:
    # Observations hold the number of the episode, so blind them to it: what remains must be the same in each round.
    class Blind(corridor):
        def _look(self, which: np.ndarray) -> None:
            super()._look(which)
            self.obs[..., 1] = 0.0

    env = Blind(3, seed=0, plan=FIXED)
    played = play(env, scripted(env.spec, seed=0), 9, RNG)
    assert played.returns.reshape(3, 3).tolist() == [played.returns[:3].tolist()] * 3
    assert played.won.reshape(3, 3).tolist() == [played.won[:3].tolist()] * 3
    shorter = play(Blind(3, seed=0, plan=FIXED), scripted(env.spec, seed=0), 5, RNG)
    assert shorter.returns.tolist() == played.returns[:5].tolist()
    assert len(set(shorter.returns[:3])) == 3
    assert shorter.won.tolist() == played.won[:5].tolist()
    assert played.won[:3].tolist() == [False, True, False]


def test_a_win_counts_only_in_the_episode_that_it_ended(corridor, scripted) -> None:
    class Rigged(corridor):
        """Copy 0 loses its first episode and wins all others, while copy 1 is still in its first."""

        def step(self, actions: np.ndarray) -> None:
            super().step(actions)
            self.won[:] = self.terminated & (self._episode > 0)

    env = Rigged(2, seed=0, plan=((2,), (5,)))
    played = play(env, scripted(env.spec, seed=0), 2, RNG)
    assert played.won.tolist() == [False, False]


def test_play_is_greedy_unless_told_otherwise(corridor, scripted) -> None:
    env = corridor(1, seed=0, plan=((2,),))
    policy = scripted(env.spec, seed=0)
    play(env, policy, 1, RNG)
    play(env, policy, 1, RNG, epsilon=0.5)
    assert policy.epsilons == [0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        pytest.param((2,) * 40 + (6,), [2], id="one much longer than the others"),
        pytest.param((6,) * 40, [], id="all equal"),
        pytest.param((3, 6), [], id="before the mean is known"),
    ],
)
def test_a_row_keeps_as_much_memory_as_episodes_take_in_the_mean(
    lengths: tuple[int, ...], kept: list[int], corridor, scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(RowMemory, "give_back", lambda memory, row, frame: given_back.append(frame))
    env = corridor(1, seed=0, plan=(lengths,))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    messages = [message for _ in range(sum(lengths)) if (message := rollout.collect(1, 0.0)) is not None]
    assert [length for message in messages for length in message.lengths.tolist()] == list(lengths)
    assert given_back == [frame for frame in kept for _ in rollout._by_time()]


def test_rows_that_are_seldom_used_keep_no_memory(corridor, scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[tuple[int, int]] = []
    monkeypatch.setattr(RowMemory, "give_back", lambda memory, row, frame: given_back.append((row, frame)))
    env = corridor(8, seed=0, plan=((1, 9), (2, 9), (2, 9), *[(9,)] * 5))
    rollout = Rollout(env, scripted(env.spec, seed=0), RNG)
    assert rollout.collect(1, 0.0) is not None  # one segment, whose spare row is the upper one of two
    assert given_back == []
    row = int(rollout._rows[1])
    assert rollout.collect(1, 0.0) is not None  # two segments, which need both spare rows
    assert given_back == [(row, 0) for _ in rollout._by_time()]


@pytest.mark.parametrize(("segment_length", "form"), [(None, SparseArray), (2, np.ndarray)])
def test_whole_episodes_are_sent_as_differences_and_other_segments_as_arrays(
    corridor, scripted, segment_length: int | None, form: type
) -> None:
    env = corridor(2, seed=0, plan=((2,), (2,)))
    rollout = Rollout(env, scripted(env.spec, seed=0), np.random.default_rng(0), segment_length=segment_length)
    message = rollout.collect(2, 0.0)
    assert message is not None
    assert {name: type(message.per_frame.plain()[name]) for name in ("obs", "state")} == {"obs": form, "state": form}
    assert isinstance(message.per_frame.plain()["available"], np.ndarray)


@pytest.mark.parametrize("plan", [((2,), (3,), (5,)), ((1, 4), (9,), (9,)), ((4, 1), (2, 2, 7), (3,))])
def test_a_long_turn_collects_what_short_ones_collect(corridor, scripted, plan: Any) -> None:
    def collected(*turns: int) -> InsertTransitionMsg:
        env = corridor(3, seed=0, plan=plan)
        rollout = Rollout(env, scripted(env.spec, seed=0), np.random.default_rng(1))
        messages = [rollout.collect(steps, 0.5) for steps in turns]  # more segments than there are spare rows
        return joined([message for message in messages if message is not None])

    short, long = collected(*[1] * 12), collected(12)
    assert set(short.fields) == set(long.fields)
    for name in (*short.fields, "lengths", "terminated", "truncated", "won", "versions", "episode", "first"):
        left, right = (message.fields.get(name, getattr(message, name, None)) for message in (short, long))
        np.testing.assert_array_equal(left, right, err_msg=name)
