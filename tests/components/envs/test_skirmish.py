"""What `Env` promises, kept by `Skirmish`: refusals, resets, and battles that know nothing of each other."""

import hashlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from components.envs import SCENARIOS, Env, Skirmish
from components.envs.skirmish import kernel, records
from components.envs.skirmish.compiling import COMPILED

ARRAYS = ("obs", "state", "available", "reward", "terminated", "truncated", "won", "units", "battles")


def digest(env):
    """Of every bit that the environment shows or remembers."""
    return hashlib.sha256(b"".join(getattr(env, name).tobytes() for name in ARRAYS)).hexdigest()


def actions_of(env, seed, step):
    """Random available actions that depend, in each battle, on its own number and state only."""
    chosen = np.zeros(env.available.shape[:2], dtype=np.int64)
    for b in range(env.n_envs):
        noise = np.random.default_rng([seed, b, step]).random(env.available.shape[1:])
        chosen[b] = np.argmax(noise * env.available[b], axis=1)
    return chosen


def test_it_is_an_env_that_says_what_it_is():
    env = Skirmish("8m", 64)
    assert isinstance(env, Env)
    assert repr(env) == "<Skirmish 8m x 64>"
    assert env.n_envs == 64


def test_a_battle_must_be_reset_before_its_first_step():
    with pytest.raises(ValueError, match="battle 0 is over: reset it before stepping on"):
        Skirmish("3m", 2).step(np.ones((2, 3), dtype=np.int64))


@pytest.mark.parametrize("action", [0, 6, 9, -1])
def test_an_unavailable_action_is_refused_and_nothing_is_stepped(action):
    env = Skirmish("3m", 2)
    env.reset()
    before = digest(env)
    actions = np.ones((2, 3), dtype=np.int64)
    actions[1, 2] = action
    expected = f"battle 1, agent 2: action {action} is not available, of these one is: [1, 2, 3, 4, 5]"
    with pytest.raises(ValueError, match=re.escape(expected)):
        env.step(actions)
    assert digest(env) == before


@pytest.mark.parametrize(
    "actions", [np.ones((2, 2), dtype=np.int64), np.ones(6, dtype=np.int64), np.ones((2, 3)), [["stop"] * 3] * 2]
)
def test_actions_of_another_shape_or_type_are_refused(actions):
    env = Skirmish("3m", 2)
    env.reset()
    with pytest.raises(ValueError, match=re.escape("must be integers (2, 3)")):
        env.step(actions)


def test_a_battle_that_is_over_is_not_stepped_on(stage, harmless):
    env = Skirmish("3m", 2)
    env.reset()
    env.battles["steps"][1] = 59
    env.step(np.ones((2, 3), dtype=np.int64))
    assert env.truncated.tolist() == [False, True]
    before = digest(env)
    with pytest.raises(ValueError, match="battle 1 is over"):
        env.step(np.ones((2, 3), dtype=np.int64))
    assert digest(env) == before


def test_reset_touches_only_the_battles_it_names():
    env = Skirmish("3m", 3)
    env.reset()
    fresh = env.obs[1].copy()
    for step in range(10):
        env.step(actions_of(env, 0, step))
    before = {name: getattr(env, name).copy() for name in ARRAYS}
    env.terminated[1] = env.won[1] = env.truncated[1] = True
    env.reset(np.array([False, True, False]))
    for name in ARRAYS:
        assert (getattr(env, name)[[0, 2]] == before[name][[0, 2]]).all(), name
    assert (env.obs[1] == fresh).all()
    assert env.battles["steps"].tolist() == [10, 0, 10]
    assert not any(flags[1] for flags in (env.terminated, env.truncated, env.won, env.reward))


@pytest.mark.parametrize("which", [np.ones(2, dtype=np.bool_), np.ones(3, dtype=np.int64)])
def test_a_mask_of_another_shape_or_type_is_refused(which):
    with pytest.raises(ValueError, match=re.escape("must be bool (3,)")):
        Skirmish("3m", 3).reset(which)


