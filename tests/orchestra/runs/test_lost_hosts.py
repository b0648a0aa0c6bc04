"""Hosts that a run has lost: when it asks for another one, when it gives up, and the reason that it says."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from head_table import Run, Table, at_a_table

from orchestra import CannotWrite, Ref
from orchestra.cli.exit_codes import CANNOT_WRITE, of_error
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.messages import (
    HostFailedMsg,
    NodeStateMsg,
)
from orchestra.hosts.settings import HostSettings
from orchestra.launch.kubernetes import KubernetesLauncher
from orchestra.launch.protocol import HostEvent
from orchestra.launch.ssh import SshLauncher
from orchestra.runs.host_slots import SILENT_S, HostSlot
from orchestra.runs.hosts_record import HostsRecord
from orchestra.testing import ManualClock, Simulation, run_seed


def test_an_agent_that_was_cut_off_is_not_let_in_again_once_another_one_has_its_slot(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    """Else each would take the slot from the other, whoever comes last."""

    def test(table: Table) -> None:
        table.arrives(1, "cut-off")
        table.head._agents["agent"] = table.head.slots[1]
        table.head.agent_lost("agent", "silent for 20 s")
        assert table.states()[1] == "gone"
        assert not table.arrives(1, "its-successor").refusal
        assert table.arrives(1, "cut-off-again", "cut-off").refusal == "another agent has taken slot 1"
        assert table.told["its-successor"].empty()
        assert not table.arrives(1, "its-successor-again", "its-successor").refusal  # it was cut off, too

    at_a_table(run, code, tmp_path, test)


@pytest.mark.parametrize(("launcher", "replaces"), [(KubernetesLauncher, True), (SshLauncher, False)])
def test_a_run_waits_for_the_next_agent_of_a_host_whose_agent_was_told_to_end_if_its_engine_starts_one(
    run: Run, code: Bundle, tmp_path: Path, launcher: Any, replaces: bool
) -> None:
    """As Kubernetes does, whose next pod may come after the one before has left."""

    def test(table: Table) -> None:
        table.engine.replaces = launcher.replaces
        for slot in (1, 2, 3):
            table.arrives(slot, f"a{slot}")
        table.head.begin(table.placed)
        table.head._agents["agent"] = slot = table.head.slots[2]
        slot.told_to_end = True
        slot.move("leaving", "its agent was told to end")
        table.head.agent_lost("agent", "stopped")
        assert bool(table.placed.failures) is not replaces
        assert not table.arrives(2, "its-successor").refusal
        assert table.states()[2] == "playing"

    at_a_table(run, code, tmp_path, test, min_hosts=3)


def test_a_host_that_the_engine_gives_up_is_not_given_up_while_its_agent_is_connected(
    code: Bundle, tmp_path: Path
) -> None:
    async def scenario(sim: Simulation) -> None:
        root, agent = sim.node("learner"), sim.node("agent-1", join="sim://learner")
        await sim.start()
        table = Table(root.node, code, tmp_path)
        table.arrives(1, "a1")
        table.head._agents["agent-1"] = table.head._agents.pop("learner")
        table.head.slots[1].agent = Ref("agent-1/agent")
        assert agent.node.root == "learner"
        table.head.engine_said(HostEvent(1, "ended", "cpu1 by ssh", "Connection refused, 30 tries", again=False))
        await asyncio.sleep(1.0)
        assert table.states()[1] == "joined"
        assert not table.head.slots[1].hopeless

    run_seed(scenario, 1)


def test_a_host_with_a_full_disk_that_the_run_needs_is_the_cause_of_its_end(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    def test(table: Table) -> None:
        for slot in (1, 2, 3):
            table.arrives(slot, f"a{slot}")
        table.head.begin(table.placed)
        slot = table.head.slots[2]
        slot.failures += [table.root.clock.monotonic()] * 3
        full = HostEvent(
            2, "ended", "cpu2 by ssh", "the agent exited with code 74: needs 6 MB in '/scratch', has 1", 74
        )
        slot.heard(full, 0.0)
        table.head._agents["agent"] = slot
        table.head.agent_lost("agent", full.reason)
        assert table.placed.failures == [
            "2 of 3 hosts are left, and --min-hosts requires 3; its host local-2 is gone: the agent exited with code "
            "74: needs 6 MB in '/scratch', has 1"
        ]
        assert len(table.placed.causes) == 2  # that of its nodes' loss, which may end the run by itself, and this one
        for cause in table.placed.causes:
            assert isinstance(cause, CannotWrite)
            assert of_error(cause) == CANNOT_WRITE

    at_a_table(run, code, tmp_path, test)


def test_what_an_agent_says_of_its_end_is_not_overwritten_by_the_engine_until_the_host_starts_again(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    def test(table: Table) -> None:
        table.arrives(1, "a1")
        slot = table.head.slots[1]
        table.head._agents["agent"] = slot
        table.head.host_failed(
            HostFailedMsg(agent="agent", reason="needs 6 MB in '/scratch', has 1", code=CANNOT_WRITE)
        )
        slot.heard(HostEvent(1, "ended", "cpu1 by ssh", "ssh exited with code 255", 255), 1.0)
        assert isinstance(slot.cause("gone"), CannotWrite)
        slot.heard(HostEvent(1, "started", "cpu1 by ssh"), 2.0)
        slot.heard(HostEvent(1, "ended", "cpu1 by ssh", "ssh exited with code 255", 255), 3.0)
        assert slot.cause("gone") is None

    at_a_table(run, code, tmp_path, test)


def test_a_host_that_is_lost_is_asked_for_three_times_and_then_given_up(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        for slot in (1, 2, 3):
            table.arrives(slot, f"a{slot}")
        table.head.begin(table.placed)
        for again in range(3):
            table.head._agents["agent"] = table.head.slots[2]
            table.head.agent_lost("agent", "silent")
            assert await table.engine.asked_for.get() == 2
            table.arrives(2, f"again-{again}")
            assert table.states()[2] == "playing"
            await asyncio.sleep(0)
        table.head._agents["agent"] = table.head.slots[2]
        table.head.agent_lost("agent", "silent")
        assert table.engine.asked_for.empty()
        assert table.placed.lost == [(2, "its host local-2 is gone: silent")]
        assert table.placed.failures == [
            "2 of 3 hosts are left, and --min-hosts requires 3; its host local-2 is gone: silent"
        ]

    at_a_table(run, code, tmp_path, test)


@pytest.mark.parametrize(
    ("last", "how"),
    [
        ("ModuleNotFoundError: No module named 'msgpack'", "cannot import msgpack, which the head has as "),
        ("MemoryError", "its process exited with code 1, 4 times (on local-1)"),
    ],
)
def test_a_node_that_is_given_up_for_want_of_a_library_says_which(
    run: Run, code: Bundle, tmp_path: Path, last: str, how: str
) -> None:
    def test(table: Table) -> None:
        table.arrives(1, "a1")
        table.head._hosted = table.placed
        died = "its process exited with code 1, 4 times"
        table.head.node_changed(
            NodeStateMsg(
                agent="learner",
                node="worker-1-0",
                pid=0,
                running=False,
                restarts=3,
                given_up=died,
                last_words=("x", last),
            )
        )
        ((node, said),) = table.placed.lost_nodes
        assert node == "worker-1-0"
        assert said.startswith(how)
        assert said.endswith(" (on local-1)")

    at_a_table(run, code, tmp_path, test)


@pytest.mark.parametrize(
    ("reason", "again", "why"),
    [
        ("cannot run: exit code 1; ModuleNotFoundError: No module named 'smac'", False, "cannot import smac, in "),
        ("needs 6 MB in '/tmp', has 1", True, "needs 6 MB in '/tmp', has 1"),
    ],
)
def test_an_agent_that_cannot_take_part_says_why_and_only_a_full_disk_is_tried_again(
    run: Run, code: Bundle, tmp_path: Path, reason: str, again: bool, why: str
) -> None:
    async def test(table: Table) -> None:
        for slot in (1, 2, 3):
            table.arrives(slot, f"a{slot}")
        table.head.begin(table.placed)
        table.head._agents["agent-2"] = slot = table.head.slots[2]
        table.head.host_failed(HostFailedMsg(agent="agent-2", reason=reason, code=74 if again else 1))
        table.head.agent_lost("agent-2", "closed its connection")
        table.head.engine_said(HostEvent(2, "ended", "local 2", "exited with code 1"))
        assert slot.code == (74 if again else 1)
        if again:
            assert table.placed.lost == []
            assert await table.engine.asked_for.get() == 2
        else:
            ((number, how),) = table.placed.lost
            assert number == 2
            assert how.startswith(f"its host local-2 is gone: {why}")
            assert slot.reason.startswith(why)
            assert table.engine.asked_for.empty()

    at_a_table(run, code, tmp_path, test, min_hosts=1)


def test_the_code_that_an_agent_has_said_stands_until_the_engine_starts_the_next_one() -> None:
    """The engine's words arrive when they like: that it has started the agent, even after the agent has failed."""
    clock = ManualClock()
    clock.advance(100.0)
    slot = HostSlot(2, HostSettings(2, "cpu2"), clock.monotonic(), HostsRecord(None, clock))
    slot.move("joined")
    slot.failed, slot.code = "needs 6 MB in '/scratch', has 1", 74
    started, ended = HostEvent(2, "started", "cpu2 by ssh"), HostEvent(2, "ended", "cpu2 by ssh", "exit code 255", 255)
    slot.heard(started, 101.0)
    assert slot.code == 74
    slot.move("gone", slot.failed)
    slot.heard(ended, 102.0)
    slot.move("asked")
    slot.heard(ended, 103.0)
    assert (slot.code, slot.reason) == (74, "needs 6 MB in '/scratch', has 1")
    assert isinstance(slot.cause("its host is gone"), CannotWrite)
    slot.heard(started, 104.0)
    slot.heard(ended, 105.0)
    assert (slot.code, slot.reason) == (255, "exit code 255")


