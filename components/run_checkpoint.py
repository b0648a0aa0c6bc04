"""The checkpoint of a run that its Orchestrator takes: its progress, its files, and the other actors that save."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from components.checkpoints import run_state
from components.save_point import SavePoint
from messages import NotSavedMsg, SaveCheckpointMsg
from orchestra import AskFailed, CannotWrite, DeliveryError, Ref, UsageError, collect_files

LAST_SAVE_S = 5.0
"""Seconds for the checkpoint of a run that has failed, which ends within ten seconds."""


class RunCheckpoint:
    """Begins, completes and abandons the checkpoints of a run, for its Orchestrator.

    Args:
        run_directory: directory of the run; None for a run that keeps no files and takes no checkpoints.
        address: address of the Orchestrator.
        others: the actors beside it, except the Trainer.
        keep: another checkpoint, which is not removed.
    """

    def __init__(
        self, run_directory: Path | None, address: str, others: Sequence[Ref[SaveCheckpointMsg]], keep: Path | None
    ) -> None:
        self.point = SavePoint()
        self._run_directory = run_directory
        self._address = address
        self._others = others
        self._keep = keep

    def begin(self, env_steps: int, addresses: Iterable[str]) -> None:
        """Begin the checkpoint after `env_steps` steps; the actors at these addresses save first."""
        self.point.begin(env_steps, addresses, run_state.attempt(run_state.begin, self._folder, env_steps))

    async def complete(
        self,
        trainer: Ref[SaveCheckpointMsg],
        env_steps: int,
        values: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]],
    ) -> str:
        """Let the actors beside the Orchestrator save, write its own state, and commit.

        Args:
            trainer: the Trainer.
            env_steps: environment steps of the run; transitions that arrived since `begin` belong to the checkpoint.
            values: plain values of the Orchestrator.
            arrays: arrays of the Orchestrator, by name.

        Returns:
            The error in words, or an empty text.

        Raises:
            AskFailed, DeliveryError: an actor failed or is gone.
        """
        begun = self.point.env_steps
        try:
            if begun is not None and begun != env_steps:
                run_state.rename(self._folder, begun, env_steps)
            if begun is not None and (error := await self._collect(begun, env_steps)):
                return error
            for ref in (trainer, *self._others):
                if error := await ask_to_save(ref, env_steps):
                    return error
            run_state.write(self._folder, env_steps, self._address, values, arrays)
            run_state.commit(self._folder, env_steps, keep=self._keep)
            self.point.commit(env_steps)
        except OSError as failed:
            return run_state.reason(failed)
        return ""

    async def _collect(self, begun: int, env_steps: int) -> str:
        """Collect the files that actors of other hosts have saved; return the error in words, or an empty text."""
        staged, final = (run_state.staging_folder(Path(), steps).as_posix() for steps in (begun, env_steps))
        return await collect_files(self._address, f"{staged}/*", into=final)

    async def save_without_workers(self, env_steps: int, save: Callable[[], Awaitable[str]]) -> str:
        """Begin a checkpoint and `save` it; if that fails, discard it and return the error, else an empty text.

        It takes at most `LAST_SAVE_S` seconds, so busy actors may answer too late.
        """
        self.begin(env_steps, ())
        try:
            async with asyncio.timeout(LAST_SAVE_S):
                error = self.point.error or await save()
        except (AskFailed, DeliveryError) as failed:
            error = str(failed)
        except TimeoutError:
            error = f"not all actors have saved within {LAST_SAVE_S:g} s"
        if error:
            run_state.discard(self._folder, env_steps)
        return error

    def abandon(self, env_steps: int, error: str) -> CannotWrite:
        """Abandon the checkpoint that is being taken; return the error for a run that must have it."""
        run_state.discard(self._folder, self.point.env_steps, env_steps)
        self.point.abandon()
        return self.cannot_save(error)

    def cannot_save(self, error: str) -> CannotWrite:
        """Return the error that ends a run that cannot save; it names the last complete checkpoint."""
        return CannotWrite(f"cannot save: {error}; {run_state.last_complete(self._folder)}")

    @property
    def _folder(self) -> Path:
        if self._run_directory is None:
            raise UsageError("this run keeps no files, so there is no place for a checkpoint")
        return self._run_directory


async def ask_to_save(actor: Ref[SaveCheckpointMsg], env_steps: int) -> str:
    """Ask `actor` to save; return its error, or an empty text.

    Raises:
        AskFailed, DeliveryError: the actor failed or is gone.
    """
    answer = await actor.ask(SaveCheckpointMsg(env_steps=env_steps))
    return answer.error if isinstance(answer, NotSavedMsg) else ""
