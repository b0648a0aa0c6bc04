"""What a run writes down of itself can be read back, also after it was killed."""

import contextlib
import json
import math
import resource
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from components.reporting.event_file import EventFile
from components.reporting.metrics_writer import MetricsWriter
from components.reporting.progress import Progress, flat_record
from orchestra import read_records

PROGRESS = Progress(
    state="training",
    elapsed_s=12.5,
    env_steps=4096,
    goal_steps=100_000,
    episodes=40,
    updates=80,
    env_steps_per_s=8120.5,
    updates_per_s=12.0,
    train_win_rate=0.25,
    train_return=11.5,
    tests=1,
    test_win_rate=None,
    test_return=None,
    best_test_win_rate=None,
    best_test_return=None,
    loss=0.125,
    epsilon=0.5,
    params_lag=3,
    params_lags=(900, 80, 0, 20, 0, 0, 0),
    dropped_episodes=0,
    busiest_actor="learner/trainer",
    mailbox_depth=2,
    workers=4,
    restarts=0,
)


def events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """The scalars of a folder's TensorBoard files: (tag, step, value)."""
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack_from("<Q", data)  # then 4 bytes of checksum, the event, 4 more
            for value in Event.FromString(data[12 : 12 + length]).summary.value:
                yield value.tag, Event.FromString(data[12 : 12 + length]).step, value.simple_value
            data = data[16 + length :]


def test_a_record_is_one_flat_line(tmp_path: Path) -> None:
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl")) as writer:
        writer.write(PROGRESS, {"td_error": 0.5})
        writer.write(replace(PROGRESS, env_steps=8192))

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        flat_record(PROGRESS) | {"td_error": 0.5},
        flat_record(PROGRESS) | {"env_steps": 8192},
    ]


def test_a_record_can_be_read_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl")) as writer:
        writer.write(PROGRESS)
        assert read_records(tmp_path / "metrics.jsonl") == [flat_record(PROGRESS)]


def test_figures_that_are_not_finite_become_null_and_no_event(tmp_path: Path) -> None:
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl", [EventFile(tmp_path / "tensorboard")])) as writer:
        writer.write(replace(PROGRESS, loss=math.nan, train_return=math.inf), {"norm": -math.inf})

    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert (record["loss"], record["train_return"], record["norm"]) == (None, None, None)
    assert {"loss", "train_return", "norm"}.isdisjoint(tag for tag, _, _ in events(tmp_path / "tensorboard"))


def test_numpy_s_figures_are_figures(tmp_path: Path) -> None:
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl")) as writer:
        writer.write(replace(PROGRESS, loss=np.float32(0.5), updates=np.int64(7)), {"norm": np.float32("nan")})  # type: ignore[arg-type, dict-item]
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert (record["loss"], record["updates"], record["norm"]) == (0.5, 7, None)


def test_tensorboard_has_the_same_figures_over_env_steps(tmp_path: Path) -> None:
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl", [EventFile(tmp_path / "tensorboard")])) as writer:
        writer.write(PROGRESS, {"td_error": 0.5})
        writer.write(replace(PROGRESS, env_steps=8192, loss=0.0625))

    seen = list(events(tmp_path / "tensorboard"))
    first, second = ({tag: value for tag, step, value in seen if step == at} for at in (4096, 8192))
    assert first == {
        "elapsed_s": 12.5,
        "goal_steps": 100_000,
        "tests": 1,
        "episodes": 40,
        "updates": 80,
        "env_steps_per_s": 8120.5,
        "updates_per_s": 12.0,
        "train_win_rate": 0.25,
        "train_return": 11.5,
        "loss": 0.125,
        "epsilon": 0.5,
        "params_lag": 3,
        "lag_steps/0": 900,
        "lag_steps/1": 80,
        "lag_steps/2-3": 0,
        "lag_steps/4-7": 20,
        "lag_steps/8-15": 0,
        "lag_steps/16-31": 0,
        "lag_steps/32+": 0,
        "dropped_episodes": 0,
        "mailbox_depth": 2,
        "workers": 4,
        "restarts": 0,
        "td_error": 0.5,
    }
    assert second == {tag: value for tag, value in first.items() if tag != "td_error"} | {"loss": 0.0625}


