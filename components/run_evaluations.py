"""Evaluations of a run: those without a result yet, and the parameters of the best one, exactly as they played."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from components.checkpoints.policy_file import BEST, save_params
from components.evaluation_queue import EvaluationQueue
from messages import EvaluateMsg, EvaluationResultMsg, LoadParamsMsg
from orchestra import Ref, RunDirectory


@dataclass
class RunEvaluations(EvaluationQueue):
    """A queue that keeps the parameters of the best evaluation but the final one.

    The best has the highest win rate; of equal ones the highest mean return; of these it is the earliest.
    """

    best: EvaluationResultMsg | None = None
    """The best result; None before the first."""
    best_params: LoadParamsMsg | None = None
    """The parameters that had it; None before the first result."""

    def request(
        self,
        params: LoadParamsMsg,
        env_steps: int,
        episodes: int,
        *,
        final: bool,
        reply_to: Ref[EvaluationResultMsg],
    ) -> None:
        """Add an evaluation of `params`, which are those after `env_steps` steps, or the final one of the best."""
        if final and self.best is not None and self.best_params is not None:
            params, env_steps = self.best_params, self.best.env_steps
        played: dict[str, Any] = {"version": params.version, "params": params.params, "env_steps": env_steps}
        self.add(EvaluateMsg(**played, episodes=episodes, final=final, reply_to=reply_to))

    def finished(self, result: EvaluationResultMsg) -> EvaluateMsg | None:
        """Do as in `EvaluationQueue`, and keep the parameters if `result` is better than the best so far."""
        message = super().finished(result)
        if message is not None and not message.final and (self.best is None or _rank(result) > _rank(self.best)):
            self.best = result
            self.best_params = LoadParamsMsg(
                version=message.version, params=message.params, env_steps=message.env_steps
            )
        return message

    def save_best(self, run_directory: Path | None) -> None:
        """Write the best parameters to `checkpoints/best.pt` of the run, if there are any and it keeps files.

        Raises:
            OSError: the file cannot be written.
        """
        if self.best is not None and self.best_params is not None and run_directory is not None:
            path = RunDirectory(run_directory).checkpoints / BEST
            save_params(path, self.best_params.params, self.best_params.version, self.best.env_steps)

    def values(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint keeps, in which no evaluation is assigned."""
        return {"turn": self.turn, "best": None if self.best is None else self.best.model_dump()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that a checkpoint keeps."""
        return {} if self.best_params is None else {"best": self.best_params.params}

    def load(self, values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Continue from the `values` and `arrays` of other evaluations."""
        self.turn = values["turn"]
        if values["best"] is not None:
            self.best = EvaluationResultMsg.model_validate(values["best"])
            self.best_params = LoadParamsMsg(
                version=self.best.version, params=arrays["best"], env_steps=self.best.env_steps
            )


def _rank(result: EvaluationResultMsg) -> tuple[float, float]:
    return result.win_rate, result.mean_return
