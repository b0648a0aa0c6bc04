"""`--launch slurm`: agents on the nodes of a job, by srun. Outside of a job it submits one, whose head does the same.

The join token goes to the input of srun, which copies it to all agents. That input ends when this process ends, however
it does. SLURM ends what is left of a job when its script is over, which is the head.
"""

import asyncio
import contextlib
import os
import re
import shlex
import sys
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from orchestra import log
from orchestra.errors import OrchestraError, UsageError
from orchestra.hosts.settings import HostSettings
from orchestra.hosts.shape import HEAD
from orchestra.launch.engine import (
    AskedHosts,
    Detach,
    Engine,
    HeadCores,
    HeadGpus,
    Python,
    Settings,
    Setup,
    Submitter,
)
from orchestra.launch.events import REASON, HostEvents
from orchestra.launch.protocol import NEVER_AGAIN, HostEvent, HostRequest, Launcher, Submission
from orchestra.launch.slurm_hosts import SlurmHostsLauncher
from orchestra.launch.slurm_job import GPUS, Allocation, asked, requeued
from orchestra.launch.slurm_queue import SlurmSubmitter
from orchestra.launch.slurm_script import SlurmConfig

if TYPE_CHECKING:  # it imports numpy
    from orchestra.hosts.run_plan import RunPlan

STARTED = "orchestra: started"
"""The first line that an agent's shell prints."""
MAX_RESTARTS = 20
KILL_S = 2.0
"""Seconds for a srun that was asked to end."""
LAST_LINES = 20
SUBMIT_FLAGS = frozenset(
    {
        *("partition", "time", "job_name", "account", "qos", "constraint", "reservation", "exclude", "mem", "sbatch"),
        *("cpus_per_task", "gpus_per_node", "gpu_type", "head_gpus", "head_cores", "head_partition", "once"),
        *("detach", "sweep", "sweep_parallel", "debug", "head_here"),
    }
)
"""Flags for sbatch: inside of a job they have no effect."""
OF_HEAD = frozenset(
    {"head_gpus", "head_cores", "head_partition", "once", "max_restarts", "sweep", "sweep_parallel", "detach"}
)
"""Flags for a job that has the head, too."""
GRACE_S = 120.0
"""Seconds before the end of its time at which a job of hosts alone is told."""


class _Step:
    """One srun, and the slots whose agents it starts."""

    def __init__(self, slots: Sequence[int], process: asyncio.subprocess.Process) -> None:
        self.slots = list(slots)
        self.process = process
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        """The last lines of srun itself."""
        self.started: set[int] = set()
        self.ended: set[int] = set()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()