def test_arrays_are_allocated_once():
    env = Skirmish("3m", 2)
    held = {name: getattr(env, name) for name in ARRAYS}
    env.reset()
    env.step(np.ones((2, 3), dtype=np.int64))
    assert all(getattr(env, name) is array for name, array in held.items())


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(SCENARIOS)),
    seed=st.integers(0, 2**40),
    first=st.integers(0, 1000),
    jitter=st.sampled_from([0.0, 0.3]),
    steps=st.integers(1, 30),
    saved=st.integers(0, 30),
)
def test_a_battle_among_many_is_the_battle_alone_and_may_move_house_in_between(name, seed, first, jitter, steps, saved):
    many = Skirmish(name, 3, seed=seed, first=first, start_jitter=jitter)
    many.reset()
    alone = [Skirmish(name, 1, seed=seed, first=first + b, start_jitter=jitter) for b in range(3)]
    for env in alone:
        env.reset()
    for step in range(steps):
        if step == saved:
            kept = many.snapshot()
            many = Skirmish(name, 3, seed=seed + 1, start_jitter=jitter)
            many.restore({key: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for key, a in kept.items()})
        actions = actions_of(many, 11, step)
        many.step(actions)
        over = many.terminated | many.truncated
        for b, env in enumerate(alone):
            env.step(actions[b : b + 1])
            for array in ARRAYS:
                assert getattr(env, array)[0].tobytes() == getattr(many, array)[b].tobytes(), (array, b, step)
            env.reset(over[b : b + 1])
        many.reset(over)


def test_the_same_seed_and_actions_give_the_same_battle():
    def history(seed):
        env = Skirmish("8m", 2, seed=seed)
        env.reset()
        for _ in range(14):
            env.step(
                np.where(
                    env.available[:, :, 6:].any(axis=2),
                    6 + env.available[:, :, 6:].argmax(axis=2),
                    env.available[:, :, 1],
                )
            )
            yield env.obs.copy()

    first, again, other = list(history(1)), list(history(1)), list(history(2))
    assert all((one == two).all() for one, two in zip(first, again, strict=True))
    assert (first[3] == other[3]).all()  # nothing is random before the first shot
    assert (first[-1] != other[-1]).any()


def test_random_numbers_are_those_of_sfc32():
    draw = njit(lambda battle: kernel.draw(battle))  # only compiled functions call it
    battle = Skirmish("3m", 1, seed=4).battles[0]
    a, b, c, counter = (int(battle[name]) for name in ("a", "b", "c", "counter"))
    for _ in range(100):
        # Doty-Humphrey's PractRand, in 32-bit words.
        mixed = (a + b + counter) % 2**32
        counter = (counter + 1) % 2**32
        a, b, c = b ^ (b >> 9), (c + (c << 3)) % 2**32, ((c << 21 | c >> 11) % 2**32 + mixed) % 2**32
        assert draw(battle) == mixed / 2**32


def test_battles_of_one_environment_differ():
    env = Skirmish("3m", 2, start_jitter=0.1)
    env.reset()
    assert (env.units["x"][0] != env.units["x"][1]).any()


def test_a_restored_snapshot_goes_on_as_the_original_did():
    env = Skirmish("2s3z", 3, seed=5, start_jitter=0.1)
    env.reset()
    for step in range(20):
        env.step(actions_of(env, 1, step))
    kept = env.snapshot()
    for step in range(20, 40):
        env.step(actions_of(env, 1, step))
    expected = digest(env)
    other = Skirmish("2s3z", 3, seed=99)
    for target in (env, other):
        target.restore(kept)
        for step in range(20, 40):
            target.step(actions_of(target, 1, step))
        assert digest(target) == expected


def test_a_snapshot_of_something_else_is_refused():
    env = Skirmish("3m", 2)
    env.reset()
    before = digest(env)
    for kept in (Skirmish("3m", 3).snapshot(), Skirmish("8m", 2).snapshot(), {}):
        with pytest.raises(ValueError, match=re.escape("snapshot does not fit <Skirmish 3m x 2>")):
            env.restore(kept)
    assert digest(env) == before


