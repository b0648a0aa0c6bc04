"""Every line of a process of another host reaches the head once, in order, and by the head's clock."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.errors import Unreachable
from orchestra.hosts import output
from orchestra.hosts.output import BATCH, LONGEST_LINE, RECORD, HostLogs, LastWords, OutputBuffer, OutputMsg
from orchestra.testing import ManualClock

Run = Callable[..., Any]


class HostClock(ManualClock):
    """The clock of a host: its monotonic clock has another beginning, and its own clock is wrong."""

    def __init__(self, head: ManualClock, *, ahead: timedelta) -> None:
        super().__init__()
        self._head, self.ahead = head, ahead

    def monotonic(self) -> float:
        return self._head.monotonic() + 5000.0

    def now(self) -> datetime:
        return self._head.now() + self.ahead


def record(at: datetime, event: str) -> str:
    return RECORD + json.dumps({"timestamp": at.isoformat(), "level": "info", "node": "worker-1", "event": event})


def log_of(logs: Path) -> list[str]:
    return (logs / "hosts" / "1-cpu_3.log").read_text().splitlines()


def texts(logs: Path) -> list[str]:
    return [line.split(" ", 2)[2] for line in log_of(logs)]


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path


def test_printed_lines_have_time_and_node_and_logged_ones_are_where_those_of_this_host_are(logs: Path) -> None:
    head = ManualClock()
    there = HostClock(head, ahead=timedelta(hours=1))
    buffer = OutputBuffer(there)
    shown: list[str] = []
    began = head.now()
    buffer.add("worker-1", "hello")
    buffer.add("worker-1", record(there.now(), "node begins"))
    head.advance(0.2)
    message = buffer.batch()
    assert message is not None
    HostLogs(logs, head, shown.append).write(1, "cpu/3", "a", message)
    assert log_of(logs) == [f"{began.isoformat(timespec='milliseconds')} worker-1 hello"]
    (line,) = (logs / "worker-1.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "node begins"
    assert abs(datetime.fromisoformat(json.loads(line)["timestamp"]) - began) < timedelta(milliseconds=1)
    assert shown == ["hello"]


def test_times_are_the_heads_though_the_hosts_clock_is_set_while_it_runs(logs: Path) -> None:
    head = ManualClock()
    there = HostClock(head, ahead=timedelta(hours=-1))
    buffer, host_logs = OutputBuffer(there), HostLogs(logs, head)
    began = head.now()
    for number, late in enumerate([0.010, 5.0, 0.3]):  # messages take a while; the quickest one is the truest
        buffer.add("worker-1", f"line {number}")
        head.advance(1.0)
        message = buffer.batch()
        assert message is not None
        head.advance(late)
        host_logs.write(1, "cpu/3", "a", message)
        buffer.acknowledge(1)
        there.ahead += timedelta(hours=2)
    times = [datetime.fromisoformat(line.split()[0]) - began for line in log_of(logs)]
    expected = [0.0, 1.010, 7.010]
    assert [time.total_seconds() for time in times] == pytest.approx([each + 0.010 for each in expected], abs=0.002)


def test_lines_that_are_sent_again_are_written_once(logs: Path) -> None:
    head = ManualClock()
    buffer, host_logs = OutputBuffer(head), HostLogs(logs, head)
    buffer.add("worker-1", "one")
    first = buffer.batch()
    assert first is not None
    host_logs.write(1, "cpu/3", "a", first)  # the answer is lost with the connection
    buffer.add("worker-1", "two")
    again = buffer.batch()
    assert again is not None
    host_logs.write(1, "cpu/3", "a", again)
    assert texts(logs) == ["one", "two"]


def test_the_next_agent_of_a_slot_begins_with_its_first_line(logs: Path) -> None:
    head = ManualClock()
    host_logs = HostLogs(logs, head)
    for agent in "ab":
        buffer = OutputBuffer(head)
        buffer.add("worker-1", f"from {agent}")
        message = buffer.batch()
        assert message is not None
        host_logs.write(1, "cpu/3", agent, message)
    assert texts(logs) == ["from a", "from b"]


def test_lines_beyond_the_bound_are_dropped_and_counted_by_a_line() -> None:
    buffer = OutputBuffer(ManualClock(), most=20_000)
    for number in range(300):
        buffer.add("worker-1", f"{number:030}")
    kept: list[str] = []
    while (message := buffer.batch()) is not None:
        kept += [text for _, _, text in message.lines]
        buffer.acknowledge(len(message.lines))
    assert len(kept) < 300
    assert kept[:-1] == [f"{number:030}" for number in range(len(kept) - 1)]
    assert kept[-1] == f"{300 - len(kept) + 1} lines were dropped: too many waited for the head"
    buffer.add("worker-1", "after")
    message = buffer.batch()
    assert message is not None
    assert [text for _, _, text in message.lines] == ["after"]


def test_sixteen_mib_wait() -> None:
    assert output.WAITING == 16 << 20


def test_a_message_has_64_kib_or_one_longer_line() -> None:
    buffer = OutputBuffer(ManualClock())
    for _ in range(100):
        buffer.add("worker-1", "x" * 2000)
    message = buffer.batch()
    assert message is not None
    assert BATCH * 0.9 < sum(len(text) for _, _, text in message.lines) <= BATCH
    buffer.acknowledge(100)
    buffer.add("worker-1", record(datetime.now(UTC), "x" * 100_000))
    message = buffer.batch()
    assert message is not None
    assert len(message.lines) == 1


def test_a_long_printed_line_is_cut_and_says_so() -> None:
    buffer = OutputBuffer(ManualClock())
    buffer.add("worker-1", "x" * (LONGEST_LINE + 1234))
    message = buffer.batch()
    assert message is not None
    assert message.lines[0][2].endswith("x … (1,234 more characters)")


def test_lines_are_sent_five_times_a_second_or_once_there_are_64_kib(run: Run) -> None:
    async def main() -> None:
        clock, sent = ManualClock(), []
        buffer = OutputBuffer(clock)

        async def ask(message: OutputMsg) -> None:
            sent.append([text for _, _, text in message.lines])

        forwarding = asyncio.create_task(buffer.forward(ask))
        buffer.add("worker-1", "one")
        await turns()
        buffer.add("worker-1", "two")
        await turns()
        assert sent == []
        clock.advance(0.2)
        await turns()
        assert sent == [["one", "two"]]
        clock.advance(10.0)
        await turns()
        assert len(sent) == 1, "an idle host sends nothing"
        for _ in range(5):
            buffer.add("worker-1", "x" * LONGEST_LINE)
        await turns()
        assert sum(map(len, sent[1:])) == 5
        forwarding.cancel()
        await asyncio.wait({forwarding})

    run(main())


def test_what_was_not_acknowledged_is_sent_again(run: Run) -> None:
    async def main() -> None:
        buffer, received = OutputBuffer(ManualClock()), []

        async def cut_off(message: OutputMsg) -> None:
            raise Unreachable("the head is gone")

        async def ask(message: OutputMsg) -> None:
            received.extend(text for _, _, text in message.lines)

        buffer.add("worker-1", "one")
        with pytest.raises(Unreachable):
            await buffer.flush(cut_off)
        buffer.add("worker-1", "two")
        await buffer.flush(ask)
        assert received == ["one", "two"]

    run(main())


def test_lines_that_are_being_sent_are_not_sent_by_another_task_too(run: Run) -> None:
    """An agent that is told to leave sends its last lines, perhaps while it waits for the answer to some."""

    async def main() -> None:
        clock, received, answer = ManualClock(), [], asyncio.Event()
        buffer = OutputBuffer(clock)

        async def ask(message: OutputMsg) -> None:
            received.extend(text for _, _, text in message.lines)
            await answer.wait()

        buffer.add("worker-1", "one")
        forwarding = asyncio.create_task(buffer.forward(ask))
        await turns()
        clock.advance(0.2)
        await turns()
        assert received == ["one"]
        buffer.add("worker-1", "two")
        last = asyncio.create_task(buffer.flush(ask))
        await turns()
        answer.set()
        await last
        assert received == ["one", "two"]
        assert buffer.batch() is None
        assert not forwarding.done(), "it waits for further lines"
        forwarding.cancel()
        await asyncio.wait({forwarding})

    run(main())


@given(st.lists(st.tuples(st.sampled_from(["add", "send", "lose", "rejoin"]), st.integers(1, 400)), max_size=60))
def test_lines_are_neither_doubled_nor_reordered_and_all_are_counted(tmp_path_factory: Any, steps: Any) -> None:
    logs, clock = tmp_path_factory.mktemp("logs"), ManualClock()
    buffer, host_logs = OutputBuffer(clock, most=10_000), HostLogs(logs, clock)
    added = 0
    for what, count in [*steps, ("send", 1), ("send", 1)]:
        if what == "add":
            for _ in range(count):
                buffer.add("worker-1", f"line {added}")
                added += 1
        while what != "add" and (message := buffer.batch()) is not None:
            host_logs.write(1, "cpu/3", "a", message)
            if what != "send":
                break  # written, and the acknowledgement is lost
            buffer.acknowledge(len(message.lines))
    written = texts(logs) if added else []
    lines = [int(text.removeprefix("line ")) for text in written if text.startswith("line")]
    dropped = sum(int(text.split()[0].replace(",", "")) for text in written if not text.startswith("line"))
    assert lines == sorted(set(lines))
    assert len(lines) + dropped == added


def test_a_line_that_only_looks_like_a_log_record_is_shown_as_printed(logs: Path) -> None:
    head = ManualClock()
    buffer = OutputBuffer(head)
    for text in (RECORD + "torn", RECORD + "[1]", RECORD + '{"timestamp": 7}'):
        buffer.add("../../worker", text)
    message = buffer.batch()
    assert message is not None
    HostLogs(logs, head).write(1, "cpu/3", "a", message)
    assert len(log_of(logs)) == 3
    assert [path.name for path in logs.iterdir()] == ["hosts"]


def test_no_name_of_a_node_leads_out_of_the_folder(logs: Path) -> None:
    head = ManualClock()
    buffer = OutputBuffer(head)
    buffer.add("../../worker", record(head.now(), "escaped"))
    message = buffer.batch()
    assert message is not None
    HostLogs(logs / "run" / "logs", head).write(1, "../../cpu3", "a", message)
    assert [path.name for path in logs.rglob("*.jsonl")] == [".._.._worker.jsonl"]
    assert [path.parent.name for path in logs.rglob("*.jsonl")] == ["logs"]


def test_a_full_disk_at_the_head_stops_no_message(logs: Path) -> None:
    head = ManualClock()
    buffer = OutputBuffer(head)
    buffer.add("worker-1", "hello")
    message = buffer.batch()
    assert message is not None
    (logs / "hosts").write_text("in the way")
    HostLogs(logs, head).write(1, "cpu/3", "a", message)


def test_last_words_are_the_last_error_and_twenty_lines() -> None:
    words = LastWords()
    for number in range(30):
        words.add(f"line {number}")
    failed = {"level": "error", "event": "actor failed", "actor": "worker-1/worker", "error": "ValueError: 7"}
    words.add(RECORD + json.dumps(failed))
    words.add(RECORD + json.dumps({"level": "error", "event": "something else"}))
    said = list(words.of("worker-1"))
    assert said[:2] == ["last error of worker-1: worker-1/worker failed: ValueError: 7", "last output of worker-1:"]
    assert said[2:] == [f"    line {number}" for number in range(10, 30)]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)
