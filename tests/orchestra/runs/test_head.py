"""The head of a run over hosts: what it counts of them, and how it ends with them."""

import asyncio
from pathlib import Path

import pytest
from head_table import Run, Table, at_a_table

from orchestra.hosts.bundle import Bundle
from orchestra.hosts.messages import (
    HostUseMsg,
    PlayedMsg,
)
from orchestra.runs import head as head_module
from orchestra.runs.head import ARRIVAL_S
from orchestra.testing import Simulation, run_seed


@pytest.mark.parametrize(("code_at_end", "rejoin"), [(75, True), (0, False)])
def test_agents_are_told_whether_the_run_may_go_on_under_another_head(
    run: Run, code: Bundle, tmp_path: Path, code_at_end: int, rejoin: bool
) -> None:
    async def test(table: Table) -> None:
        table.arrives(1, "a1")
        ending = asyncio.create_task(table.head.end(code_at_end, "stopped", deadline=1.0))
        order = await table.told["a1"].get()
        assert (order.code, order.rejoin) == (code_at_end, rejoin)
        late = table.arrives(2, "a2")
        assert (late.refusal, late.code, late.rejoin) == ("a-run is over", code_at_end, rejoin)
        table.head._agents.clear()
        table.head._changed.set()
        await ending

    at_a_table(run, code, tmp_path, test)


def test_the_head_waits_for_an_agent_as_long_as_pieces_of_its_files_arrive(code: Bundle, tmp_path: Path) -> None:
    async def scenario(sim: Simulation) -> None:
        root = sim.node("learner")
        await sim.start()
        table = Table(root.node, code, tmp_path)
        table.arrives(1, "a1")
        ending = asyncio.create_task(table.head.end(0, "the run is over", deadline=1.0))
        for _ in range(20):
            table.head.piece_arrived()
            await asyncio.sleep(15.0)
            assert not ending.done()
        since = sim.loop.time() - 15.0
        await ending
        assert ARRIVAL_S <= sim.loop.time() - since < ARRIVAL_S + 1.0

    run_seed(scenario, 1)


def test_each_host_has_played_what_its_nodes_have(run: Run, code: Bundle, tmp_path: Path) -> None:
    async def test(table: Table) -> None:
        table.arrives(1, "a1")
        table.arrives(2, "a2")
        counts = (("worker-1-0", 30, 4), ("host-2", 7, None), ("host-1", 12, 2), ("learner", 5, 0), ("host-9", 99, 9))
        table.head.played(PlayedMsg(nodes=counts))  # nothing has been placed yet
        assert table.head.slots[1].figures.env_steps == 0
        table.head.begin(table.placed)
        table.head.played(PlayedMsg(nodes=counts))
        shown = {slot: table.head.slots[slot].statistics(table.root, ()) for slot in (1, 2, 3)}
        assert {slot: (host.env_steps, host.policy_lag) for slot, host in shown.items()} == {
            1: (42, 4),
            2: (7, None),
            3: (0, None),
        }
        assert table.head.here.env_steps == 5

    at_a_table(run, code, tmp_path, test)


def test_an_agent_says_what_its_host_uses_until_another_takes_its_place(run: Run, code: Bundle, tmp_path: Path) -> None:
    def test(table: Table) -> None:
        table.arrives(1, "a1")
        table.head.host_used(HostUseMsg(agent="learner", cores_used=3.5, tunnel=True))
        table.head.host_used(HostUseMsg(agent="somebody", cores_used=9.0, tunnel=False))
        shown = table.head.slots[1].statistics(table.root, ())
        assert (shown.cores_used, shown.tunnel) == (3.5, True)
        table.arrives(1, "a1-again")
        shown = table.head.slots[1].statistics(table.root, ())
        assert (shown.cores_used, shown.tunnel) == (None, False)

    at_a_table(run, code, tmp_path, test)


@pytest.mark.parametrize("others", [False, True])
def test_a_run_stops_when_all_its_hosts_are_told_to_end_and_else_the_host_leaves(
    run: Run, code: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    monkeypatch.setattr(head_module, "TOGETHER_S", 0.01)

    async def test(table: Table) -> None:
        table.arrives(1, "agent-1")
        if others:
            table.head._agents["another"] = table.head.slots[2]  # the agents of a table share a node
        table.head.agent_leaves("learner", 9.0)
        leaving = asyncio.create_task(table.told["agent-1"].get())
        with table.stopping.obeyed_by(lambda *_: leaving.cancel()):
            await asyncio.wait({leaving})
        assert leaving.cancelled() is not others

    at_a_table(run, code, tmp_path, test)
