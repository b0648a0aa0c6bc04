"""Buffers that a server keeps: they outlive their clients, and saved ones outlive the server."""

import asyncio
import multiprocessing
import os
import re
import threading
import time
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from components.checkpoints import array_file, snapshot
from components.envs.base import EnvSpec
from components.replay_buffers import (
    CheckpointError,
    Closed,
    FederatedReplay,
    Field,
    InvalidExperience,
    NameTaken,
    NStep,
    RolloutWindow,
    SampleToInsertRatio,
    UnknownClient,
)
from components.replay_server import EpisodeLayout, Layout, ReplayClient, ReplayServer
from components.replay_server.coordinator import Coordinator
from components.replay_server.saved_buffers import BufferSaver

SPEC = EnvSpec("tiny", n_agents=2, n_actions=3, obs_size=4, state_size=5, episode_limit=6)
FIELDS = {"item": Field(np.int64), "reward": Field(np.float32, finite=True), "done": Field(np.bool_)}
SECRET = b"the secret".ljust(32)
LONG = 30.0
"""Seconds to wait: so many that only a failing test needs them."""


def rows_layout(capacity=64, **options):
    return Layout(FIELDS, capacity, **{"kept_by": "server", "chunk": 8, "alpha": 1.0, "epsilon": 0.0} | options)


def episode_layout(capacity=16, **options):
    return EpisodeLayout(SPEC, capacity, **{"kept_by": "server", "alpha": 1.0} | options)


def rows(items):
    items = np.asarray(items, np.int64)
    return {"item": items, "reward": items.astype(np.float32), "done": items % 5 == 4}


def serve(layout=None, **options):
    return ReplayServer(layout or rows_layout(), secret=SECRET, **{"seed": 1} | options)


@contextmanager
def client(server, name="one"):
    with ReplayClient(server.address, name, secret=SECRET) as it:
        yield it


def add(server, name, entries, priorities=None):
    with client(server, name) as it:
        it.add_entries(entries, priorities=priorities)
        it.flush(timeout=LONG)
    until(lambda: name not in server.coordinator)  # it says goodbye, and does not wait until that was heard


def until(holds):
    """Wait until another thread has made `holds` true."""
    end = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.002)


def items(server, n=64):
    return set(server.sample(n, timeout=LONG).batch["item"].tolist())


# Clients leave --------------------------------------------------------------------------------------------------------


def test_a_buffer_outlives_its_client_and_the_next_of_that_name_takes_it_over():
    with serve() as server:
        add(server, "one", rows([1, 2]), np.array([1.0, 2.0]))
        assert items(server) == {1, 2}
        assert (server.statistics().clients, server.statistics().left) == ({"one": 2}, ("one",))
        sampled = server.sample(8, timeout=LONG)
        server.update(sampled, np.full(8, 3.0))
        with client(server) as one:
            with pytest.raises(NameTaken):
                ReplayClient(server.address, "one", secret=SECRET)
            one.add_entries(rows([3]))
            one.flush(timeout=LONG)
            assert items(server) == {1, 2, 3}
            assert (server.statistics().clients, server.statistics().left) == ({"one": 3}, ())
            with pytest.raises(UnknownClient, match=r"one that has left, \[\], got 'one'"):
                server.forget("one")
        until(lambda: server.statistics().left == ("one",))
        add(server, "two", rows([7]))
        server.forget("one")
        assert items(server) == {7}
        with pytest.raises(UnknownClient, match=r"one that has left, \['two'\], got 'one'"):
            server.forget("one")
        assert server.statistics().lost_updates == 0


def test_beyond_max_left_the_buffer_of_the_first_client_to_leave_is_dropped():
    with serve(max_left=2, limiter=SampleToInsertRatio.from_min_size(1)) as server:
        for i, name in enumerate(["a", "b", "c"]):
            add(server, name, rows([i]))
        assert items(server) == {1, 2}
        assert server.statistics().left == ("b", "c")
        assert server.coordinator.limiter.deleted == 1


# Saving ---------------------------------------------------------------------------------------------------------------


def test_a_server_with_a_client_that_has_inserted_nothing_is_saved_and_restored(tmp_path):
    with serve() as server, client(server), client(server, "other") as other:
        other.add_entries(rows([1]))
        other.flush(timeout=LONG)
        server.save(tmp_path / "saved")
    with serve(save_path=tmp_path / "saved") as server:
        assert server.statistics().clients == {"one": 0, "other": 1}
        assert items(server) == {1}


