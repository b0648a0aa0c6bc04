"""The server refuses malformed messages, which our own clients never send.

Arrays of a message whose lengths disagree never arrive: messages say which axes are the same, and the wire looks.
"""

import re

import numpy as np
import pytest

from components.envs.base import EnvSpec
from components.replay_buffers import Field, NStep, SampleToInsertRatio
from components.replay_server import EpisodeLayout, Layout, ReplayClient, ReplayServer
from components.replay_server.protocol import (
    AdmitMsg,
    ClientSampleMsg,
    HoldingMsg,
    InsertMsg,
    LeaveMsg,
    LogLineMsg,
    PublishMsg,
    RefusedMsg,
    SampleMsg,
    UpdateMsg,
)
from orchestra import freeze

LONG = 30.0
FIELDS = {"item": Field(np.int64, (2,)), "reward": Field(np.float32, finite=True), "done": Field(np.bool_)}
SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
LAYOUTS = {
    "rows": Layout(FIELDS, 32, kept_by="server", chunk=4),
    "n-step rows": Layout(FIELDS, 32, kept_by="server", chunk=4, n_step=NStep(2, 0.9, arrival=("done",))),
    "episodes": EpisodeLayout(SPEC, 8, kept_by="server"),
    "parts of episodes": EpisodeLayout(SPEC, 8, kept_by="server", rollout=3),
}


@pytest.fixture(params=list(LAYOUTS))
def kept(request, make_episodes, tmp_path):
    """Return a server that keeps entries, a client, more entries, and a function that returns all that is kept."""
    layout, limiter = LAYOUTS[request.param], SampleToInsertRatio.from_min_size(1)
    if isinstance(layout, Layout):
        n = np.arange(4)
        entries = {"item": np.stack([n, n], 1), "reward": n.astype(np.float32), "done": n == 3}
    else:
        entries = make_episodes([2, 5, 1])
    with (
        ReplayServer(layout, limiter=limiter, seed=0) as server,
        ReplayClient(server.address, "one", secret=server.secret) as client,
    ):
        client.add_entries(entries)
        client.flush(timeout=LONG)

        def whole():
            server.save(tmp_path / "kept")
            return (tmp_path / "kept").read_bytes()

        yield server, client, entries, whole


def send(client, message):
    return client._thread.call(client._session.server.ask, message)


def refused(client, message):
    answer = send(client, message)
    assert isinstance(answer, RefusedMsg), answer
    return answer


def insert(entries, *, client="one", priorities=(), **spoilt):
    rows = {name: freeze(np.ascontiguousarray(array)) for name, array in {**entries, **spoilt}.items()}
    return InsertMsg(
        client=client, rows=rows, priorities=freeze(np.array(priorities, np.float64)), writer=1, number=10**6
    )


def test_malformed_entries_are_refused(kept):
    _, client, entries, whole = kept
    n = 3 if "lengths" in entries else 4
    before, reward = whole(), entries["reward"].copy()
    reward[-1] = np.nan
    for message, text in [
        (insert(entries, client="nobody"), "client: expected one that has joined, ['one'], got 'nobody'"),
        (insert({k: v for k, v in entries.items() if k != "reward"}), "expected the fields ["),
        (insert(entries, more=entries["reward"]), "expected the fields ["),
        (insert(entries, reward=entries["reward"].astype(np.float64)), "reward: expected float32 of shape ("),
        (insert(entries, reward=entries["reward"][:-1]), "reward: expected float32 of shape ("),
        (insert(entries, reward=entries["reward"][:, None]), "reward: expected float32 of shape ("),
        (insert(entries, reward=np.float32(1.0)), "reward: expected float32 of shape ("),
        (insert(entries, reward=reward), "reward: expected finite numbers, got nan"),
        (insert(entries, priorities=[1.0] * (n + 1)), f"priorities: expected floats of shape ({n},), got float64"),
        (insert(entries, priorities=[1.0] * (n - 1) + [np.nan]), "priorities: expected finite numbers of at least 0"),
        (insert(entries, priorities=[1.0] * (n - 1) + [-1e-9]), "priorities: expected finite numbers of at least 0"),
        (insert(entries, priorities=[np.inf] * n), "priorities: expected finite numbers of at least 0"),
    ]:
        answer = refused(client, message)
        assert text in answer.text, (answer.text, text)
        assert answer.error in ("InvalidExperience", "UnknownClient")
        assert whole() == before


