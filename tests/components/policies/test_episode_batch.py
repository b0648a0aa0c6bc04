"""A batch means the same with padding and without, whichever form it was given in."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.envs.base import EnvSpec
from components.experience import SchemaMismatch
from components.policies import EpisodeBatch

SPEC = EnvSpec("toy", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=9)
SCHEMA = SPEC.schema
LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)


def rows_of(lengths: list[int]) -> dict[str, Any]:
    """Return the arguments of a batch without padding; no value is zero."""
    n, e = sum(lengths), len(lengths)

    def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
        return np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(dtype)

    def group(names: tuple[str, ...], rows: int) -> dict[str, Any]:
        return {name: drawn((rows, *SCHEMA.items[name][0]), SCHEMA.items[name][1]) for name in names}

    return {
        "lengths": np.array(lengths, np.int32),
        "terminated": np.arange(e) % 2 == 0,
        "truncated": np.arange(e) % 3 == 1,
        "weights": drawn((e,), np.float32),
        "versions": drawn((n,), np.int32),
        "per_frame": group(SCHEMA.frames, n + e),
        "per_step": group(SCHEMA.steps, n),
        "per_segment": group(SCHEMA.segments, e),
    }


def padded(rows: Any, lengths: list[int], more: int) -> Any:
    """Return rows padded with zeros, one segment after the other."""
    made = np.zeros((len(lengths), max(lengths) + more, *rows.shape[1:]), rows.dtype)
    begin = 0
    for i, length in enumerate(lengths):
        made[i, : length + more] = rows[begin : begin + length + more]
        begin += length + more
    return made


def both(lengths: list[int]) -> tuple[EpisodeBatch, EpisodeBatch]:
    """Return a batch given without padding, and an equal one given with it."""
    rows = rows_of(lengths)
    fields = {name: padded(array, lengths, 1) for name, array in rows["per_frame"].items()}
    fields |= {name: padded(array, lengths, 0) for name, array in rows["per_step"].items()}
    own = {name: rows[name] for name in ("lengths", "terminated", "truncated", "weights")}
    versions = padded(rows["versions"], lengths, 0)
    return EpisodeBatch.of_rows(**rows), EpisodeBatch(**own, versions=versions, **fields, **rows["per_segment"])


def assert_equal(one: EpisodeBatch, other: EpisodeBatch) -> None:
    assert len(one) == len(other)
    assert one.arrays().keys() == other.arrays().keys()
    for name, array in other.arrays().items():
        np.testing.assert_array_equal(one.arrays()[name], array, err_msg=name)
    for rows_of, names in (("frames", SCHEMA.frames), ("steps", SCHEMA.steps)):
        for name in names:
            np.testing.assert_array_equal(getattr(one, rows_of)(name), getattr(other, rows_of)(name), err_msg=name)
    np.testing.assert_array_equal(one.versions_of_steps, other.versions_of_steps)


@given(lengths=LENGTHS)
def test_both_forms_are_made_from_either(lengths: list[int]) -> None:
    of_rows, of_padded = both(lengths)
    assert (of_rows.is_padded, of_padded.is_padded) == (False, True)
    assert of_rows.longest == of_padded.longest == max(lengths)
    assert_equal(of_rows, of_padded)
    given = rows_of(lengths)
    for name, rows in {**given["per_frame"], **given["per_step"]}.items():
        one = of_padded.frames(name) if name in SCHEMA.frames else of_padded.steps(name)
        np.testing.assert_array_equal(one, rows)
    assert list(of_rows.fields) == list(of_padded.fields)
    assert len(of_rows.fields) == len(SCHEMA.fields)


def test_an_array_is_padded_once_and_is_read_only() -> None:
    batch, _ = both([2, 3])
    assert batch.obs is batch.obs
    with pytest.raises(ValueError, match="read-only"):
        batch.obs[0, 0] = 1.0


@given(lengths=LENGTHS, data=st.data())
def test_segments_are_chosen_by_a_mask_or_by_numbers_in_any_order(lengths: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8))
    mask = np.isin(np.arange(len(lengths)), numbers)
    of_rows, of_padded = both(lengths)
    for chosen in (np.array(numbers), mask):
        picked, longer = of_rows.select(chosen), of_padded.select(chosen)
        assert not picked.is_padded
        np.testing.assert_array_equal(picked.lengths, longer.lengths)
        np.testing.assert_array_equal(picked.weights, longer.weights)
        np.testing.assert_array_equal(picked.epsilon, longer.epsilon)
        np.testing.assert_array_equal(picked.versions_of_steps, longer.versions_of_steps)
        for name in SCHEMA.frames:
            np.testing.assert_array_equal(picked.frames(name), longer.frames(name))
        for name in SCHEMA.steps:
            np.testing.assert_array_equal(picked.steps(name), longer.steps(name))
    np.testing.assert_array_equal(of_rows.select(np.array(numbers)).lengths, np.array(lengths)[numbers])


def test_the_policy_lag_is_that_of_the_oldest_step_whose_version_is_known() -> None:
    rows = rows_of([2, 1, 3]) | {"versions": np.array([7, 5, -1, 9, -1, 6], np.int32)}
    of_rows = EpisodeBatch.of_rows(**rows)
    # Versions in the padding, which here are old, do not count.
    versions = np.array([[7, 5, 0], [-1, 0, 0], [9, -1, 6]], np.int32)
    own = {name: rows[name] for name in ("lengths", "terminated", "weights")}
    of_padded = EpisodeBatch(**own, versions=versions)
    for batch in (of_rows, of_padded):
        assert batch.staleness(8).tolist() == [3, 0, 2]
        assert batch.staleness(4).tolist() == [0, 0, 0]
    assert EpisodeBatch(**own).staleness(8).tolist() == [0, 0, 0]
    assert EpisodeBatch(**own).versions_of_steps is None


@pytest.mark.parametrize("form", [0, 1], ids=["rows", "padded"])
def test_a_field_of_the_wrong_shape_or_dtype_is_named(form: int) -> None:
    batch = both([2, 4])[form]
    assert batch.check_shapes(SCHEMA) == 2
    rows, shape = rows_of([2, 4]), [(8, 2, 4), (2, 5, 2, 4)][form]
    wrong = {**rows["per_frame"], "obs": rows["per_frame"]["obs"].astype(np.float64)}
    bad = EpisodeBatch.of_rows(**rows | {"per_frame": wrong}) if form == 0 else batch.replaced(obs=np.zeros(shape))
    with pytest.raises(SchemaMismatch, match=rf"obs: expected float32 of shape \({shape[0]}, .*float64"):
        bad.check_shapes(SCHEMA)
    short = {name: array[:-1] for name, array in rows["per_step"].items()}
    bad = EpisodeBatch.of_rows(**rows | {"per_step": short}) if form == 0 else batch.replaced(actions=batch.reward)
    with pytest.raises(SchemaMismatch, match=r"^actions: expected int64"):
        bad.check_shapes(SCHEMA)


@pytest.mark.parametrize("form", [0, 1], ids=["rows", "padded"])
def test_a_field_that_the_batch_has_not_is_named_with_those_it_has(form: int) -> None:
    batch = both([2])[form]
    for read in (batch.__getitem__, batch.frames, batch.steps):
        with pytest.raises(SchemaMismatch, match=r"^colour: this batch has only the fields obs, "):
            read("colour")


def test_a_length_beyond_the_padding_is_refused() -> None:
    _, batch = both([2, 4])
    with pytest.raises(ValueError, match=r"lengths: expected at least one episode of 1 to 4 steps each, got \[2 5\]"):
        batch.replaced(lengths=np.array([2, 5], np.int32)).frames("obs")
