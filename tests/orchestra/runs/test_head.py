"""The head of a run over hosts: who is let in, who is waited for, and what becomes of a host that is lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestra import Actor, CannotWrite, Node, Ref, on
from orchestra.cli.exit_codes import CANNOT_WRITE, of_error
from orchestra.clock import RealClock
from orchestra.errors import HostsMissing, OrchestraError
from orchestra.hosts.bundle import Bundle
from orchestra.hosts.collected_code import make
from orchestra.hosts.fingerprint import fingerprint
from orchestra.hosts.messages import (
    AdmittedMsg,
    CodeKnownMsg,
    CodeMsg,
    HostedNode,
    HostFailedMsg,
    HostMsg,
    HostUseMsg,
    LeaveMsg,
    NodeStateMsg,
    PlanMsg,
    PlayedMsg,
)
from orchestra.hosts.output import HostLogs
from orchestra.hosts.run_plan import RunPlan
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HostShape
from orchestra.launch.protocol import HostEvent, HostRequest, Submission
from orchestra.runs import head as head_module
from orchestra.runs.head import ARRIVAL_S, Head
from orchestra.runs.host_slots import SILENT_S, HostSlot
from orchestra.runs.hosts_options import HostsOptions, hosts_options
from orchestra.runs.hosts_record import HostsRecord
from orchestra.runs.runner import Stopping
from orchestra.testing import ManualClock, Simulation, run_seed

Run = Callable[[Coroutine[Any, Any, None]], None]


class Engine:
    """A launcher that notes what it is asked for."""

    name = "local"

    def __init__(self) -> None:
        self.asked_for: asyncio.Queue[int] = asyncio.Queue()

    def submission(self, plan: RunPlan, requests: Sequence[HostRequest]) -> Submission:
        return Submission({}, ())

    async def start(self, submission: Submission, token: str) -> None:
        return

    async def events(self) -> AsyncIterator[HostEvent]:
        return
        yield

    async def again(self, slot: int) -> None:
        self.asked_for.put_nowait(slot)

    async def stop(self, deadline: float) -> None:
        return


class Placed:
    """Processes that exist on paper."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.joined: list[int] = []
        self.failures: list[str] = []
        self.causes: list[OrchestraError | None] = []
        self.lost_nodes: list[tuple[str, str]] = []
        self.cores_needed = 0

    def plan_for(self, slot: int) -> str:
        return "{}"

    def nodes_on(self, slot: int) -> Sequence[HostedNode]:
        return ()

    def given_up(self, node: str, how: str) -> None:
        self.lost_nodes.append((node, how))

    def host_joined(self, shape: HostShape) -> str:
        if shape.cores < self.cores_needed:
            return f"the nodes of the run need more:\n  {shape.name}  cores {self.cores_needed}"
        self.joined.append(shape.slot)
        return ""

    def host_lost(self, slot: int, how: str, cause: OrchestraError | None = None) -> None:
        self.causes.append(cause)
        self.lost.append((slot, how))

    def fail(self, text: str, cause: OrchestraError | None = None) -> None:
        self.failures.append(text)
        self.causes.append(cause)

    def host_leaves(self, slot: int) -> None:
        return

    def slot_of(self, node: str) -> int | None:
        return {"learner": 0, "host-1": 1, "worker-1-0": 1, "host-2": 2}.get(node)

    async def send_state(self, slot: int, files: Any) -> None:
        return


class Listener(Actor[CodeMsg | PlanMsg | LeaveMsg]):
    """In the place of an agent's actor, on a host that has the code."""

    def __init__(self, heard: "asyncio.Queue[LeaveMsg]") -> None:
        self._heard = heard

    @on(CodeMsg)
    def code(self, msg: CodeMsg) -> CodeKnownMsg:
        return CodeKnownMsg(known=True)

    @on(PlanMsg)
    def begin(self, msg: PlanMsg) -> None:
        return

    @on(LeaveMsg)
    def leave(self, msg: LeaveMsg) -> None:
        self._heard.put_nowait(msg)


class Table:
    """A head whose agents are actors of its own node."""

    def __init__(self, root: Node, code: Bundle, folder: Path, **options: Any) -> None:
        given = hosts_options({"hosts": "3", "launch": "local", **options})
        assert isinstance(given, HostsOptions)
        self.options = given
        self.root = root
        self.engine = Engine()
        self.placed = Placed()
        self.stopping = Stopping()
        self.told: dict[str, asyncio.Queue[LeaveMsg]] = {}
        logs = HostLogs(folder, RealClock())
        self.head = Head(root, "a-run", given, self.engine, lambda: "10.0.0.5:41000", logs, code, self.stopping)

    def arrives(self, slot: int | None, agent: str, incarnation: str = "", **more: Any) -> AdmittedMsg:
        heard = self.told.setdefault(agent, asyncio.Queue())
        ref = self.root.spawn(agent, Listener, heard)
        message = HostMsg(
            agent=ref,
            slot=slot,
            name=f"machine-{agent}",
            cores=4,
            gpus=0,
            memory=1 << 30,
            pid=7,
            incarnation=incarnation or agent,
            fingerprint=OWN,
        )
        return self.head.admit(message.model_copy(update=more) if more else message)

    def states(self) -> dict[int, str]:
        return {number: slot.state for number, slot in self.head.slots.items()}


OWN = fingerprint()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    file = tmp_path_factory.mktemp("code") / "nothing_at_all.py"
    file.write_text("")
    return make(file, installed=True)


def at_a_table(run: Run, code: Bundle, folder: Path, test: Callable[[Table], Any], **options: Any) -> None:
    async def main() -> None:
        root = Node("learner")
        async with root.running():
            table = Table(root, code, folder, **options)
            result = test(table)
            if asyncio.iscoroutine(result):
                await result
            table.head._agents.clear()  # nobody reports the end of agents that are none
            await table.head.end(0, "the test is over", deadline=1.0)

    run(main())


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

    at_a_table(run, code, tmp_path, test)


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


def test_an_agent_with_another_version_of_python_is_not_let_in(run: Run, code: Bundle, tmp_path: Path) -> None:
    def test(table: Table) -> None:
        other = OWN.model_copy(update={"python": "3.9.1"})
        answer = table.arrives(1, "a1", fingerprint=other)
        assert answer.code == 76
        assert answer.refusal.startswith("host machine-a1 is not let in: ")
        assert "3.9.1" in answer.refusal
        assert table.states()[1] == "asked"

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