def test_the_disk_of_an_earlier_agent_is_not_the_cause_of_the_loss_of_a_later_one(
    run: Run, code: Bundle, tmp_path: Path
) -> None:
    def test(table: Table) -> None:
        table.arrives(2, "full")
        table.head.slots[2].code = CANNOT_WRITE
        table.arrives(2, "next")
        assert table.head.slots[2].cause("closed its connection") is None

    at_a_table(run, code, tmp_path, test)


def test_a_host_that_answers_no_heartbeat_is_silent_for_as_long_as_nothing_was_heard_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(1000.0)
    slot = HostSlot(1, HostSettings(1, "cpu1"), clock.monotonic(), HostsRecord(None, clock))
    slot.agent = Ref("agent-1-ab/agent")
    slot.move("playing")
    link = SimpleNamespace(heard_at=clock.monotonic(), connected=True)
    root: Any = SimpleNamespace(clock=clock, peers=SimpleNamespace(find={"agent-1-ab": link}.get))

    def shown() -> tuple[str, float]:
        host = slot.statistics(root, ())
        return host.state, host.silent_s

    clock.advance(SILENT_S)
    assert shown() == ("playing", 0.0)
    clock.advance(0.5)
    assert shown() == ("silent", SILENT_S + 0.5)
    link.connected = False
    clock.advance(5.0)
    assert shown() == ("silent", SILENT_S + 5.5)
    link.heard_at = clock.monotonic()
    assert shown() == ("silent", 0.0)
    link.connected = True
    assert shown() == ("playing", 0.0)