def test_a_figure_cannot_hide_a_field_of_progress(tmp_path: Path) -> None:
    with (
        contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl")) as writer,
        pytest.raises(ValueError, match=r"^a figure may not take the name of a field of Progress: loss, updates$"),
    ):
        writer.write(PROGRESS, {"updates": 1, "norm": 1, "loss": 1})
    assert read_records(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("torn", ["", '{"env_steps": 1', '{"env_steps": 12}'], ids=["whole", "half", "no newline"])
def test_a_continued_file_loses_the_line_that_was_torn_and_no_other(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 0}\n' + torn)
    assert read_records(path) == [{"env_steps": 0}]

    with contextlib.closing(MetricsWriter(path)) as writer:
        writer.write(PROGRESS)

    assert read_records(path) == [{"env_steps": 0}, flat_record(PROGRESS)]


def test_a_run_that_goes_on_forgets_what_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with contextlib.closing(MetricsWriter(path)) as writer:
        for env_steps in (100, 200, 250, 300):
            writer.write(replace(PROGRESS, env_steps=env_steps))
    with contextlib.closing(MetricsWriter(path, resumes_at=250)) as writer:
        writer.write(replace(PROGRESS, env_steps=280))
    assert [record["env_steps"] for record in read_records(path)] == [100, 200, 250, 280]


@pytest.mark.parametrize("line", ["{", "[1]", "\0\0"])
def test_a_broken_line_among_whole_ones_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 0}\n' + line + '\n{"env_steps": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: not a record: "):
        read_records(path)


@contextlib.contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_on_a_full_disk_writing_and_closing_end_at_once_and_no_half_record_is_left(tmp_path: Path) -> None:
    threads = threading.active_count()
    with contextlib.closing(MetricsWriter(tmp_path / "metrics.jsonl", [EventFile(tmp_path / "tensorboard")])) as writer:
        writer.write(PROGRESS)
        assert threading.active_count() == threads  # none could die with an error that nobody hears of
        written = [file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file()]
        with room_for(max(map(len, written)) + 10):
            for _ in range(20):
                with pytest.raises(OSError, match="File too large"):
                    writer.write(replace(PROGRESS, env_steps=8192))
        records, seen = read_records(tmp_path / "metrics.jsonl"), list(events(tmp_path / "tensorboard"))
        assert {step for _, step, _ in seen} <= {4096, 8192}
        assert records[0] == flat_record(PROGRESS)
        writer.write(replace(PROGRESS, env_steps=9000))  # there is space again

    assert read_records(tmp_path / "metrics.jsonl")[-1]["env_steps"] == 9000
    assert {step for _, step, _ in events(tmp_path / "tensorboard")} >= {4096, 9000}


def test_tensorboard_reads_the_events_and_hides_what_comes_again(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with contextlib.closing(
        MetricsWriter(tmp_path / "metrics.jsonl", [EventFile(tmp_path / "tensorboard", 4000)], 4000)
    ) as writer:
        writer.write(PROGRESS)
    (file,) = (tmp_path / "tensorboard").iterdir()
    assert file.name.startswith("events.out.tfevents.")
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        assert struct.unpack_from("<I", data, 8) == (masked_crc32c(data[:8]),)
        event = data[12 : 12 + length]
        assert struct.unpack_from("<I", data, 12 + length) == (masked_crc32c(event),)
        found.append(Event.FromString(event))
        data = data[16 + length :]
    assert [(event.step, event.file_version, event.session_log.status) for event in found[:3]] == [
        (0, "brain.Event:2", 0),
        (4000, "brain.Event:2", 0),
        (4000, "", SessionLog.START),
    ]
    assert {event.step for event in found[3:]} == {4096}


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path / "metrics.jsonl", [EventFile(tmp_path / "tensorboard")])
    writer.close()
    writer.close()
