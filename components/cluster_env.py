"""ClusterEnv: environments on many nodes behind Gymnasium's interface, for a learner with a training loop of its own.

Workers act with the learner's agent and load its parameters when their policy has moved away too far (Lafuente-Mercado,
*High-Throughput Distributed Reinforcement Learning via Adaptive Policy Synchronization*). See `docs/cluster_env.md`.
"""

import itertools
import json
import queue
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Protocol, Self

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from pydantic import Field

import orchestra
from components.cluster_agent import AgentError, AgentPolicy
from components.cluster_head import BRIDGES, Bridge, ClusterHead
from components.cluster_spaces import make_envs
from components.cluster_worker import ClusterWorker
from components.digests import PROBES, REDRAWN
from components.synchronization import FRAMES, SyncRule, probe_outputs, rule_of_flags
from messages import EnvsPlayedMsg, JoinMsg, LoadParamsMsg, PlayEnvsMsg, ProbesMsg, UseAgentMsg, VersionMsg
from orchestra import Arrays, Hosts, RunHandle, Topology, UsageError, freeze, import_file

WAIT_S = 0.5
"""Seconds between two checks that the run is still running."""
MODES = ("asynchronous", "ahead", "min_nodes")
OF_MAKE_ENVS = ("type", "env_name", "env_kwargs", "vectorization_mode")
PLAIN = (*OF_MAKE_ENVS, "envs_per_node", "agent", "kl_threshold", "sync", "sync_max_lag", "seed")
_names = itertools.count()


