"""Evaluator: plays the evaluations of a run, in a process of its own."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from components.playing import play_once
from components.preloading import preload
from components.rollout import ActingFactory, EnvFactory
from components.threads import with_threads
from messages import ClaimRoleMsg, EvaluateMsg, EvaluationResultMsg
from orchestra import Actor, Preloads, Ref, State, UsageError, on

EVALUATION_ENVS = 32
"""Copies of the environment that an evaluation plays together, at most."""


@dataclass(kw_only=True, eq=False, repr=False)
class Evaluator(Preloads, Actor[EvaluateMsg]):
    """Plays evaluations, one at a time, while the other actors collect and learn.

    It makes environments and a policy for each evaluation, and takes all random numbers from the seed of the message.
    An evaluation that is played again, by the next incarnation of a failed Evaluator, has the same result.

    Args:
        env: makes its environments.
        policy: makes its policy.
        to: the Orchestrator.
        threads: threads that NumPy, or torch, may use for acting.
    """

    env: EnvFactory
    policy: ActingFactory
    to: Ref[ClaimRoleMsg | EvaluationResultMsg]
    threads: int = 1

    @classmethod
    def preload(cls, *, env: EnvFactory, policy: ActingFactory, **others: Any) -> None:
        """Load the code of its environments and of its policy."""
        preload(env, policy)

    async def started(self) -> None:
        rejection = await self.to.ask(ClaimRoleMsg(role="evaluator", ref=self.me))
        if rejection:
            raise UsageError(rejection)

    def snapshot(self) -> State:
        return {}  # the messages hold all the state

    def restore(self, state: State) -> None:
        """Do nothing: there is no state."""

    @on(EvaluateMsg)
    async def evaluate(self, msg: EvaluateMsg) -> None:
        rng = np.random.default_rng(msg.seed)
        n_envs, env_seed = min(EVALUATION_ENVS, msg.episodes), int(rng.integers(1 << 62))
        arguments = (self.env, n_envs, env_seed, self.policy, msg.params, msg.episodes, rng)
        played = await self.offload(with_threads, self.threads, play_once, *arguments)
        await self.to.tell(
            EvaluationResultMsg(
                version=msg.version,
                env_steps=msg.env_steps,
                episodes=msg.episodes,
                win_rate=float(played.won.mean()),
                mean_return=float(played.returns.mean()),
                mean_length=float(played.lengths.mean()),
                final=msg.final,
            )
        )
