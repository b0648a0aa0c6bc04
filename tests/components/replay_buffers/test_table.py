"""A table against a dictionary by serial number: what is drawn, and what makes room."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.replay_buffers import Episodes, EpisodeTable, Field, TransitionTable
from components.replay_buffers.invalid import InvalidExperience
from components.replay_buffers.selectors import (
    FifoSelector,
    HighestSelector,
    LifoSelector,
    LowestSelector,
    PrioritizedSelector,
    UniformSelector,
)

FIELDS = {"obs": Field(np.float32, (2,)), "reward": Field(np.float32, finite=True)}
ORDERED = {
    FifoSelector: lambda came, touched, number: came,
    LifoSelector: lambda came, touched, number: -came,
    LowestSelector: lambda came, touched, number: (number, touched),
    HighestSelector: lambda came, touched, number: (-number, touched),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def make_rows(n, *, first=0):
    serial = (first + np.arange(n)).astype(np.float32)
    return {"obs": np.stack([serial, -serial], axis=1), "reward": serial}


def make_table(capacity, sampler=FifoSelector, remover=FifoSelector, **options):
    return TransitionTable(FIELDS, capacity, sampler=sampler(capacity), remover=remover(capacity), **options)


class Model:
    """Rows by serial number, each with when it was touched, its priority and how often it was sampled."""

    def __init__(self, capacity, sampler, remover):
        self.capacity, self.sampler, self.remover = capacity, sampler, remover
        self.rows, self.tick, self.stale, self.inserted = {}, 0, 0, 0

    def first(self, kind, n):
        return sorted(self.rows, key=lambda serial: ORDERED[kind](serial, *self.rows[serial][:2]))[:n]

    def insert(self, priorities):
        for serial in self.first(self.remover, max(len(self.rows) + len(priorities) - self.capacity, 0)):
            del self.rows[serial]
        for priority in priorities:
            self.rows[self.inserted] = [self.tick, priority, 0]
            self.tick, self.inserted = self.tick + 1, self.inserted + 1


@settings(max_examples=120, deadline=None)
@given(
    capacity=st.sampled_from([1, 2, 7, 10, 16]),
    sampler=st.sampled_from(list(ORDERED)),
    remover=st.sampled_from(list(ORDERED)),
    limit=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_a_table_is_what_a_dictionary_would_be(capacity, sampler, remover, limit, seed):
    table, generator = make_table(capacity, sampler, remover, max_times_sampled=limit), rng(seed)
    model = Model(capacity, sampler, remover)
    slot_of = {}  # of every row that was ever drawn
    for _ in range(30):
        what = generator.choice(["insert", "sample", "update", "remove"], p=[0.4, 0.3, 0.2, 0.1])
        if what == "insert":
            n = int(generator.integers(0, capacity + 1))
            priorities = generator.choice([0.0, 0.5, 3.0], n)
            table.insert(make_rows(n, first=model.inserted), priorities)
            model.insert(priorities.tolist())
        elif what == "sample":
            n = int(generator.integers(1, capacity + 1))
            if n > len(model.rows):
                with pytest.raises(ValueError, match="batch_size: expected 1 to"):
                    table.sample(n, generator)
                continue
            sampled = table.sample(n, generator)
            assert sampled.generations.tolist() == model.first(sampler, n)
            np.testing.assert_array_equal(sampled.batch["reward"], sampled.generations)
            np.testing.assert_array_equal(sampled.batch["obs"][:, 1], -sampled.generations)
            slot_of |= dict(zip(sampled.generations.tolist(), sampled.indices.tolist(), strict=True))
            for serial in sampled.generations.tolist():
                model.rows[serial][2] += 1
                if limit and model.rows[serial][2] >= limit:
                    del model.rows[serial]
        elif slot_of:
            serials = generator.choice(list(slot_of), min(3, len(slot_of)), replace=False)
            serials = serials[np.argsort([slot_of[s] for s in serials.tolist()], kind="stable")]  # as ticks are given
            slots = np.array([slot_of[s] for s in serials.tolist()])
            model.stale += sum(s not in model.rows for s in serials.tolist())
            if what == "remove":
                table.remove(slots, serials)
                for serial in serials.tolist():
                    model.rows.pop(serial, None)
                continue
            priorities = generator.choice([0.0, 1.0, 9.0], len(serials))
            table.update(slots, serials, priorities)
            for serial, priority in zip(serials.tolist(), priorities.tolist(), strict=True):
                if serial in model.rows:
                    model.rows[serial][:2] = model.tick, priority
                    model.tick += 1
        assert table.check_valid() == []
        assert (len(table), table.inserted, table.stale_updates) == (len(model.rows), model.inserted, model.stale)


def test_a_row_goes_once_it_was_sampled_so_often():
    table = make_table(4, max_times_sampled=2)
    table.insert(make_rows(2))
    drawn = [int(table.sample(1, rng()).generations[0]) for _ in range(4)]
    assert drawn == [0, 0, 1, 1]
    assert len(table) == 0


def test_what_was_sampled_most_makes_room_first():
    table = make_table(3, LifoSelector, HighestSelector, remove_by="times_sampled")
    table.insert(make_rows(3), np.array([9.0, 1.0, 1.0]))
    table.sample(1, rng())  # the newest, row 2
    table.insert_one({"obs": np.zeros(2, np.float32), "reward": 3.0})
    assert sorted(table.sample(3, rng()).generations.tolist()) == [0, 1, 3]


def test_draws_follow_priorities_after_updates_and_removals():
    table = make_table(10, PrioritizedSelector, UniformSelector)
    table.insert(make_rows(10), np.arange(10.0))
    table.remove(np.array([9, 2, 2]), np.array([9, 2, 2]))
    table.update(np.array([1, 1, 0]), np.array([1, 1, 0]), np.array([5.0, 8.0, 2.0]))
    table.insert(make_rows(1, first=10), np.array([4.0]))
    table.insert(make_rows(1, first=11), np.array([6.0]))
    generator = rng()
    counts = np.bincount(np.concatenate([table.sample(10, generator).generations for _ in range(2000)]), minlength=12)
    expected = np.array([2.0, 8, 0, 3, 4, 5, 6, 7, 8, 0, 4, 6])
    expected *= counts.sum() / expected.sum()
    there = expected > 0
    assert not counts[~there].any()
    assert ((counts - expected)[there] ** 2 / expected[there]).sum() < 33.8  # 9 degrees of freedom: p = 1e-4


def test_a_remover_that_draws_leaves_each_as_likely_as_another():
    stayed, generator = np.zeros(8), rng(5)
    for _ in range(3000):
        table = make_table(8, FifoSelector, UniformSelector, rng=generator)
        table.insert(make_rows(8))
        table.insert(make_rows(4, first=8))
        kept = table.sample(8, generator).generations
        stayed[kept[kept < 8]] += 1
    assert stayed.sum() == 4 * 3000
    assert ((stayed - 1500) ** 2 / 1500).sum() < 29.9  # 7 degrees of freedom: p = 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.insert(make_rows(5)), "expected at most 4 at a time, the capacity, got 5"),
        (lambda t: t.insert(make_rows(2), np.array([1.0, -1.0])), "priorities: expected finite numbers of at least 0"),
        (
            lambda t: t.insert(make_rows(2), np.array([1.0, np.nan])),
            "priorities: expected finite numbers of at least 0",
        ),
        (lambda t: t.insert(make_rows(2), np.array([1.0])), "priorities: expected floats of shape (2,)"),
        (lambda t: t.insert({"obs": np.zeros((1, 2), np.float32)}), "expected the fields ['obs', 'reward']"),
        (lambda t: t.update(np.array([4]), np.array([0]), np.ones(1)), "indices: expected 0 to 3, got [4]"),
        (lambda t: t.update(np.array([0]), np.array([0]), -np.ones(1)), "priorities: expected finite numbers"),
        (lambda t: t.remove(np.array([0.5]), np.array([0])), "indices: expected signed integers of shape (B,)"),
    ],
)
def test_what_is_malformed_is_refused_and_nothing_changes(call, message):
    table = make_table(4, LowestSelector, LowestSelector)
    table.insert(make_rows(3), np.array([2.0, 1.0, 3.0]))
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        call(table)
    assert table.check_valid() == []
    assert table.sample(3, rng()).generations.tolist() == [1, 0, 2]
    assert table.slots.remover.select(3, rng()).tolist() == [1, 0, 2]


def test_arguments_out_of_range_are_refused():
    selector = FifoSelector(2)
    with pytest.raises(ValueError, match="sampler and remover: expected two objects"):
        TransitionTable(FIELDS, 2, sampler=selector, remover=selector)
    with pytest.raises(ValueError, match="max_times_sampled: expected at least 0, got -1"):
        make_table(2, max_times_sampled=-1)
    with pytest.raises(ValueError, match="remove_by: expected priority or times_sampled, got 'age'"):
        make_table(2, remove_by="age")


def test_spoilt_books_are_reported():
    table = make_table(3)
    table.insert(make_rows(1))
    table.slots.generations[2] = 7
    assert "should be free" in table.check_valid()[0]


# Whole episodes -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.sampled_from([1, 2, 7, 10]),
    sampler=st.sampled_from(list(ORDERED)),
    remover=st.sampled_from(list(ORDERED)),
    limit=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_a_table_of_episodes_is_what_a_dictionary_would_be(
    spec, make_episodes, capacity, sampler, remover, limit, seed
):
    table = EpisodeTable(spec, capacity, sampler=sampler(capacity), remover=remover(capacity), max_times_sampled=limit)
    model, generator, lengths_of, slot_of = Model(capacity, sampler, remover), rng(seed), {}, {}
    for _ in range(20):
        n = int(generator.integers(1, capacity + 1))
        what = generator.choice(["insert", "sample", "update"], p=[0.4, 0.4, 0.2])
        if what == "insert":
            lengths, priorities = generator.integers(1, 7, n).tolist(), generator.choice([0.0, 0.5, 3.0], n)
            lengths_of |= dict(zip(range(model.inserted, model.inserted + n), lengths, strict=True))
            table.insert(Episodes(**make_episodes(lengths, first=model.inserted)), priorities=priorities)
            model.insert(priorities.tolist())
        elif what == "sample" and n <= len(model.rows):
            sampled = table.sample(n, generator)
            assert sampled.generations.tolist() == model.first(sampler, n)
            for row, serial in enumerate(sampled.generations.tolist()):
                expected = make_episodes([lengths_of[serial]], first=serial)
                steps = lengths_of[serial]
                assert sampled.batch.lengths[row] == steps
                assert sampled.batch.terminated[row] == expected["terminated"][0]
                np.testing.assert_array_equal(sampled.batch.obs[row, : steps + 1], expected["obs"])
                np.testing.assert_array_equal(sampled.batch.reward[row, :steps], expected["reward"])
                assert not sampled.batch.obs[row, steps + 1 :].any()
                assert not sampled.batch.actions[row, steps:].any()
                model.rows[serial][2] += 1
                slot_of[serial] = sampled.indices[row]
                if limit and model.rows[serial][2] >= limit:
                    del model.rows[serial]
        elif what == "update" and slot_of:
            serial = int(generator.choice(list(slot_of)))
            which = np.array([slot_of[serial]]), np.array([serial])
            if generator.random() < 0.3:
                model.stale += serial not in model.rows
                model.rows.pop(serial, None)
                table.remove(*which)
                continue
            table.update(*which, np.array([2.0]))
            if serial in model.rows:
                model.rows[serial][:2] = model.tick, 2.0
                model.tick += 1
            else:
                model.stale += 1
        assert table.check_valid() == []
        assert (len(table), table.inserted, table.stale_updates) == (len(model.rows), model.inserted, model.stale)


def test_more_episodes_than_a_table_holds_are_refused_at_once(spec, make_episodes):
    table = EpisodeTable(spec, 2, sampler=FifoSelector(2), remover=FifoSelector(2))
    table.insert(Episodes(**make_episodes([1])))
    with pytest.raises(InvalidExperience, match="expected at most 2 at a time, the capacity, got 3"):
        table.insert(Episodes(**make_episodes([1, 1, 1])))
    with pytest.raises(InvalidExperience, match="priorities: expected finite numbers of at least 0"):
        table.insert(Episodes(**make_episodes([1])), priorities=np.array([np.nan]))
    with pytest.raises(InvalidExperience, match="reward: expected float32 of shape"):
        table.insert(Episodes(**(make_episodes([1]) | {"reward": np.zeros(1)})))
    assert (len(table), table.inserted) == (1, 1)
    assert table.check_valid() == []


def test_episodes_follow_their_priorities(spec, make_episodes):
    table = EpisodeTable(spec, 4, sampler=PrioritizedSelector(4), remover=LowestSelector(4))
    table.insert(Episodes(**make_episodes([1, 2, 3, 4])), priorities=np.array([1.0, 0.0, 4.0, 5.0]))
    generator = rng()
    counts = np.bincount(np.concatenate([table.sample(4, generator).indices for _ in range(1500)]), minlength=4)
    assert counts[1] == 0
    expected = np.array([600.0, 2400, 3000])
    assert ((counts[[0, 2, 3]] - expected) ** 2 / expected).sum() < 18.5  # 2 degrees of freedom: p = 1e-4
    table.insert(Episodes(**make_episodes([1], first=4)))
    assert sorted(table.slots.generations.tolist()) == [0, 2, 3, 4]