class ClusterConfig(Protocol):
    """Configuration of the nodes of a ClusterEnv; `SlurmConfig` has this interface too."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    def options(self) -> dict[str, Any]:
        """Return keywords of `orchestra.start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """Nodes that are processes of this machine, or, for tests, all in this process."""

    nodes: int = 1
    processes: bool = True

    def options(self) -> dict[str, Any]:
        """Return keywords of `orchestra.start`."""
        return {} if self.processes else {"single_process": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class SshConfig:
    """Nodes that are machines reached by ssh, or those of a `hosts.toml`."""

    hosts: str
    """Names, separated by commas: `cpu1,cpu2`; or the path of a `hosts.toml`."""

    @property
    def nodes(self) -> int:
        """0: the number of hosts decides."""
        return 0

    def options(self) -> dict[str, Any]:
        """Return keywords of `orchestra.start`."""
        return {"hosts": self.hosts}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Nodes of a Ray cluster."""

    nodes: int
    address: str = ""
    """Address of the cluster; by default that of the cluster that this process finds."""

    def options(self) -> dict[str, Any]:
        """Return keywords of `orchestra.start`."""
        return {"launch": "ray", "hosts": str(self.nodes), **({"ray_address": self.address} if self.address else {})}


def cluster_nodes(
    *,
    hosts: Hosts,
    bridge: Annotated[str, Field(description="name of the bridge to the learner")] = "",
    env: Annotated[str, Field(description="the environment, as JSON")] = "{}",
    envs_per_node: Annotated[int, Field(ge=1, description="environments of a node")] = 1,
    nodes: Annotated[int, Field(ge=0, description="nodes on one host; 0 for one on each")] = 0,
    agent: Annotated[str, Field(description="the file that has the agent; empty for none")] = "",
    sync: Annotated[str, Field(description="when nodes load parameters, as --sync")] = "always",
) -> Topology:
    """Plan the head, in the learner's process, and a worker on each node."""
    rule = rule_of_flags(sync, json.loads(env).get("sync_max_lag"), 1.0)
    if agent:
        import_file(Path(agent), "agent")  # so it belongs to the code of the run
    places = list(hosts.playing) * (nodes if len(hosts.playing) == 1 and nodes else 1)
    names = [f"node-{index}" for index in range(len(places))]
    topology = Topology("cluster_env")
    head = topology.node("head").spawn(
        "head", ClusterHead, bridge=bridge, workers=tuple(f"{name}/worker" for name in names), pulls=rule.pulls
    )
    for index, (name, place) in enumerate(zip(names, places, strict=True)):
        topology.node(name, on=place).spawn(
            "worker",
            ClusterWorker,
            node=index,
            env=json.loads(env),
            n_envs=envs_per_node,
            agent=agent,
            to=head,
            sync=rule,
        )
    topology.until(head)
    return topology


class ClusterEnv(VectorEnv[Any, Any, Any]):
    """All environments of all nodes as one vector environment; the agent acts on the nodes.

    An environment whose episode ends begins another in the same step (`AutoresetMode.SAME_STEP`):
    `info["final_obs"]` has the last observation where `info["_final_obs"]` is true. The environments of node i begin at
    number `i * envs_per_node`.

    With `asynchronous`, `step` returns the environments that are ready: arrays have a row for each of
    `info["env_ids"]`. These are the environments of `min_nodes` nodes or more, and nodes play up to `ahead` steps that
    have not been returned.

    Args:
        env_config: `env_name` and `envs_per_node`; `type`, `env_kwargs` and `vectorization_mode` as in `make_envs`;
            `kl_threshold`, the divergence above which a node loads parameters, or `sync` and `sync_max_lag`, as the
            flags; `agent`, the file of the agent's class if that is not the program; `seed`; and for asynchronous mode
            `asynchronous`, `ahead` (2) and `min_nodes` (1).
        config: the nodes: `LocalConfig`, `SlurmConfig`, `SshConfig` or `RayConfig`.

    Raises:
        UsageError: `env_config` has an unknown key, or there is no such environment.
    """

    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012  # Gymnasium's

    def __init__(self, env_config: Mapping[str, Any], config: ClusterConfig | None = None) -> None:
        self._env, self._config = dict(env_config), config or LocalConfig()
        if unknown := sorted(set(self._env) - {*PLAIN, *MODES}):
            raise UsageError(f"env_config: {unknown[0]!r} is not known; {', '.join((*PLAIN, *MODES))} are")
        if "env_name" not in self._env:
            raise UsageError("env_config needs an env_name, such as CartPole-v1")
        if {"kl_threshold", "sync"} <= self._env.keys():
            raise UsageError("env_config: kl_threshold and sync say the same; give one of them")
        threshold = self._env.get("kl_threshold")
        self._sync = str(self._env.get("sync", "always" if threshold is None else f"kl:{threshold}"))
        self._rule: SyncRule = rule_of_flags(self._sync, self._env.get("sync_max_lag"), 1.0)
        self._per_node = int(self._env.get("envs_per_node", 1))
        self._async = bool(self._env.get("asynchronous", False))
        self._ahead, self._min_nodes = int(self._env.get("ahead", 2)), int(self._env.get("min_nodes", 1))
        one = make_envs(self._env, 1)
        self.single_observation_space, self.single_action_space = one.single_observation_space, one.single_action_space
        one.close()
        if not isinstance(self.single_observation_space.shape, tuple):
            raise UsageError(f"observations must be arrays, got {self.single_observation_space}")
        self._handle: RunHandle | None = None
        self._bridge, self._name = Bridge(), f"bridge-{next(_names)}"
        self._refs: dict[int, Any] = {}
        self._unsent: list[PlayEnvsMsg] = []
        self._rng = np.random.default_rng(self._env.get("seed", 0))
        self._agent: Any = None
        self._params: NDArray[np.float32] | None = None
        self._probes: ProbesMsg | None = None
        self._version = -1
        self._set_nodes(self._config.nodes or 1)

    def _set_nodes(self, nodes: int) -> None:
        self._nodes = nodes
        self.num_envs = nodes * self._per_node
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        shape, dtype = self.single_observation_space.shape, self.single_observation_space.dtype
        self._obs = np.zeros((self.num_envs, *(shape or ())), dtype)
        self._returns, self._lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, np.int64)
        self._numbers = [0] * nodes
        self._outstanding: list[deque[PlayEnvsMsg]] = [deque() for _ in range(nodes)]
        self._ready: list[deque[EnvsPlayedMsg]] = [deque() for _ in range(nodes)]

    # Life -----------------------------------------------------------------------------------------------------------

    def launch(self) -> Self:
        """Start the nodes, and wait until all have joined.

        Raises:
            UsageError: the run cannot begin as asked, or the nodes run already.
            RunFailed: the run failed.
        """
        if self._handle is not None:
            raise UsageError("launch: the nodes run already")
        BRIDGES[self._name] = self._bridge
        keywords: dict[str, Any] = {"quiet": True, **self._config.options()}
        self._handle = orchestra.start(
            cluster_nodes,
            bridge=self._name,
            env=json.dumps({name: self._env[name] for name in self._env if name not in ("agent", *MODES)}),
            envs_per_node=self._per_node,
            nodes=self._config.nodes if "hosts" not in keywords else 0,
            agent=str(self._agent_file or ""),
            sync=self._sync,
            seed=int(self._env.get("seed", 0)),
            **keywords,
        )
        while len(self._refs) < self._nodes:
            self._hear()
        return self

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the nodes, and wait until they have ended."""
        if self._handle is not None:
            self._handle.stop()
            self._handle.result()
            BRIDGES.pop(self._name, None)

    @cached_property
    def _agent_file(self) -> Path | None:
        """The file from which nodes import the agent: the one in `env_config`, or the program."""
        named = self._env.get("agent") or getattr(sys.modules.get("__main__"), "__file__", None)
        return None if named is None else Path(named).absolute()

    @property
    def synchronization(self) -> dict[str, float]:
        """The figures of synchronisation by name: versions, loads of all nodes, bytes of parameters and digests."""
        return {} if self._bridge.published is None else dict(self._bridge.published.counters.figures())

    # Playing --------------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin episodes in all environments; with a seed, those of node i are seeded by `seed + i * envs_per_node`.

        Raises:
            UsageError: the nodes do not run, or there is a list of seeds.
            AgentError: an environment failed.
        """
        if isinstance(seed, list):
            raise UsageError("reset: one seed is needed, not a list; each environment has its own from it")
        self._check_running()
        while any(self._outstanding):  # only in asynchronous mode
            self._hear()
        for ready in self._ready:
            ready.clear()
        for node in range(self._nodes):
            self._ask(node, "reset", seed=None if seed is None else seed + node * self._per_node)
        self._send()
        self._wait_for(self._nodes)
        for node in range(self._nodes):
            self._obs[self._rows(node)] = self._ready[node].popleft().arrays["obs"]
        self._returns[:], self._lengths[:] = 0.0, 0
        return self._obs.copy(), {}

    def step(
        self, agent: Any
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Make a step with the agent, or with given actions, in all environments; asynchronously, return what is ready.

        `info` has `actions`, `policy` (the further outputs of the agent by name), `versions` of the parameters that
        acted, `env_ids`, `lost` (true where an episode was lost with its process; its action is zeros, not the
        agent's), and `episode` with the return `r` and the length `l` where `_episode` is true: an episode has ended.

        Args:
            agent: an object with `act`, as `cluster_agent.Agent`; or actions, an array (N, …).

        Raises:
            UsageError: the nodes do not run.
            AgentError: the agent or an environment failed.
            RunFailed: the nodes failed.
        """
        self._check_running()
        actions = agent if isinstance(agent, np.ndarray) else None
        if actions is None:
            self._publish(agent)
        elif self._async:
            raise UsageError("step: nodes that do not wait for each other act with an agent, not with given actions")
        most = self._ahead if self._async else 1
        for node in range(self._nodes):
            while len(self._outstanding[node]) + len(self._ready[node]) < most:
                self._ask(node, "step", actions=None if actions is None else actions[self._rows(node)])
        self._send()
        self._wait_for(min(self._min_nodes, self._nodes) if self._async else self._nodes)
        played = [ready.popleft() for ready in self._ready if ready]
        return self._merged(played)

    def _check_running(self) -> None:
        if self._handle is None:
            raise UsageError("the nodes do not run: call launch() first")

    def _rows(self, node: int) -> slice:
        return slice(node * self._per_node, (node + 1) * self._per_node)

    def _ask(self, node: int, what: Any, *, seed: int | None = None, actions: NDArray[Any] | None = None) -> None:
        given = Arrays() if actions is None else Arrays({"actions": actions})
        asked = PlayEnvsMsg(node=node, number=self._numbers[node], what=what, seed=seed, actions=given)
        self._numbers[node] += 1
        self._outstanding[node].append(asked)
        if len(self._outstanding[node]) == 1:  # a node handles one request at a time
            self._unsent.append(asked)

    def _send(self) -> None:
        """Send all unsent requests in one call, because each call wakes the thread of the head."""
        asked, self._unsent = self._unsent, []
        self._bridge.tell(*asked)

    def _wait_for(self, nodes: int) -> None:
        while sum(bool(ready) for ready in self._ready) < nodes:
            self._hear()

    def _hear(self) -> None:
        """Handle one message of a node; if none comes within `WAIT_S`, check that the run is still running."""
        try:
            heard = self._bridge.heard.get(timeout=WAIT_S)
        except queue.Empty:
            if self._handle is not None and not self._handle.running:
                self._handle.result()  # raises the error of the run
                raise AgentError("the nodes have ended") from None
            return
        if isinstance(heard, JoinMsg):
            node = int(heard.ref.address.partition("/")[0].removeprefix("node-"))
            if node >= self._nodes:  # the engine alone knows the number of hosts
                self._set_nodes(node + 1)
            self._refs[node] = heard.ref
            if self._outstanding[node]:
                self._bridge.tell(self._outstanding[node][0])
            return
        if heard.error:
            raise AgentError(f"node {heard.node}: {heard.error}")
        waiting = self._outstanding[heard.node]
        if waiting and waiting[0].number == heard.number:
            waiting.popleft()
            self._ready[heard.node].append(heard)
            if waiting:
                self._bridge.tell(waiting[0])

    def _merged(
        self, played: list[EnvsPlayedMsg]
    ) -> tuple[NDArray[Any], NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Return the answers of some nodes as Gymnasium's `step` returns them."""
        answers = [
            _with_lost_episodes(each, self._obs[self._rows(each.node)], self.single_action_space) for each in played
        ]
        ids = np.concatenate([np.arange(self.num_envs)[self._rows(each.node)] for each in played])
        obs, reward, terminated, truncated, actions = (
            np.concatenate([answer[name] for answer in answers])
            for name in ("obs", "reward", "terminated", "truncated", "actions")
        )
        over = terminated | truncated
        final = np.zeros_like(obs)
        final[over] = np.concatenate([answer["final_obs"] for answer in answers])
        self._obs[ids] = obs
        self._returns[ids] += reward
        self._lengths[ids] += 1
        info: dict[str, Any] = {
            "actions": actions,
            "policy": _stacked(answers, len(obs)),
            "env_ids": ids,
            "versions": np.repeat([each.version for each in played], self._per_node),
            "lost": np.repeat([each.lost for each in played], self._per_node),
        }
        if over.any():
            info |= {"final_obs": final, "_final_obs": over, "_episode": over}
            info["episode"] = {"r": np.where(over, self._returns[ids], 0.0), "l": np.where(over, self._lengths[ids], 0)}
            self._returns[ids[over]], self._lengths[ids[over]] = 0.0, 0
        return obs, reward, terminated, truncated, info

    # Parameters -----------------------------------------------------------------------------------------------------

    def _publish(self, agent: Any) -> None:
        """Publish the agent's parameters if they have changed; the agent's class is sent before the first ones."""
        policy = AgentPolicy(agent)
        if self._agent is not agent:
            self._use(agent)
        params = policy.params()
        if self._params is not None and np.array_equal(params, self._params):
            return
        self._params, self._version = params, self._version + 1
        if self._rule.measure is not None and self._version > 0:
            self._tell_digest(policy)
        self._bridge.tell(LoadParamsMsg(version=self._version, params=params, env_steps=None))

    def _use(self, agent: Any) -> None:
        kind = type(agent)
        made = sys.modules.get(kind.__module__)
        file = getattr(made, "__file__", None)
        if self._agent_file is None or file is None or not Path(file).samefile(self._agent_file):
            raise AgentError(
                f"{kind.__name__} is defined in {file or 'no file'}, from which the nodes do not import: "
                f"give its file in env_config, {{'agent': {str(file)!r}}}"
            )
        self._agent = agent
        self._bridge.tell(UseAgentMsg(name=kind.__qualname__))

    def _tell_digest(self, policy: AgentPolicy) -> None:
        if self._probes is None or self._version - self._probes.number >= REDRAWN:
            drawn = self._rng.choice(self.num_envs, min(PROBES, self.num_envs), replace=False)
            shape = (len(drawn), 1, 1)
            inputs = {FRAMES + "obs": self._obs[drawn][:, None], "last_actions": np.full(shape, -1)}
            self._probes = ProbesMsg(number=self._version, inputs=Arrays(inputs))
            self._bridge.tell(self._probes)
        outputs = {name: freeze(array) for name, array in probe_outputs(policy, self._probes).items()}
        place = {"version": self._version, "required": -1, "env_steps": None, "probes": self._probes.number}
        self._bridge.tell(VersionMsg(**place, outputs=Arrays(outputs)))


def _with_lost_episodes(played: EnvsPlayedMsg, before: NDArray[Any], action_space: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays of an answer. If the node's process was lost, its episodes are cut after their last frames."""
    arrays = dict(played.arrays)
    if not played.lost:
        return arrays
    n = len(before)
    none, action = np.zeros(n, np.float32), np.zeros(action_space.shape, action_space.dtype)
    return {
        **arrays,
        "reward": none,
        "terminated": none > 0,
        "truncated": none == 0,
        "actions": np.broadcast_to(action, (n, *action.shape)),
        "final_obs": before,
    }


def _stacked(answers: list[dict[str, NDArray[Any]]], rows: int) -> dict[str, NDArray[Any]]:
    """Return the further outputs of the agent by name, zero where a node has none because its process was lost."""
    prefix = "policy/"
    names = {name: answer[name] for answer in answers for name in answer if name.startswith(prefix)}
    made = {}
    for name, example in names.items():
        parts = [
            answer[name] if name in answer else np.zeros((len(answer["obs"]), *example.shape[1:]), example.dtype)
            for answer in answers
        ]
        made[name.removeprefix(prefix)] = np.concatenate(parts)
    assert all(len(array) == rows for array in made.values())
    return made
