"""Clients of any size and rate, and a server that draws as if from one memory."""

import re
from dataclasses import replace

import numpy as np
import pytest

from components.policies.base import EpisodeBatch
from components.replay_buffers import Episodes, Field, NStep, PrioritizedEpisodeReplay, PrioritizedTransitions
from components.replay_buffers.federated import FederatedReplay, NotPushed
from components.replay_buffers.invalid import InvalidExperience

FIELDS = {"item": Field(np.int64), "reward": Field(np.float32, finite=True)}


def rng(seed=0):
    return np.random.default_rng(seed)


def make_client(priorities, first=0, **options):
    """Return a memory whose items are numbered from `first`, one for each priority."""
    n = len(priorities)
    replay = PrioritizedTransitions(FIELDS, n, alpha=1.0, epsilon=0.0, **options)
    items = first + np.arange(n)
    replay.insert({"item": items, "reward": items.astype(np.float32)}, np.asarray(priorities, np.float64))
    return replay


def make_server(*names, **options):
    server = FederatedReplay(FIELDS, **options)
    for name in names:
        server.join(name)
    return server


def chi_squared_is_usual(counts, weights):
    """The counts are as likely as not drawn in proportion to the weights: four standard deviations and no more."""
    expected = weights / weights.sum() * counts.sum()
    assert not counts[expected == 0].any()
    there = expected > 0
    degrees = there.sum() - 1
    statistic = ((counts - expected)[there] ** 2 / expected[there]).sum()
    return statistic < degrees + 4 * np.sqrt(2 * degrees)


SIZES, RATES = {"small": 3, "middle": 30, "large": 120}, {"small": 12, "middle": 3, "large": 1}
"""Items of each client, and how many of its pushes come for every push of the slowest: the wrong way round."""


@pytest.fixture(scope="module")
def union():
    """Clients of three sizes and kinds, and the weights of all of their items together."""
    generator, clients, weights = rng(5), {}, []
    for name, n in SIZES.items():
        own = generator.gamma(0.5, {"small": 9.0, "middle": 0.3, "large": 1.0}[name], n)
        clients[name] = own
        weights.append(own)
    return clients, np.concatenate(weights)


def replays(clients):
    first, made = 0, {}
    for name, own in clients.items():
        made[name] = make_client(own, first)
        first += len(own)
    return made


@pytest.mark.parametrize("max_uses", [1, 3])
def test_draws_are_those_from_the_union_however_large_a_client_is_and_however_often_it_pushes(union, max_uses):
    clients, weights = union
    made, server, generator = replays(clients), make_server(*SIZES, max_uses=max_uses), rng(1)
    counts = np.zeros(len(weights))
    for _ in range(300):
        for name, replay in made.items():
            # Where items come again, clients push when they are missed, below; else far more than is drawn.
            for _ in range(RATES[name] if max_uses == 1 else 1):
                server.add(name, replay.share((2 if name == "small" else 16) if max_uses == 1 else 0, generator))
        for name, n in server.missing(64, generator).items():
            server.add(name, made[name].share(n, generator))
        counts += np.bincount(server.sample(64, generator).batch["item"], minlength=len(weights))
    # Items that come again are no longer independent: their variance is up to `max_uses` times as large.
    assert chi_squared_is_usual(counts / max_uses, weights)


def test_what_the_server_draws_on_request_is_the_union_after_updates_and_overwriting(union):
    clients, _ = union
    made, server, generator = replays(clients), make_server(*SIZES), rng(2)
    truth = np.zeros(1000)
    for name, replay in made.items():
        n = replay.capacity // 3 + 1
        fresh = 500 + 150 * list(SIZES).index(name) + np.arange(n)
        replay.insert({"item": fresh, "reward": fresh.astype(np.float32)}, generator.random(n))
        some = np.arange(0, replay.capacity, 2)
        replay.update(some, replay._index.generations_of(some), generator.random(len(some)) * 3)
        server.add(name, replay.share(0, generator))
        truth[replay._store.arrays["item"]] = replay.priorities[np.arange(replay.capacity)]
    counts = np.zeros(1000)
    for _ in range(600):
        for name, n in server.missing(64, generator).items():
            server.add(name, made[name].share(n, generator))
        counts += np.bincount(server.sample(64, generator).batch["item"], minlength=1000)
    assert chi_squared_is_usual(counts, truth)


