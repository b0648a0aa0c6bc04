"""Threads that share a gradient step: all parts are done, and nothing that is learnt depends on the threads."""

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from components.envs.base import EnvSpec
from components.policies import Coma, EpisodeBatch, Iql, Qmix, Qplex, Vdn, mixing
from components.policies.parallel import own_threads, parts_of, run_parts, summed
from components.threads import with_threads
from orchestra import Hosts, HostShape
from orchestra.runs.experiment import build, load_experiment
from orchestra.runs.flags import Flags


@pytest.fixture(autouse=True)
def _as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def in_own_threads(threads, parts):
    def run():
        with own_threads():
            run_parts(parts)

    with_threads(threads, run)


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_every_part_is_done_once(threads):
    done = []
    in_own_threads(threads, [partial(done.append, n) for n in range(7)])
    assert sorted(done) == list(range(7))


def test_parts_are_done_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    in_own_threads(2, [both.wait, both.wait])


def test_one_thread_does_all_parts_itself():
    seen = []
    in_own_threads(1, [lambda: seen.append(threading.get_ident())] * 3)
    assert seen == [threading.get_ident()] * 3


def test_outside_of_a_gradient_step_one_thread_does_all_parts():
    torch.set_num_threads(2)
    seen = []
    run_parts([lambda: seen.append(threading.get_ident())] * 3)
    assert seen == [threading.get_ident()] * 3


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_failure_is_raised_whoever_meets_it(threads):
    def fail(number):
        raise ValueError(f"part {number}")

    with pytest.raises(ValueError, match="part 1"):
        in_own_threads(threads, [lambda: None, partial(fail, 1), lambda: None])


def test_a_failure_in_a_helping_thread_is_raised():
    both, here = threading.Barrier(2, timeout=30), threading.get_ident()

    def fail_elsewhere():
        both.wait()
        if threading.get_ident() != here:
            raise ValueError("elsewhere")

    with pytest.raises(ValueError, match="elsewhere"):
        in_own_threads(2, [fail_elsewhere, fail_elsewhere])


def test_torch_has_one_thread_within_and_as_many_as_before_afterwards():
    def threads_within():
        with own_threads():
            return torch.get_num_threads()

    assert with_threads(3, threads_within) == 1
    assert torch.get_num_threads() == 3


def test_shares_are_added_in_the_order_of_the_parts():
    shares = [[torch.tensor([x])] for x in (1e8, -1e8, 1.0)]
    assert summed(shares)[0].item() == 1.0
    assert summed([[torch.tensor([x])] for x in (1.0, 1e8, -1e8)])[0].item() == 0.0


def batches(spec, n):
    for seed in range(n):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, spec.episode_limit + 1, 32).astype(np.int32)
        e, t, a = len(lengths), int(lengths.max()), spec.n_agents
        yield EpisodeBatch(
            obs=rng.standard_normal((e, t + 1, a, spec.obs_size), dtype=np.float32),
            state=rng.standard_normal((e, t + 1, spec.state_size), dtype=np.float32),
            available=np.ones((e, t + 1, a, spec.n_actions), np.bool_),
            actions=rng.integers(0, spec.n_actions, (e, t, a)),
            reward=rng.standard_normal((e, t), dtype=np.float32),
            lengths=lengths,
            terminated=rng.random(e) < 0.5,
            weights=np.ones(e, np.float32),
        )


def test_parts_that_torch_computes_have_a_thousand_rows_or_more_and_are_one_on_a_gpu():
    cpu = torch.device("cpu")
    assert [len(parts_of(100, rows, cpu)) for rows in (10, 2047, 2048, 99_999)] == [1, 1, 2, 4]
    assert [len(parts_of(items, 99_999, cpu)) for items in (0, 1, 3)] == [1, 1, 3]
    assert [list(range(10))[part] for part in parts_of(10, 3072, cpu)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert parts_of(10, 99_999, torch.device("cuda")) == [slice(0, 10)]


@pytest.mark.parametrize("algorithm", [Iql, Vdn, Qmix, Qplex, Coma], ids=lambda it: it.__name__)
def test_what_is_learnt_does_not_depend_on_the_number_of_threads(algorithm):
    spec = EnvSpec("wide", n_agents=8, n_actions=5, obs_size=7, state_size=6, episode_limit=12)
    learnt = {}
    for threads in (1, 2, 4):
        policy = algorithm(spec, optimizer="adam", seed=1)
        results = [with_threads(threads, policy.learn, batch) for batch in batches(spec, 4)]
        learnt[threads] = [
            policy.params(),
            *(r.priorities for r in results),
            *(list(r.metrics.values()) for r in results),
        ]
    for threads in (2, 4):
        for one, several in zip(learnt[1], learnt[threads], strict=True):
            np.testing.assert_array_equal(one, several)


def test_a_batch_of_many_rows_is_cut_into_parts_and_a_small_one_is_not(spec, make_batch):
    wide = EnvSpec("wide", n_agents=8, n_actions=5, obs_size=7, state_size=6, episode_limit=12)
    (batch,) = batches(wide, 1)
    assert len(Qmix(wide).prepared(batch).inputs.living) == 4
    assert len(Qmix(spec).prepared(make_batch()).inputs.living) == 1


def test_a_mixer_in_parts_has_the_gradients_of_one_in_a_single_part(monkeypatch, spec):
    mixer = Qmix(spec, dtype=torch.float64).mixer
    generator = torch.Generator().manual_seed(0)
    q, state, push = (torch.randn(200, size, dtype=torch.float64, generator=generator) for size in (3, 6, 1))
    wanted, results = [q.requires_grad_(), *mixer.parameters()], []
    for groups in (100, 1):
        monkeypatch.setattr(mixing, "GROUPS_OF_A_PART", groups)
        total = mixer(q, state)
        results.append([total, *torch.autograd.grad(total, wanted, push)])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(results[0][0], mixer.by_torch(q, state), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("cores", "words", "threads"),
    [(1, [], 1), (2, [], 2), (6, [], 2), (8, [], 4), (64, [], 4), (0, [], 1), (2, ["--learner-threads", "3"], 3)],
)
def test_the_learner_of_a_run_has_threads_as_its_cores_allow(cores, words, threads):
    function = load_experiment(Path(__file__).resolve().parents[3] / "experiments" / "qmix_8m.py")
    topology = build(function, Flags.of(function).parse(words), Hosts([HostShape(0, "here", cores)]))
    (trainer,) = (actor for node in topology.nodes.values() for actor in node.actors if actor.name == "trainer")
    assert trainer.factory.keywords["threads"] == threads


@pytest.mark.parametrize(
    ("words", "workers"),
    [(["--algorithm", "mappo"], 1), (["--algorithm", "mappo", "--workers", "3"], 3), (["--algorithm", "qmix"], 11)],
)
def test_more_cores_play_by_more_workers_but_for_rounds_whose_batch_would_grow(words, workers):
    function = load_experiment(Path(__file__).resolve().parents[3] / "experiments" / "train.py")
    topology = build(function, Flags.of(function).parse(words), Hosts([HostShape(0, "here", 16)]))
    assert sum(actor.name == "worker" for node in topology.nodes.values() for actor in node.actors) == workers
