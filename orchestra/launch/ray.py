"""`--launch ray`: an agent on each of several nodes of a Ray cluster, started by one actor that carries nothing else.

The head is Ray's driver. From outside of the cluster `ray job submit` starts it there. The join token is an argument of
an actor's method, and goes to the agent's standard input: neither is in Ray's tables and logs.
"""

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

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
    HostCores,
    HostGpus,
    HostMemory,
    Python,
    Settings,
    Submitter,
    bytes_of,
    on_top,
)
from orchestra.launch.events import REASON, HostEvents
from orchestra.launch.protocol import NEVER_AGAIN, HostEvent, HostRequest, Submission
from orchestra.launch.ray_job import RaySubmitter, runtime_env_of

if TYPE_CHECKING:  # it imports numpy
    from orchestra.hosts.run_plan import RunPlan

GROUP = "placement_group.json"
ASK_S = 1.0
"""Seconds between two questions to Ray."""


class RayLauncher:
    """Starts an agent in each bundle of a placement group. Implements `Launcher`.

    Args:
        hosts: the hosts with an agent.
        address: of the cluster, as `ray.init` takes it.
        runtime_env: what Ray prepares for the actors; None for what the job has.
        python: the interpreter of the agents; by default that of Ray's actors.
    """

    name = "ray"
    replaces = False

    def __init__(
        self,
        hosts: Sequence[HostSettings],
        *,
        address: str = "auto",
        runtime_env: Mapping[str, Any] | None = None,
        python: str = "",
    ) -> None:
        self._hosts = {host.slot: host for host in hosts}
        self._address = address
        self._runtime_env = runtime_env
        self._python = python
        self._token = ""
        self._bundles: list[dict[str, float]] = []
        self._commands: dict[int, list[str]] = {}
        self._group: Any = None
        self._actors: dict[int, Any] = {}
        self._where: dict[int, str] = {}
        self._last: dict[int, str] = {}
        """The last line that each agent has printed."""
        self._keeping: dict[int, asyncio.Task[None]] = {}
        self._events = HostEvents(self._place)
        self._log = log.get(actor="launcher")

    def submission(self, plan: "RunPlan", requests: Sequence[HostRequest]) -> Submission:
        """Return the placement group, and the command that the actor of each bundle runs."""
        group = {
            "strategy": "STRICT_SPREAD",
            "bundles": [_bundle(request) for request in requests],
            "agents": {str(request.slot): self._command(request) for request in requests},
        }
        return Submission({GROUP: json.dumps(group, indent=1) + "\n"}, ())

    def _command(self, request: HostRequest) -> list[str]:
        scratch = self._hosts[request.slot].scratch
        words = [self._python or "python", "-m", "orchestra", "host", "--token", "-", "--bound"]
        return [*words, "--slot", str(request.slot), *(["--scratch", scratch] if scratch else [])]

    async def start(self, submission: Submission, token: str) -> None:
        """Ask Ray for the placement group, and return. What becomes of each bundle is an event."""
        group = json.loads(submission.files[GROUP])
        self._bundles = group["bundles"]
        self._commands = {int(slot): words for slot, words in group["agents"].items()}
        here = await asyncio.to_thread(self._connect)
        _take_back_signals()
        self._token = with_address(token, here)
        for slot in self._hosts:
            self._begin(slot)

    def _connect(self) -> str:
        """Become a driver of the cluster, ask for the placement group, and return the address of this node.

        It runs in a thread of its own: in the main thread Ray replaces Python's handlers of signals.

        Raises:
            UsageError: there is no cluster, or the package is not installed.
            OrchestraError: the cluster does not take this process.
        """
        try:
            import ray
            from ray.util.placement_group import placement_group
        except ImportError as error:
            raise UsageError(f"--launch ray needs the package ray: pip install 'orchestra-rl[ray]' ({error})") from None

        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(
                address=self._address,
                runtime_env=dict(self._runtime_env) if self._runtime_env else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise UsageError(
                f"--launch ray: no cluster is found at {self._address}: {reason}; start one by `ray start --head`, or "
                "name it by --ray-address HOST:PORT, or http://HOST:8265 to submit a job"
            ) from None
        except RuntimeError as error:  # another version of Ray or of Python
            raise OrchestraError(f"--launch ray: the cluster at {self._address} refuses: {error}") from error
        self._group = placement_group(self._bundles, strategy="STRICT_SPREAD", name="orchestra")
        return str(ray.util.get_node_ip_address())

    def events(self) -> AsyncIterator[HostEvent]:
        return self._events.follow()

    async def again(self, slot: int) -> None:
        """Start another actor in the bundle of a slot. Ray moves the bundle if its node is gone."""
        if (keeping := self._keeping.get(slot)) is not None:
            keeping.cancel()
            await asyncio.wait({keeping})
        self._kill(slot)
        self._begin(slot)

    async def stop(self, deadline: float) -> None:
        """Wait until the agents have ended, and give back all that Ray has of this run."""
        self._events.mute()
        if self._group is not None:
            for actor in self._actors.values():
                actor.close.remote()
            if keeping := list(self._keeping.values()):
                _, late = await asyncio.wait(keeping, timeout=deadline)
                for task in late:
                    task.cancel()
                await asyncio.wait(keeping)
            await asyncio.to_thread(self._disconnect)
            _take_back_signals()
        self._events.close()

    def _disconnect(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        for slot in list(self._actors):
            self._kill(slot)
        remove_placement_group(self._group)
        ray.shutdown()

    def _kill(self, slot: int) -> None:
        import ray

        if (actor := self._actors.pop(slot, None)) is not None:
            ray.kill(actor)

    def _begin(self, slot: int) -> None:
        self._keeping[slot] = asyncio.create_task(self._keep(slot), name=f"ray: slot {slot}")
        self._keeping[slot].add_done_callback(partial(self._events.failed, slot, self._log))

    async def _keep(self, slot: int) -> None:
        """Start the agent of a slot as soon as Ray has room for it, and follow it to its end."""
        from ray.exceptions import RayError
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._where.pop(slot, None)
        self._events.tell(slot, "asked")
        ready = _asyncio(self._group.ready())
        while not (await asyncio.wait({ready}, timeout=ASK_S))[0]:
            self._events.tell(slot, "asked", await asyncio.to_thread(_no_room, self._bundles))
        index = list(self._hosts).index(slot)
        bundle = self._bundles[index]
        memory = {"memory": bundle["memory"]} if "memory" in bundle else {}
        actor = self._actors[slot] = _agent_class().options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            max_concurrency=2,  # one method waits for the agent while another one asks what it has said
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            **memory,
        ).remote()  # fmt: skip
        try:
            self._where[slot] = await _asyncio(actor.start.remote(self._commands[slot], self._token))
            self._events.tell(slot, "started")
            code = await self._follow(slot, actor)
        except RayError as error:
            self._actors.pop(slot, None)
            self._events.tell(slot, "ended", _first_line(error))
            return
        how = f"exited with code {code}"
        last = self._last.pop(slot, "")
        self._events.tell(slot, "ended", f"{how}: {last}" if last else how, code, again=code not in NEVER_AGAIN)

    async def _follow(self, slot: int, actor: Any) -> int:
        """Wait until the agent of an actor has ended; return its exit code."""
        from ray.exceptions import ActorUnavailableError

        while True:
            waiting = _asyncio(actor.wait.remote())
            try:
                while not (await asyncio.wait({waiting}, timeout=ASK_S))[0]:
                    await self._relay(slot, actor)
                code = int(waiting.result())
                await self._relay(slot, actor)
                return code
            except ActorUnavailableError:  # Ray does not see it at present; whether it lives its connection tells
                waiting.cancel()
                await asyncio.sleep(ASK_S)

    async def _relay(self, slot: int, actor: Any) -> None:
        """Note what an agent has said."""
        for line in await _asyncio(actor.said.remote()):
            self._log.info("a host said", slot=slot, text=line)
            if line:
                self._last[slot] = line.removeprefix(REASON)
            if line.startswith(REASON):
                self._events.tell(slot, "started", self._last[slot])

    def _place(self, slot: int) -> str:
        return self._where.get(slot, f"Ray bundle {slot - 1}")


def _take_back_signals() -> None:
    """Give SIGTERM back to Python.

    The library of Ray, in C++, takes it from any thread, aborts the process 3 s after it (the handler of Abseil), and
    leaves it without a handler when it shuts down. Python cannot see that.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _agent_class() -> Any:
    """Return the class of the actors, as Ray takes it. It needs the standard library and Ray alone."""
    import ray

    class OrchestraAgent:
        """Starts the agent of a host, and keeps its standard input open as long as this actor lives."""

        def start(self, command: Sequence[str], token: str) -> str:
            """Start the agent, and return where it is."""
            from collections import deque
            from threading import Thread

            program, *words = command
            self.child = subprocess.Popen(  # noqa: S603 (a list, for no shell)
                [sys.executable if program == "python" else program, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert self.child.stdin is not None
            self.child.stdin.write(token.encode())
            self.child.stdin.flush()
            self.lines: deque[str] = deque(maxlen=100)
            self.reading = Thread(target=self.read, daemon=True)
            self.reading.start()
            context = ray.get_runtime_context()
            return f"Ray node {context.get_node_id()[:8]} at {ray.util.get_node_ip_address()}"

        def read(self) -> None:
            assert self.child.stdout is not None
            for line in self.child.stdout:
                self.lines.append(line.decode(errors="replace").rstrip())

        def wait(self) -> int:
            """Return the exit code of the agent, once it has ended."""
            return self.child.wait()

        def said(self) -> list[str]:
            """Return what the agent has printed since the last call."""
            return [self.lines.popleft() for _ in range(len(self.lines))]

        def close(self) -> None:
            """Close the standard input of the agent: no process waits for it any more."""
            if self.child.stdin is not None:
                self.child.stdin.close()

    return ray.remote(OrchestraAgent)


def _asyncio(reference: Any) -> "asyncio.Future[Any]":
    future: Future[Any] = reference.future()
    return asyncio.wrap_future(future)


def _bundle(request: HostRequest) -> dict[str, float]:
    found: dict[str, float] = {"CPU": request.cores or 1}
    if request.gpus:
        found["GPU"] = request.gpus
    if request.memory:
        found["memory"] = request.memory
    return found


def _no_room(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return what was asked of Ray, and what its nodes have."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    have = ", ".join(f"{node['NodeManagerAddress']} {_resources(node['Resources'])}" for node in nodes)
    many = "node" if len(nodes) == 1 else "nodes"
    return (
        f"Ray has no room for {len(bundles)} hosts with {_resources(bundles[0])} each; its {len(nodes)} {many}: {have}"
    )


def _resources(found: Mapping[str, float]) -> str:
    """Return resources as people write them: `4 CPU, 1 GPU`. Ray may use them for other jobs, too."""
    names = ("CPU", "GPU")
    return ", ".join(f"{found.get(name, 0):g} {name}" for name in names if name == "CPU" or name in found)


def with_address(token: str, host: str) -> str:
    """Return a join token in which the address that Ray has for this node comes first."""
    document = json.loads(token)
    first: str = document["join"][0]
    scheme, _, place = first.partition("://")
    port = place.rpartition(":")[2]
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    document["join"] = list(dict.fromkeys([address, *document["join"]]))
    return json.dumps(document) + "\n"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _from_outside(settings: Settings) -> bool:
    return str(settings.get("ray_address", "")).startswith(("http://", "https://"))


def hosts_of(number: int | None, settings: Settings) -> AskedHosts:
    """Return the hosts of a run: they come on top of the head, which only learns.

    Raises:
        UsageError: there is no number, or a setting is not allowed.
    """
    address = settings.get("ray_address", "")
    if address.startswith("ray://"):
        raise UsageError(
            f"--ray-address {address}: Ray's client protocol carries no run; start orchestra on a node of the cluster, "
            "or submit a job by --ray-address http://HOST:8265"
        )
    outside = _from_outside(settings)
    if not outside and (wrong := sorted(SUBMIT_FLAGS & settings.keys() - {"ray_address"})):
        name = wrong[0].replace("_", "-")
        raise UsageError(f"--{name} is for a job that is submitted: add --ray-address http://HOST:8265")
    runtime_env_of(settings)
    cores, gpus = settings.get("host_cores", 1), settings.get("host_gpus", 0)
    memory = bytes_of("--host-memory", settings.get("host_memory", ""))
    hosts = on_top(number, settings).hosts
    asked = tuple(HostSettings(host.slot, cores=cores, gpus=gpus, memory=memory) for host in hosts)
    head = HostSettings(HEAD, cores=settings.get("head_cores", 0), gpus=settings.get("head_gpus", 0))
    return AskedHosts(asked, head=head, head_elsewhere=outside)


def _launcher(hosts: Sequence[HostSettings], settings: Settings) -> RayLauncher:
    return RayLauncher(
        hosts,
        address=settings.get("ray_address", "auto"),
        runtime_env=runtime_env_of(settings),
        python=next((host.python for host in hosts), ""),
    )


def _submitter(settings: Settings) -> Submitter | None:
    return RaySubmitter(settings["ray_address"]) if _from_outside(settings) else None


def _flags(
    *,
    python: Python = None,
    ray_address: Annotated[
        str | None, Field(description="the cluster, HOST:PORT; http://HOST:8265 submits the run as a job to it")
    ] = None,
    runtime_env_json: Annotated[
        str | None,
        Field(description="what Ray prepares for the run's processes, as JSON; all users of the cluster can read it"),
    ] = None,
    host_cores: HostCores = None,
    host_gpus: HostGpus = None,
    host_memory: HostMemory = None,
    head_cores: HeadCores = None,
    head_gpus: HeadGpus = None,
    detach: Detach = False,
) -> None:
    """Describe the flags of Ray."""


SUBMIT_FLAGS = frozenset({"ray_address", "head_cores", "head_gpus", "detach"})


def _needless(settings: Settings) -> frozenset[str]:
    return frozenset() if _from_outside(settings) else SUBMIT_FLAGS - {"ray_address"}


ENGINE = Engine(
    "ray",
    _launcher,
    _flags,
    counted=hosts_of,
    submitter=_submitter,
    submit_flags=SUBMIT_FLAGS,
    needless=_needless,
)