def test_the_test_would_notice_a_server_that_weighs_what_was_pushed(union):
    clients, weights = union
    made, generator = replays(clients), rng(3)
    pushed = [made[name].share(16, generator) for _ in range(300) for name in SIZES for _ in range(min(RATES[name], 7))]
    totals = np.array([share.total for share in pushed])  # of every share, not of every client
    drawn = [
        pushed[k].batch["item"][generator.integers(16)]
        for k in generator.choice(len(pushed), 38_400, p=totals / totals.sum())
    ]
    assert not chi_squared_is_usual(np.bincount(drawn, minlength=len(weights)), weights)


def test_importance_weights_are_those_of_the_union():
    made = {"a": make_client([1.0, 2.0]), "b": make_client([4.0, 8.0, 16.0], 2)}
    server, generator = make_server("a", "b", beta=0.5), rng()
    for name, replay in made.items():
        server.add(name, replay.share(64, generator))
    sampled = server.sample(32, generator)
    weights = 2.0 ** sampled.batch["item"]
    chance = weights / 31
    expected = (5 * chance) ** -0.5
    np.testing.assert_allclose(sampled.weights, expected / expected.max(), rtol=1e-6)
    assert sampled.weights.dtype == np.float32
    assert len(server) == 5
    assert server.clients == {"a": 3.0, "b": 28.0}


def test_a_client_that_is_slow_is_waited_for_and_what_was_picked_stays_picked():
    made = {"fast": make_client([1.0]), "slow": make_client([1.0], 1)}
    server, generator = make_server("fast", "slow"), rng()
    for replay, name in zip(made.values(), made, strict=True):
        server.add(name, replay.share(0, generator))
    wanted = server.missing(20, generator)
    assert sum(wanted.values()) == 20
    for _ in range(5):
        server.add("fast", made["fast"].share(20, generator))
        with pytest.raises(NotPushed, match=re.escape(f"lacking {wanted['slow']} of 'slow'")) as caught:
            server.sample(20, generator)
        assert caught.value.missing == {"slow": wanted["slow"]}
    server.add("slow", made["slow"].share(wanted["slow"], generator))
    assert np.bincount(server.sample(20, generator).batch["item"]).tolist() == [wanted["fast"], wanted["slow"]]


def test_nothing_can_be_drawn_of_clients_without_weight():
    server = make_server("a")
    with pytest.raises(NotPushed, match="lacking any client with weight"):
        server.sample(1, rng())
    empty = make_client([0.0]).share(4, rng())
    assert len(empty.indices) == 0
    server.add("a", empty)
    with pytest.raises(NotPushed, match="lacking any client with weight"):
        server.sample(1, rng())
    for size in (0, 4097):
        with pytest.raises(ValueError, match=f"batch_size: expected 1 to 4096, which is max_items, got {size}"):
            server.sample(size, rng())
    with pytest.raises(ValueError, match="size: expected at least 0, got -1"):
        make_client([1.0]).share(-1, rng())


def test_picks_of_a_client_that_left_or_holds_nothing_more_are_given_up():
    made = {name: make_client([1.0], i) for i, name in enumerate("abc")}
    server, generator = make_server("a", "b", "c"), rng()
    for name, replay in made.items():
        server.add(name, replay.share(0, generator))
    assert set(server.missing(50, generator)) == {"a", "b", "c"}
    server.leave("a")
    server.add("b", make_client([0.0], 1).share(0, generator))
    assert server.missing(50, generator) == {"c": 50}
    server.add("c", made["c"].share(50, generator))
    assert server.sample(50, generator).clients == ("c",) * 50


