"""The end of a checkpoint of the run: the actors beside the Orchestrator save; it is committed, or abandoned."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from components.checkpoints import run_state
from components.save_point import SavePoint
from messages import NotSavedMsg, SaveCheckpointMsg
from orchestra import AskFailed, CannotWrite, DeliveryError, Ref


async def complete(
    run_directory: Path,
    save_point: SavePoint,
    env_steps: int,
    actors: Sequence[Ref[SaveCheckpointMsg]],
    address: str,
    values: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]],
    *,
    begun: int,
    keep: Path | None,
) -> str:
    """Have `actors` save, write the `values` of the actor at `address`, and commit; return the error, or an empty text.

    Args:
        run_directory: of the run.
        save_point: records the commit.
        env_steps: of the checkpoint.
        actors: answer `SaveCheckpointMsg`.
        address: of the asking actor.
        values: of the asking actor.
        arrays: of the asking actor, by name.
        begun: environment steps when the checkpoint was begun; the transitions that have arrived since belong to it.
        keep: another checkpoint that is not removed.

    Raises:
        AskFailed, DeliveryError: an actor failed or is gone.
    """
    try:
        if begun != env_steps:
            run_state.rename(run_directory, begun, env_steps)
        for ref in actors:
            if error := await ask_to_save(ref, env_steps):
                return error
        run_state.write(run_directory, env_steps, address, values, arrays)
        run_state.commit(run_directory, env_steps, keep=keep)
        save_point.commit(env_steps)
    except OSError as failed:
        return run_state.reason(failed)
    return ""


async def save_if_possible(run_directory: Path, env_steps: int, save: Callable[[], Awaitable[str]]) -> str:
    """Begin a checkpoint and `save` it; where that fails, discard it and return why, else an empty text."""
    try:
        run_state.begin(run_directory, env_steps)
        error = await save()
    except (AskFailed, DeliveryError, OSError) as failed:
        error = str(failed)
    if error:
        run_state.discard(run_directory, env_steps)
    return error


async def ask_to_save(actor: Ref[SaveCheckpointMsg], env_steps: int) -> str:
    """Have `actor` save; return why it cannot, or an empty text.

    Raises:
        AskFailed, DeliveryError: it failed or is gone.
    """
    answer = await actor.ask(SaveCheckpointMsg(env_steps=env_steps))
    return answer.error if isinstance(answer, NotSavedMsg) else ""


def abandon(run_directory: Path, save_point: SavePoint, env_steps: int, error: str) -> CannotWrite:
    """Abandon the checkpoint that is being taken; return the error for a run that must have it."""
    run_state.discard(run_directory, save_point.env_steps, env_steps)
    save_point.abandon()
    return cannot_save(run_directory, error)


def cannot_save(run_directory: Path, error: str) -> CannotWrite:
    """Return the error that ends a run which cannot save, and names its last complete checkpoint."""
    return CannotWrite(f"cannot save: {error}; {run_state.last_complete(run_directory)}")
