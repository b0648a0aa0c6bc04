"""Hosts that join a run: who is waited for, and who is let in."""

import asyncio
from pathlib import Path

import pytest
from head_table import OWN, Run, Table, at_a_table

from orchestra.errors import HostsMissing
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.messages import (
    AdmittedMsg,
)
from orchestra.launch.protocol import HostEvent


def test_the_rendezvous_ends_with_the_shapes_of_all_hosts(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        waiting = asyncio.create_task(table.head.rendezvous())
        for slot in (3, 1, 2):
            assert not waiting.done()
            assert table.arrives(slot, f"a{slot}") == AdmittedMsg(
                slot=slot, grace=table.options.grace, orphan_timeout=table.options.orphan_timeout
            )
            await asyncio.sleep(0)
        shapes = await waiting
        assert [(shape.slot, shape.name, shape.cores) for shape in shapes] == [
            (1, "local-1", 4),
            (2, "local-2", 4),
            (3, "local-3", 4),
        ]

    at_a_table(run, code, tmp_path, test)


def test_hosts_that_do_not_come_are_named_with_all_that_is_known(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        table.arrives(1, "a1")
        table.head.engine_said(HostEvent(2, "ended", "ssh", "Connection refused, 4 tries", again=False))
        table.head.engine_said(HostEvent(3, "started", "cpu7 by ssh"))
        with pytest.raises(HostsMissing) as caught:
            await table.head.rendezvous()
        assert str(caught.value) == (
            "2 of 3 hosts did not come within 0.01 s: local-2 (ssh: Connection refused, 4 tries); "
            "local-3 (cpu7 by ssh: started; tried 10.0.0.5:41000, no answer: is the port open? see --port, "
            "--advertise, --tunnel). The others were let go."
        )

    at_a_table(run, code, tmp_path, test, join_timeout=0.01)


def test_nobody_waits_for_hosts_that_cannot_come(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        for slot in (1, 2, 3):
            table.head.engine_said(HostEvent(slot, "ended", "ssh", "Host key verification failed", again=False))
        with pytest.raises(HostsMissing, match="Host key verification failed"):
            await table.head.rendezvous()

    at_a_table(run, code, tmp_path, test, join_timeout=1e6)


def test_a_run_begins_without_hosts_that_it_does_not_need(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        table.arrives(2, "a2")
        assert [shape.slot for shape in await table.head.rendezvous()] == [2]
        table.head.begin(table.placed)
        assert table.states()[2] == "playing"
        assert table.placed.joined == [2]
        table.arrives(None, "late")
        assert table.states()[4] == "playing"
        assert table.placed.joined == [2, 4]

    at_a_table(run, code, tmp_path, test, join_timeout=0.01, min_hosts=1)


def test_no_more_hosts_come_than_are_allowed(run: Run, code: Bundle, tmp_path: Path) -> None:
    def test(table: Table) -> None:
        answer = table.arrives(None, "fourth")
        assert answer.refusal == "the run has 3 hosts, and --max-hosts allows 3"
        assert answer.code == 75
        assert not table.arrives(2, "second").refusal

    at_a_table(run, code, tmp_path, test, max_hosts=3)


def test_of_two_agents_of_a_slot_the_later_one_stays_and_the_other_is_never_let_in_again(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    async def test(table: Table) -> None:
        table.arrives(1, "older")
        assert not table.arrives(1, "newer").refusal
        table.head.agent_lost("learner", "any")  # what the engine or a session says of the older one changes nothing
        answer = table.arrives(1, "older-again", "older")
        assert answer.refusal == "another agent has taken slot 1"
        assert answer.code == 75
        assert (await table.told["older"].get()).code == 75
        assert table.told["newer"].empty()
        events = [(each["state"], each["reason"]) for each in table.head._record._events]
        assert events[:3] == [("joined", ""), ("gone", "another agent has taken slot 1"), ("joined", "")]

    at_a_table(run, code, tmp_path, test)


def test_an_agent_with_another_version_of_python_is_not_let_in(run: Run, code: Bundle, tmp_path: Path) -> None:
    def test(table: Table) -> None:
        other = OWN.model_copy(update={"python": "3.9.1"})
        answer = table.arrives(1, "a1", fingerprint=other)
        assert answer.code == 76
        assert answer.refusal.startswith("host machine-a1 is not let in: ")
        assert "3.9.1" in answer.refusal
        assert table.states()[1] == "asked"

    at_a_table(run, code, tmp_path, test)


def test_a_late_host_over_which_the_run_cannot_be_laid_out_is_refused_alone(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    async def test(table: Table) -> None:
        for slot in (1, 2, 3):
            table.arrives(slot, f"a{slot}")
        table.head.begin(table.placed)
        table.placed.cores_needed = 8
        answer = table.arrives(None, "late")
        assert answer.code == 2  # no launcher tries it again
        assert (
            answer.refusal
            == "host machine-late is not let in: the nodes of the run need more:\n  machine-late  cores 8"
        )
        shown = table.head.slots[4].statistics(table.root, ())
        assert (shown.state, shown.agent) == ("left", "")
        assert shown.reason == "the nodes of the run need more:; machine-late  cores 8"
        assert table.states() == {1: "playing", 2: "playing", 3: "playing", 4: "left"}
        assert (table.placed.failures, table.placed.joined) == ([], [1, 2, 3])
        table.placed.cores_needed = 0
        assert table.arrives(None, "another").slot == 5
        assert table.placed.joined == [1, 2, 3, 5]

    at_a_table(run, code, tmp_path, test)


def test_a_host_that_comes_while_the_topology_is_laid_out_and_does_not_fit_is_told_to_end(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    async def test(table: Table) -> None:
        table.arrives(1, "a1")
        table.placed.cores_needed = 8
        table.head.begin(table.placed)
        assert (await table.told["a1"].get()).code == 2
        assert table.states()[1] == "left"

    at_a_table(run, code, tmp_path, test)


def test_time_in_a_queue_does_not_count(run: Run, code: Bundle, tmp_path: Path) -> None:
    def test(table: Table) -> None:
        slot = table.head.slots[1]
        begun = slot.asked_at
        slot.heard(HostEvent(1, "queued", "job 4711", "PENDING (Resources)"), begun + 5.0)
        assert not slot.overdue(begun + 1e6, 60.0)
        slot.heard(HostEvent(1, "started", "job 4711 on n17"), begun + 1000.0)
        assert not slot.overdue(begun + 1059.0, 60.0)
        assert slot.overdue(begun + 1061.0, 60.0)

    at_a_table(run, code, tmp_path, test)
