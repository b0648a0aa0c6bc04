"""An orchestrator among probes, and the messages that it gets from others."""

from typing import Any

import numpy as np

from components.envs.base import EnvSpec
from components.orchestrator import REPORT_S, Orchestrator
from components.replay_buffers import SampleToInsertRatio
from messages import (
    BatchTrainingDataMsg,
    ClaimRoleMsg,
    CollectMsg,
    EvaluateMsg,
    EvaluationResultMsg,
    InsertTransitionMsg,
    JoinMsg,
    LoadParamsMsg,
    ProgressMsg,
    SampleBatchMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    TrainResultMsg,
)
from orchestra import PlayedMsg

DOWN = (LoadParamsMsg, CollectMsg, SaveStateMsg)
SAVED = {SaveCheckpointMsg: "a file"}
NEVER = 10**9
SPEC = EnvSpec("corridor", n_agents=2, n_actions=3, obs_size=4, state_size=3, episode_limit=6)


class Run:
    """An orchestrator among probes."""

    def __init__(
        self, scene: Any, *, ratio: float = 1.0, min_size: int = 4, buffer: float = 100.0, **changed: Any
    ) -> None:
        self.scene = scene
        self.trajectories = scene.probe(
            "trajectories", InsertTransitionMsg, SampleBatchMsg, SaveCheckpointMsg, answers=SAVED
        )
        self.monitor = scene.probe(
            "monitor", ProgressMsg, PlayedMsg, EvaluationResultMsg, SaveCheckpointMsg, answers=SAVED
        )
        self.trainer = scene.probe("trainer", BatchTrainingDataMsg, SaveCheckpointMsg, answers=SAVED)
        self.limiter = SampleToInsertRatio(ratio, min_size=min_size, error_buffer=buffer)
        factory: dict[str, Any] = {
            "trajectories": self.trajectories.ref,
            "monitor": self.monitor.ref,
            "limiter": self.limiter,
            "batch_size": 2,
            "goal_steps": NEVER,
            "eval_interval": NEVER,
            "checkpoint_interval": NEVER,
        }
        self.ref = scene.node.spawn("orchestrator", Orchestrator, **factory | changed)
        self.cell = scene.node.cell(self.ref.address)

    async def tell(self, *messages: Any) -> None:
        """Tell each message when all actors are idle, and when the next counts are reported again."""
        for message in messages:
            self.scene.clock.advance(REPORT_S)
            await self.ref.tell(message)
            await self.scene.settle()

    async def join_trainer(self) -> None:
        await self.tell(params(0), ClaimRoleMsg(role="trainer", ref=self.trainer.ref))

    async def join_worker(self, name: str, environments: int = 1) -> Any:
        worker = self.scene.probe(name, *DOWN)
        await self.tell(JoinMsg(role="worker", ref=worker.ref, environments=environments))
        return worker

    async def join_evaluator(self, name: str = "evaluator") -> Any:
        evaluator = self.scene.probe(name, EvaluateMsg)
        await self.tell(ClaimRoleMsg(role="evaluator", ref=evaluator.ref))
        return evaluator

    async def train(self, n: int = 1) -> None:
        for _ in range(n):
            await self.tell(TrainResultMsg(number=0, seconds=0.25, metrics=(("loss", 0.5),)))

    @property
    def asked(self) -> list[int]:
        return [message.number for message in self.trajectories.of(SampleBatchMsg)]

    @property
    def progress(self) -> Any:
        return self.monitor.of(ProgressMsg)[-1]


def params(version: int) -> LoadParamsMsg:
    return LoadParamsMsg(version=version, params=np.full(2, version, np.float32), env_steps=None)


def result_at(
    env_steps: int, win_rate: float = 0.5, mean_return: float = 1.0, *, version: int = 1, final: bool = False
) -> EvaluationResultMsg:
    return EvaluationResultMsg(
        version=version,
        env_steps=env_steps,
        episodes=32,
        win_rate=win_rate,
        mean_return=mean_return,
        mean_length=2.0,
        final=final,
    )


async def ended(play: Run) -> str:
    reason: str = await play.cell.terminated
    return reason
