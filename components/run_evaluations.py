"""Evaluations of a run: those without a result yet, and the parameters of the best one, exactly as they played."""

from dataclasses import field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from components.checkpoints.policy_file import BEST, save_params
from components.downstream import send_downstream
from messages import EvaluateMsg, EvaluationResultMsg, LoadParamsMsg
from orchestra import Ref, RunDirectory

MOST_WAITING = 4
"""Evaluations that wait for the Evaluator. A further one takes the place of the oldest."""


@dataclass
class RunEvaluations:
    """Sends evaluations to the Evaluator one after the other, and keeps the parameters of the best but the final one.

    The best has the highest win rate; among equal ones the highest mean return; among these it is the earliest. The
    fields are the state. The constructor also accepts messages as dicts of their fields.
    """

    evaluator: Ref[Any] | None = None
    """The Evaluator, which plays the first of `pending`; None before it joins, and after it is lost."""
    pending: list[EvaluateMsg] = field(default_factory=list)
    """Evaluations without a result, in the order in which they are played."""
    best: EvaluationResultMsg | None = None
    """The best result; None before the first."""
    best_params: LoadParamsMsg | None = None
    """The parameters of the best result; None before the first."""
    requested: int | None = None
    """Environment steps of the newest evaluation, except the final one; None before the first."""

    async def join(self, evaluator: Ref[Any]) -> None:
        """Send evaluations to `evaluator` from now on, from the first without a result."""
        self.evaluator = evaluator
        await self._send_first()

    def leave(self, address: str) -> bool:
        """Keep the evaluations for the next Evaluator if this one is at `address`; return whether it is."""
        if self.evaluator is None or self.evaluator.address != address:
            return False
        self.evaluator = None
        return True

    async def request(
        self, params: LoadParamsMsg, env_steps: int, episodes: int, seed: int, *, final: bool = False
    ) -> EvaluateMsg | None:
        """Request an evaluation of `params`, the parameters after `env_steps` steps, or the final one of the best.

        Returns:
            The evaluation that is skipped because the Evaluator is too slow; None if none is.
        """
        if final and self.best is not None and self.best_params is not None:
            params, env_steps = self.best_params, self.best.env_steps
        if not final:
            self.requested = env_steps
        played: dict[str, Any] = {"version": params.version, "params": params.params, "env_steps": env_steps}
        self.pending.append(EvaluateMsg(**played, episodes=episodes, seed=seed, final=final))
        if len(self.pending) == 1:
            await self._send_first()
        return self.pending.pop(1) if len(self.pending) > 1 + MOST_WAITING else None

    async def finished(self, result: EvaluationResultMsg) -> bool:
        """Keep the parameters if `result` is the best so far, and send the next evaluation.

        Returns:
            False if `result` is not that of the first pending evaluation: it is from an Evaluator regarded as dead.
        """
        if not self.pending or _key(result) != _key(self.pending[0]):
            return False
        message = self.pending.pop(0)
        if not message.final and (self.best is None or _rank(result) > _rank(self.best)):
            self.best = result
            self.best_params = LoadParamsMsg(
                version=message.version, params=message.params, env_steps=message.env_steps
            )
        await self._send_first()
        return True

    def save_best(self, run_directory: Path | None) -> None:
        """Write the best parameters, if any, to `checkpoints/best.pt` of the run, if it keeps files.

        Raises:
            OSError: the file cannot be written.
        """
        if self.best is not None and self.best_params is not None and run_directory is not None:
            path = RunDirectory(run_directory).checkpoints / BEST
            save_params(path, self.best_params.params, self.best_params.version, self.best.env_steps)

    def values(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps: the best result, and the evaluations without a result.

        The final evaluation is left out: a resumed run may find better parameters.
        """
        pending = [message.model_dump(exclude={"params"}) for message in self._kept()]
        best = None if self.best is None else self.best.model_dump()
        return {"best": best, "pending": pending, "requested": self.requested}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that a checkpoint keeps."""
        best = {} if self.best_params is None else {"best": self.best_params.params}
        return best | {f"pending/{index}": message.params for index, message in enumerate(self._kept())}

    def load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from the `values` and `arrays` of other evaluations."""
        self.pending = [
            EvaluateMsg(**each, params=arrays[f"pending/{index}"]) for index, each in enumerate(values["pending"])
        ]
        self.requested = values["requested"]
        if values["best"] is not None:
            self.best = EvaluationResultMsg.model_validate(values["best"])
            self.best_params = LoadParamsMsg(
                version=self.best.version, params=arrays["best"], env_steps=self.best.env_steps
            )

    def _kept(self) -> list[EvaluateMsg]:
        return [message for message in self.pending if not message.final]

    async def _send_first(self) -> None:
        if self.evaluator is not None and self.pending:
            await send_downstream(self.evaluator, self.pending[0])


def _key(evaluation: EvaluateMsg | EvaluationResultMsg) -> tuple[int, bool]:
    return evaluation.env_steps, evaluation.final


def _rank(result: EvaluationResultMsg) -> tuple[float, float]:
    return result.win_rate, result.mean_return