def fill(server, make_episodes):
    if isinstance(server.layout, Layout):
        add(server, "one", rows(range(100)), np.linspace(0.1, 9.0, 100) if server.layout.variant != "rank" else None)
        add(server, "two", rows(range(100, 120)))
    else:
        add(server, "one", make_episodes([1 + i % 6 for i in range(20)]), np.linspace(0.1, 9.0, 20))
        add(server, "two", make_episodes([4, 2], first=100))


def go_on(server, n):
    """Draw and update; return what was drawn."""
    drawn, generator = [], np.random.default_rng(7)
    for _ in range(n):
        sampled = server.sample(16, timeout=LONG)
        drawn.append((sampled.clients, sampled.indices.tolist(), sampled.generations.tolist()))
        drawn.append([array.tobytes() for array in (sampled.weights, *sampled.batch.values())])
        server.update(sampled, generator.random(16))
    return drawn


@pytest.mark.parametrize(
    "layout",
    [
        rows_layout(),
        rows_layout(decay=0.9, n_step=NStep(3, 0.9, arrival=("done",))),
        rows_layout(variant="rank", window=RolloutWindow(4, burn_in=1)),
        episode_layout(),
        episode_layout(rollout=3, burn_in=1),
    ],
    ids=["rows", "decaying n-steps", "ranked rollouts", "episodes", "parts"],
)
def test_a_restored_server_continues_exactly_as_the_saved_one(layout, make_episodes, tmp_path):
    limiter = SampleToInsertRatio.from_min_size(1)
    with serve(layout, limiter=limiter) as server:
        fill(server, make_episodes)
        go_on(server, 3)
        server.save(tmp_path / "a")
        drawn = go_on(server, 5)
    with serve(layout, limiter=SampleToInsertRatio.from_min_size(1), save_path=tmp_path / "a", seed=2) as again:
        again.save(tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        assert again.statistics().clients.keys() == {"one", "two"}
        assert go_on(again, 5) == drawn
        assert vars(again.coordinator.limiter) == vars(limiter)
        add(again, "one", rows(range(3)) if isinstance(layout, Layout) else make_episodes([1, 1, 1]))
        assert again.coordinator.union.statistics().inserted == 120 + 3 if isinstance(layout, Layout) else 22 + 3
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_clients_go_on_while_saving_and_every_file_shows_one_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE", 256)
    held, limiter = set(), SampleToInsertRatio.from_min_size(1)
    with serve(rows_layout(1000), limiter=limiter) as server, client(server) as one, client(server, "two") as two:
        stop = threading.Event()

        def insert(it, first):
            at = first
            while not stop.is_set():
                it.add_entries(rows(range(at, at + 7)), timeout=LONG)
                at += 7

        threads = [threading.Thread(target=insert, args=(it, k * 10**6)) for k, it in enumerate((one, two))]
        for thread in threads:
            thread.start()
        for i in range(12):
            server.sample(8, timeout=LONG)
            server.save(tmp_path / str(i))
        stop.set()
        for thread in threads:
            thread.join()
    for i in range(12):
        with np.load(tmp_path / str(i)) as saved:
            inserted = [int(saved[f"buffers/{k}/inserted"]) for k in range(2)]
            for k, n in enumerate(inserted):
                kept = np.arange(max(n - 1000, 0), n)
                # The ring is written as it lies; by their slots the rows are those that were added last.
                expected = np.zeros(min(n, 1000), np.int64)
                expected[kept % 1000] = kept + k * 10**6
                np.testing.assert_array_equal(saved[f"buffers/{k}/rows/item"], expected)
                assert len(saved[f"buffers/{k}/priorities/weights"]) == min(n, 1000)
            assert int(saved["limiter/inserted"]) == sum(inserted), "limiter and buffers are of one moment"
            assert int(saved["limiter/sampled"]) == 8 * (i + 1)
            held.add(tuple(inserted))
    assert len(held) > 1, "clients went on between two saves"


@contextmanager
def standing_still(monkeypatch, name):
    """Stop a writing thread at an array; yield the event that it sets there, and the one that it waits for."""
    there, go_on = threading.Event(), threading.Event()

    def write(archive, column_name, column, before=array_file._write_array, **how):
        if column_name == name:
            there.set()
            assert go_on.wait(LONG)
        before(archive, column_name, column, **how)

    with monkeypatch.context() as patched:
        patched.setattr(array_file, "_write_array", write)
        yield there, go_on
    go_on.set()


@pytest.mark.parametrize("layout", [rows_layout(64), episode_layout(16)], ids=["rows", "episodes"])
def test_clients_are_served_while_a_file_of_an_earlier_moment_is_written(layout, make_episodes, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "PIECE", 64)
    kind, field = ("rows", "reward") if isinstance(layout, Layout) else ("frames", "state")

    def entries(first):
        return rows(range(first, first + 64)) if kind == "rows" else make_episodes([6] * 16, first=first)

    with serve(layout) as server, client(server) as one:
        one.add_entries(entries(0))
        one.flush(timeout=LONG)
        server.save(tmp_path / "before")
        with standing_still(monkeypatch, f"buffers/0/{kind}/{field}") as (there, go_on):
            saving = threading.Thread(target=server.save, args=(tmp_path / "meanwhile",))
            saving.start()
            assert there.wait(LONG)
            one.add_entries(entries(100))  # in place of all that there was
            one.flush(timeout=LONG)
            drawn = server.sample(8, timeout=LONG)
            server.update(drawn, np.full(8, 3.0))
            assert drawn.batch["reward"].min() >= 100
            assert server.statistics().saved_times == 1
            go_on.set()
            saving.join(LONG)
        assert (tmp_path / "meanwhile").read_bytes() == (tmp_path / "before").read_bytes()
        with pytest.raises(FileNotFoundError):
            server.save(tmp_path / "none" / "kept")
        (memory,) = (it.buffer for it in server.coordinator.buffers().values())
        assert memory.overwrites is None, "the snapshot is over, written or not"


def test_a_client_goes_on_while_its_own_buffer_is_written(tmp_path, monkeypatch):
    layout = Layout({"item": Field(np.int64)}, 64)
    with serve(layout) as server, client(server) as one, standing_still(monkeypatch, "rows/item") as (there, go_on):
        one.add_entries({"item": np.arange(64)})
        saving = threading.Thread(target=one.save, args=(tmp_path / "kept",))
        saving.start()
        assert there.wait(LONG)
        one.add_entries({"item": np.arange(100, 164)})  # in place of all that there was
        one.flush(timeout=LONG)
        assert server.sample(8, timeout=LONG).batch["item"].min() >= 100
        go_on.set()
        saving.join(LONG)
        one.load(tmp_path / "kept")
        one.flush(timeout=LONG)
        assert server.sample(8, timeout=LONG).batch["item"].max() < 64
    with np.load(tmp_path / "kept") as saved:
        assert saved["rows/item"].tolist() == list(range(64))


def test_closing_the_server_finishes_a_file_that_is_being_written(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    with standing_still(monkeypatch, "buffers/0/rows/item") as (there, go_on):
        server = serve(save_path=path)
        add(server, "one", rows([1, 2]))
        threads = [
            threading.Thread(target=server.save, args=(tmp_path / "other",)),
            threading.Thread(target=server.close),
        ]
        threads[0].start()
        assert there.wait(LONG)
        threads[1].start()
        until(lambda: server._thread.closing.is_set())
        assert not path.exists()
        go_on.set()
        for thread in threads:
            thread.join(LONG)
    for whole in (path, tmp_path / "other"):
        with np.load(whole) as saved:
            assert saved["buffers/0/rows/item"].tolist() == [1, 2]


def test_a_cancelled_save_is_still_written_as_of_its_moment(tmp_path, monkeypatch):
    async def main(there, go_on):
        given = rows_layout(8)
        new_union = partial(FederatedReplay, given.sample_fields, max_items=8)
        coordinator = Coordinator(given, new_union, rng=np.random.default_rng(0))
        coordinator.join("one")
        saver = BufferSaver(coordinator, None, None)
        for first in (0, 100):
            await coordinator.insert("one", rows(range(first, first + 8)), np.zeros(0))
            saving = asyncio.create_task(saver.save(tmp_path / f"of {first}"))
            if not first:
                assert await asyncio.to_thread(there.wait, LONG)
                saving.cancel()
                await asyncio.wait([saving])
                saving = asyncio.create_task(saver.save(tmp_path / "after"))  # has to wait for what is being written
                after = saving
                await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(after, saving)

    with standing_still(monkeypatch, "buffers/0/rows/item") as events:
        asyncio.run(main(*events))
    for name, first in (("of 0", 0), ("after", 100), ("of 100", 100)):
        with np.load(tmp_path / name) as saved:
            assert saved["buffers/0/rows/item"].tolist() == list(range(first, first + 8))


def test_chunks_that_were_saved_are_not_inserted_again_after_a_restore(tmp_path):
    address = f"unix://{tmp_path / 'server'}"
    options = {"layout": rows_layout(256), "listen": address, "save_path": tmp_path / "kept"}
    with serve(limiter=None, **options) as server:
        one = ReplayClient(address, "one", secret=SECRET)
        server.pace(SampleToInsertRatio(1.0, 8, 16.0, insert_size=8))
        one.add_entries(rows(range(100)))  # one message of thirteen chunks, of which three may be inserted
        until(lambda: server.coordinator.member("one").buffer.inserted == 24)
        assert one.statistics().inserted == 0
    with serve(**options) as server:
        one.flush(timeout=LONG)
        assert server.coordinator.member("one").buffer.state()["rows/item"].tolist() == list(range(100))
        assert one.statistics().inserted == 100
        one.close()


def test_a_server_saves_at_intervals_and_when_it_closes(tmp_path):
    path = tmp_path / "kept"
    with serve(save_path=path, save_every=0.01) as server:
        add(server, "one", rows([1]))
        before = server.statistics().saved_times
        until(lambda: server.statistics().saved_times > before + 1)
        with np.load(path) as saved:
            assert saved["buffers/0/rows/item"].tolist() == [1]
    with serve(save_path=path) as server:
        add(server, "one", rows([2]))
        add(server, "two", rows([3]))
    with serve(save_path=path) as server:
        assert items(server) == {1, 2, 3}


def test_a_failed_save_is_counted_and_retried_and_raised_by_close(tmp_path):
    folder = tmp_path / "folder"
    server = serve(save_path=folder / "kept", save_every=0.01)
    add(server, "one", rows([1]))
    until(lambda: server.statistics().failed_saves > 1)
    with pytest.raises(FileNotFoundError):
        server.save()
    folder.mkdir()
    until(lambda: server.statistics().saved_times > 0)
    (folder / "kept").unlink(missing_ok=True)
    os.rename(folder, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        server.close()
    server.close()
    with pytest.raises(Closed):
        server.save()


def test_buffers_are_restored_while_clients_are_connected(tmp_path):
    limiter = SampleToInsertRatio.from_min_size(1)
    with serve(limiter=limiter) as server, client(server) as one:
        one.add_entries(rows([1, 2]))
        one.flush(timeout=LONG)
        add(server, "two", rows([3]))
        server.save(tmp_path / "kept")
        one.add_entries(rows([4]))
        one.flush(timeout=LONG)
        add(server, "three", rows([5]))
        with client(server, "four") as four:
            four.add_entries(rows([6]))
            four.flush(timeout=LONG)
            assert items(server, 256) == {1, 2, 3, 4, 5, 6}
            server.load(tmp_path / "kept")
            assert items(server) == {1, 2, 3}
            assert server.statistics().clients == {"two": 1, "one": 2, "four": 0}
            assert server.statistics().left == ("two",)
            four.add_entries(rows([7]))
            one.add_entries(rows([8]))
            for it in (one, four):
                it.flush(timeout=LONG)
            assert items(server) == {1, 2, 3, 7, 8}
            assert (limiter.inserted, len(server.coordinator.union)) == (
                5,
                5,
            ) or server.coordinator.limiter.inserted == 5


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (rows_layout(128), "capacity: expected 64, got 128 (in the buffer of 'one')"),
        (rows_layout(alpha=0.5), "alpha: expected 1.0, got 0.5 (in the buffer of 'one')"),
        (
            Layout({**FIELDS, "item": Field(np.int32)}, 64, kept_by="server", chunk=8),
            "rows/item: expected int64 of shape (3,), got int32 of shape (3,) (in the buffer of 'one')",
        ),
        (
            Layout({**FIELDS, "reward": Field(np.float32, (2,))}, 64, kept_by="server", chunk=8),
            "rows/reward: expected float32 of shape (3,), got float32 of shape (3, 2)",
        ),
        (episode_layout(), "kind: expected 'PrioritizedTransitions', got 'PrioritizedEpisodeReplay'"),
        (None, "kind: expected 'SavedBuffers', got 'SampleToInsertRatio'"),
    ],
)
def test_a_file_of_another_layout_is_refused_by_field_and_changes_nothing(other, text, make_episodes, tmp_path):
    path = tmp_path / "kept"
    if other is None:
        SampleToInsertRatio.from_min_size(1).save(path)
    else:
        with serve(other) as server:
            if isinstance(other, EpisodeLayout):
                add(server, "one", make_episodes([1, 2, 3]))
            else:
                add(server, "one", {n: np.ones((3, *f.shape), f.dtype) for n, f in other.fields.items()})
            server.save(path)
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=re.escape(text)):
        serve(save_path=path)
    assert path.read_bytes() == before
    with serve() as server:
        add(server, "one", rows([1, 2]))
        server.save(tmp_path / "a")
        with pytest.raises(CheckpointError, match=re.escape(text)):
            server.load(path)
        server.save(tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_damaged_file_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "kept"
    with serve(limiter=SampleToInsertRatio.from_min_size(1)) as server:
        add(server, "one", rows([1, 2]))
        server.save(path)
        whole = path.read_bytes()
        arrays = dict(np.load(path))
        for change, text in [
            ({"clients": np.frombuffer(b'["one", "one"]', np.uint8)}, "clients: expected a list of names, each once"),
            ({"clients": np.frombuffer(b"?", np.uint8)}, "clients: expected a list of names, each once"),
            ({"admitted": np.array([-1])}, "admitted: expected numbers of at least 0"),
            ({"rng": np.zeros(3, np.uint8)}, "rng: expected the state of a PCG64"),
            ({"limiter/sampled": np.array(-1)}, "sampled: expected 0 to"),
            ({"buffers/0/inserted": np.array(-1)}, "inserted: expected 0 to"),
        ]:
            array_file.write_checkpoint(path, arrays | change)
            with pytest.raises(CheckpointError, match=re.escape(text)):
                server.load(path)
        for spoilt in (whole[: len(whole) // 2], whole[:400] + b"?" + whole[401:], b""):
            path.write_bytes(spoilt)
            with pytest.raises(CheckpointError, match="expected a whole checkpoint, got a damaged one"):
                server.load(path)
        with pytest.raises(FileNotFoundError):
            server.load(tmp_path / "nothing")
        server.save(path)
        assert path.read_bytes() == whole


def test_saving_options_that_do_not_fit_are_refused(tmp_path):
    theirs = rows_layout(kept_by="clients")
    for given, options, text in [
        (theirs, {"save_path": tmp_path / "kept"}, "save_path: expected none, since clients keep their buffers"),
        (None, {"save_every": 1.0}, "save_path: expected a file to save to every 1.0 s, got none"),
        (None, {"save_path": tmp_path / "kept", "save_every": 0.0}, "save_every: expected a finite number of seconds"),
        (None, {"max_left": -1}, "max_left: expected at least 0, got -1"),
    ]:
        with pytest.raises(ValueError, match=text):
            serve(given, **options)
    with serve(theirs) as server:
        for call in (server.save, server.load):
            with pytest.raises(InvalidExperience, match=r"kept_by: expected server, to \w+ buffers here"):
                call(tmp_path / "kept")
    with serve() as server:
        for call in (server.save, server.load):
            with pytest.raises(ValueError, match="path: expected one, since there is no save_path"):
                call()


# Killed ---------------------------------------------------------------------------------------------------------------


def be_killed(path, at, ready):
    """Save once; then insert more, and stop in the middle of saving it."""
    with serve(rows_layout(4096), save_path=path) as server, client(server) as one:
        one.add_entries(rows(range(1000)))
        one.flush(timeout=LONG)
        server.save()
        one.add_entries(rows(range(1000, 3000)))
        one.flush(timeout=LONG)

        def stand_still(*_):
            ready.set()
            threading.Event().wait()

        columns = []

        def write(archive, name, column, before=array_file._write_array, **how):
            columns.append(name)
            if len(columns) == 12:
                archive.fp.flush()
                stand_still()
            before(archive, name, column, **how)

        if at == "column":
            array_file._write_array = write
        else:
            setattr(os, at, stand_still)
        server.save()


@pytest.mark.slow
@pytest.mark.parametrize("at", ["column", "fsync", "replace"])
def test_a_server_killed_while_saving_starts_again_from_the_previous_file(at, tmp_path):
    path, spawn = tmp_path / "kept", multiprocessing.get_context("spawn")
    ready = spawn.Event()
    doomed = spawn.Process(target=be_killed, args=(path, at, ready), daemon=True)
    doomed.start()
    assert ready.wait(LONG)
    doomed.kill()
    doomed.join()
    assert doomed.exitcode == -9
    partial = path.with_name("kept.partial")
    assert partial.stat().st_size > 1000
    whole = path.read_bytes()
    with serve(rows_layout(4096), save_path=path) as server:
        assert server.statistics().clients == {"one": 1000}
        (memory,) = (it.buffer for it in server.coordinator.buffers().values())
        assert memory.check_valid() == []
        assert memory.sample(4000, np.random.default_rng(0)).batch["item"].max() == 999
        server.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == whole
        server.save()
        assert not partial.exists()
        assert path.read_bytes() == whole
