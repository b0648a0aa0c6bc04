"""A process shows what its environment shows, wherever the environment keeps it, and nothing that is not sound."""

from collections.abc import Callable

import numpy as np
import pytest
from hosted_envs import Walk
from numpy.typing import NDArray

from components.envs.asynchronous.hosted import HostedEnv

STEP = np.ones((1, 2), np.int64)


@pytest.fixture
def hosted() -> tuple[Walk, HostedEnv, dict[str, NDArray]]:
    env = Walk(1, seed=7, length=50)
    one = HostedEnv(env)
    rows = {name: np.zeros(shape, dtype) for name, (shape, dtype) in one.fields.items()}
    rows["actions"][...] = STEP[0]
    one.reset(rows, {})
    return env, one, rows


def shown(env: Walk, rows: dict[str, NDArray]) -> bool:
    names = (*env.fields(), "terminated", "truncated", "won")
    return all(np.array_equal(rows[name], getattr(env, name)[0]) for name in names)


def test_every_array_is_shown_at_every_step(hosted) -> None:
    env, one, rows = hosted
    assert shown(env, rows)
    for _ in range(3):
        one.step(rows)
        assert rows["obs"][0, 2] == env.obs[0, 0, 2] > 0
        assert shown(env, rows)


@pytest.mark.parametrize(
    "moved",
    [np.copy, lambda array: np.asfortranarray(np.stack([array] * 2, -1))[..., 0]],
    ids=["copied", "not contiguous"],
)
def test_an_environment_may_keep_its_arrays_elsewhere_after_a_step(hosted, moved: Callable) -> None:
    env, one, rows = hosted
    for name in env.fields():
        setattr(env, name, moved(getattr(env, name)))
    for _ in range(2):
        one.step(rows)
        assert shown(env, rows)


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("name", ["obs", "state", "reward"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(
    hosted, monkeypatch: pytest.MonkeyPatch, name: str, value: float, contiguous: bool
) -> None:
    env, one, rows = hosted
    if not contiguous:
        setattr(env, name, np.stack([getattr(env, name)] * 2, -1)[..., 0])
    step = env.step

    def poisoned(actions: NDArray) -> None:
        step(actions)
        getattr(env, name)[...].flat[-1] = value

    monkeypatch.setattr(env, "step", poisoned)
    with pytest.raises(ValueError, match=f"{name} is not finite"):
        one.step(rows)


def test_very_large_numbers_are_finite(hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    env, one, rows = hosted
    step = env.step

    def large(actions: NDArray) -> None:
        step(actions)
        env.obs[...] = np.finfo(np.float32).max

    monkeypatch.setattr(env, "step", large)
    one.step(rows)
    assert shown(env, rows)


def test_an_agent_without_an_available_action_is_refused(hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    env, one, rows = hosted
    step = env.step

    def stuck(actions: NDArray) -> None:
        step(actions)
        env.available[0, -1] = False

    monkeypatch.setattr(env, "step", stuck)
    with pytest.raises(ValueError, match="an agent has no available action"):
        one.step(rows)


def test_an_array_of_another_shape_is_refused(hosted) -> None:
    env, one, rows = hosted
    env.state = np.zeros((1, env.spec.state_size + 1), np.float32)
    with pytest.raises(ValueError, match="state has the shape"):
        one.step(rows)
