"""A worker decides from digests whether to load a version: by its rule, once for each, and never an older one."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from components.digests import PROBES, REDRAWN, Digests
from components.envs.base import EnvSpec
from components.policies import ALGORITHMS
from components.policies.acting import ActingPolicy
from components.policies.base import EpisodeBatch
from components.synchronization import ALWAYS, Synchronizer, SyncRule, compare, probe_outputs
from messages import LoadParamsMsg, ProbesMsg, VersionMsg
from orchestra import Arrays, Ref

THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
INF = float("inf")
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


class Slope(ActingPolicy):
    """Logits that its only parameter makes: the worker's `frames["obs"]` times it."""

    probe_fields = ("obs",)

    def __init__(self, value: float = 0.0) -> None:
        self.value, self.asked = value, 0

    def initial_hidden(self, n_envs: int) -> NDArray[np.float32]:
        return np.zeros((n_envs, 1, 1), np.float32)

    def outputs(self, frames: Mapping[str, Any], last_actions: Any, hidden: Any) -> Any:
        self.asked += 1
        return {"logits": frames["obs"] * np.float32(self.value)}, hidden

    def params(self) -> NDArray[np.float32]:
        return np.array([self.value], np.float32)

    def load(self, params: NDArray[np.float32]) -> None:
        self.value = float(params[0])


def probes(number: int = 1, n: int = 16) -> ProbesMsg:
    rng = np.random.default_rng(number)
    obs = rng.normal(size=(n, 1, 1, 3)).astype(np.float32)
    return ProbesMsg(
        number=number,
        inputs=Arrays({"frames/obs": obs, "last_actions": np.full((n, 1, 1), -1)}),
    )


def digest(version: int, value: float, of: ProbesMsg | None, *, required: int = -1) -> VersionMsg:
    outputs = {} if of is None else probe_outputs(Slope(value), of)
    number = None if of is None else of.number
    return VersionMsg(version=version, required=required, env_steps=None, probes=number, outputs=Arrays(outputs))


def params(version: int, value: float) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.array([value], np.float32), env_steps=None)


class Worker:
    """A synchronizer and its policy, which load at once what they ask for."""

    def __init__(self, rule: SyncRule) -> None:
        self.sync, self.policy = Synchronizer(rule), Slope()
        self.loads: list[int] = []

    def hear(self, news: VersionMsg | None, value: float) -> None:
        if self.sync.decide(self.policy, news):
            self.loads.append(self.sync.pull(Ref("here/worker")).version)
            self.answer(self.loads[-1], value)

    def answer(self, version: int, value: float) -> None:
        if self.sync.loaded(params(version, value)):
            self.policy.load(params(version, value).params)