class SlurmLauncher:
    """Starts an agent on each node of the job but that of the head. Implements `Launcher`.

    Args:
        hosts: the hosts with an agent, in the order of the job's nodes.
        allocation: the nodes of the job.
    """

    name = "slurm"
    replaces = False

    def __init__(self, hosts: Sequence[HostSettings], allocation: Allocation) -> None:
        self._hosts = {host.slot: host for host in hosts}
        self._allocation = allocation
        self._token = ""
        self._names: list[str] = []
        self._steps: list[_Step] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._events = HostEvents(self._where)
        self._log = log.get(actor="launcher")

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return a command for the nodes of each component of the job: they are hosts of several kinds."""
        groups = self._places()
        slots = [request.slot for request in requests]
        steps = [
            [slot for slot in slots if groups[slot][0] == number] for number in range(len(self._allocation.groups))
        ]
        return Submission({}, tuple(self._srun(step) for step in steps if step))

    async def start(self, submission: Submission, token: str) -> None:
        """Start the agents. What becomes of each is an event."""
        self._token = token
        self._names = await self._node_names()
        groups = self._places()
        steps = defaultdict[int, list[int]](list)
        for slot in self._hosts:
            steps[groups[slot][0]].append(slot)
        for slots, command in zip(steps.values(), submission.commands, strict=True):
            await self._begin(slots, command)

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        """Start another agent on the node of a slot, by a step of its own."""
        for step in self._steps:
            if step.slots == [slot] and step.process.returncode is None:  # it waits for a node that is down
                await self._end([step])
        await self._begin([slot], self._srun([slot]))

    async def stop(self, deadline: float) -> None:
        """End the agents' input, wait until they have ended, and then end each srun that is left."""
        self._events.mute()
        for step in self._steps:
            step.close_input()
        if self._watching:
            await asyncio.wait(self._watching, timeout=deadline)
        await self._end(self._steps)
        if self._watching:
            await asyncio.wait(self._watching)
        self._events.close()

    def _places(self) -> dict[int, tuple[int, int]]:
        """Return the component of each slot's node, and the node's number in it."""
        nodes = [
            (number, node) for number, group in enumerate(self._allocation.groups) for node in range(len(group.cores))
        ]
        return {slot: nodes[slot if self._allocation.on_first_node else slot - 1] for slot in self._hosts}

    def _srun(self, slots: Sequence[int]) -> tuple[str, ...]:
        """Return the command that starts the agents of slots whose nodes follow each other in one component."""
        places = self._places()
        component, first = places[slots[0]]
        group = self._allocation.groups[component]
        cores = min(group.cores[places[slot][1]] for slot in slots)
        number = len(slots)
        options = [
            f"--nodes={number}",
            f"--ntasks={number}",
            "--ntasks-per-node=1",
            *([f"--relative={first}"] if first else []),
            *([] if group.number is None else [f"--het-group={group.number}"]),
            *([f"--cpus-per-task={cores}"] if cores else []),  # newer sruns do not take it from the job
            *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--overlap"),
            *("--no-kill", "--wait=0", "--kill-on-bad-exit=0", "--label"),
        ]
        host = self._hosts[slots[0]]
        script = _agent_script(host, slots[0], gives_gpus=self._allocation.gives_gpus)
        return ("srun", *options, "sh", "-c", script, host.python or sys.executable)

    async def _node_names(self) -> list[str]:
        """Return the names of the job's nodes, in order. They are for people: they need not resolve."""
        names: list[str] = []
        for group in self._allocation.groups:
            suffix = "" if group.number is None else f"_HET_GROUP_{group.number}"
            nodes = os.environ.get(f"SLURM_JOB_NODELIST{suffix}", "")
            try:
                names += (await asyncio.to_thread(asked, "scontrol", "show", "hostnames", nodes)).split()
            except OrchestraError as error:
                self._log.info("the names of the nodes are not known", reason=str(error))
                names += ["?"] * len(group.cores)
        return names

    def _where(self, slot: int) -> str:
        index = slot if self._allocation.on_first_node else slot - 1
        name = self._names[index] if index < len(self._names) else "?"
        return f"job {self._allocation.job} on {name}"

    async def _begin(self, slots: Sequence[int], command: Sequence[str]) -> None:
        for slot in slots:
            self._events.tell(slot, "asked")
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # The GPUs of this node are not those of the others.
                env={name: value for name, value in os.environ.items() if name != GPUS},
                start_new_session=True,  # the terminal's Ctrl-C is for the head alone
            )
        except OSError as error:
            for slot in slots:
                self._events.tell(slot, "ended", f"cannot run srun: {error.strerror or error}", again=False)
            return
        step = _Step(slots, process)
        self._steps.append(step)
        assert process.stdin is not None
        if not process.stdin.is_closing():  # it has not failed yet
            process.stdin.write(self._token.rstrip("\n").encode() + b"\n")
        task = asyncio.create_task(self._watch(step), name="srun")
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)

    async def _watch(self, step: _Step) -> None:
        assert step.process.stdout is not None
        assert step.process.stderr is not None
        reading = [
            asyncio.create_task(self._read(step, stream)) for stream in (step.process.stdout, step.process.stderr)
        ]
        code = await step.process.wait()
        await asyncio.wait(reading, timeout=KILL_S)
        for task in reading:
            task.cancel()
        step.close_input()
        self._steps.remove(step)
        said = f": {step.lines[-1]}" if step.lines else ""
        for slot in step.slots:
            if slot not in step.ended:  # srun names the tasks that have failed, and no others
                reason = f"srun ended with code {code}{said}"
                self._events.tell(slot, "ended", reason, code, again=slot in step.started)

    async def _read(self, step: _Step, stream: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than the reader's limit: asyncio has dropped it
                continue
            if not line:
                return
            if text := line.decode(errors="replace").strip():
                self._said(step, text)

    def _said(self, step: _Step, text: str) -> None:
        """Note a line of srun, or of an agent, which begins with the number of its task."""
        if labelled := re.match(r"(\d+): ?(.*)", text):
            task, said = int(labelled[1]), labelled[2]
            if task >= len(step.slots):
                return
            slot = step.slots[task]
            if said == STARTED:
                step.started.add(slot)
                self._events.tell(slot, "started")
                return
            self._log.info("a host said", slot=slot, text=said)
            if said.startswith(REASON):
                self._events.tell(slot, "started", said.removeprefix(REASON))
            return
        if ended := re.match(r"srun: error: \S+: tasks? ([\d,-]+): (.*)", text):
            exited = re.match(r"Exited with exit code (\d+)", ended[2])
            code = int(exited[1]) if exited else None
            for task in _numbers(ended[1]):
                if task < len(step.slots):
                    step.ended.add(slot := step.slots[task])
                    self._events.tell(slot, "ended", ended[2], code, again=code not in NEVER_AGAIN)
            return
        said = text.removeprefix("srun: ").removeprefix("error: ")
        step.lines.append(said)
        self._log.info("srun said", text=said)
        for slot in step.slots:
            if slot not in step.started:
                self._events.tell(slot, "asked", said)

    async def _end(self, steps: Sequence[_Step]) -> None:
        """End each srun, and kill those that do not end soon. Their agents end with them."""
        for send in ("terminate", "kill"):
            alive = [step for step in steps if step.process.returncode is None]
            for step in alive:
                with contextlib.suppress(ProcessLookupError):
                    getattr(step.process, send)()
            if alive:
                await asyncio.wait([asyncio.create_task(step.process.wait()) for step in alive], timeout=KILL_S)


def _agent_script(host: HostSettings, slot: int, *, gives_gpus: bool) -> str:
    """Return the shell commands that become the agent. Their input is the token, which `setup` must not read."""
    setup = host.setup.strip().rstrip(";")
    scratch = f" --scratch {shlex.quote(host.scratch)}" if host.scratch else ""
    place = f'--slot $((SLURM_PROCID + {slot})) --name "$SLURMD_NODENAME"'
    before = [f"echo {shlex.quote(STARTED)}", *([f"{{ {setup}; }} </dev/null"] if setup else [])]
    if gives_gpus:  # else a host without a GPU of the job would count those of its machine
        before.append(f'export {GPUS}="${{{GPUS}-}}"')
    return "; ".join([*before, f'exec "$0" -m orchestra host --token - {place}{scratch}'])


def _numbers(text: str) -> list[int]:
    """Return the numbers that SLURM writes as `0-2,5`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def hosts_of(number: int | None, settings: Settings, environment: Mapping[str, str] = os.environ) -> AskedHosts:
    """Return the hosts of a run: nodes of the job in which this process runs, or of one that is to be submitted.

    The number counts the head, which is on the first node, and plays.

    Raises:
        UsageError: the job has fewer nodes, or there is neither a job nor a number.
    """
    allocation = Allocation.of(environment)
    if allocation is None:
        if number is None:
            raise UsageError("--launch slurm: this is no job of SLURM; add --hosts N to submit one")
        config = SlurmConfig.of(settings, job_name="orchestra", nodes=number, grace=0.0)
        cores, gpus = config.cpus_per_task, config.gpus_per_node
        if settings.get("head_here"):
            if wrong := sorted(OF_HEAD & settings.keys()):
                raise UsageError(f"{_option(wrong[0])} is for a job that has the head, too; leave out --head-here")
            return AskedHosts(tuple(HostSettings(slot, cores=cores, gpus=gpus) for slot in range(1, number + 1)))
        here = HostSettings(HEAD, cores=cores, gpus=gpus)
        if config.two_kinds:
            here = HostSettings(HEAD, cores=config.head_cores, gpus=config.head_gpus)
        elif number == 1:
            alone = config.head_alone()
            here = HostSettings(HEAD, cores=alone.cpus_per_task, gpus=alone.gpus_per_node)
        others = tuple(HostSettings(slot, cores=cores, gpus=gpus) for slot in range(1, number))
        return AskedHosts(others, here, head_elsewhere=True)
    if wrong := sorted(SUBMIT_FLAGS & settings.keys()):
        raise UsageError(
            f"{_option(wrong[0])} is for a job that is submitted, and this is job {allocation.job}; leave it out"
        )
    cores_of_nodes = allocation.cores
    nodes = len(cores_of_nodes)
    if number is not None and number > nodes:
        raise UsageError(f"--hosts: job {allocation.job} has {nodes} nodes, not {number}")
    found = cores_of_nodes[: number or nodes]
    if not allocation.on_first_node:
        return AskedHosts(tuple(HostSettings(slot, cores=cores) for slot, cores in enumerate(found, start=1)))
    hosts = [HostSettings(slot, cores=cores) for slot, cores in enumerate(found)]
    return AskedHosts(tuple(hosts[1:]), hosts[0])


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _launcher(hosts: Sequence[HostSettings], settings: Settings) -> Launcher:
    if settings.get("head_here"):
        config = SlurmConfig.of(settings, job_name="orchestra", nodes=len(hosts), grace=GRACE_S)
        return SlurmHostsLauncher(hosts, config)
    allocation = Allocation.of(os.environ)
    if allocation is None:
        raise UsageError("--launch slurm: this is no job of SLURM; `orchestra run` submits one")
    return SlurmLauncher(hosts, allocation)


def _submitter(settings: Settings) -> Submitter | None:
    return SlurmSubmitter() if Allocation.of(os.environ) is None and not settings.get("head_here") else None


def _needless(settings: Settings) -> frozenset[str]:
    return SUBMIT_FLAGS if Allocation.of(os.environ) is not None else frozenset()


def _stopped(settings: Settings) -> str:
    return requeued(os.environ, settings.get("max_restarts", MAX_RESTARTS))


def _flags(
    *,
    python: Python = None,
    setup: Setup = None,
    partition: Annotated[str | None, Field(description="the partition of the job")] = None,
    time: Annotated[
        str | None, Field(coerce_numbers_to_str=True, description="the time of the job: MINUTES, HH:MM:SS or D-HH")
    ] = None,
    cpus_per_task: Annotated[int | None, Field(ge=1, description="cores of each host")] = None,
    gpus_per_node: Annotated[int | None, Field(ge=1, description="GPUs of each host")] = None,
    gpu_type: Annotated[str | None, Field(description="the type of the GPUs: a100")] = None,
    head_gpus: HeadGpus = None,
    head_cores: HeadCores = None,
    head_partition: Annotated[str | None, Field(description="the partition of the head's node")] = None,
    mem: Annotated[str | None, Field(coerce_numbers_to_str=True, description="the memory of each host: 16G")] = None,
    account: Annotated[str | None, Field(description="the account to charge")] = None,
    qos: Annotated[str | None, Field(description="the quality of service")] = None,
    constraint: Annotated[str | None, Field(description="features that the nodes must have")] = None,
    reservation: Annotated[str | None, Field(description="the reservation of the nodes")] = None,
    exclude: Annotated[str | None, Field(description="nodes that are not to be used: n[3-5],n9")] = None,
    job_name: Annotated[str | None, Field(description="the name of the job; orchestra-EXPERIMENT by default")] = None,
    sbatch: Annotated[
        tuple[str, ...], Field(description="a further option of sbatch: --sbatch=--mail-type=END; may be repeated")
    ] = (),
    once: Annotated[
        bool, Field(description="do not start the job again, to go on, when it was preempted or its time is over")
    ] = False,
    max_restarts: Annotated[
        int | None, Field(ge=0, description=f"how often a job is started again; {MAX_RESTARTS} by default")
    ] = None,
    sweep: Annotated[
        tuple[str, ...],
        Field(
            description="a run for each value, as an array of jobs: seed=0..9 or algorithm=qmix,vdn; may be repeated"
        ),
    ] = (),
    sweep_parallel: Annotated[
        int | None, Field(ge=1, description="jobs of the array that run at the same time; all by default")
    ] = None,
    detach: Detach = False,
    head_here: Annotated[
        bool, Field(description="the head runs in this process, and a job has the hosts alone")
    ] = False,
    debug: Annotated[bool, Field(description="the job prints its commands and logs everything")] = False,
) -> None:
    """Describe the flags of SLURM."""


ENGINE = Engine(
    "slurm",
    _launcher,
    _flags,
    counted=hosts_of,
    submitter=_submitter,
    submit_flags=SUBMIT_FLAGS | {"setup"},
    stopped=_stopped,
    needless=_needless,
)
