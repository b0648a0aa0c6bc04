"""Agents are started by one srun for each kind of node, which gets the token; what srun says becomes events."""

import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from orchestra.hosts.settings import HostSettings
from orchestra.launch.protocol import HostEvent, HostRequest
from orchestra.launch.slurm import SlurmLauncher, hosts_of
from orchestra.launch.slurm_job import Allocation

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_CPUS_PER_NODE": "8(x4)", "SLURMD_NODENAME": "n1"}
PLAN = cast("Any", None)
AGENT = (
    "echo 'orchestra: started'; exec \"$0\" -m orchestra host --token - --slot $((SLURM_PROCID + {})) "
    '--name "$SLURMD_NODENAME"'
)
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def launcher(environment: dict[str, str] = JOB, **more: Any) -> SlurmLauncher:
    allocation = Allocation.of(environment)
    assert allocation is not None
    hosts = [host.with_defaults(python="py", **more) for host in hosts_of(None, {}, environment).hosts]
    return SlurmLauncher(hosts, allocation)


def commands(given: SlurmLauncher, hosts: int = 3) -> tuple[tuple[str, ...], ...]:
    return given.submission(PLAN, [HostRequest(slot) for slot in range(1, hosts + 1)]).commands


def test_one_srun_starts_the_agents_of_all_nodes_but_the_first() -> None:
    assert commands(launcher()) == (
        (
            *("srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--relative=1", "--cpus-per-task=8"),
            *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--overlap"),
            *("--no-kill", "--wait=0", "--kill-on-bad-exit=0", "--label", "sh", "-c", AGENT.format(1), "py"),
        ),
    )


def test_agents_are_on_all_nodes_if_the_head_is_on_none() -> None:
    outside = {name: value for name, value in JOB.items() if name != "SLURMD_NODENAME"}
    (command,) = commands(launcher(outside), hosts=4)
    assert "--nodes=4" in command
    assert not [word for word in command if word.startswith("--relative")]


def test_each_kind_of_node_has_a_srun_of_its_own() -> None:
    two_kinds = {
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "g1",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_0": "2",
        "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "4(x2)",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2",
        "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "16(x2)",
    }
    first, second = commands(launcher(two_kinds))
    assert {"--nodes=1", "--relative=1", "--het-group=0", "--cpus-per-task=4", AGENT.format(1)} <= set(first)
    assert {"--nodes=2", "--het-group=1", "--cpus-per-task=16", AGENT.format(2)} <= set(second)
    assert not [word for word in second if word.startswith("--relative")]


def test_commands_before_the_agent_do_not_read_the_token() -> None:
    (command,) = commands(launcher(setup="module load x;", scratch="/a b"))
    assert command[-2].startswith("echo 'orchestra: started'; { module load x; } </dev/null; exec ")
    assert command[-2].endswith("--scratch '/a b'")


def test_a_host_has_no_gpus_but_those_that_slurm_gives_it() -> None:
    (command,) = commands(launcher({**JOB, "CUDA_VISIBLE_DEVICES": "0"}))
    assert 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}"; exec ' in command[-2]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a `srun` with the given body, which has one line of input, first in the path; scontrol names the nodes."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def program(name: str, body: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{body}\n")
        (tmp_path / name).chmod(0o755)

    program("scontrol", "printf 'n1\\nn2\\nn3\\nn4\\n'")
    return lambda body: program("srun", body)


def test_the_gpus_of_the_head_are_not_those_of_its_hosts(
    run: Run, slurm: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    slurm('echo "${CUDA_VISIBLE_DEVICES-none}" > gpus')
    run(events(launcher(), 3))
    assert (tmp_path / "gpus").read_text() == "none\n"


async def events(given: SlurmLauncher, until: int) -> list[HostEvent]:
    """Start the agents, and return what is said until `until` slots have ended."""
    await given.start(given.submission(PLAN, [HostRequest(slot) for slot in (1, 2, 3)]), "the token\n")
    found: list[HostEvent] = []
    async for event in given.events():
        found.append(event)
        if sum(each.state == "ended" for each in found) == until:
            break
    await given.stop(5.0)
    return found


def test_srun_gets_the_token_and_its_lines_become_events(
    run: Run, slurm: Callable[[str], None], tmp_path: Path
) -> None:
    slurm(
        "read line; echo $line > token\n"
        'echo "0: orchestra: started"; echo "2: orchestra: started"; echo "0: orchestra: nobody listens" >&2\n'
        'echo "srun: error: n4: task 2: Exited with exit code 77" >&2\n'
        'echo "srun: error: n2: task 0: Killed" >&2\nexit 77'
    )
    found = run(events(launcher(), 3))
    assert (tmp_path / "token").read_text() == "the token\n"
    by_slot = {slot: [event for event in found if event.slot == slot] for slot in (1, 2, 3)}
    assert {event.where for event in by_slot[1]} == {"job 7 on n2"}
    assert ("started", "nobody listens") in [(event.state, event.reason) for event in by_slot[1]]
    last = {slot: said[-1] for slot, said in by_slot.items()}
    assert (last[1].state, last[1].reason, last[1].code, last[1].again) == ("ended", "Killed", None, True)
    assert (last[3].reason, last[3].code, last[3].again) == ("Exited with exit code 77", 77, False)
    assert (last[2].reason, last[2].again) == ("srun ended with code 77", False), "its node has never been heard of"


def test_what_srun_waits_for_is_the_reason_of_its_hosts(run: Run, slurm: Callable[[str], None]) -> None:
    slurm('echo "srun: error: Unable to create step for job 7: Requested nodes are busy" >&2; exit 1')
    found = run(events(launcher(), 3))
    said = "Unable to create step for job 7: Requested nodes are busy"
    assert {(event.slot, event.reason) for event in found if event.state == "asked" and event.reason} == {
        (slot, said) for slot in (1, 2, 3)
    }
    assert [event.reason for event in found if event.state == "ended"] == [f"srun ended with code 1: {said}"] * 3


def test_an_agent_that_is_lost_is_started_again_on_its_own_node(
    run: Run, slurm: Callable[[str], None], tmp_path: Path
) -> None:
    slurm('echo "$@" >> commands; echo "0: orchestra: started"; read line; exec cat >/dev/null')

    async def main() -> None:
        given = launcher()
        await given.start(given.submission(PLAN, [HostRequest(slot) for slot in (1, 2, 3)]), "the token\n")
        await given.again(2)
        started: set[int] = set()
        async for event in given.events():
            if event.state == "started":
                started.add(event.slot)
            if started == {1, 2}:  # the first tasks of both
                break
        await given.stop(5.0)

    run(main())
    again = next(line for line in (tmp_path / "commands").read_text().splitlines() if "--nodes=1 " in line)
    assert "--nodes=1 --ntasks=1 --ntasks-per-node=1 --relative=2 " in again
    assert "--slot $((SLURM_PROCID + 2))" in again


def test_hosts_are_those_with_an_agent() -> None:
    assert [host.slot for host in hosts_of(None, {}, JOB).hosts] == [1, 2, 3]
    assert HostSettings(1, cores=8) == hosts_of(None, {}, JOB).hosts[0]