def test_rules_are_read_as_they_are_written() -> None:
    assert SyncRule.parse("always") is ALWAYS
    assert not ALWAYS.pulls
    assert SyncRule.parse("every:3") == SyncRule(max_lag=3)
    assert SyncRule.parse("kl:0.01", max_lag=5, smoothing=0.5) == SyncRule("kl", 0.01, 5, 0.5)
    assert SyncRule.parse("greedy:0.25") == SyncRule("greedy", 0.25)
    for text in ("always", "every:3", "kl:0.01", "greedy:0.25"):
        assert str(SyncRule.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("often", "always, every:N, kl:THRESHOLD or greedy:THRESHOLD"),
        ("kl", "needs a number"),
        ("kl:much", "needs a number"),
        ("kl:-1", "at least 0"),
        ("kl:nan", "at least 0"),
        ("every:0", "at least 1"),
        ("every:1.5", "needs a number"),
    ],
)
def test_a_rule_that_is_none_is_refused_in_words(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SyncRule.parse(text)


def test_options_of_thresholds_are_refused_with_other_rules() -> None:
    for options in ({"max_lag": 3}, {"smoothing": 0.5}):
        with pytest.raises(ValueError, match="for thresholds"):
            SyncRule.parse("every:2", **options)
    with pytest.raises(ValueError, match="at most 1"):
        SyncRule.parse("kl:1", smoothing=1.5)
    with pytest.raises(ValueError, match="at least 1"):
        SyncRule.parse("kl:1", max_lag=0)


def test_the_first_version_is_loaded_whatever_the_rule() -> None:
    for rule in (SyncRule("kl", INF), SyncRule(max_lag=9)):
        worker = Worker(rule)
        assert not worker.sync.ready
        worker.hear(digest(4, 1.0, None), 1.0)
        assert worker.loads == [4]
        assert worker.sync.ready


def test_equal_parameters_are_never_loaded_again() -> None:
    worker = Worker(SyncRule("kl", 0.0))
    worker.sync.take_probes(probes())
    for version in range(9):
        worker.hear(digest(version, 2.0, probes()), 2.0)
    assert worker.loads == [0]


def test_without_a_threshold_every_version_that_differs_is_loaded_and_with_an_infinite_one_none() -> None:
    values = [0.0, 0.1, 0.1, 0.2, 0.9, 0.9, 0.8]
    loads = {}
    for threshold in (0.0, INF):
        worker = Worker(SyncRule("kl", threshold))
        worker.sync.take_probes(probes())
        for version, value in enumerate(values):
            worker.hear(digest(version, value, probes()), value)
        loads[threshold] = worker.loads
    assert loads == {0.0: [0, 1, 3, 4, 6], INF: [0]}


@given(st.lists(st.floats(0, 0.3), min_size=1, max_size=60))
def test_loads_do_not_increase_with_the_threshold_while_the_policy_moves_one_way(steps: list[float]) -> None:
    counts = []
    for threshold in THRESHOLDS:
        worker = Worker(SyncRule("kl", threshold))
        worker.sync.take_probes(probes())
        for version, value in enumerate(np.cumsum(steps, dtype=np.float64).tolist()):
            worker.hear(digest(version, value, probes()), value)
        counts.append(len(worker.loads))
    assert counts == sorted(counts, reverse=True)


def test_digests_of_other_probes_are_not_compared_but_wait_for_theirs() -> None:
    worker = Worker(SyncRule("kl", 0.01))
    worker.sync.take_probes(probes(1))
    worker.hear(digest(1, 0.0, probes(1)), 0.0)
    worker.hear(digest(2, 5.0, probes(2)), 5.0)
    assert worker.loads == [1]
    assert worker.sync.undecided
    assert worker.sync.ready
    worker.sync.take_probes(probes(2))
    worker.hear(None, 5.0)
    assert worker.loads == [1, 2]
    assert not worker.sync.undecided
    worker.hear(digest(3, 9.0, None), 9.0)  # a version without a digest is not compared either
    assert worker.loads == [1, 2]


def test_probes_are_evaluated_once_for_each_version_that_acts() -> None:
    worker = Worker(SyncRule("kl", INF))
    worker.sync.take_probes(probes())
    for version in range(30):
        worker.hear(digest(version, 0.1 * version, probes()), 0.1 * version)
        worker.hear(None, 0.0)
    assert worker.policy.asked == 1


def test_a_decision_compares_both_versions_on_the_same_inputs() -> None:
    worker = Worker(SyncRule("kl", 0.0))
    worker.sync.take_probes(probes())
    for version, value in enumerate([0.0, 1.0, 3.0]):
        worker.hear(digest(version, value, probes()), value)
    report = worker.sync.report("here/worker")
    assert report is not None
    assert worker.sync.report("here/worker") is None
    expected = [
        compare(probe_outputs(Slope(a), probes()), probe_outputs(Slope(b), probes()), probes(), "kl")
        for a, b in ((0.0, 1.0), (1.0, 3.0))
    ]
    assert report.decisions == (
        (None, 0, None, None, True),
        (0, 1, expected[0], expected[0], True),
        (1, 2, expected[1], expected[1], True),
    )


def test_the_loads_that_are_reported_are_those_that_were_made_and_no_more_than_there_were_versions() -> None:
    rng = np.random.default_rng(5)
    worker = Worker(SyncRule("kl", 0.05))
    worker.sync.take_probes(probes())
    for version, value in enumerate(np.cumsum(rng.normal(0, 0.2, 100)).tolist()):
        worker.hear(digest(version, value, probes()), value)
    report = worker.sync.report("here/worker")
    assert report is not None
    assert [version for _, version, _, _, loads in report.decisions if loads] == worker.loads
    assert 1 < len(worker.loads) < 100 == len(report.decisions)


def test_a_worker_that_is_so_many_versions_behind_loads_whatever_the_divergence() -> None:
    worker = Worker(SyncRule("kl", INF, max_lag=4))
    for version in range(13):
        worker.hear(digest(version, 0.0, None), 0.0)
        assert worker.sync.version is not None
        assert version - worker.sync.version < 4
    assert worker.loads == [0, 4, 8, 12]
    every = Worker(SyncRule.parse("every:4"))
    for version in range(13):
        every.hear(digest(version, float(version), None), 0.0)
    assert every.loads == [0, 4, 8, 12]


def test_a_version_that_all_must_have_is_loaded_by_those_that_are_behind_it() -> None:
    worker = Worker(SyncRule("kl", INF))
    for version, required in ((3, -1), (4, -1), (5, 5), (6, 5)):
        worker.hear(digest(version, 0.0, None, required=required), 0.0)
    assert worker.loads == [3, 5]


def test_a_running_average_rises_slowly_and_starts_anew_with_each_load() -> None:
    worker = Worker(SyncRule("kl", 0.1, smoothing=0.5))
    worker.sync.take_probes(probes())
    far = compare(probe_outputs(Slope(0.0), probes()), probe_outputs(Slope(0.9), probes()), probes(), "kl")
    assert 0.1 < far < 0.2  # half of it is below the threshold, three quarters are above
    for version, value in enumerate([0.0, 0.9, 0.9, 0.9]):
        worker.hear(digest(version, value, probes()), value)
    report = worker.sync.report("here/worker")
    assert report is not None
    assert [round(average / far, 6) for *_, average, _ in report.decisions if average] == [0.5, 0.75]
    assert worker.loads == [0, 2]


def test_nothing_is_decided_while_parameters_are_on_their_way_and_then_only_about_the_newest() -> None:
    worker, policy = Synchronizer(SyncRule("kl", 0.01)), Slope()
    worker.take_probes(probes())
    assert worker.decide(policy, digest(1, 0.0, None))
    for version in (2, 3):
        assert not worker.decide(policy, digest(version, 5.0, probes()))
        assert not worker.ready
    assert worker.loaded(params(1, 0.0))
    assert worker.ready
    assert worker.decide(policy)
    assert worker.wanted == 3
    assert not worker.ready
    assert worker.loaded(params(4, 5.0))
    assert worker.version == 4
    assert worker.ready
    assert not worker.decide(policy, digest(4, 9.0, probes()))


def test_older_parameters_are_never_loaded_and_end_no_wait() -> None:
    worker = Synchronizer(SyncRule("kl", 0.01))
    worker.decide(Slope(), digest(5, 0.0, None))
    assert not worker.ready
    assert worker.loaded(params(5, 0.0))
    for version in (3, 5):
        assert not worker.loaded(params(version, 1.0))
    assert worker.version == 5
    worker.decide(Slope(), digest(9, 0.0, None, required=9))
    assert worker.wanted == 9
    worker.loaded(params(7, 1.0))  # from a proxy that had no newer ones
    assert (worker.version, worker.wanted) == (7, 9)


def test_a_worker_that_lost_its_upstream_asks_the_next_one() -> None:
    worker = Synchronizer(SyncRule("kl", INF))
    assert worker.decide(Slope(), digest(2, 0.0, None))
    worker.forget_request()
    assert worker.decide(Slope(), digest(2, 0.0, None))
    assert worker.wanted == 2


def test_its_state_is_all_that_it_needs_to_go_on() -> None:
    first = Worker(SyncRule("kl", 0.05, smoothing=0.5))
    first.sync.take_probes(probes())
    for version, value in enumerate([0.0, 0.3, 0.4]):
        first.hear(digest(version, value, probes()), value)
    first.sync.decide(first.policy, digest(3, 0.5, probes(2)))
    second = Worker(first.sync.rule)
    second.sync.load(first.sync.state())
    second.policy.load(first.policy.params())
    for worker in (first, second):
        worker.sync.take_probes(probes(2))
        worker.hear(None, 0.5)
    assert first.sync.report("a") == second.sync.report("a")


# Digests --------------------------------------------------------------------------------------------------------------


def batch(n: int = 4, steps: int = 5) -> EpisodeBatch:
    rng = np.random.default_rng(n)
    return EpisodeBatch(
        lengths=rng.integers(1, steps + 1, n).astype(np.int32),
        terminated=np.ones(n, np.bool_),
        weights=np.ones(n, np.float32),
        obs=rng.normal(size=(n, steps + 1, 2, 4)).astype(np.float32),
        state=np.zeros((n, steps + 1, 3), np.float32),
        available=rng.random((n, steps + 1, 2, 3)) < 0.8,
        actions=rng.integers(0, 3, (n, steps, 2)),
        reward=np.zeros((n, steps), np.float32),
    )


def test_probes_are_frames_in_which_the_policy_acted_with_those_before_them() -> None:
    policy = ALGORITHMS["qmix"].learner(SPEC, seed=0)
    source = batch(40)
    drawn, news = Digests(SPEC.schema, policy, np.random.default_rng(0)).make(7, source)
    assert isinstance(drawn, ProbesMsg)
    assert isinstance(news, VersionMsg)
    assert (drawn.number, news.probes, news.version) == (7, 7, 7)
    obs, last = drawn.inputs["frames/obs"], drawn.inputs["last_actions"]
    assert obs.shape == (PROBES, 8, 2, 4)
    assert last.shape == (PROBES, 8, 2)
    assert set(drawn.inputs) == {"frames/obs", "frames/available", "last_actions"}
    for k in range(PROBES):
        (segment, t), *others = np.argwhere((source.obs == obs[k, -1]).all((2, 3)))
        assert not others
        assert t < source.lengths[segment]
        for back in range(8):
            at = t - back
            assert (obs[k, -1 - back] == source.obs[segment, max(at, 0)]).all()
            assert (last[k, -1 - back] == (source.actions[segment, at - 1] if at > 0 else -1)).all()
    assert news.outputs["logits"].shape == (PROBES, 2, 3)
    assert news.outputs["logits"].dtype == np.float16


def test_probes_serve_for_some_versions_and_a_small_batch_gives_few() -> None:
    policy = ALGORITHMS["qmix"].learner(SPEC, seed=0)
    digests = Digests(SPEC.schema, policy, np.random.default_rng(0))
    numbers = [
        next(m for m in reversed(digests.make(v, batch())) if isinstance(m, VersionMsg)).probes for v in range(25)
    ]
    assert numbers == [v - v % REDRAWN for v in range(25)]
    assert digests.probes is not None
    assert len(digests.probes.inputs["last_actions"]) == batch().lengths.sum()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_acting_side_of_each_algorithm_gives_what_its_learner_gives(name: str) -> None:
    if name not in ("qmix", "vdn", "qplex", "iql", "coma"):
        pytest.skip("it acts by another network")
    learner, acting = ALGORITHMS[name].learner(SPEC, seed=3), ALGORITHMS[name].acting(SPEC, seed=4)
    acting.load(learner.params())
    drawn, news = Digests(SPEC.schema, learner, np.random.default_rng(0)).make(1, batch())
    assert isinstance(drawn, ProbesMsg)
    assert isinstance(news, VersionMsg)
    assert compare(probe_outputs(acting, drawn), news.outputs, drawn, "kl") < 1e-6
    other = ALGORITHMS[name].acting(SPEC, seed=5)
    other.load(ALGORITHMS[name].learner(SPEC, seed=6).params())
    assert compare(probe_outputs(other, drawn), news.outputs, drawn, "kl") > 1e-5


def test_a_policy_that_gives_no_outputs_is_named(scripted) -> None:
    with pytest.raises(TypeError, match=r"Scripted has no method `outputs`.*--sync always"):
        probe_outputs(scripted(SPEC, seed=0), probes())


def test_a_decision_costs_a_small_part_of_the_steps_between_two_versions() -> None:
    # LunarLander's network, and the 64 x 1024 steps of a node between two versions, of which 64 x 16 are timed here.
    spec = EnvSpec("lander", n_agents=1, n_actions=4, obs_size=8, state_size=8, episode_limit=1000)
    policy = ALGORITHMS["iql"].acting(spec, seed=0)
    rng = np.random.default_rng(0)
    inputs = {
        "frames/obs": rng.normal(size=(64, 8, 1, 8)).astype(np.float32),
        "frames/available": np.ones((64, 8, 1, 4), np.bool_),
        "last_actions": np.full((64, 8, 1), -1),
    }
    of = ProbesMsg(number=0, inputs=Arrays(inputs))
    outputs = Arrays(probe_outputs(policy, of))
    sync = Synchronizer(SyncRule("kl", INF))
    sync.take_probes(of)
    sync.loaded(params(0, 0.0))

    def decided(version: int) -> None:
        sync.decide(policy, VersionMsg(version=version, required=-1, env_steps=None, probes=0, outputs=outputs))

    def acted(n: int) -> None:
        obs, hidden = rng.normal(size=(64, 1, 8)).astype(np.float32), policy.initial_hidden(64)
        for _ in range(n):
            policy.act(obs, np.ones((64, 1, 4), np.bool_), np.zeros((64, 1), np.int64), hidden, epsilon=0.0, rng=rng)

    def fastest(calls: list[Any]) -> float:
        times = []
        for call in calls:
            since = perf_counter()
            call()
            times.append(perf_counter() - since)
        return min(times)

    decision = fastest([lambda v=v: decided(v) for v in range(1, 20)])
    acting = fastest([lambda: acted(16)] * 5) * 1024 / 16  # the steps of the environments come on top
    assert decision < 0.02 * acting
