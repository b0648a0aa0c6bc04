"""Replay server of whole multi-agent episodes, and of parts of episodes."""

import re
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from components.envs.base import EnvSpec
from components.policies.base import EpisodeBatch
from components.replay_buffers import CheckpointError, FederatedReplay, InvalidExperience, SampleToInsertRatio
from components.replay_server import EpisodeLayout, Full, Layout, ReplayClient, ReplayProxy, ReplayServer
from components.replay_server.layouts import layout_from_plain

KEPT_BY = pytest.mark.parametrize("kept_by", ["clients", "server"])
LONG = 30.0
"""Seconds to wait: so many that only a failing test needs them."""
SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)


def layout(capacity=64, **options):
    return EpisodeLayout(SPEC, capacity, **{"alpha": 1.0, "epsilon": 0.0} | options)


@contextmanager
def served(*names, given, client=None, **options):
    """A server, and a client for each name."""
    with ExitStack() as stack:
        server = stack.enter_context(ReplayServer(given, **{"seed": 1} | options))
        clients = [
            stack.enter_context(ReplayClient(server.address, name, secret=server.secret, seed=i, **client or {}))
            for i, name in enumerate(names)
        ]
        yield server, *clients


def until(holds):
    """Wait until another thread has made `holds` true."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


def chi_squared_is_usual(counts, weights):
    """Return whether counts fit draws in proportion to the weights, within four standard deviations."""
    expected = weights / weights.sum() * counts.sum()
    degrees = len(weights) - 1
    return ((counts - expected) ** 2 / expected).sum() < degrees + 4 * np.sqrt(2 * degrees)


def one_of(episodes, i):
    """Return episode i of episodes that lie back to back, as `add_entry` takes it."""
    lengths = episodes["lengths"]
    step = int(lengths[:i].sum())
    steps, frames = slice(step, step + lengths[i]), slice(step + i, step + i + lengths[i] + 1)
    return {name: episodes[name][frames] for name in ("obs", "state", "available")} | {
        "actions": episodes["actions"][steps],
        "reward": episodes["reward"][steps],
        "terminated": bool(episodes["terminated"][i]),
    }


def which(batch):
    """Return the number of each episode of a batch; see `make_episodes`."""
    return np.floor(batch["reward"][:, 0] - 0.5).astype(int)


@KEPT_BY
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "by a proxy"])
def test_added_episodes_are_sampled_and_updates_reach_their_buffers(kept_by, proxied, make_episodes):
    given = layout(kept_by=kept_by)
    with ReplayServer(given, seed=1) as server:
        proxy = ReplayProxy(server.address, secret=server.secret) if proxied else server
        with (
            ReplayClient(proxy.address, "one", secret=server.secret) as one,
            ReplayClient(proxy.address, "two", secret=server.secret) as two,
        ):
            assert one.layout == given
            added = {"one": make_episodes([3, 1, 6, 2]), "two": make_episodes([4, 5], first=10)}
            for i in range(4):
                one.add_entry(one_of(added["one"], i), priority=float(i))
            two.add_entries(added["two"], priorities=np.array([0.0, 2.0]))
            for client in (one, two):
                client.flush(timeout=LONG)
            sampled = server.sample(48, timeout=LONG)
            assert set(which(sampled.batch).tolist()) == {1, 2, 3, 11}
            batch = EpisodeBatch(weights=sampled.weights, **sampled.batch)
            assert batch.reward.shape == (48, batch.lengths.max())
            assert batch.obs.shape == (48, batch.lengths.max() + 1, 2, 4)
            for row, item in enumerate(which(sampled.batch).tolist()):
                name = sampled.clients[row]
                assert name == ("two" if item >= 10 else "one")
                expected, n = one_of(added[name], item % 10), batch.lengths[row]
                for field in ("obs", "state", "available"):
                    np.testing.assert_array_equal(getattr(batch, field)[row, : n + 1], expected[field])
                    assert not getattr(batch, field)[row, n + 1 :].any()
                for field in ("actions", "reward"):
                    np.testing.assert_array_equal(getattr(batch, field)[row, :n], expected[field])
                    assert not getattr(batch, field)[row, n:].any()
                assert batch.terminated[row] == expected["terminated"]
            # (1/w)^0.4 of the batch's least weight, 1.
            np.testing.assert_allclose(
                sampled.weights, np.array([1, 2, 3, 2])[[[1, 2, 3, 11].index(i) for i in which(sampled.batch)]] ** -0.4,
                rtol=1e-6,
            )  # fmt: skip
            server.update(sampled, np.where(which(sampled.batch) == 1, 1.0, 0.0))
            again = one.sample(8, timeout=LONG)
            assert which(again.batch).tolist() == [1] * 8
            assert again.batch["reward"].shape == (8, 1), "a batch is padded to its longest episode"
            one.update(again, np.zeros(8))
            until(lambda: server.coordinator.union.clients == {"one": 0.0, "two": 0.0})
        if proxied:
            proxy.close()


@KEPT_BY
def test_samples_follow_the_union_of_clients_of_different_size_and_rate(kept_by, make_episodes):
    generator = np.random.default_rng(3)
    small, large = generator.gamma(0.5, 2.0, 3) + 0.05, generator.gamma(0.5, 1.0, 24) + 0.05
    assert 0.05 < small.sum() / large.sum() < 0.4, "sampling both clients equally would be wrong"
    with served("small", "large", given=layout(24, kept_by=kept_by), seed=5) as (server, one, two):
        two.add_entries(make_episodes([1 + i % 6 for i in range(24)], first=3), priorities=large)
        for _ in range(20):  # it inserts far more often
            one.add_entries(make_episodes([1], first=90), priorities=np.zeros(1))
        one.add_entries(make_episodes([2, 6, 1]), priorities=small)
        for client in (one, two):
            client.flush(timeout=LONG)
        counts = np.zeros(91)
        for _ in range(40):
            counts += np.bincount(which(server.sample(64, timeout=LONG).batch), minlength=91)
    assert not counts[27:].any()
    assert chi_squared_is_usual(counts[:27], np.concatenate([small, large]))


@pytest.mark.parametrize("options", [{}, {"rollout": 4, "burn_in": 1}], ids=["whole", "parts"])
def test_a_batch_is_padded_to_its_own_longest_episode(options, make_episodes):
    given, generator = layout(**options), np.random.default_rng(0)
    memory, union = given.new_buffer(), FederatedReplay(given.sample_fields)
    given.insert(memory, make_episodes([6, 1]), np.array([1.0, 1.0]))
    union.join("one")
    union.add("one", given.draw(memory, 64, generator))
    seen = set()
    for _ in range(32):
        batch = union.sample(1, generator).batch
        n = int(batch["lengths"][0])
        seen.add(n)
        for name, array in batch.items():
            frames = {"obs": n + 1, "state": n + 1, "available": n + 1}.get(name, n)
            assert array.ndim == 1 or array.shape[:2] == (1, frames)
            assert array.flags.c_contiguous
    assert 1 in seen
    assert max(seen) > 1


@KEPT_BY
def test_parts_of_episodes_are_sampled_with_a_burn_in(kept_by, make_episodes):
    given = layout(kept_by=kept_by, rollout=4, burn_in=2)
    with served("one", "two", given=given) as (server, one, two):
        for client, first, lengths in ((one, 0, [6, 3]), (two, 10, [5, 1])):
            client.add_entries(make_episodes(lengths, first=first))
            client.flush(timeout=LONG)
        seen = set()
        for _ in range(6):
            batch = server.sample(32, timeout=LONG).batch
            firsts, lengths, learn = batch["firsts"], batch["lengths"], batch["learn"]
            assert batch["reward"].shape[1] == lengths.max() == learn.shape[1]
            item = np.floor(batch["reward"][:, 0] + 1e-3 - 0.5).astype(int)
            whole = np.array([{0: 6, 1: 3, 10: 5, 11: 1}[i] for i in item.tolist()])
            steps = np.arange(lengths.max())
            real = steps < lengths[:, None]
            expected = item[:, None] + (firsts[:, None] + steps) / 10 + 0.5
            np.testing.assert_allclose(batch["reward"], np.where(real, expected, 0.0), rtol=1e-6)
            np.testing.assert_array_equal(learn.sum(1), np.minimum(2, whole))
            np.testing.assert_array_equal(batch["terminated"], (item % 2 == 0) & (firsts + lengths == whole))
            begins = learn.argmax(1)
            np.testing.assert_array_equal(begins, np.minimum(2, firsts + begins))
            seen |= set(zip(item.tolist(), (firsts + begins).tolist(), strict=True))
        assert seen == {(0, i) for i in range(5)} | {(1, 0), (1, 1)} | {(10, i) for i in range(4)} | {(11, 0)}


def test_only_sampled_episodes_or_parts_travel(make_episodes):
    received = {}
    for name, options in {"whole": {}, "parts": {"rollout": 2}, "at the server": {"kept_by": "server"}}.items():
        with served("one", given=layout(**options)) as (server, one):
            added = make_episodes([6] * 30)
            one.add_entries(added)
            one.flush(timeout=LONG)
            server.sample(6, timeout=LONG)
            statistics = server.statistics()
            assert statistics.inserted_bytes == sum(array.nbytes for array in added.values())
            received[name] = statistics.received_bytes / statistics.inserted_bytes
            assert statistics.saved == pytest.approx(1 - received[name])
    assert 0.19 < received["whole"] < 0.22, "a fifth of the episodes, and where they are from"
    assert received["parts"] < 0.55 * received["whole"]
    assert received["at the server"] == 1.0


def test_episodes_count_against_the_high_water_mark(make_episodes):
    limiter = SampleToInsertRatio(1.0, 2, 4.0)
    with served("one", given=layout(), limiter=limiter, client={"high_water": 2, "when_full": "refuse"}) as (_, one):
        for _ in range(3):
            one.add_entries(make_episodes([2, 2]))
            if one.statistics().added <= 6:
                until(lambda: one.statistics().waiting == 0 or one.statistics().inserted == 6)
        until(lambda: one.statistics().inserted == 6)  # diff may be 6
        one.add_entries(make_episodes([2, 2]))
        with pytest.raises(Full, match="expected room for 1, but 2 of 2 are waiting"):
            one.add_entry(one_of(make_episodes([2]), 0))
        assert (one.statistics().waiting, one.statistics().refused) == (2, 1)
        one.close(timeout=0.0)


def test_a_client_s_buffer_of_episodes_is_saved_and_restored(make_episodes, tmp_path):
    with served("one", given=layout()) as (server, one):
        one.add_entries(make_episodes([3, 1, 6]), priorities=np.array([0.0, 1.0, 0.0]))
        one.save(tmp_path / "memory")
    with served("one", given=layout()) as (server, one):
        one.load(tmp_path / "memory")
        assert set(which(server.sample(8, timeout=LONG).batch).tolist()) == {1}
    with served("one", given=layout(32)) as (server, one):
        one.add_entries(make_episodes([2], first=7))
        with pytest.raises(CheckpointError, match="capacity: expected 32, got 64"):
            one.load(tmp_path / "memory")
        assert set(which(server.sample(8, timeout=LONG).batch).tolist()) == {7}


@KEPT_BY
def test_buffers_can_be_kept_on_a_disk(kept_by, make_episodes, tmp_path):
    options = {"folder": tmp_path}
    where = {"client": options} if kept_by == "clients" else options
    with served("one", given=layout(kept_by=kept_by), **where) as (server, one):
        one.add_entries(make_episodes([3, 1]))
        one.flush(timeout=LONG)
        assert set(which(server.sample(32, timeout=LONG).batch).tolist()) == {0, 1}
        mapped = Path("/proc/self/maps").read_text()
        assert str(tmp_path) in mapped
    with pytest.raises(FileNotFoundError if kept_by == "clients" else Full, match="No such file"):
        options["folder"] = tmp_path / "none"
        with served("one", given=layout(kept_by=kept_by), **where):
            pass


def spoilt(episode, **fields):
    return {**episode, **fields}


@KEPT_BY
def test_malformed_episodes_are_refused_by_field_and_change_nothing(kept_by, make_episodes):
    episode, many = one_of(make_episodes([3]), 0), make_episodes([3, 2])
    bad_reward = many["reward"].copy()
    bad_reward[4] = np.nan
    with served("one", given=layout(kept_by=kept_by)) as (server, one):
        for entry, text in [
            ({k: v for k, v in episode.items() if k != "state"}, "expected the fields ['obs', 'state', 'available'"),
            (spoilt(episode, extra=1), "expected the fields ['obs', 'state', 'available'"),
            (spoilt(episode, obs=episode["obs"][:3]), "obs: expected float32 of shape (4, 2, 4), got float32 of"),
            (spoilt(episode, obs=episode["obs"] * np.float64(1)), "obs: expected float32 of shape (4, 2, 4), got"),
            (spoilt(episode, state=None), "state: expected float32 of shape (4, 5), got NoneType"),
            (spoilt(episode, actions=episode["actions"] + 9), "actions: expected 0 to 2, got 9 to 11"),
            (spoilt(episode, reward=bad_reward[2:]), "reward: expected finite numbers, got nan at step 2"),
            (spoilt(episode, reward=1.0), "reward: expected float32 of shape (T,), got float"),
            (spoilt(episode, terminated=1), "terminated: expected a bool, got int"),
            (one_of(make_episodes([0]), 0), "lengths: expected at least one episode of 1 to 6 steps each, got [0]"),
            (one_of(make_episodes([7]), 0), "lengths: expected at least one episode of 1 to 6 steps each, got [7]"),
        ]:  # fmt: skip
            with pytest.raises(InvalidExperience, match=re.escape(text)):
                one.add_entry(entry)
        for entries, text in [
            (spoilt(many, reward=bad_reward), "reward: expected finite numbers, got nan at step 4"),
            (
                spoilt(many, lengths=many["lengths"].astype(np.int64)),
                "lengths: expected int32 of shape (E,), got int64",
            ),
            (spoilt(many, terminated=many["terminated"][:1]), "terminated: expected bool of shape (2,), got bool"),
        ]:
            with pytest.raises(InvalidExperience, match=re.escape(text)):
                one.add_entries(entries)
        for priority in (np.nan, np.inf, -1.0, 1e308):
            with pytest.raises(InvalidExperience, match="priorities: expected"):
                one.add_entry(episode, priority=priority)
            with pytest.raises(InvalidExperience, match="priorities: expected"):
                one.add_entries(many, priorities=np.array([1.0, priority]))
        assert (one.statistics().added, server.statistics().clients) == (0, {"one": 0})
        one.add_entries(many)
        one.flush(timeout=LONG)
        sampled = server.sample(2, timeout=LONG)
        for who in (server, one):
            for wrong in (np.array([1.0, np.nan]), np.array([1.0, -1.0]), np.ones(3)):
                with pytest.raises(InvalidExperience, match="priorities: expected"):
                    who.update(sampled, wrong)
        until(lambda: server.coordinator.union.clients == {"one": 2.0})


@pytest.mark.parametrize("options", [{}, {"kept_by": "server", "chunk": 4}, {"rollout": 5, "burn_in": 2, "alpha": 0.1}])
def test_a_layout_survives_its_plain_form(options):
    given = layout(**options)
    assert layout_from_plain(given.to_plain()) == given
    assert not isinstance(layout_from_plain(given.to_plain()), Layout)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "chunk: expected 1 to 0, which is the capacity, got 1"),
        ({"chunk": 65}, "chunk: expected 1 to 64"),
        ({"kept_by": "nobody"}, "kept_by: expected clients or server, got 'nobody'"),
        ({"rollout": 3, "burn_in": 3}, "burn_in of 0 to length - 1, got 3 and 3"),
        ({"burn_in": 1}, "burn_in of 0 to length - 1, got 0 and 1"),
        ({"rollout": -1}, "got -1 and 0"),
        ({"alpha": np.nan}, "alpha"),
        ({"variant": "rank", "decay": 0.5}, "decay: expected 1 with ranks"),
    ],
)
def test_layouts_out_of_range_are_refused(options, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        layout(**options)


@pytest.mark.parametrize(
    "change", [{"spec": {}}, {"spec": None}, {"rollout": -1}, {"kind": "pictures"}, {"more": 1}, {"capacity": "many"}]
)
def test_values_that_are_no_layout_are_refused(change):
    with pytest.raises(InvalidExperience, match="layout: expected that of a replay server of this version"):
        layout_from_plain(layout().to_plain() | change)
