"""Episodes that travel back to back, and are padded where they are drawn."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.replay_buffers import (
    ClientSample,
    Episodes,
    FederatedReplay,
    Field,
    InvalidExperience,
    PrioritizedEpisodeReplay,
)
from components.replay_buffers.segments import Segment
from components.replay_server import EpisodeLayout
from components.replay_server.layouts import layout_from_plain
from components.replay_server.protocol import ClientSampleMsg, SampledMsg
from orchestra.actors.codec import Encoder, fields_of, payload_size

SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
FRAME = 4 * (2 * 4 + 5) + 2 * 3
"""Bytes of observations, state and available actions."""
STEP = 8 * 2 + 4
"""Bytes of actions and reward."""


def rng(seed=0):
    return np.random.default_rng(seed)


def any_bits(generator, shape, dtype):
    """Numbers of any bits, NaN and negative zeros among them."""
    return np.frombuffer(generator.bytes(np.dtype(dtype).itemsize * int(np.prod(shape))), dtype).reshape(shape)


def make_episodes(generator, lengths):
    n, f = sum(lengths), sum(lengths) + len(lengths)
    return {
        "obs": any_bits(generator, (f, 2, 4), np.float32),
        "state": any_bits(generator, (f, 5), np.float32),
        "available": generator.random((f, 2, 3)) < 0.5,
        "actions": generator.integers(0, 3, (n, 2)),
        "reward": generator.normal(size=n).astype(np.float32),
        "terminated": generator.random(len(lengths)) < 0.5,
        "lengths": np.array(lengths, np.int32),
    }


def same_bits(one, other):
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


lengths = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12)
clients = st.lists(st.tuples(st.integers(1, 9), lengths), min_size=1, max_size=3)
rollouts = st.one_of(st.just((0, 0)), st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))


@settings(deadline=None, max_examples=60)
@given(clients=clients, parts=rollouts, sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0))
def test_what_is_drawn_of_the_union_is_bit_by_bit_what_the_clients_memories_gather(clients, parts, sizes, seed):
    generator, memories, pushed = rng(seed), {}, 0
    given = EpisodeLayout(SPEC, 16, rollout=parts[0], burn_in=parts[1])
    union = FederatedReplay(given.sample_fields, max_uses=2)
    for i, (capacity, many) in enumerate(clients):
        memory = memories[str(i)] = PrioritizedEpisodeReplay(SPEC, capacity)
        for some in many:  # often round the ring
            memory.insert(Episodes(**make_episodes(generator, some)))
        union.join(str(i))
        union.add(str(i), memory.share(0, generator))
    for size in sizes:
        for name, n in union.missing(size, generator).items():
            share = given.draw(memories[name], n, generator)
            steps = int(share.batch["lengths"].sum())
            more = steps + 8 * n if given.rollout else 0  # what to learn from, and where each begins
            assert share.n_bytes == FRAME * (steps + n) + STEP * steps + (4 + 1 + 3 * 8) * n + more
            pushed += share.n_bytes
            union.add(name, share)
        sampled = union.sample(size, generator)
        batch, longest = sampled.batch, int(sampled.batch["lengths"].max())
        assert batch.keys() == given.sample_fields.keys()
        for row, name in enumerate(sampled.clients):
            memory, slot = memories[name], sampled.indices[row : row + 1]
            first, n = batch.get("firsts", np.zeros(size, np.int64))[row : row + 1], batch["lengths"][row : row + 1]
            if not given.rollout:
                assert n == memory._store.lengths[slot]
            own = memory._gather(slot, np.ones(1, np.float32), first, n)
            for field in ("obs", "state", "available", "actions", "reward"):
                expected, got = getattr(own, field)[0], batch[field][row]
                assert same_bits(got[: len(expected)], expected)
                assert not any(got[len(expected) :].tobytes())
                assert len(got) == longest + (field in ("obs", "state", "available"))
            assert batch["terminated"][row] == own.terminated[0]
            if given.rollout:
                learnt = min(given.rollout - given.burn_in, int(memory._store.lengths[slot][0]))
                assert np.flatnonzero(batch["learn"][row]).tolist() == list(range(int(n[0]) - learnt, int(n[0])))
                assert batch["learn"].shape == (size, longest)
    assert union.statistics().pushed_bytes == pushed


def on_the_wire(message):
    """Return how many bytes a message takes."""
    header, arrays = Encoder().encode(fields_of(message))
    return len(header) + payload_size(arrays)


@pytest.mark.parametrize("options", [{}, {"rollout": 5, "burn_in": 2}], ids=["whole", "parts"])
def test_what_travels_are_the_frames_there_are_and_nothing_else(options):
    generator = rng()
    given = EpisodeLayout(SPEC, 64, **options)
    memory, union = given.new_buffer(), FederatedReplay(given.sample_fields)
    memory.insert(Episodes(**make_episodes(generator, [1, 1, 1, 6] * 16)))
    share = given.draw(memory, 64, generator)
    union.join("one")
    union.add("one", share)
    drawn = union.draw(48, generator)
    steps = [int(it["lengths"].sum()) for it in (share.batch, drawn.batch)]
    of_steps, of_items = (STEP + 1, 4 + 1 + 8) if options else (STEP, 4 + 1)
    messages = (ClientSampleMsg.of(share, 1), SampledMsg.of(drawn))
    for n, n_steps, message, numbers in zip((64, 48), steps, messages, (3 * 8, 4 + 3 * 8), strict=True):
        real = FRAME * (n_steps + n) + of_steps * n_steps + (of_items + numbers) * n
        whole = FRAME * (n * 6 + n) + of_steps * n * 6 + (of_items + numbers) * n
        assert real <= on_the_wire(message) < real + 1500, "names, and what arrays begin with to lie well"
        assert real + 1500 < 0.75 * whole, "padding would be noticed"


def cut(share, **fields):
    return {**share.batch, **fields}


def change_lengths(share, *lengths, dtype=np.int32):
    return cut(share, lengths=np.array(lengths, dtype))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda it: change_lengths(it, 3, 2, 1, 1), "lengths: expected int32 of shape (3,), got int32 of shape (4,)"),
        (lambda it: change_lengths(it, 3, 2, 1, dtype=np.int64), "lengths: expected int32 of shape (3,), got int64"),
        (lambda it: cut(it, lengths=[3, 2, 1]), "lengths: expected int32 of shape (3,), got list"),
        (lambda it: change_lengths(it, 0, 3, 3), "lengths: expected 1 to 6 each, got [0 3 3]"),
        (lambda it: change_lengths(it, -1, 6, 1), "lengths: expected 1 to 6 each, got [-1  6  1]"),
        (lambda it: change_lengths(it, 7, 1, 1), "lengths: expected 1 to 6 each, got [7 1 1]"),
        (lambda it: change_lengths(it, 2, 2, 1), "obs: expected float32 of shape (8, 2, 4), got float32 of shape (9,"),
        (lambda it: cut(it, obs=it.batch["obs"][1:]), "obs: expected float32 of shape (9, 2, 4), got float32 of shape"),
        (lambda it: cut(it, obs=it.batch["obs"][None]), "obs: expected float32 of shape (9, 2, 4), got float32 of"),
        (lambda it: cut(it, state=it.batch["state"].astype(np.float64)), "state: expected float32 of shape (9, 5)"),
        (lambda it: cut(it, available=None), "available: expected bool of shape (9, 2, 3), got NoneType"),
        (lambda it: cut(it, actions=it.batch["obs"]), "actions: expected int64 of shape (6, 2), got float32 of shape"),
        (lambda it: cut(it, reward=np.full(6, np.inf, np.float32)), "reward: expected finite numbers, got inf"),
        (lambda it: cut(it, learn=np.ones(9, np.bool_)), "learn: expected bool of shape (6,), got bool of shape (9,)"),
        (lambda it: cut(it, firsts=np.zeros(6, np.int64)), "firsts: expected int64 of shape (3,), got int64 of shape"),
        (lambda it: cut(it, terminated=it.batch["terminated"][:2]), "terminated: expected bool of shape (3,), got"),
        (lambda it: {k: v for k, v in it.batch.items() if k != "lengths"}, "batch: expected the fields ['obs', 's"),
    ],
)  # fmt: skip
def test_a_share_of_malformed_episodes_is_refused_by_name_and_nothing_is_taken(change, message):
    generator = rng()
    given = EpisodeLayout(SPEC, 3, rollout=6)
    union, memory = FederatedReplay(given.sample_fields), given.new_buffer()
    memory.insert(Episodes(**make_episodes(generator, [3, 2, 1])))
    union.join("one")
    share = given.draw(memory, 3, generator)  # strata: each of them once
    assert sorted(share.batch["lengths"].tolist()) == [1, 2, 3]
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        union.add("one", replace(share, batch=change(share)))
    assert union.clients == {"one": 0.0}
    assert union.statistics().pushed_bytes == 0
    union.add("one", share)
    assert same_bits(union.draw(3, generator).batch["obs"], share.batch["obs"])


def test_what_a_share_lacks_that_has_no_items_is_not_missed():
    union = FederatedReplay(EpisodeLayout(SPEC, 3).sample_fields)
    union.join("one")
    none = np.zeros(0, np.int64)
    union.add("one", ClientSample({}, none, none, np.zeros(0), 1.0, 1, 1))
    assert union.clients == {"one": 1.0}


def test_runs_need_a_field_that_says_how_long_they_are():
    with pytest.raises(ValueError, match=re.escape("fields: expected lengths beside runs, got ['obs', 'x']")):
        FederatedReplay({"obs": Segment(np.float32, (2,), 6), "x": Field(np.int64)})


@pytest.mark.parametrize(("got", "text"), [({"protocol": 1}, "got 1"), ({}, "got None")])
def test_who_speaks_another_protocol_is_told_so_at_once(got, text):
    plain = EpisodeLayout(SPEC, 3).to_plain()
    del plain["protocol"]
    with pytest.raises(InvalidExperience, match=f"this version, got protocol: expected 3, {text}"):
        layout_from_plain(plain | got)
