"""ClusterWorker: the environments of one node of a ClusterEnv, in which an agent acts. Learning is elsewhere."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from components.cluster_agent import AgentPolicy, make_agent
from components.cluster_spaces import make_envs
from components.synchronization import Synchronizer, SyncRule
from components.threads import with_threads
from messages import (
    EnvsPlayedMsg,
    JoinMsg,
    LoadParamsMsg,
    PlayEnvsMsg,
    ProbesMsg,
    PullParamsMsg,
    SyncMsg,
    UseAgentMsg,
    VersionMsg,
)
from orchestra import Actor, Arrays, Ref, on


@dataclass(kw_only=True, eq=False, repr=False)
class ClusterWorker(Actor[PlayEnvsMsg | UseAgentMsg | LoadParamsMsg | ProbesMsg | VersionMsg]):
    """Makes the requested steps, and waits for parameters if its rule requires them.

    Observations, actions, rewards and outputs of the agent are sent with each step; parameters only when the rule
    requires them.

    Args:
        node: number of its node.
        env: as in `make_envs`.
        n_envs: environments of this node.
        agent: the file with the agent's class.
        to: the ClusterHead.
        sync: when it loads parameters.
    """

    node: int
    env: dict[str, Any]
    n_envs: int
    agent: str
    to: Ref[JoinMsg | EnvsPlayedMsg | PullParamsMsg | SyncMsg]
    sync: SyncRule

    def __post_init__(self) -> None:
        self._envs = make_envs(self.env, self.n_envs)
        self._policy: AgentPolicy | None = None
        self._sync = Synchronizer(self.sync)
        self._obs: NDArray[Any] | None = None  # None before the first reset
        self._asked: PlayEnvsMsg | None = None
        self._seed = int(self.rng.integers(1 << 31))

    async def started(self) -> None:
        self.watch(self.to)
        await self.to.tell(JoinMsg(role="worker", ref=self.me, environments=self.n_envs))

    async def stopped(self) -> None:
        self._envs.close()

    @on(UseAgentMsg)
    async def use_agent(self, msg: UseAgentMsg) -> None:
        try:
            self._policy = await self.offload(_seeded_agent, self.agent, msg.name, self._envs, self._seed)
        except Exception as error:  # any error of the user's constructor is reported to the learner
            await self._tell(Arrays(), error=f"the agent cannot be made: {error!r}")

    @on(LoadParamsMsg)
    async def load(self, msg: LoadParamsMsg) -> None:
        if self._policy is not None and self._sync.loaded(msg):
            self._policy.load(msg.params)
        await self._decide(None)

    @on(VersionMsg)
    async def announced(self, msg: VersionMsg) -> None:
        await self._decide(msg)

    @on(ProbesMsg)
    async def take_probes(self, msg: ProbesMsg) -> None:
        self._sync.take_probes(msg)
        await self._decide(None)

    @on(PlayEnvsMsg)
    async def play(self, msg: PlayEnvsMsg) -> None:
        self._asked = msg
        await self._play_if_ready()

    async def _decide(self, news: VersionMsg | None) -> None:
        if self._policy is not None and self._sync.decide(self._policy, news):
            await self.to.tell(self._sync.pull(self.me))
        await self._play_if_ready()

    async def _play_if_ready(self) -> None:
        asked = self._asked
        if asked is None or (asked.what == "step" and not asked.actions and not self._sync.ready):
            return
        try:
            arrays, lost = await self.offload(with_threads, 1, self._play, asked)
        except Exception as error:  # any error of the user's code is reported to the learner
            self.log.exception("the agent or an environment failed")
            await self._tell(Arrays(), error=repr(error))
            return
        if (report := self._sync.report(self.me.address)) is not None:
            await self.to.tell(report)
        await self._tell(Arrays(arrays), lost=lost)

    async def _tell(self, arrays: Arrays, *, lost: bool = False, error: str = "") -> None:
        number, self._asked = -1 if self._asked is None else self._asked.number, None
        version = -1 if self._sync.version is None else self._sync.version
        told = {"node": self.node, "number": number, "ref": self.me, "version": version}
        await self.to.tell(EnvsPlayedMsg(**told, arrays=arrays, lost=lost, error=error))

    def _play(self, asked: PlayEnvsMsg) -> tuple[dict[str, NDArray[Any]], bool]:
        """Return the arrays of the answer, and whether the environments were reset although a step was requested."""
        if asked.what == "reset" or self._obs is None:
            self._obs, _ = self._envs.reset(seed=asked.seed)
            return {"obs": np.asarray(self._obs)}, asked.what != "reset"
        outputs: dict[str, NDArray[Any]] = {}
        if asked.actions:
            actions = asked.actions["actions"]
        else:
            assert self._policy is not None
            actions, outputs = self._policy.act_in(self._obs)
        obs, reward, terminated, truncated, info = self._envs.step(clipped(self._envs, actions))
        ended = np.flatnonzero(terminated | truncated)
        final = [info["final_obs"][each] for each in ended]
        self._obs = obs
        return {
            "obs": np.asarray(obs),
            "reward": np.asarray(reward, np.float32),
            "terminated": np.asarray(terminated, np.bool_),
            "truncated": np.asarray(truncated, np.bool_),
            "actions": actions,
            **{f"policy/{name}": array for name, array in outputs.items()},
            "ended": ended,
            "final_obs": np.stack(final) if final else np.empty((0, *obs.shape[1:]), obs.dtype),
        }, False


def clipped(envs: Any, actions: NDArray[Any]) -> NDArray[Any]:
    """Return actions clipped to the bounds of a continuous space; other actions are returned unchanged."""
    space = envs.single_action_space
    if not hasattr(space, "low"):
        return actions
    return np.asarray(np.clip(actions, space.low, space.high), space.dtype)


def _seeded_agent(file: str, name: str, envs: Any, seed: int) -> AgentPolicy:
    policy = make_agent(file, name, envs)
    if hasattr(policy.agent, "state_dict"):
        import torch  # the agent is a module of it, and draws its actions with its generator

        torch.manual_seed(seed)
    return policy
