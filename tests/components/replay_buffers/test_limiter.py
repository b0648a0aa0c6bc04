"""The vectors were read off Reverb's own limiter."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.replay_buffers import SampleToInsertRatio


def insert_all(limiter):
    """Insert one by one while that is allowed."""
    while limiter.may_insert():
        limiter.insert()


def test_five_inserts_pass_before_the_first_sample_and_a_sixth_after_the_second():
    limiter = SampleToInsertRatio(2, 3, 4)
    assert (limiter.min_diff, limiter.max_diff) == (2, 10)
    insert_all(limiter)
    assert limiter.inserted == 5
    limiter.sample()
    insert_all(limiter)
    assert limiter.inserted == 5
    limiter.sample()
    insert_all(limiter)
    assert limiter.inserted == 6


def test_a_free_run_of_forty_inserts_ends_at_seventy_eight_samples():
    limiter = SampleToInsertRatio(2, 3, 4)
    while limiter.inserted < 40 or limiter.may_sample():
        if limiter.inserted < 40 and limiter.may_insert():
            limiter.insert()
        while limiter.may_sample():
            limiter.sample()
    assert limiter.sampled == 78


def test_nothing_is_sampled_before_min_size_items_are_there():
    limiter = SampleToInsertRatio(1, 3, 10)
    for _ in range(2):
        limiter.insert()
        assert not limiter.may_sample()
    limiter.insert()
    assert limiter.may_sample()


def test_inserting_up_to_min_size_is_always_allowed():
    limiter = SampleToInsertRatio(1, 10, (0, 5))
    insert_all(limiter)
    assert limiter.inserted == 10
    assert not limiter.may_insert()


def test_what_is_deleted_has_to_come_in_again_before_sampling_goes_on():
    limiter = SampleToInsertRatio(1, 3, 10)
    limiter.insert(3)
    assert limiter.may_sample()
    limiter.delete()
    assert not limiter.may_sample()
    limiter.insert()
    assert limiter.may_sample()


def test_several_are_allowed_only_if_all_are():
    limiter = SampleToInsertRatio(2, 3, 4)
    limiter.insert(3)
    assert limiter.may_insert(2)
    assert not limiter.may_insert(3)
    limiter.insert(2)
    assert limiter.may_sample(8)
    limiter.sample()
    assert not limiter.may_sample(8)


def test_so_many_that_would_always_have_to_wait_are_refused_with_the_arithmetic():
    limiter = SampleToInsertRatio(2, 3, 4)
    message = "n: 9 samples at a time would always have to wait: diff is at most 10, and may not fall below min_diff 2"
    with pytest.raises(ValueError, match=message):
        limiter.may_sample(9)
    assert limiter.may_insert(5)
    with pytest.raises(ValueError, match=re.escape("6 * 2 = 12, which is at least 0.0 and may not pass max_diff 10")):
        limiter.may_insert(6)
    many = SampleToInsertRatio(2, 30, 4)
    assert many.may_insert(30)  # the first may come together, whatever the range


@pytest.mark.parametrize(
    ("settings", "bounds"), [((4, 10, 4), (36, 44)), ((0.5, 1, 1), (-0.5, 1.5)), ((1, 10, (0, 5)), (0, 5))]
)
def test_a_setting_that_can_go_on_for_ever_is_accepted(settings, bounds):
    limiter = SampleToInsertRatio(*settings)
    assert (limiter.min_diff, limiter.max_diff) == bounds


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((4, 10, 3), "range of max_diff - min_diff = 43 - 37 = 6. Inserting moves by 4 * 1 and sampling by 1: below "
                     "2 * max(1, 4 * 1) = 8 each can wait for the other"),
        ((1, 10, 0.5), "range of max_diff - min_diff = 10.5 - 9.5 = 1.0"),
        ((1, 10, (0, 1.5)), "range of max_diff - min_diff = 1.5 - 0 = 1.5"),
        ((1, 10, (11, 20)), "min_diff 11 is above samples_per_insert * min_size = 1 * 10 = 10"),
        ((0, 1, 5), "samples_per_insert must be above 0 and finite, got 0"),
        ((float("inf"), 1, 5), "samples_per_insert must be above 0 and finite, got inf"),
        ((2, 0, 5), "min_size must be at least 1, got 0"),
        ((float("nan"), 1, 5), "samples_per_insert must be above 0 and finite, got nan"),
        ((1, 1, float("nan")), "error_buffer nan leaves a range"),
    ],
)  # fmt: skip
def test_a_setting_that_would_come_to_a_standstill_is_refused_with_the_arithmetic(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SampleToInsertRatio(*settings)


def test_a_batch_that_could_never_be_drawn_is_refused():
    with pytest.raises(ValueError, match=re.escape("2 * max(64, 1 * 1) = 128 each can wait for the other")):
        SampleToInsertRatio(1, 64, 32, sample_size=64)


def test_a_chunk_that_could_never_pass_min_size_is_refused():
    with pytest.raises(ValueError, match=re.escape("max_diff 5 is below samples_per_insert * (min_size + insert_size")):
        SampleToInsertRatio(1, 10, (-20, 5), insert_size=8)


@given(
    spi=st.floats(0.1, 20),
    min_size=st.integers(1, 20),
    low=st.floats(-50, 50),
    width=st.floats(0, 100),
    insert_size=st.integers(1, 6),
    sample_size=st.integers(1, 40),
    greedy_inserts=st.booleans(),
)
def test_no_accepted_setting_comes_to_a_standstill(spi, min_size, low, width, insert_size, sample_size, greedy_inserts):
    try:
        limiter = SampleToInsertRatio(
            spi, min_size, (low, low + width), insert_size=insert_size, sample_size=sample_size
        )
    except ValueError:
        return
    for _ in range(200):
        may_insert, may_sample = limiter.may_insert(insert_size), limiter.may_sample(sample_size)
        assert may_insert or may_sample, limiter
        if may_insert and (greedy_inserts or not may_sample):
            limiter.insert(insert_size)
        else:
            limiter.sample(sample_size)


def test_more_than_the_memory_holds_is_never_there_to_be_sampled():
    with pytest.raises(ValueError, match="min_size 11 is above the capacity 10: so many items are never there"):
        SampleToInsertRatio(1, 11, 20, capacity=10)
    assert SampleToInsertRatio(1, 10, 20, capacity=10).min_size == 10


def test_with_a_min_size_alone_everything_passes_once_it_is_there():
    limiter = SampleToInsertRatio.from_min_size(3)
    limiter.insert(2)
    assert limiter.may_insert(10**9)
    assert not limiter.may_sample()
    limiter.insert()
    assert limiter.may_sample(10**9)


def test_both_ends_of_a_queue_wait():
    limiter = SampleToInsertRatio.queue(3)
    assert not limiter.may_sample()
    insert_all(limiter)
    assert limiter.inserted == 3
    for _ in range(3):
        assert limiter.may_sample()
        limiter.sample()
        limiter.delete()
    assert not limiter.may_sample()
    assert limiter.may_insert(3)
    with pytest.raises(ValueError, match=re.escape("max_diff - min_diff = 1.0 - 0.0 = 1.0")):
        SampleToInsertRatio.queue(1)


def test_settings_change_while_it_runs():
    old, new = SampleToInsertRatio(2, 3, 4), SampleToInsertRatio(4, 3, 10)
    old.insert(100)
    old.sample(196)
    old.delete(7)
    new.take_over(old)
    assert (new.inserted, new.deleted, new.sampled) == (100, 7, 392)
    assert new.diff == 2 * old.diff
    assert new.may_insert()
    assert new.may_sample(6)
    assert not new.may_sample(7)


def test_its_repr_says_where_it_stands():
    limiter = SampleToInsertRatio(2, 3, 4)
    limiter.insert(4)
    limiter.sample()
    assert repr(limiter) == "<SampleToInsertRatio 4 in, 1 out, 2 ≤ 7 ≤ 10>"


@given(
    ratio=st.floats(0.01, 20.0),
    min_size=st.integers(1, 50),
    room=st.floats(0.0, 100.0),
    inserted=st.integers(0, 300),
    sampled=st.integers(0, 300),
)
def test_so_many_items_may_be_inserted_and_not_one_more(ratio, min_size, room, inserted, sampled):
    limiter = SampleToInsertRatio(ratio, min_size, 2 * max(1.0, ratio) + room)
    limiter.insert(inserted)
    limiter.sample(sampled)
    n = limiter.insertable()
    small = inserted + n <= min_size
    assert n == 0 or small or limiter.diff + n * ratio <= limiter.max_diff
    assert inserted + n + 1 > min_size
    assert limiter.diff + (n + 1) * ratio > limiter.max_diff


def test_a_limiter_without_a_bound_allows_any_number_of_items():
    assert SampleToInsertRatio.from_min_size(3).insertable() is None


def test_the_error_buffer_can_be_set_anew_within_the_same_bounds():
    limiter = SampleToInsertRatio(2, 3, 4)
    limiter.insert(5)
    limiter.set_error_buffer(10)
    assert (limiter.min_diff, limiter.max_diff, limiter.inserted) == (-4, 16, 5)
    with pytest.raises(ValueError, match="each can wait for the other"):
        limiter.set_error_buffer(1)