def test_another_thread_runs_while_battles_are_stepped():
    env = Skirmish("25m", 64, step_mul=800)
    env.reset()
    done = threading.Event()

    def step():
        env.step(np.ones((64, 25), dtype=np.int64))
        done.set()

    thread = threading.Thread(target=step)
    started = turn = perf_counter()
    longest = 0.0
    thread.start()
    while not done.is_set():
        now = perf_counter()
        longest = max(longest, now - turn)
        turn = now
    thread.join()
    # Had the step kept the interpreter's lock, this thread would have waited for all of it.
    assert longest < 0.5 * (perf_counter() - started)


@pytest.mark.parametrize("layout", [records.UNIT, records.BATTLE, records.KIND, records.RULES])
def test_no_field_of_a_record_is_hidden_by_an_attribute_of_numpy(layout):
    # Uncompiled, `kind.sort` would be a method; compiled, it would be the field.
    assert not [name for name in layout.names if hasattr(np.record, name)]


REFERENCE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from test_skirmish import TRIALS, made, trial
from components.envs.skirmish import kernel
assert not hasattr(kernel.step_all, "py_func")
for number, (*of, _, steps) in enumerate(TRIALS):
    with np.load(f"{sys.argv[2]}/{number}.npz") as moment:
        print(trial(made(*of), dict(moment), steps))
"""

# Scenario, battles, options; steps before the moment from which both play; steps from there on. The interpreter needs
# a tenth of a second for a step of a large army, so it is left out of the way to the battle.
TRIALS = (
    ("3m", 2, {}, 8, 16),
    ("3m", 1, {"opponent": True}, 8, 8),
    ("2s3z", 1, {"ruleset": "liberty"}, 12, 9),
    ("MMM", 1, {"difficulty": 2}, 12, 5),
    ("6h_vs_8z", 1, {}, 6, 6),
    ("1c3s5z", 1, {}, 12, 7),
    ("so_many_baneling", 1, {}, 15, 2),
    ("corridor", 1, {}, 10, 2),
    ("2c_vs_64zg", 1, {}, 9, 1),
    ("terran_5_vs_5", 2, {}, 8, 5),
)


def forwards(other):
    """Attack whom one may, else walk east, which is where the others are."""
    attacks, walks, dead = other.available[:, :, 6:], other.available[:, :, 4], other.available[:, :, 0]
    return np.where(attacks.any(axis=2), 6 + attacks.argmax(axis=2), np.where(walks, 4, np.where(dead, 0, 1)))


def made(name, battles, options):
    """An environment with every column on."""
    from components.envs import Features

    features = Features(
        obs_last_action=True,
        obs_own_position=True,
        obs_pathing_grid=True,
        obs_terrain_height=True,
        obs_timestep_number=True,
        state_timestep_number=True,
    )
    if "opponent" in options:
        options = {"opponent": forwards}
    return Skirmish(name, battles, seed=7, start_jitter=0.2, features=features, **options)


def trial(env, moment, steps):
    """Begin, then play from a moment of the midst of a battle; return what came of both."""
    env.reset()
    seen = [digest(env)]
    env.restore(moment)
    for step in range(steps):
        env.step(actions_of(env, 2, step))
        seen.append(digest(env))
        env.reset(env.terminated | env.truncated)
    return hashlib.sha256("".join(seen).encode()).hexdigest()


@pytest.mark.skipif(not COMPILED, reason="this run is the uncompiled one")
def test_compiled_and_uncompiled_battles_are_bit_identical(tmp_path):
    expected = []
    for number, (*of, before, steps) in enumerate(TRIALS):
        env = made(*of)
        env.reset()
        for step in range(before):
            env.step(actions_of(env, 1, step))
            env.reset(env.terminated | env.truncated)
        moment = env.snapshot()
        np.savez(tmp_path / str(number), **moment)
        struck = env.units["health"] + env.units["shield"]
        expected.append(trial(made(*of), moment, steps))
        env.restore(moment)
        for step in range(steps):
            env.step(actions_of(env, 2, step))
            env.reset(env.terminated | env.truncated)
        assert (env.units["health"] + env.units["shield"] != struck).any()  # or nothing would be proved of fighting
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", REFERENCE, str(Path(__file__).parent), str(tmp_path)],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == expected