def test_malformed_updates_are_refused(kept):
    server, client, _, whole = kept
    sampled = server.sample(2, timeout=LONG)
    before = whole()

    def update(**spoilt):
        given = {
            "whose": np.zeros(2, np.int64),
            "indices": sampled.indices,
            "generations": sampled.generations,
            "priorities": np.ones(2),
        }
        arrays = {name: freeze(np.asarray(array)) for name, array in {**given, **spoilt}.items()}
        return UpdateMsg(names=("one",), **arrays)

    for message, text in [
        (update(priorities=np.array([1.0, np.nan])), "priorities: expected finite numbers of at least 0"),
        (update(priorities=np.array([1.0, -1.0])), "priorities: expected finite numbers of at least 0"),
        (update(whose=np.array([0, 1])), "whose: expected indices of 1 clients, got [0 1]"),
        (update(whose=np.array([0, -1])), "whose: expected indices of 1 clients, got [ 0 -1]"),
    ]:
        answer = refused(client, message)
        assert text in answer.text, (answer.text, text)
        assert whole() == before
    # What is of the right shape and of nobody is counted, and changes nothing.
    for message in (update(indices=np.array([0, 99])), update(indices=np.array([-1, 0]))):
        lost = server.statistics().lost_updates
        assert send(client, message) is None
        while server.statistics().lost_updates == lost:
            pass
        assert server.statistics().lost_updates == lost + 2
        assert whole() == before


def test_other_malformed_requests_are_refused(kept):
    server, client, _, whole = kept
    before, one, ones = whole(), freeze(np.zeros(1, np.int64)), freeze(np.ones(1))
    empty = server.layout.draw(server.layout.new_buffer(), 0, np.random.default_rng(0))
    holding = ClientSampleMsg.of(empty, 1)
    for message, text in [
        (AdmitMsg(client="nobody", n=1), "client: expected one that has joined"),
        (AdmitMsg(client="one", n=-1), "n: expected at least 1, got -1"),
        (LeaveMsg(client="nobody"), "client: expected one that has joined"),
        (HoldingMsg(client="nobody", sample=holding, inserted_bytes=0), "client: expected one that has joined"),
        (SampleMsg(batch_size=0), "batch_size: expected 1 to 4096"),
        (SampleMsg(batch_size=5000), "batch_size: expected 1 to 4096"),
        (PublishMsg(topic="", data=freeze(np.zeros(1, np.uint8))), "topic: expected 1 to 255 characters, got 0"),
        (LogLineMsg(client="one\n", text="hello"), "client: "),
        (LogLineMsg(client="one", text="hello"), "log: expected a server with a log_path"),
        (
            UpdateMsg(names=(), whose=one, indices=one, generations=one, priorities=ones),
            "whose: expected indices",
        ),
    ]:
        answer = refused(client, message)
        assert re.search(re.escape(text), answer.text), (answer.text, text)
        assert whole() == before
    assert server.statistics().clients == {"one": len(server.coordinator.member("one").buffer)}


def test_impossible_reports_of_a_client_are_refused(make_episodes):
    layout = EpisodeLayout(SPEC, 8, rollout=3)
    memory, generator = layout.new_buffer(), np.random.default_rng(0)
    layout.insert(memory, make_episodes([2, 5]), None)
    with (
        ReplayServer(layout, seed=0) as server,
        ReplayClient(server.address, "one", secret=server.secret) as client,
    ):
        for change, bytes_, text in [
            ({"total": np.nan}, 0, "total: expected a finite number of at least 0, got nan"),
            ({"held": -1}, 0, "held: expected at least 0, got -1"),
            ({"inserted": 1}, 0, "inserted: expected at least 2, got 1"),
            ({}, -1, "inserted_bytes: expected at least 0, got -1"),
        ]:
            sample = ClientSampleMsg.of(layout.draw(memory, 0, generator), 100).model_copy(update=change)
            answer = refused(client, HoldingMsg(client="one", sample=sample, inserted_bytes=bytes_))
            assert text in answer.text
            assert server.statistics().clients == {"one": 0}
