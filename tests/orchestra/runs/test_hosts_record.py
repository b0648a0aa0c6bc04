"""`hosts.json` says which hosts a run has, and who came and went, when and why."""

import json
from pathlib import Path
from typing import Any

from orchestra import RunDirectory
from orchestra.hosts.shape import HostShape
from orchestra.runs.host_figures import HostFigures
from orchestra.runs.hosts_record import FIGURES_S, MOST_EVENTS, SOON_S, HostsRecord
from orchestra.testing import ManualClock

CPU1, CPU2 = HostShape(1, "cpu1", 16), HostShape(2, "cpu2", 8, 1, 1 << 30)


def written(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RunDirectory(folder).hosts.read_bytes())
    return content


def test_hosts_and_what_happened_to_them_are_written_together(tmp_path: Path) -> None:
    clock = ManualClock()
    record = HostsRecord(tmp_path, clock)
    record.changed(CPU2, "joined", where="cpu2 by ssh")
    record.changed(CPU1, "started")
    assert not RunDirectory(tmp_path).hosts.exists()
    clock.advance(SOON_S)
    first = written(tmp_path)
    assert [(host["slot"], host["cores"], host["state"], host["where"]) for host in first["hosts"]] == [
        (1, 16, "started", ""),
        (2, 8, "joined", "cpu2 by ssh"),
    ]
    record.changed(CPU1, "gone", reason="Connection refused, 4 tries")
    record.write()
    record.write()
    events = written(tmp_path)["events"]
    assert [(event["slot"], event["host"], event["state"], event["reason"]) for event in events] == [
        (2, "cpu2", "joined", ""),
        (1, "cpu1", "started", ""),
        (1, "cpu1", "gone", "Connection refused, 4 tries"),
    ]
    assert events[2]["at"] > events[1]["at"]


def test_a_resumed_run_goes_on_with_the_events_of_the_run_before(tmp_path: Path) -> None:
    for state in ("joined", "left"):
        record = HostsRecord(tmp_path, ManualClock())
        record.changed(CPU1, state)
        record.write()
    assert [event["state"] for event in written(tmp_path)["events"]] == ["joined", "left"]


def test_a_damaged_file_is_replaced_and_old_events_are_dropped(tmp_path: Path) -> None:
    RunDirectory(tmp_path).hosts.write_text("{")
    record = HostsRecord(tmp_path, ManualClock())
    for number in range(MOST_EVENTS + 3):
        record.changed(CPU1, "joined" if number % 2 else "gone", reason=str(number))
    record.write()
    events = written(tmp_path)["events"]
    assert (len(events), events[0]["reason"]) == (MOST_EVENTS, "3")


def test_a_run_without_a_directory_keeps_no_file(tmp_path: Path) -> None:
    clock = ManualClock()
    HostsRecord(None, clock).changed(CPU1, "joined")
    clock.advance(SOON_S)
    assert list(tmp_path.iterdir()) == []


def test_what_hosts_have_played_is_kept_current(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(500.0)
    record, figures = HostsRecord(tmp_path, clock), HostFigures()
    record.changed(CPU1, "playing")
    clock.advance(SOON_S)
    assert "env_steps" not in written(tmp_path)["hosts"][0]
    for steps in (100, 400):
        figures.note(clock.monotonic(), steps, 7)
        record.played(CPU1, figures)
        clock.advance(FIGURES_S / 2)
    host = written(tmp_path)["hosts"][0]
    assert (host["env_steps"], host["policy_lag"], host["state"]) == (400, 7, "playing")
    assert host["env_steps_per_s"] == 300 / FIGURES_S


def test_a_change_of_state_does_not_wait_for_the_figures(tmp_path: Path) -> None:
    clock = ManualClock()
    record, figures = HostsRecord(tmp_path, clock), HostFigures()
    record.played(CPU1, figures)
    record.changed(CPU2, "gone")
    clock.advance(SOON_S)
    assert [host["state"] for host in written(tmp_path)["hosts"]] == ["playing", "gone"]
    assert "env_steps" not in written(tmp_path)["hosts"][1]
