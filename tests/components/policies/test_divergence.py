"""Two policies are compared on the same inputs, in one direction, over the agents that have a choice."""

import math

import numpy as np
import pytest

from components.policies.divergence import check_outputs, divergences, mean_divergence, packed


def logits(*rows: list[float]) -> dict[str, np.ndarray]:
    return {"logits": np.array(rows, np.float64)[:, None]}  # one agent


def random_logits(rng: np.random.Generator, scale: float, n: int = 64, actions: int = 14) -> dict[str, np.ndarray]:
    return {"logits": rng.uniform(-scale, scale, (n, 1, actions))}


def test_equal_policies_do_not_diverge() -> None:
    rng = np.random.default_rng(1)
    own = {"logits": rng.uniform(-10, 10, (64, 3, 14)).astype(np.float32)}
    assert mean_divergence(own, own) == 0.0
    assert mean_divergence(packed(own), packed(own)) == 0.0
    assert 0 <= mean_divergence(own, packed(own)) < 1e-6


def test_the_worker_is_weighed_against_the_learner() -> None:
    worker, learner = logits([0.0, 0.0]), logits([math.log(3), 0.0])
    assert mean_divergence(worker, learner) == pytest.approx(0.143841, abs=1e-6)
    assert mean_divergence(learner, worker) == pytest.approx(0.130812, abs=1e-6)


def test_gaussians_diverge_by_their_means_and_their_deviations_summed_over_dimensions() -> None:
    def gaussian(mean: float, std: float, dimensions: int = 1) -> dict[str, np.ndarray]:
        shape = (1, 1, dimensions)
        return {"mean": np.full(shape, mean), "log_std": np.full(shape, math.log(std))}

    assert mean_divergence(gaussian(0, 1), gaussian(1, 2)) == pytest.approx(0.443147, abs=1e-6)
    assert mean_divergence(gaussian(0, 1, 3), gaussian(1, 2, 3)) == pytest.approx(3 * 0.443147, abs=1e-5)
    assert mean_divergence(packed(gaussian(0.1, 0.2)), packed(gaussian(0.1, 0.2))) == 0.0
    with pytest.raises(ValueError, match="no greedy choice"):
        mean_divergence(gaussian(0, 1), gaussian(1, 2), measure="greedy")


def test_the_logit_of_an_action_that_is_not_available_changes_nothing() -> None:
    rng = np.random.default_rng(2)
    own, other = random_logits(rng, 5, actions=4), random_logits(rng, 5, actions=4)
    available = np.broadcast_to(np.array([True, True, False, True]), (64, 1, 4))
    before = mean_divergence(packed(own, available), packed(other, available), available=available)
    for changed in (own, other):
        for value in (1e6, -1e6, -np.inf):
            moved = {"logits": changed["logits"].copy()}
            moved["logits"][..., 2] = value
            pair = (moved, other) if changed is own else (own, moved)
            assert mean_divergence(*pair, available=available) == pytest.approx(
                mean_divergence(own, other, available=available), abs=1e-12
            )
            assert mean_divergence(*(packed(each, available) for each in pair), available=available) == before


def test_the_mean_is_over_the_inputs_so_that_doubling_them_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    own, other = random_logits(rng, 3), random_logits(rng, 3)
    twice = [{"logits": np.concatenate([each["logits"]] * 2)} for each in (own, other)]
    assert mean_divergence(*twice) == pytest.approx(mean_divergence(own, other), rel=1e-12)


def test_the_dead_and_those_with_one_action_do_not_count() -> None:
    own, other = logits([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]), logits([1.0, 0.0], [9.0, 0.0], [9.0, 0.0])
    available = np.array([[True, True], [True, False], [True, True]])[:, None]
    alive = np.array([[True], [True], [False]])
    alone = mean_divergence(logits([0.0, 0.0]), logits([1.0, 0.0]))
    assert mean_divergence(own, other, available=available, alive=alive) == pytest.approx(alone)
    assert mean_divergence(own, other, alive=np.zeros((3, 1), np.bool_)) == 0.0
    nothing = np.zeros((3, 1, 2), np.bool_)
    assert mean_divergence(packed(own, nothing), packed(other, nothing), available=nothing) == 0.0


def test_independent_parts_of_an_action_add_up() -> None:
    one, other = logits([0.0, 0.0])["logits"], logits([math.log(3), 0.0])["logits"]
    pair = {"logits/0": one, "logits/1": one}, {"logits/0": other, "logits/1": other}
    assert divergences(*pair) == pytest.approx(2 * 0.143841, abs=1e-5)


def test_the_greedy_measure_is_the_share_of_other_choices() -> None:
    own, other = logits([1.0, 0.0], [1.0, 0.0], [0.0, 1.0]), logits([9.0, 0.0], [0.0, 9.0], [0.0, 2.0])
    assert mean_divergence(own, other, measure="greedy") == pytest.approx(1 / 3)


def test_half_precision_changes_a_divergence_by_less_than_a_thousandth() -> None:
    rng = np.random.default_rng(4)
    for _ in range(300):
        own = random_logits(rng, rng.uniform(0.1, 6))
        other = {"logits": own["logits"] + rng.normal(0, rng.uniform(0.001, 2), own["logits"].shape)}
        exact, half = mean_divergence(own, other), mean_divergence(packed(own), packed(other))
        assert abs(half - exact) < 1e-3 * max(exact, 0.01)


def test_outputs_of_another_kind_are_refused() -> None:
    for wrong in ({}, {"mean": np.zeros((1, 1, 1))}, {"q": np.zeros((1, 1, 2))}):
        with pytest.raises(ValueError, match="expected logits"):
            check_outputs(wrong)
    with pytest.raises(ValueError, match="finite"):
        packed(logits([np.nan, 0.0]))
    with pytest.raises(ValueError, match="cannot be compared"):
        mean_divergence(logits([0.0, 0.0]), logits([0.0, 0.0, 0.0]))