def test_an_item_is_drawn_as_often_as_it_may_be_and_the_newest_share_first():
    server, generator = make_server("a", max_uses=2, max_items=8), rng()
    for first in (0, 10, 20):
        server.add("a", make_client(np.ones(4), first).share(0, generator))
        share = make_client(np.ones(4), first).share(4, generator)
        server.add("a", replace(share, batch={**share.batch, "item": first + np.arange(4)}))
    drawn = [server.sample(4, generator).batch["item"].tolist() for _ in range(4)]
    assert [sorted(items) for items in drawn] == [[20, 21, 22, 23]] * 2 + [[10, 11, 12, 13]] * 2
    assert server.missing(1, generator) == {"a": 1}
    assert server.statistics().dropped == 4


def test_items_that_were_drawn_once_are_not_dropped_undrawn():
    server, generator = make_server("a", max_uses=2, max_items=4), rng()
    replay = make_client(np.ones(4))
    server.add("a", replay.share(4, generator))
    for n in (4, 1):
        server.sample(n, generator)
    server.add("a", replay.share(4, generator))
    assert server.statistics().dropped == 0


def test_priorities_find_their_way_back_to_the_clients_memories():
    made = {"a": make_client([1.0, 2.0]), "b": make_client([4.0, 8.0, 16.0], 2)}
    server, generator = make_server("a", "b", "gone"), rng()
    for name, replay in [*made.items(), ("gone", make_client([5.0], 5))]:
        server.add(name, replay.share(64, generator))
    sampled = server.sample(48, generator)
    server.leave("gone")
    routes = server.route(sampled, sampled.batch["item"] + 100.0)
    assert routes.keys() == {"a", "b"}
    for name, route in routes.items():
        made[name].update(*route)
        first = 0 if name == "a" else 2
        for slot in np.unique(route[0]).tolist():
            assert made[name].priorities[np.array([slot])] == 100.0 + first + slot
    made["a"].insert({"item": np.array([7, 8]), "reward": np.zeros(2, np.float32)})
    made["a"].update(*routes["a"])
    assert made["a"].stale_updates == len(routes["a"][0])
    with pytest.raises(InvalidExperience, match="priorities: expected finite numbers of at least 0"):
        server.route(sampled, np.full(48, np.nan))


def test_the_bandwidth_saved_is_what_was_not_pushed():
    client, server, generator = make_client(np.ones(1000)), make_server("a"), rng()
    server.add("a", client.share(100, generator))
    server.sample(60, generator)
    server.leave("a")
    statistics = server.statistics()
    assert (statistics.inserted, statistics.pushed, statistics.drawn, statistics.dropped) == (1000, 100, 60, 40)
    assert statistics.pushed_bytes == 100 * (8 + 4 + 8 + 8 + 8)
    assert statistics.saved == pytest.approx(0.9)
    assert FederatedReplay(FIELDS).statistics().saved == 0.0


def test_whole_episodes_travel_and_are_padded_to_the_longest_of_the_batch(spec, make_episodes):
    server, generator, made = None, rng(), {}
    for i, lengths in enumerate(([1, 2, 1], [5, 6])):
        made[str(i)] = replay = PrioritizedEpisodeReplay(spec, 3, alpha=1.0)
        replay.insert(Episodes(**make_episodes(lengths, first=10 * i)))
        server = server or FederatedReplay(replay.share_fields)
        server.join(str(i))
        server.add(str(i), replay.share(40, generator))
    sampled = server.sample(30, generator)
    batch = EpisodeBatch(weights=sampled.weights, **sampled.batch)
    for row, (name, slot) in enumerate(zip(sampled.clients, sampled.indices.tolist(), strict=True)):
        own = made[name]._read(np.array([slot]), np.zeros(1, np.int64))
        n = own["lengths"][0]
        assert batch.lengths[row] == n
        assert batch.terminated[row] == own["terminated"][0]
        np.testing.assert_array_equal(batch.obs[row, : n + 1], own["obs"])
        np.testing.assert_array_equal(batch.actions[row, :n], own["actions"])
        assert not batch.obs[row, n + 1 :].any()
        assert not batch.reward[row, n:].any()
    assert batch.obs.shape == (30, 7, spec.n_agents, spec.obs_size)
    made["0"].update(*server.route(sampled, np.full(30, 2.0))["0"])
    empty = PrioritizedEpisodeReplay(spec, 3).share(4, generator)
    server.join("empty")
    server.add("empty", empty)
    assert server.clients["empty"] == 0.0


