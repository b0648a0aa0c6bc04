"""Interquartile means and stratified intervals equal hand-made numbers, and those of rliable's definition."""

import itertools

import numpy as np
import pytest

from components.suites.aggregates import interquartile_mean, stratified_interval


def test_the_interquartile_mean_is_that_of_the_middle_half() -> None:
    assert interquartile_mean(np.array([8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0])) == (3 + 4 + 5 + 6) / 4
    # Five scores: a quarter of them, rounded down, is one at each end, as in scipy.stats.trim_mean.
    assert interquartile_mean(np.array([0.0, 1.0, 2.0, 6.0, 50.0])) == 3
    assert interquartile_mean(np.array([0.2, 0.4, 0.9])) == pytest.approx(0.5)  # too few to leave one out
    assert interquartile_mean(np.array([[0.0, 2, 4, 6], [1, 1, 1, 9]])).tolist() == [3, 1]
    with pytest.raises(ValueError, match="none"):
        interquartile_mean(np.array([]))


def test_a_map_whose_runs_agree_adds_no_width() -> None:
    assert stratified_interval([np.full(5, 0.3), np.full(5, 0.3)]) == (0.3, 0.3)
    # Not stratified, resamples would mix the two maps, and some would have one of them alone.
    low, high = stratified_interval([np.zeros(2), np.ones(2)])
    assert (low, high) == (0.5, 0.5)


def test_an_interval_is_that_of_all_resamples() -> None:
    scores = [np.array([0.0, 0.4, 0.55, 1.0]), np.array([0.1, 0.5, 0.63])]
    a, b = (list(itertools.product(runs, repeat=len(runs))) for runs in scores)
    all_of_them = [float(interquartile_mean(np.array([*one, *other]))) for one in a for other in b]
    exact = np.percentile(all_of_them, [2.5, 97.5])
    assert stratified_interval(scores, resamples=20_000) == pytest.approx(tuple(exact), abs=0.02)


def test_an_interval_depends_on_its_seed_alone() -> None:
    scores = [np.array([0.0, 0.4, 1.0, 0.7]), np.array([0.1, 0.5, 0.6, 0.2])]
    assert stratified_interval(scores, resamples=2_500) == stratified_interval(scores, resamples=2_500)
    assert stratified_interval(scores, resamples=2_500) != stratified_interval(scores, resamples=2_500, seed=1)
    with pytest.raises(ValueError, match="none"):
        stratified_interval([np.array([])])