def test_n_steps_are_summed_by_the_client():
    fields = {**FIELDS, "done": Field(np.bool_)}
    client = PrioritizedTransitions(fields, 8, n_step=NStep(3, 0.5, arrival=("item",)))
    client.insert({"item": np.arange(8), "reward": np.ones(8, np.float32), "done": np.zeros(8, np.bool_)})
    server, generator = FederatedReplay(client.share_fields), rng()
    server.join("a")
    server.add("a", client.share(16, generator))
    sampled = server.sample(16, generator)
    for item, generation, reward, discount in zip(
        sampled.batch["item"], sampled.generations, sampled.batch["reward"], sampled.batch["discount"], strict=True
    ):
        assert item == min(generation + 2, 7)
        assert reward == 2 - 2 * discount


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": {}}, "batch: expected the fields ['item', 'reward'], got []"),
        ({"indices": np.zeros(3, np.int64)}, "generations: expected int64 of shape (3,), got int64 of shape (4,)"),
        ({"generations": np.zeros(4, np.int32)}, "generations: expected int64 of shape (4,), got int32"),
        ({"weights": np.ones(4, np.float32)}, "weights: expected float64 of shape (4,), got float32"),
        ({"weights": np.array([1, 1, 1, np.nan])}, "weights: expected numbers above 0 and at most 4.0, got [ 1.  1."),
        ({"weights": np.array([1.0, 1, 1, 0])}, "weights: expected numbers above 0 and at most 4.0"),
        ({"weights": np.array([1.0, 1, 1, 9])}, "weights: expected numbers above 0 and at most 4.0"),
        ({"total": np.nan}, "total: expected a finite number of at least 0, got nan"),
        ({"total": -1.0}, "total: expected a finite number of at least 0, got -1.0"),
        ({"held": 0}, "held: expected at least 1, got 0"),
        ({"inserted": 2}, "inserted: expected at least 4, got 2"),
        ({"item": np.zeros(4, np.int32)}, "item: expected int64 of shape (4,), got int32 of shape (4,)"),
        ({"item": [1, 2, 3, 4]}, "item: expected int64 of shape (4,), got list"),
        ({"reward": np.zeros((4, 1), np.float32)}, "reward: expected float32 of shape (4,), got float32"),
        ({"reward": np.array([0, np.nan, 0, 0], np.float32)}, "reward: expected finite numbers, got nan"),
    ],
)  # fmt: skip
def test_a_malformed_share_is_refused_and_nothing_is_taken(change, message):
    server, client = make_server("a"), make_client(np.ones(4))
    share = client.share(4, rng())
    if change.keys() <= {"item", "reward"}:
        change = {"batch": {**share.batch, **change}}
    with pytest.raises(InvalidExperience, match=re.escape(message)):
        server.add("a", replace(share, **change))
    assert server.clients == {"a": 0.0}
    assert server.statistics().pushed == 0
    server.add("a", share)
    assert server.sample(4, rng()).batch["item"].tolist() == share.batch["item"].tolist()


def test_a_client_nobody_knows_is_refused_by_name():
    server, share = make_server("a"), make_client([1.0]).share(1, rng())
    for call in (lambda: server.add("b", share), lambda: server.leave("b")):
        with pytest.raises(InvalidExperience, match=re.escape("client: expected one that has joined, ['a'], got 'b'")):
            call()
    with pytest.raises(InvalidExperience, match="client: expected a name that is free, got 'a', which has joined"):
        server.join("a")


@pytest.mark.parametrize("options", [{"beta": 2.0}, {"max_items": 0}, {"max_uses": 0}], ids=str)
def test_an_argument_out_of_range_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        FederatedReplay(FIELDS, **options)
    with pytest.raises(ValueError, match="fields: expected at least one"):
        FederatedReplay({})
